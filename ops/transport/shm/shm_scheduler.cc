#include "ops/transport/shm/shm_scheduler.h"

#include <utility>

#include "ops/transport/shm/board.h"

namespace hvd::shm {
namespace {

constexpr int64_t kCheckNs = 250'000'000;
constexpr int64_t kDeferredNs = 1'000'000;  // between two looks at a full board

int QuietChecks(double seconds) {
  return seconds <= 0 ? 0 : static_cast<int>(seconds * 1e9 / kCheckNs) + 1;
}

}  // namespace

ShmScheduler::ShmScheduler(std::shared_ptr<Segment> segment, std::shared_ptr<Waiter> waiter,
                           int rank, const Patience& patience)
    : segment_(std::move(segment)),
      waiter_(std::move(waiter)),
      rank_(rank),
      stuck_detector_(segment_.get(), waiter_.get(), rank, QuietChecks(patience.deadlock_seconds)),
      stall_reporter_(std::make_shared<StallReporter>(
          segment_, rank, patience.stall_warning_seconds, patience.stall_shutdown_seconds)),
      requests_(kMaxBoardSlots) {
  waiter_->set_while_waiting([reporter = stall_reporter_](int peer, int64_t waited_ns) {
    return reporter->CheckPeer(peer, waited_ns);
  });
}

Status ShmScheduler::TryPost(Announcement* announcement, bool* posted) {
  std::vector<int> to_wake;
  {
    BoardLock lock(segment_.get());
    HVD_RETURN_IF_ERROR(lock.status());
    const int32_t slot = FindOrAddSlot(segment_.get(), *announcement);
    *posted = slot >= 0;
    if (!*posted) return Status::Ok();
    // The request first: the engine's thread may take it as soon as Arrive() has published it.
    const Arrival arrival{announcement->fingerprint, !announcement->request->fault.ok(),
                          announcement->request->kind == CollectiveKind::kJoin,
                          announcement->request->timeout_seconds};
    requests_[slot] = std::move(announcement->request);
    to_wake = Arrive(segment_.get(), slot, rank_, arrival);
  }
  for (int rank : to_wake) waiter_->Wake(rank, Waiter::kQueue);
  return Status::Ok();
}

Status ShmScheduler::Post(Announcement* announcement) {
  HVD_RETURN_IF_ERROR(segment_->AbortStatus());
  pending_.fetch_add(1);
  bool posted = false;
  // What was announced before a join must not come after it.
  const bool must_wait =
      has_deferred_.load() && announcement->request->kind == CollectiveKind::kJoin;
  if (!must_wait) {
    const Status status = TryPost(announcement, &posted);
    if (!status.ok()) pending_.fetch_sub(1);
    HVD_RETURN_IF_ERROR(status);
  }
  if (posted) return Status::Ok();
  std::lock_guard<std::mutex> lock(deferred_mutex_);
  deferred_.push_back(std::move(*announcement));
  has_deferred_.store(true);
  return Status::Ok();
}

// Not in order: an announcement further back may be the one that others wait for.
Status ShmScheduler::PostDeferred() {
  if (!has_deferred_.load()) return Status::Ok();
  std::lock_guard<std::mutex> lock(deferred_mutex_);
  std::deque<Announcement> still;
  Status status;
  for (Announcement& announcement : deferred_) {
    bool posted = false;
    const bool is_join = announcement.request->kind == CollectiveKind::kJoin;
    if (status.ok() && !(is_join && !still.empty())) status = TryPost(&announcement, &posted);
    if (!posted) still.push_back(std::move(announcement));
  }
  deferred_ = std::move(still);
  has_deferred_.store(!deferred_.empty());
  return status;
}

Status ShmScheduler::WaitForQueue() {
  const std::atomic<uint64_t>& queued = segment_->line(rank_).queued;
  const auto ready = [&] {
    return queued.load(std::memory_order_seq_cst) > taken_ ||
           interrupted_.load(std::memory_order_seq_cst);
  };
  int64_t waited_ns = 0;
  while (!ready()) {
    const int64_t slice = has_deferred_.load() ? kDeferredNs : kCheckNs;
    if (waiter_->WaitSlice(Waiter::kQueue, slice, ready)) break;
    HVD_RETURN_IF_ERROR(PostDeferred());
    waited_ns += slice;
    if (waited_ns < kCheckNs) continue;
    waited_ns = 0;
    HVD_RETURN_IF_ERROR(waiter_->CheckPeers());
    HVD_RETURN_IF_ERROR(stuck_detector_.Check(pending_.load() > 0));
    if (pending_.load() > 0) HVD_RETURN_IF_ERROR(stall_reporter_->CheckBoard());
  }
  return Status::Ok();
}

Status ShmScheduler::Next(Assignment* assignment) {
  HVD_RETURN_IF_ERROR(segment_->AbortStatus());
  HVD_RETURN_IF_ERROR(WaitForQueue());
  if (interrupted_.load()) return FailedPrecondition("hvd.shutdown() has been called on this rank");
  Take(assignment);
  return Status::Ok();
}

void ShmScheduler::Take(Assignment* assignment) {
  const int32_t index =
      segment_->queue(rank_)[taken_ % kMaxBoardSlots].load(std::memory_order_relaxed);
  ++taken_;
  pending_.fetch_sub(1);
  const BoardSlot& slot = segment_->board().slots[index];
  assignment->request = std::move(requests_[index]);
  assignment->ticket = slot.ticket;
  assignment->ranks = RanksOf(slot.arrived_bits, segment_->ranks());
  assignment->last_rank = slot.last_rank;
  assignment->handle = index;
  if (slot.failed != 0) {
    BoardLock lock(segment_.get());  // the text may be replaced by another failure's
    assignment->verdict = Assignment::Verdict::kFailed;
    assignment->error = Status(static_cast<Code>(slot.failed), segment_->board().failure_text);
  } else if (slot.mismatch) {
    assignment->verdict = Assignment::Verdict::kMismatch;
  }
}

void ShmScheduler::Complete(int64_t handle) {
  shm::Complete(segment_.get(), static_cast<int32_t>(handle));
  // An error here shows in the next call of Next().
  if (has_deferred_.load()) (void)PostDeferred().ok();
}

void ShmScheduler::Interrupt() {
  interrupted_.store(true, std::memory_order_seq_cst);
  waiter_->Wake(rank_, Waiter::kQueue);
}

std::vector<std::unique_ptr<Request>> ShmScheduler::Drain() {
  std::vector<std::unique_ptr<Request>> drained;
  for (std::unique_ptr<Request>& request : requests_) {
    if (request) drained.push_back(std::move(request));
  }
  std::lock_guard<std::mutex> lock(deferred_mutex_);
  for (Announcement& announcement : deferred_) drained.push_back(std::move(announcement.request));
  deferred_.clear();
  return drained;
}

}  // namespace hvd::shm
