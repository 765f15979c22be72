#include "ops/transport/shm/waiter.h"

#include <poll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "ops/transport/shm/futex.h"
#include "ops/transport/shm/process.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434  // the same number on every architecture
#endif

namespace hvd::shm {
namespace {

constexpr int64_t kSliceNs = 100'000'000;

// For the launcher to say how a rank has ended.
constexpr int kObituaryMs = 500;

void WaitForObituary(const Obituary& obituary) {
  for (int ms = 0; ms < kObituaryMs && obituary.is_known.load() == 0; ++ms) {
    const timespec pause{0, 1'000'000};
    nanosleep(&pause, nullptr);
  }
}

}  // namespace

Peers::Peers(Segment* segment, int rank) : segment_(segment), rank_(rank) {
  pidfds_.assign(segment->ranks(), -1);
  for (int r = 0; r < segment->ranks(); ++r) {
    const pid_t pid = segment->line(r).pid.load();
    if (r == rank || pid == getpid()) continue;  // ranks can be threads, in tests
    pidfds_[r] = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  }
}

Peers::~Peers() {
  for (int fd : pidfds_) {
    if (fd >= 0) close(fd);
  }
}

Status Peers::Check() {
  HVD_RETURN_IF_ERROR(segment_->AbortStatus());
  std::vector<pollfd> polled(pidfds_.size());
  for (size_t r = 0; r < pidfds_.size(); ++r) polled[r] = {pidfds_[r], POLLIN, 0};
  if (poll(polled.data(), polled.size(), 0) <= 0) return Status::Ok();
  for (int r = 0; r < segment_->ranks(); ++r) {
    // A process leaves before it exits, so the order of these two reads matters.
    const bool exited = (polled[r].revents & POLLIN) != 0;
    if (!exited || segment_->line(r).state.load() == kLeft) continue;
    const Obituary& obituary = segment_->header().obituaries[r];
    if (segment_->header().has_launcher) WaitForObituary(obituary);
    const std::string how = obituary.is_known.load() != 0
                                ? DescribeReturncode(obituary.returncode)
                                : "its own output, or that of whoever started it, says why";
    segment_->Abort(RankOnThisHost(segment_->global_rank(r), segment_->line(r).pid.load()) +
                    " died: " + how + ". Noticed by rank " +
                    std::to_string(segment_->global_rank(rank_)));
  }
  return segment_->AbortStatus();
}

Waiter::Waiter(std::shared_ptr<Segment> segment, int rank, int spins)
    : segment_(std::move(segment)), rank_(rank), spins_(spins), peers_(segment_.get(), rank) {}

void Waiter::Sleep(std::atomic<uint32_t>* word, uint32_t expected, int64_t slice_ns) {
  sleeps_.fetch_add(1, std::memory_order_relaxed);
  FutexWait(word, expected, slice_ns);
}

void Waiter::Wake(int rank, uint32_t source) {
  std::atomic<uint32_t>& word = segment_->line(rank).sleeping;
  uint32_t expected = 1 + source;
  if (word.load(std::memory_order_seq_cst) != expected) return;
  if (!word.compare_exchange_strong(expected, 0, std::memory_order_seq_cst)) return;
  wakes_.fetch_add(1, std::memory_order_relaxed);
  FutexWake(&word);
}

Status Waiter::WaitSlowly(const std::atomic<uint64_t>& counter, uint64_t target, int peer) {
  const auto ready = [&] { return counter.load(std::memory_order_seq_cst) >= target; };
  int64_t waited_ns = 0;  // at least
  while (!WaitSlice(static_cast<uint32_t>(peer), kSliceNs, ready)) {
    HVD_RETURN_IF_ERROR(CheckPeers());
    waited_ns += kSliceNs;
    if (while_waiting_) HVD_RETURN_IF_ERROR(while_waiting_(peer, waited_ns));
    if (segment_->line(peer).state.load() == kLeft && !ready()) {
      segment_->Abort("rank " + std::to_string(segment_->global_rank(peer)) +
                      " left the job (hvd.shutdown() or the end of its script) in the middle of a "
                      "collective");
    }
  }
  return Status::Ok();
}

}  // namespace hvd::shm
