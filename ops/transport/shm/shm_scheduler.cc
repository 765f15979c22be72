#include "ops/transport/shm/shm_scheduler.h"

#include <numeric>
#include <utility>

#include "ops/transport/shm/crossing.h"

namespace hvd::shm {
namespace {

constexpr int64_t kCheckNs = 250'000'000;
constexpr int64_t kDeferredNs = 1'000'000;  // between two looks at a full board

}  // namespace

int QuietChecks(double seconds) {
  return seconds <= 0 ? 0 : static_cast<int>(seconds * 1e9 / kCheckNs) + 1;
}

ShmScheduler::ShmScheduler(std::shared_ptr<Segment> segment, std::shared_ptr<Waiter> waiter,
                           HostMap map, int rank, const Patience& patience)
    : segment_(std::move(segment)),
      waiter_(std::move(waiter)),
      map_(std::move(map)),
      host_(map_.host_of(rank)),
      rank_(map_.local(rank)),
      stuck_detector_(segment_.get(), waiter_.get(), rank_, QuietChecks(patience.deadlock_seconds),
                      patience.idle_share),
      stall_reporter_(std::make_shared<StallReporter>(
          segment_, rank_, patience.stall_warning_seconds, patience.stall_shutdown_seconds)),
      requests_(kMaxBoardSlots) {
  waiter_->set_while_waiting([reporter = stall_reporter_](int peer, int64_t waited_ns) {
    return reporter->CheckPeer(peer, waited_ns);
  });
}

Members ShmScheduler::MembersOf(const std::vector<int>& ranks) const {
  Members members;
  if (map_.hosts() == 1) {
    members.local = ranks;
    return members;
  }
  for (int rank : ranks) {
    if (map_.host_of(rank) == host_) members.local.push_back(map_.local(rank));
  }
  members.spans = members.local.size() < ranks.size();
  members.by_all = ranks.size() == static_cast<size_t>(map_.size());
  return members;
}

Status ShmScheduler::TryPost(Announcement* announcement, bool* posted) {
  std::vector<int> to_wake;
  const Members members = MembersOf(announcement->ranks);
  {
    BoardLock lock(segment_.get());
    HVD_RETURN_IF_ERROR(lock.status());
    const int32_t slot = FindOrAddSlot(segment_.get(), *announcement, members);
    *posted = slot >= 0;
    if (!*posted) return Status::Ok();
    // The request first: the engine's thread may take it as soon as Arrive() has published it.
    const Arrival arrival{announcement->fingerprint, !announcement->request->fault.ok(),
                          announcement->request->kind == CollectiveKind::kJoin,
                          announcement->request->timeout_seconds};
    requests_[slot] = {std::move(announcement->request), std::move(announcement->ranks)};
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
  const auto ready = [&] { return queued.load(std::memory_order_seq_cst) > taken_ || MayLeave(); };
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
  do {
    HVD_RETURN_IF_ERROR(segment_->AbortStatus());
    HVD_RETURN_IF_ERROR(WaitForQueue());
    if (MayLeave()) {
      return FailedPrecondition("hvd.shutdown() has been called on this rank");
    }
  } while (!Take(assignment));
  return Status::Ok();
}

bool ShmScheduler::Take(Assignment* assignment) {
  const uint64_t entry =
      segment_->queue(rank_)[taken_ % kQueueEntries].load(std::memory_order_relaxed);
  ++taken_;
  const auto index = static_cast<int32_t>(entry % kMaxBoardSlots);
  const BoardSlot& slot = segment_->board().slots[index];
  const Ticket ticket = slot.ticket.load(std::memory_order_acquire);
  // Taken back when a plan was left: this rank has seen that itself by now, so what follows is no
  // race.
  if (QueueEntry(ticket, index) != entry) return false;
  assignment->ticket = ticket;
  assignment->handle = index;
  if (slot.leaves) {
    assignment->verdict = Assignment::Verdict::kLeavePlan;
    assignment->opening = static_cast<Opening>(slot.opening);
    assignment->ranks.resize(map_.size());
    std::iota(assignment->ranks.begin(), assignment->ranks.end(), 0);
    return true;
  }
  pending_.fetch_sub(1);
  assignment->request = std::move(requests_[index].request);
  assignment->by_plan = slot.plan_epoch != 0;
  assignment->first_ns = slot.posted_ns;
  assignment->agreed_ns = slot.failed != 0 ? 0 : slot.published_ns;
  if (!slot.spans) {
    assignment->ranks = segment_->GlobalRanks(RanksOf(slot.arrived_bits, segment_->ranks()));
    assignment->last_rank = segment_->global_rank(slot.last_rank);
  } else {
    assignment->ranks = slot.has_participants ? RanksOf(slot.participants, map_.size())
                                              : std::move(requests_[index].ranks);
    assignment->last_rank = slot.last_rank;
  }
  if (slot.failed != 0) {
    BoardLock lock(segment_.get());  // the text may be replaced by another failure's
    assignment->verdict = Assignment::Verdict::kFailed;
    assignment->error = Status(static_cast<Code>(slot.failed), segment_->board().failure_text);
  } else if (slot.mismatch) {
    assignment->verdict = Assignment::Verdict::kMismatch;
  }
  return true;
}

void ShmScheduler::Complete(int64_t handle) {
  shm::Complete(segment_.get(), static_cast<int32_t>(handle));
  // An error here shows in the next call of Next().
  if (has_deferred_.load()) (void)PostDeferred().ok();
}

Status ShmScheduler::GiveBack(Assignment assignment) {
  const auto index = static_cast<int32_t>(assignment.handle);
  BoardLock lock(segment_.get());
  HVD_RETURN_IF_ERROR(lock.status());
  if (assignment.request) {
    requests_[index] = {std::move(assignment.request), std::move(assignment.ranks)};
    pending_.fetch_add(1);
  }
  shm::GiveBack(segment_.get(), index);
  return Status::Ok();
}

bool ShmScheduler::MayLeave() const {
  if (!interrupted_.load(std::memory_order_seq_cst)) return false;
  if (map_.hosts() == 1) return true;
  const Crossing& crossing = segment_->board().crossing;
  return crossing.plans_over.load() != 0 && crossing.plan_active.load() == 0 &&
         segment_->line(rank_).queued.load() == taken_;
}

void ShmScheduler::Interrupt() {
  if (map_.hosts() > 1) {
    BoardLock lock(segment_.get());
    if (lock.status().ok()) {
      for (int rank : Depart(segment_.get())) waiter_->Wake(rank, Waiter::kQueue);
    }
  }
  interrupted_.store(true, std::memory_order_seq_cst);
  waiter_->Wake(rank_, Waiter::kQueue);
}

std::vector<std::unique_ptr<Request>> ShmScheduler::Drain() {
  std::vector<std::unique_ptr<Request>> drained;
  for (Pending& pending : requests_) {
    if (pending.request) drained.push_back(std::move(pending.request));
  }
  std::lock_guard<std::mutex> lock(deferred_mutex_);
  for (Announcement& announcement : deferred_) drained.push_back(std::move(announcement.request));
  deferred_.clear();
  return drained;
}

}  // namespace hvd::shm
