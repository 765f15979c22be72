#include "ops/transport/shm/crossing.h"

#include <algorithm>

#include "ops/core/clock.h"
#include "ops/core/ranks.h"
#include "ops/transport/shm/board.h"
#include "ops/transport/shm/futex.h"

namespace hvd::shm {
namespace {

void Join(std::vector<int>* all, const std::vector<int>& more) {
  all->insert(all->end(), more.begin(), more.end());
}

void AppendReady(Board* board, int32_t index) {
  Crossing& crossing = board->crossing;
  BoardSlot& slot = board->slots[index];
  slot.ready = 1;
  slot.told_epoch = 0;
  slot.ready_next = -1;
  if (crossing.ready_head < 0) {
    crossing.ready_head = index;
  } else {
    board->slots[crossing.ready_tail].ready_next = index;
  }
  crossing.ready_tail = index;
}

void RemoveReady(Board* board, int32_t index) {
  Crossing& crossing = board->crossing;
  int32_t before = -1;
  for (int32_t i = crossing.ready_head; i != index; i = board->slots[i].ready_next) before = i;
  BoardSlot& slot = board->slots[index];
  if (before < 0) {
    crossing.ready_head = slot.ready_next;
  } else {
    board->slots[before].ready_next = slot.ready_next;
  }
  if (crossing.ready_tail == index) crossing.ready_tail = before;
  slot.ready = 0;
}

bool IsEntry(const BoardSlot& slot, const PlanEntry& entry) {
  return slot.id_low == entry.id_low && slot.id_high == entry.id_high;
}

bool IsInPlan(const Board& board, const BoardSlot& slot) {
  if (!slot.plannable) return false;
  const PlanEntry* entries = board.crossing.plan;
  return std::any_of(entries, entries + board.crossing.plan_length, [&](const PlanEntry& entry) {
    return IsEntry(slot, entry) && slot.fingerprint == entry.fingerprint;
  });
}

// The oldest ready slot of this entry, or -1.
int32_t FindReady(const Board& board, const PlanEntry& entry) {
  int32_t index = board.crossing.ready_head;
  while (index >= 0 && !IsEntry(board.slots[index], entry)) index = board.slots[index].ready_next;
  return index;
}

std::vector<int> LeavePlan(Segment* segment) {
  Crossing& crossing = segment->board().crossing;
  const PlanEntry& next = crossing.plan[crossing.plan_position % crossing.plan_length];
  const int32_t index = AddLeavingSlot(segment);
  if (index < 0) return {};  // tried again when the agent looks
  crossing.plan_leaving = 1;
  BoardSlot& slot = segment->board().slots[index];
  slot.opening = next.opening;
  slot.plan_epoch = crossing.epoch;
  slot.plan_position = crossing.plan_position;
  return Publish(segment, index);
}

// Publishes whatever the plan allows.
std::vector<int> FollowPlan(Segment* segment) {
  Board& board = segment->board();
  Crossing& crossing = board.crossing;
  std::vector<int> to_wake;
  crossing.out_of_step_ns = 0;
  while (!crossing.plan_leaving) {
    const PlanEntry& next = crossing.plan[crossing.plan_position % crossing.plan_length];
    const int32_t index = FindReady(board, next);
    if (index < 0) break;
    BoardSlot& slot = board.slots[index];
    if (!slot.plannable || slot.fingerprint != next.fingerprint) break;
    RemoveReady(&board, index);
    slot.plan_epoch = crossing.epoch;
    slot.plan_position = crossing.plan_position++;
    Join(&to_wake, Publish(segment, index));
  }
  if (crossing.plan_leaving || crossing.ready_head < 0) return to_wake;
  crossing.out_of_step_ns = ClockNs(CLOCK_MONOTONIC);
  CallAgent(segment);  // who knows how long to wait
  for (int32_t i = crossing.ready_head; i >= 0; i = board.slots[i].ready_next) {
    if (IsInPlan(board, board.slots[i])) continue;
    Join(&to_wake, LeavePlan(segment));
    break;
  }
  return to_wake;
}

// Takes back what was published and not executed.
void Unpublish(Board* board, int32_t index) {
  BoardSlot& slot = board->slots[index];
  slot.published = 0;
  slot.ticket.store(0, std::memory_order_release);
  slot.plan_epoch = 0;
  slot.given_back = 0;
  LinkKey(board, index);
  AppendReady(board, index);
}

void EndPlan(Segment* segment, uint32_t epoch, int64_t position) {
  Board& board = segment->board();
  Crossing& crossing = board.crossing;
  if (!crossing.plan_active || crossing.epoch != epoch) return;  // another rank was here
  crossing.plan_active = 0;
  crossing.plan_leaving = 0;
  crossing.out_of_step_ns = 0;
  ++crossing.epoch;
  for (int32_t i = 0; i < kMaxBoardSlots; ++i) {
    BoardSlot& slot = board.slots[i];
    const bool beyond = slot.in_use && slot.published && slot.plan_epoch == epoch &&
                        slot.plan_position > position &&
                        slot.done.load(std::memory_order_acquire) == 0;
    if (!beyond) continue;
    if (slot.leaves) {
      FreeLeavingSlot(&board, i);
    } else {
      Unpublish(&board, i);
    }
  }
  CallAgent(segment);
}

ReadySlot Describe(Segment* segment, const BoardSlot& slot) {
  ReadySlot ready;
  ready.key = {slot.key_low, slot.key_high};
  ready.id = {slot.id_low, slot.id_high};
  ready.fingerprint = slot.fingerprint;
  ready.process_set = slot.process_set;
  ready.last_rank = segment->global_rank(slot.last_rank);
  if (!slot.by_all) ready.set = RanksOf(slot.participants, kMaxWorldRanks);
  ready.participants = segment->GlobalRanks(RanksOf(slot.arrived_bits, segment->ranks()));
  ready.opening = static_cast<Opening>(slot.opening);
  ready.mismatch = slot.mismatch != 0;
  ready.is_join = slot.is_join != 0;
  ready.plannable = slot.plannable != 0;
  ready.name = slot.name;
  return ready;
}

std::vector<int> FailSlot(Segment* segment, int32_t index, Code code) {
  Board& board = segment->board();
  if (board.slots[index].ready) RemoveReady(&board, index);
  if (board.crossing.failing == index) board.crossing.failing = -1;
  return Fail(segment, index, code);
}

}  // namespace

void CallAgent(Segment* segment) {
  std::atomic<uint32_t>& calls = segment->board().crossing.calls;
  calls.fetch_add(1, std::memory_order_seq_cst);
  FutexWake(&calls);
}

uint32_t WaitForAgentCall(Segment* segment, uint32_t seen, int64_t ns) {
  std::atomic<uint32_t>& calls = segment->board().crossing.calls;
  if (ns > 0 && calls.load(std::memory_order_seq_cst) == seen) FutexWait(&calls, seen, ns);
  return calls.load(std::memory_order_seq_cst);
}

std::vector<int> MarkReady(Segment* segment, int32_t index) {
  BoardSlot& slot = segment->board().slots[index];
  const auto arrived = RanksOf(slot.arrived_bits, segment->ranks()).size();
  if (slot.mismatch || arrived < static_cast<size_t>(segment->ranks())) slot.plannable = 0;
  AppendReady(&segment->board(), index);
  if (segment->board().crossing.plan_active) return FollowPlan(segment);
  CallAgent(segment);
  return {};
}

std::vector<ReadySlot> TakeUntold(Segment* segment, uint32_t* epoch) {
  Board& board = segment->board();
  *epoch = board.crossing.epoch;
  std::vector<ReadySlot> untold;
  if (board.crossing.plan_active) return untold;
  for (int32_t i = board.crossing.ready_head; i >= 0; i = board.slots[i].ready_next) {
    BoardSlot& slot = board.slots[i];
    if (slot.told_epoch == *epoch) continue;
    slot.told_epoch = *epoch;
    untold.push_back(Describe(segment, slot));
  }
  return untold;
}

std::vector<int> PublishAgreed(Segment* segment, const Agreement& agreement) {
  Board& board = segment->board();
  const int32_t index = FindSlot(&board, agreement.key);
  if (index < 0 || !board.slots[index].ready) return {};
  BoardSlot& slot = board.slots[index];
  RemoveReady(&board, index);
  slot.mismatch = agreement.mismatch ? 1 : 0;
  slot.last_rank = agreement.last_rank;
  slot.plan_epoch = 0;
  slot.has_participants = agreement.participants.empty() ? 0 : 1;
  if (slot.has_participants)
    std::fill(std::begin(slot.participants), std::end(slot.participants), 0);
  for (int rank : agreement.participants) {
    slot.participants[rank / 64] |= uint64_t{1} << (rank % 64);
  }
  int32_t& join_slot = board.join_slots[slot.process_set];
  if (join_slot == index) join_slot = -1;
  return Publish(segment, index);
}

std::vector<int> StartPlan(Segment* segment, const std::vector<PlanEntry>& entries) {
  Crossing& crossing = segment->board().crossing;
  std::copy(entries.begin(), entries.end(), crossing.plan);
  crossing.plan_length = static_cast<int32_t>(entries.size());
  crossing.plan_position = 0;
  crossing.plan_active = 1;
  crossing.plan_leaving = 0;
  std::vector<int> to_wake = FollowPlan(segment);
  if (crossing.departing && !crossing.plan_leaving) Join(&to_wake, LeavePlan(segment));
  return to_wake;
}

std::vector<int> Depart(Segment* segment) {
  Crossing& crossing = segment->board().crossing;
  crossing.departing = 1;
  CallAgent(segment);
  if (!crossing.plan_active || crossing.plan_leaving) return {};
  return LeavePlan(segment);
}

std::vector<int> LeaveIfOutOfStep(Segment* segment, int64_t patience_ns, int64_t* wait_ns) {
  Crossing& crossing = segment->board().crossing;
  *wait_ns = 0;
  if (!crossing.plan_active || crossing.plan_leaving || crossing.out_of_step_ns == 0) return {};
  const int64_t left = crossing.out_of_step_ns + patience_ns - ClockNs(CLOCK_MONOTONIC);
  if (left <= 0) return LeavePlan(segment);
  *wait_ns = left;
  return {};
}

void GiveBack(Segment* segment, int32_t index) {
  Board& board = segment->board();
  BoardSlot& slot = board.slots[index];
  EndPlan(segment, slot.plan_epoch, slot.plan_position);
  if (slot.leaves) {
    Complete(segment, index);
  } else if (++slot.given_back == slot.recipients) {
    Unpublish(&board, index);
    CallAgent(segment);
  }
}

std::vector<int> FailKey(Segment* segment, const MatchKey& key, Code code) {
  const int32_t index = FindSlot(&segment->board(), key);
  return index < 0 ? std::vector<int>() : FailSlot(segment, index, code);
}

std::vector<int> FailAllSpanning(Segment* segment, Code code) {
  std::vector<int> to_wake;
  for (int32_t i = 0; i < kMaxBoardSlots; ++i) {
    const BoardSlot& slot = segment->board().slots[i];
    if (slot.in_use && slot.spans && !slot.published) {
      Join(&to_wake, FailSlot(segment, i, code));
    }
  }
  return to_wake;
}

void AskToFail(Segment* segment, int32_t index, Code code) {
  Crossing& crossing = segment->board().crossing;
  if (crossing.failing >= 0) return;  // one at a time, like the text
  crossing.failing = index;
  crossing.failing_code = static_cast<uint8_t>(code);
  CallAgent(segment);
}

std::string DescribeWaiting(Segment* segment, size_t max_lines) {
  std::string text;
  size_t lines = 0;
  for (const BoardSlot& slot : segment->board().slots) {
    if (!slot.in_use || !slot.spans || slot.published) continue;
    if (++lines > max_lines) continue;
    const std::vector<int> missing = segment->GlobalRanks(MissingRanks(segment, slot));
    const std::vector<int> arrived =
        segment->GlobalRanks(RanksOf(slot.arrived_bits, segment->ranks()));
    text += std::string("\n  ") + slot.name + ": called by " + RankList(arrived);
    if (!missing.empty()) text += ", not by " + RankList(missing);
  }
  if (lines > max_lines) text += "\n  and " + std::to_string(lines - max_lines) + " more";
  return text;
}

}  // namespace hvd::shm
