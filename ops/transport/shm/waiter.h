// Waiter: how the engine's thread of one rank waits for another rank, and is woken.
//
// A waiting rank spins briefly, since an answer from a running peer takes about a microsecond, and
// then sleeps on a futex, since endless spinning takes the processor from whoever must answer. Each
// sleep has a slice, after which the rank looks at the abort flag and at its peers.
#ifndef HVD_TRANSPORT_SHM_WAITER_H_
#define HVD_TRANSPORT_SHM_WAITER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "ops/core/status.h"
#include "ops/transport/shm/segment.h"

namespace hvd::shm {

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Notices peers that are gone.
class Peers {
 public:
  Peers(Segment* segment, int rank);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  // Aborts the job if a peer died without leaving. One system call.
  Status Check();

 private:
  Segment* const segment_;
  const int rank_;
  std::vector<int> pidfds_;  // by rank; -1 where there is nothing to watch
};

class Waiter {
 public:
  // What a sleeping rank waits for: the progress of a rank (its number), or its own queue.
  static constexpr uint32_t kQueue = kMaxRanks;

  Waiter(std::shared_ptr<Segment> segment, int rank, int spins);

  // Waits until `ready()` or the end of the slice; true if ready. Engine thread only. `ready` must
  // become true by a sequentially consistent store that is followed by Wake(rank, source).
  template <typename Ready>
  bool WaitSlice(uint32_t source, int64_t slice_ns, const Ready& ready) {
    for (int i = 0; i < spins_; ++i) {
      if (ready()) return true;
      Pause();
    }
    std::atomic<uint32_t>& word = segment_->line(rank_).sleeping;
    word.store(1 + source, std::memory_order_seq_cst);
    const bool is_ready = ready();
    if (!is_ready) Sleep(&word, 1 + source, slice_ns);
    word.store(0, std::memory_order_seq_cst);
    return is_ready || ready();
  }

  // Waits until a progress counter of `peer` reaches `target`.
  Status WaitForProgress(const std::atomic<uint64_t>& counter, uint64_t target, int peer) {
    if (counter.load(std::memory_order_acquire) >= target) return Status::Ok();
    return WaitSlowly(counter, target, peer);
  }

  // Wakes `rank` if it sleeps for `source`. Callable from any thread.
  void Wake(int rank, uint32_t source);

  Status CheckPeers() { return peers_.Check(); }

  // Called now and then while this rank waits for a peer in the middle of a collective, with the
  // time so far. To be set before the engine starts.
  void set_while_waiting(std::function<Status(int peer, int64_t waited_ns)> callback) {
    while_waiting_ = std::move(callback);
  }

  // System calls made so far.
  int64_t sleeps() const { return sleeps_.load(std::memory_order_relaxed); }
  int64_t wakes() const { return wakes_.load(std::memory_order_relaxed); }

 private:
  Status WaitSlowly(const std::atomic<uint64_t>& counter, uint64_t target, int peer);
  void Sleep(std::atomic<uint32_t>* word, uint32_t expected, int64_t slice_ns);

  const std::shared_ptr<Segment> segment_;
  const int rank_;
  const int spins_;
  Peers peers_;
  std::function<Status(int, int64_t)> while_waiting_;
  std::atomic<int64_t> sleeps_{0};
  std::atomic<int64_t> wakes_{0};
};

}  // namespace hvd::shm

#endif  // HVD_TRANSPORT_SHM_WAITER_H_
