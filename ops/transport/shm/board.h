// The board: where the ranks of a host announce collectives and agree on their order.
//
// Whoever announces last makes a collective's place in the schedule: it takes the next ticket and
// writes it to the queue of every member, all under one lock, so that any two ranks see the
// collectives which they share in the same order. No rank has to be awake for that.
#ifndef HVD_TRANSPORT_SHM_BOARD_H_
#define HVD_TRANSPORT_SHM_BOARD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ops/core/scheduler.h"
#include "ops/core/status.h"
#include "ops/transport/shm/segment.h"

namespace hvd::shm {

// Holds the board's lock. A rank that died with it leaves the board in an unknown state: the job is
// aborted then.
class BoardLock {
 public:
  explicit BoardLock(Segment* segment) : segment_(segment), status_(Acquire()) {}
  ~BoardLock() {
    if (held_) pthread_mutex_unlock(&segment_->board().mutex);
  }
  BoardLock(const BoardLock&) = delete;
  BoardLock& operator=(const BoardLock&) = delete;

  const Status& status() const { return status_; }

 private:
  Status Acquire();

  Segment* const segment_;
  bool held_ = false;
  Status status_;
};

inline bool HasBit(const uint64_t* bits, int rank) { return (bits[rank / 64] >> (rank % 64)) & 1; }

// Each of these needs the lock.

// The members of an announcement, as a host sees them.
struct Members {
  std::vector<int> local;  // of this host, by local rank
  bool spans = false;      // there are others elsewhere
  bool by_all = false;     // these are all ranks of the job
};

// The waiting slot of this key, or -1.
int32_t FindSlot(Board* board, const MatchKey& key);

// The slot of this announcement, a new one if it is the first; -1 if there is no room.
int32_t FindOrAddSlot(Segment* segment, const Announcement& announcement, const Members& members);

// A published slot is not found by its key any more. This makes it so again.
void LinkKey(Board* board, int32_t slot);

// A slot for all ranks of this host that is no collective: this host leaves the plan. -1 if there
// is no room.
int32_t AddLeavingSlot(Segment* segment);
void FreeLeavingSlot(Board* board, int32_t slot);

// Gives the slot its ticket and puts it into the queues of those who announced it, and returns
// them.
std::vector<int> Publish(Segment* segment, int32_t slot);

// What a queue holds: the slot, and the ticket under which it was put there. If the slot has
// another one by now, the entry is void.
inline uint64_t QueueEntry(Ticket ticket, int32_t slot) {
  return static_cast<uint64_t>(ticket) << kSlotBits | static_cast<uint64_t>(slot);
}

struct Arrival {
  uint64_t fingerprint = 0;
  bool faulty = false;  // nobody may execute it
  bool joins = false;
  double timeout_seconds = 0;  // for the others to arrive; 0 for ever
};

// Marks `rank` as arrived; publishes what thereby is complete. Returns the ranks to wake.
std::vector<int> Arrive(Segment* segment, int32_t slot, int rank, const Arrival& arrival);

// The members that a slot still waits for: neither arrived nor joined. Ascending.
std::vector<int> MissingRanks(Segment* segment, const BoardSlot& slot);

// Why the slots that fail next cannot complete. There is one text for all: as long as somebody has
// not read the one before, that follows after it.
void SetFailureText(Board* board, const std::string& text);

// Gives up a slot that cannot complete any more: those who announced it get `code` and the board's
// failure text. Returns the ranks to wake.
std::vector<int> Fail(Segment* segment, int32_t slot, Code code);

// One member has executed the collective; the last one frees the slot. Needs no lock.
void Complete(Segment* segment, int32_t slot);

// Ranks of a bit set, ascending.
std::vector<int> RanksOf(const uint64_t* bits, int ranks);

}  // namespace hvd::shm

#endif  // HVD_TRANSPORT_SHM_BOARD_H_
