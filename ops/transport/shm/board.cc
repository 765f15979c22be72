#include "ops/transport/shm/board.h"

#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "ops/core/clock.h"
#include "ops/transport/shm/crossing.h"

namespace hvd::shm {
namespace {

constexpr int64_t kLockSliceNs = 250'000'000;
constexpr int32_t kSlotsForLeaving = 2;  // a full board must not keep a host in its plan

Opening OpeningOf(const Request& request) {
  // Adasum, and all other kinds, begin with an exchange of flags alone.
  if (request.kind != CollectiveKind::kAllreduce || request.reduce_op == ReduceOp::kAdasum) {
    return Opening::kDoubling;
  }
  int64_t bytes = 0;
  for (const Piece& piece : request.pieces) bytes += piece.NumElements() * SizeOf(request.dtype);
  return hvd::OpeningOf(bytes);
}

// All that are still to come on this host are there.
std::vector<int> AllHere(Segment* segment, BoardSlot* slot, int32_t index) {
  if (slot->spans) return MarkReady(segment, index);
  int32_t& join_slot = segment->board().join_slots[slot->process_set];
  if (join_slot == index) join_slot = -1;
  return Publish(segment, index);
}

void SetBit(uint64_t* bits, int rank) { bits[rank / 64] |= uint64_t{1} << (rank % 64); }

int32_t* BucketOf(Board* board, uint64_t key) { return &board->buckets[key % kBoardBuckets]; }

bool IsFree(const BoardSlot& slot) {
  return !slot.in_use ||
         (slot.published && slot.done.load(std::memory_order_acquire) == slot.recipients);
}

// At least `reserved` slots stay free.
int32_t TakeFreeSlot(Board* board, int32_t reserved) {
  if (board->free_slots.load(std::memory_order_acquire) <= reserved) return -1;
  for (int32_t i = 0; i < kMaxBoardSlots; ++i) {
    const int32_t index = (board->next_free + i) % kMaxBoardSlots;
    if (!IsFree(board->slots[index])) continue;
    board->next_free = (index + 1) % kMaxBoardSlots;
    board->free_slots.fetch_sub(1, std::memory_order_relaxed);
    return index;
  }
  return -1;
}

// As a slot begins.
void Clear(BoardSlot* slot) {
  slot->process_set = 0;
  slot->last_rank = 0;
  slot->ticket.store(0, std::memory_order_relaxed);
  slot->deadline_ns = 0;
  slot->in_use = 1;
  slot->mismatch = slot->published = slot->failed = slot->reported = 0;
  slot->spans = slot->plannable = slot->ready = slot->opening = slot->leaves = 0;
  slot->is_join = slot->has_participants = 0;
  slot->ready_next = -1;
  slot->told_epoch = slot->plan_epoch = 0;
  slot->plan_position = 0;
  slot->given_back = 0;
  slot->done.store(0, std::memory_order_relaxed);
  slot->recipients = 0;
  std::fill(std::begin(slot->member_bits), std::end(slot->member_bits), 0);
  std::fill(std::begin(slot->arrived_bits), std::end(slot->arrived_bits), 0);
  slot->name[0] = '\0';
}

// Whether a rank has not yet read why a slot has failed, or the agent has not yet told other hosts.
bool HasUnreadFailure(const Board& board) {
  if (board.crossing.failing >= 0) return true;
  return std::any_of(std::begin(board.slots), std::end(board.slots),
                     [](const BoardSlot& slot) { return slot.failed != 0 && !IsFree(slot); });
}

void Unlink(Board* board, int32_t index) {
  int32_t* link = BucketOf(board, board->slots[index].key_low);
  while (*link != index) link = &board->slots[*link].next;
  *link = board->slots[index].next;
}

}  // namespace

Status BoardLock::Acquire() {
  pthread_mutex_t* mutex = &segment_->board().mutex;
  if (pthread_mutex_trylock(mutex) == 0) {
    held_ = true;
    return Status::Ok();
  }
  while (true) {
    timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    const int64_t ns = deadline.tv_nsec + kLockSliceNs;
    deadline.tv_sec += ns / 1'000'000'000;
    deadline.tv_nsec = ns % 1'000'000'000;
    const int error = pthread_mutex_timedlock(mutex, &deadline);
    if (error == 0) {
      held_ = true;
      return Status::Ok();
    }
    if (error == EOWNERDEAD) {
      pthread_mutex_consistent(mutex);
      held_ = true;
      segment_->Abort("a rank died while it announced a collective");
      return segment_->AbortStatus();
    }
    if (error != ETIMEDOUT) return Internal(ErrnoMessage("cannot lock the board", error));
    HVD_RETURN_IF_ERROR(segment_->AbortStatus());
  }
}

int32_t FindSlot(Board* board, const MatchKey& key) {
  for (int32_t index = *BucketOf(board, key.low); index >= 0; index = board->slots[index].next) {
    const BoardSlot& slot = board->slots[index];
    if (slot.key_low == key.low && slot.key_high == key.high) return index;
  }
  return -1;
}

void LinkKey(Board* board, int32_t index) {
  int32_t* bucket = BucketOf(board, board->slots[index].key_low);
  board->slots[index].next = *bucket;
  *bucket = index;
}

int32_t AddLeavingSlot(Segment* segment) {
  Board& board = segment->board();
  const int32_t index = TakeFreeSlot(&board, 0);
  if (index < 0) return -1;
  BoardSlot& slot = board.slots[index];
  Clear(&slot);
  slot.leaves = 1;
  for (int rank = 0; rank < segment->ranks(); ++rank) {
    SetBit(slot.member_bits, rank);
    SetBit(slot.arrived_bits, rank);
  }
  return index;
}

void FreeLeavingSlot(Board* board, int32_t index) {
  board->slots[index].in_use = 0;
  board->slots[index].ticket.store(0, std::memory_order_release);
  board->free_slots.fetch_add(1, std::memory_order_release);
}

std::vector<int> Publish(Segment* segment, int32_t index) {
  Board& board = segment->board();
  BoardSlot& slot = board.slots[index];
  const std::vector<int> recipients = RanksOf(slot.arrived_bits, segment->ranks());
  if (!slot.leaves) Unlink(&board, index);
  const Ticket ticket = board.next_ticket++;
  slot.published = 1;
  slot.published_ns = ClockNs(CLOCK_MONOTONIC);
  slot.recipients = static_cast<int32_t>(recipients.size());
  slot.ticket.store(ticket, std::memory_order_release);
  for (int rank : recipients) {
    std::atomic<uint64_t>& queued = segment->line(rank).queued;
    const uint64_t position = queued.load(std::memory_order_relaxed);
    segment->queue(rank)[position % kQueueEntries].store(QueueEntry(ticket, index),
                                                         std::memory_order_relaxed);
    queued.store(position + 1, std::memory_order_seq_cst);
  }
  return recipients;
}

int32_t FindOrAddSlot(Segment* segment, const Announcement& announcement, const Members& members) {
  Board& board = segment->board();
  const MatchKey& key = announcement.key;
  const int32_t found = FindSlot(&board, key);
  if (found >= 0) return found;
  const int32_t index = TakeFreeSlot(&board, kSlotsForLeaving);
  if (index < 0) return -1;
  const Request& request = *announcement.request;
  BoardSlot& slot = board.slots[index];
  Clear(&slot);
  slot.key_low = key.low;
  slot.key_high = key.high;
  slot.id_low = announcement.id.low;
  slot.id_high = announcement.id.high;
  slot.fingerprint = announcement.fingerprint;
  slot.posted_ns = ClockNs(CLOCK_MONOTONIC);
  slot.process_set = request.process_set;
  slot.spans = members.spans ? 1 : 0;
  slot.is_join = request.kind == CollectiveKind::kJoin ? 1 : 0;
  // A join ends what a plan repeats; a barrier *is* the agreement.
  slot.plannable = members.by_all && !slot.is_join && request.kind != CollectiveKind::kBarrier;
  slot.opening = static_cast<uint8_t>(OpeningOf(request));
  for (int rank : members.local) SetBit(slot.member_bits, rank);
  std::fill(std::begin(slot.participants), std::end(slot.participants), 0);
  if (members.spans) {
    slot.by_all = members.by_all ? 1 : 0;
    for (int rank : announcement.ranks) SetBit(slot.participants, rank);
  }
  const std::string label = std::string(Name(request.kind)) + " '" + request.name + "'";
  const size_t bytes = std::min(label.size(), sizeof(slot.name) - 1);
  std::memcpy(slot.name, label.data(), bytes);
  slot.name[bytes] = '\0';
  LinkKey(&board, index);
  return index;
}

std::vector<int> Arrive(Segment* segment, int32_t index, int rank, const Arrival& arrival) {
  Board& board = segment->board();
  BoardSlot& slot = board.slots[index];
  if (slot.fingerprint != arrival.fingerprint || arrival.faulty) slot.mismatch = 1;
  SetBit(slot.arrived_bits, rank);
  slot.last_rank = rank;
  if (arrival.timeout_seconds > 0) {
    const int64_t deadline = ClockNs(CLOCK_MONOTONIC) +
                             static_cast<int64_t>(std::min(arrival.timeout_seconds, 1e9) * 1e9);
    if (slot.deadline_ns == 0 || deadline < slot.deadline_ns) slot.deadline_ns = deadline;
  }
  board.activity.fetch_add(1, std::memory_order_relaxed);
  int32_t& join_slot = board.join_slots[slot.process_set];
  if (arrival.joins) join_slot = index;
  std::vector<int> to_wake;
  if (MissingRanks(segment, slot).empty()) to_wake = AllHere(segment, &slot, index);
  if (!arrival.joins || slot.published) return to_wake;
  // Others may have waited for this rank alone.
  for (int32_t i = 0; i < kMaxBoardSlots; ++i) {
    BoardSlot& other = board.slots[i];
    const bool waits = other.in_use && !other.published && !other.ready && i != index &&
                       other.process_set == slot.process_set;
    if (!waits || !MissingRanks(segment, other).empty()) continue;
    const std::vector<int> woken = AllHere(segment, &other, i);
    to_wake.insert(to_wake.end(), woken.begin(), woken.end());
  }
  return to_wake;
}

std::vector<int> MissingRanks(Segment* segment, const BoardSlot& slot) {
  const Board& board = segment->board();
  const int32_t join = board.join_slots[slot.process_set];
  // A join itself waits for everybody.
  const bool is_join = join >= 0 && &board.slots[join] == &slot;
  const uint64_t* joined = join >= 0 && !is_join ? board.slots[join].arrived_bits : nullptr;
  uint64_t missing[kMaxRanks / 64];
  bool any = false;
  for (int word = 0; word < kMaxRanks / 64; ++word) {
    missing[word] = slot.member_bits[word] & ~slot.arrived_bits[word];
    if (joined != nullptr) missing[word] &= ~joined[word];
    any |= missing[word] != 0;
  }
  return any ? RanksOf(missing, segment->ranks()) : std::vector<int>();
}

void SetFailureText(Board* board, const std::string& text) {
  std::string all = text;
  if (HasUnreadFailure(*board)) {
    const std::string before = board->failure_text;
    all = before.find(text) == std::string::npos ? text + "\n" + before : before;
  }
  const size_t bytes = std::min(all.size(), sizeof(board->failure_text) - 1);
  std::memcpy(board->failure_text, all.data(), bytes);
  board->failure_text[bytes] = '\0';
}

std::vector<int> Fail(Segment* segment, int32_t index, Code code) {
  BoardSlot& slot = segment->board().slots[index];
  slot.failed = static_cast<uint8_t>(code);
  int32_t& join_slot = segment->board().join_slots[slot.process_set];
  if (join_slot == index) join_slot = -1;
  return Publish(segment, index);
}

void Complete(Segment* segment, int32_t index) {
  Board& board = segment->board();
  board.activity.fetch_add(1, std::memory_order_relaxed);
  BoardSlot& slot = board.slots[index];
  const int32_t recipients = slot.recipients;  // before the slot can belong to somebody else
  if (slot.done.fetch_add(1, std::memory_order_acq_rel) + 1 == recipients) {
    board.free_slots.fetch_add(1, std::memory_order_release);
  }
}

std::vector<int> RanksOf(const uint64_t* bits, int ranks) {
  std::vector<int> result;
  for (int rank = 0; rank < ranks; ++rank) {
    if (HasBit(bits, rank)) result.push_back(rank);
  }
  return result;
}

}  // namespace hvd::shm
