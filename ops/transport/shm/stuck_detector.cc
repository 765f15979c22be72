#include "ops/transport/shm/stuck_detector.h"

#include <algorithm>
#include <string>

#include "ops/core/clock.h"
#include "ops/core/ranks.h"
#include "ops/transport/shm/board.h"
#include "ops/transport/shm/crossing.h"
#include "ops/transport/shm/process.h"

namespace hvd::shm {
namespace {

constexpr size_t kMaxListed = 8;  // collectives, or ranks, named in a message

bool IsWaiting(const BoardSlot& slot) { return slot.in_use && !slot.published; }

}  // namespace

StuckDetector::StuckDetector(Segment* segment, Waiter* waiter, int rank, int quiet_checks,
                             double idle_share)
    : segment_(segment),
      waiter_(waiter),
      rank_(rank),
      quiet_checks_needed_(static_cast<uint32_t>(quiet_checks)),
      idle_share_(idle_share),
      seen_checks_(segment->ranks(), 0) {}

Status StuckDetector::Check(bool has_pending) {
  RankLine& mine = segment_->line(rank_);
  mine.checks.fetch_add(1);
  quiet_checks_ = IsQuiet(has_pending) ? quiet_checks_ + 1 : 0;
  mine.quiet_checks.store(quiet_checks_);
  const bool all_alive = AllAlive();
  if (!has_pending) return Status::Ok();
  HVD_RETURN_IF_ERROR(FailWhatMissesALeaver());
  HVD_RETURN_IF_ERROR(FailWhatIsLate());
  if (quiet_checks_needed_ == 0 || quiet_checks_ < quiet_checks_needed_ || !all_alive) {
    return Status::Ok();
  }
  return FailWhatWaitsInACircle();
}

bool StuckDetector::IsQuiet(bool has_pending) {
  const uint64_t activity = segment_->board().activity.load();
  const int64_t cpu_ns = ClockNs(CLOCK_PROCESS_CPUTIME_ID);
  const int64_t time_ns = ClockNs(CLOCK_MONOTONIC);
  const bool idle = static_cast<double>(cpu_ns - last_cpu_ns_) <
                    idle_share_ * static_cast<double>(time_ns - last_time_ns_);
  const bool quiet = has_pending && activity == last_activity_ && idle;
  last_activity_ = activity;
  last_cpu_ns_ = cpu_ns;
  last_time_ns_ = time_ns;
  return quiet;
}

// A stopped process does not update its line: what it last wrote there is not evidence.
bool StuckDetector::AllAlive() {
  bool alive = true;
  for (int r = 0; r < segment_->ranks(); ++r) {
    const uint64_t checks = segment_->line(r).checks.load();
    if (checks == seen_checks_[r] && r != rank_) alive = false;
    seen_checks_[r] = checks;
  }
  return alive;
}

// One at a time, since the board has one text; the next check goes on.
template <typename Reason>
Status StuckDetector::FailFirst(Code code, const Reason& reason) {
  std::vector<int> to_wake;
  {
    BoardLock lock(segment_);
    HVD_RETURN_IF_ERROR(lock.status());
    Board& board = segment_->board();
    for (int32_t i = 0; i < kMaxBoardSlots && to_wake.empty(); ++i) {
      const BoardSlot& slot = board.slots[i];
      if (!IsWaiting(slot) || !HasBit(slot.arrived_bits, rank_)) continue;
      const std::string text = reason(slot);
      if (text.empty()) continue;
      if (slot.spans && board.crossing.failing >= 0) continue;  // one at a time, like the text
      SetFailureText(&board, text);
      if (slot.spans) {
        AskToFail(segment_, i, code);
        break;
      }
      to_wake = Fail(segment_, i, code);
    }
  }
  for (int r : to_wake) waiter_->Wake(r, Waiter::kQueue);
  return Status::Ok();
}

Status StuckDetector::FailWhatMissesALeaver() {
  return FailFirst(Code::kAborted, [this](const BoardSlot& slot) -> std::string {
    for (int r : MissingRanks(segment_, slot)) {
      if (segment_->line(r).state.load() != kLeft) continue;
      const Obituary& obituary = segment_->header().obituaries[r];
      const std::string how =
          obituary.is_known.load() != 0 ? ", " + DescribeReturncode(obituary.returncode) : "";
      return "rank " + std::to_string(segment_->global_rank(r)) +
             " has left the job (hvd.shutdown(), or the end of its script" + how +
             ") and will not take part in " + slot.name +
             "; all ranks must make the same number of collective calls";
    }
    return "";
  });
}

Status StuckDetector::FailWhatIsLate() {
  const int64_t now = ClockNs(CLOCK_MONOTONIC);
  return FailFirst(Code::kDeadlineExceeded, [&](const BoardSlot& slot) -> std::string {
    if (slot.deadline_ns == 0 || now < slot.deadline_ns) return "";
    std::string text = std::string(slot.name) + " has waited until its timeout for";
    const std::vector<int> missing = MissingRanks(segment_, slot);
    for (size_t i = 0; i < missing.size() && i < kMaxListed; ++i) {
      text += (i == 0 ? " " : ", ") + RankOnThisHost(segment_->global_rank(missing[i]),
                                                     segment_->line(missing[i]).pid.load());
    }
    if (missing.empty()) text += " ranks of other hosts";
    if (missing.size() > kMaxListed) {
      text += " and " + std::to_string(missing.size() - kMaxListed) + " more";
    }
    return text + ", which did not call it";
  });
}

// Everybody on whom this rank depends, directly or not. Needs the lock.
std::vector<bool> StuckDetector::Dependencies() {
  const int ranks = segment_->ranks();
  std::vector<bool> concerned(ranks, false);
  concerned[rank_] = true;
  for (bool grew = true; grew;) {
    grew = false;
    for (const BoardSlot& slot : segment_->board().slots) {
      if (!IsWaiting(slot)) continue;
      const std::vector<int> waiting = RanksOf(slot.arrived_bits, ranks);
      if (std::none_of(waiting.begin(), waiting.end(), [&](int r) { return concerned[r]; }))
        continue;
      for (int r : RanksOf(slot.member_bits, ranks)) {
        grew |= !concerned[r];
        concerned[r] = true;
      }
    }
  }
  return concerned;
}

Status StuckDetector::FailWhatWaitsInACircle() {
  std::vector<int> to_wake;
  {
    BoardLock lock(segment_);
    HVD_RETURN_IF_ERROR(lock.status());
    Board& board = segment_->board();
    if (board.activity.load() != last_activity_) return Status::Ok();
    const std::vector<bool> concerned = Dependencies();
    const int ranks = segment_->ranks();
    for (int r = 0; r < ranks; ++r) {
      const bool quiet = segment_->line(r).quiet_checks.load() >= quiet_checks_needed_;
      if (concerned[r] && !quiet) return Status::Ok();
    }
    std::string text = "the ranks wait for different collectives, so that none can complete:";
    std::vector<int32_t> stuck;
    for (int32_t i = 0; i < kMaxBoardSlots; ++i) {
      const BoardSlot& slot = board.slots[i];
      if (!IsWaiting(slot)) continue;
      const std::vector<int> arrived = RanksOf(slot.arrived_bits, ranks);
      if (!concerned[arrived.front()]) continue;
      if (slot.spans) return Status::Ok();  // the coordinator's to judge
      stuck.push_back(i);
      if (stuck.size() > kMaxListed) continue;
      text += std::string("\n  ") + slot.name + ": called by " +
              RankList(segment_->GlobalRanks(arrived)) + ", not by " +
              RankList(segment_->GlobalRanks(MissingRanks(segment_, slot)));
    }
    if (stuck.empty()) return Status::Ok();  // what this rank waited for has just been decided
    if (stuck.size() > kMaxListed) {
      text += "\n  and " + std::to_string(stuck.size() - kMaxListed) + " more";
    }
    SetFailureText(&board,
                   text + "\nEvery rank must call the same collectives, with the same names.");
    for (int32_t i : stuck) {
      const std::vector<int> woken = Fail(segment_, i, Code::kInvalidArgument);
      to_wake.insert(to_wake.end(), woken.begin(), woken.end());
    }
    board.activity.fetch_add(1);
  }
  for (int r : to_wake) waiter_->Wake(r, Waiter::kQueue);
  return Status::Ok();
}

}  // namespace hvd::shm
