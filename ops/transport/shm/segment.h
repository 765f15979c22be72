// Segment: the shared memory of all ranks on one host.
//
// An address names it: "/proc/PID/fd/N", an anonymous memory file that the launcher keeps open (it
// has no name in /dev/shm, no size limit of that mount, and only the same user can open it), or
// "shm:NAME" for processes that were started by hand: a POSIX segment that is unlinked as soon as
// all ranks are attached.
#ifndef HVD_TRANSPORT_SHM_SEGMENT_H_
#define HVD_TRANSPORT_SHM_SEGMENT_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/core/status.h"
#include "ops/transport/shm/layout.h"

namespace hvd::shm {

struct SegmentOptions {
  int ranks = 1;
  int64_t chunk_bytes = 256 * 1024;  // a multiple of 64
  int slots_per_rank = 4;
};

class Segment {
 public:
  // Memory of this process alone, for a world of one and for tests with threads as ranks.
  static Status CreateAnonymous(const SegmentOptions& options, std::shared_ptr<Segment>* segment);

  // Rank 0 creates the content, the others wait for it. `generation` is 1 for the first use of the
  // address in a job, 2 after one shutdown, and so on.
  static Status Open(const std::string& address, int rank, uint64_t generation,
                     const SegmentOptions& options, std::chrono::nanoseconds timeout,
                     std::shared_ptr<Segment>* segment);

  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  // Announces this rank, which is `global_rank` among those of all hosts, and waits until all of
  // this host are there.
  Status Attach(int rank, int global_rank, std::chrono::nanoseconds timeout);

  Header& header() { return *header_; }
  Board& board() { return header_->board; }
  RankLine& line(int rank) { return lines_[rank]; }
  int ranks() const { return header_->ranks; }
  int64_t chunk_bytes() const { return header_->chunk_bytes; }
  int slots_per_rank() const { return header_->slots_per_rank; }

  RankReport& report(int rank) { return reports_[rank]; }

  // The queue of agreed collectives of one rank: kQueueEntries, used as a ring; see QueueEntry().
  std::atomic<uint64_t>* queue(int rank) {
    return queues_ + static_cast<int64_t>(rank) * kQueueEntries;
  }

  // A rank of this host in the job as a whole; what messages speak of. Known once attached.
  int global_rank(int rank) { return line(rank).global_rank.load(std::memory_order_relaxed); }
  std::vector<int> GlobalRanks(std::vector<int> ranks) {
    for (int& rank : ranks) rank = global_rank(rank);
    return ranks;
  }

  // Where `rank` puts its `slot`-th chunk for the others to read.
  char* slot(int rank, int slot) {
    return data_ +
           (static_cast<int64_t>(rank) * header_->slots_per_rank + slot) * header_->chunk_bytes;
  }

  // Ends the job on all ranks: every wait returns kAborted with this text. The first caller wins.
  void Abort(const std::string& text);
  // Ends it because of an exception on `rank`, with its traceback.
  void AbortForException(int rank, const std::string& traceback);
  bool aborted() const;
  Status AbortStatus() const;  // Ok while the job runs

  // Calls a rank's watcher for WatcherCall bits. Callable from any thread, and from a signal
  // handler.
  void CallWatcher(int rank, uint32_t calls);
  // Waits for such calls, and takes them; 0 after the time is up.
  uint32_t WaitForCalls(int rank, std::chrono::nanoseconds timeout);

 private:
  Segment() = default;
  Status Map(int fd, int64_t bytes);
  void SetPointers();
  Status Initialize(const SegmentOptions& options, uint64_t generation);
  static Status OpenAsCreator(const std::string& address, uint64_t generation,
                              const SegmentOptions& options, std::chrono::nanoseconds timeout,
                              Segment* segment);
  static Status OpenAsMember(const std::string& address, uint64_t generation,
                             const SegmentOptions& options, std::chrono::nanoseconds timeout,
                             Segment* segment);

  void* base_ = nullptr;
  int64_t mapped_bytes_ = 0;
  std::string unlink_name_;  // of a POSIX segment that this process must still unlink
  Header* header_ = nullptr;
  RankLine* lines_ = nullptr;
  RankReport* reports_ = nullptr;
  std::atomic<uint64_t>* queues_ = nullptr;
  char* data_ = nullptr;
};

}  // namespace hvd::shm

#endif  // HVD_TRANSPORT_SHM_SEGMENT_H_
