#include "ops/transport/shm/board.h"

#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "ops/core/clock.h"

namespace hvd::shm {
namespace {

constexpr int64_t kLockSliceNs = 250'000'000;

void SetBit(uint64_t* bits, int rank) { bits[rank / 64] |= uint64_t{1} << (rank % 64); }

int32_t* BucketOf(Board* board, uint64_t key) { return &board->buckets[key % kBoardBuckets]; }

bool IsFree(const BoardSlot& slot) {
  return !slot.in_use ||
         (slot.published && slot.done.load(std::memory_order_acquire) == slot.recipients);
}

int32_t TakeFreeSlot(Board* board) {
  if (board->free_slots.load(std::memory_order_acquire) == 0) return -1;
  for (int32_t i = 0; i < kMaxBoardSlots; ++i) {
    const int32_t index = (board->next_free + i) % kMaxBoardSlots;
    if (!IsFree(board->slots[index])) continue;
    board->next_free = (index + 1) % kMaxBoardSlots;
    board->free_slots.fetch_sub(1, std::memory_order_relaxed);
    return index;
  }
  return -1;
}

void Unlink(Board* board, int32_t index) {
  int32_t* link = BucketOf(board, board->slots[index].key_low);
  while (*link != index) link = &board->slots[*link].next;
  *link = board->slots[index].next;
}

// Gives the slot its ticket and puts it into the queues of those who announced it, and returns
// them.
std::vector<int> Publish(Segment* segment, int32_t index) {
  Board& board = segment->board();
  BoardSlot& slot = board.slots[index];
  const std::vector<int> recipients = RanksOf(slot.arrived_bits, segment->ranks());
  Unlink(&board, index);
  slot.ticket = board.next_ticket++;
  slot.published = 1;
  slot.recipients = static_cast<int32_t>(recipients.size());
  for (int rank : recipients) {
    std::atomic<uint64_t>& queued = segment->line(rank).queued;
    const uint64_t position = queued.load(std::memory_order_relaxed);
    // A slot is in a queue at most once, so a ring as long as the board never overflows.
    segment->queue(rank)[position % kMaxBoardSlots].store(index, std::memory_order_relaxed);
    queued.store(position + 1, std::memory_order_seq_cst);
  }
  return recipients;
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

int32_t FindOrAddSlot(Segment* segment, const Announcement& announcement) {
  Board& board = segment->board();
  const MatchKey& key = announcement.key;
  int32_t* bucket = BucketOf(&board, key.low);
  for (int32_t index = *bucket; index >= 0; index = board.slots[index].next) {
    const BoardSlot& slot = board.slots[index];
    if (slot.key_low == key.low && slot.key_high == key.high) return index;
  }
  const int32_t index = TakeFreeSlot(&board);
  if (index < 0) return -1;
  BoardSlot& slot = board.slots[index];
  slot.key_low = key.low;
  slot.key_high = key.high;
  slot.fingerprint = announcement.fingerprint;
  slot.ticket = 0;
  slot.posted_ns = ClockNs(CLOCK_MONOTONIC);
  slot.deadline_ns = 0;
  slot.reported = 0;
  slot.process_set = announcement.request->process_set;
  slot.last_rank = -1;
  slot.in_use = 1;
  slot.mismatch = slot.published = slot.failed = 0;
  slot.done.store(0, std::memory_order_relaxed);
  slot.recipients = 0;
  std::fill(std::begin(slot.member_bits), std::end(slot.member_bits), 0);
  std::fill(std::begin(slot.arrived_bits), std::end(slot.arrived_bits), 0);
  for (int rank : announcement.ranks) SetBit(slot.member_bits, rank);
  const std::string label =
      std::string(Name(announcement.request->kind)) + " '" + announcement.request->name + "'";
  const size_t bytes = std::min(label.size(), sizeof(slot.name) - 1);
  std::memcpy(slot.name, label.data(), bytes);
  slot.name[bytes] = '\0';
  slot.next = *bucket;
  *bucket = index;
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
  if (MissingRanks(segment, slot).empty()) {
    if (arrival.joins) join_slot = -1;
    return Publish(segment, index);
  }
  if (!arrival.joins) return {};
  // Others may have waited for this rank alone.
  std::vector<int> to_wake;
  for (int32_t i = 0; i < kMaxBoardSlots; ++i) {
    const BoardSlot& other = board.slots[i];
    const bool waits = other.in_use && !other.published && other.process_set == slot.process_set;
    if (!waits || !MissingRanks(segment, other).empty()) continue;
    const std::vector<int> woken = Publish(segment, i);
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
