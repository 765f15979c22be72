// What lies where in the shared segment of a host.
//
// Everything here is read and written by several processes at once: plain data, atomics, and one
// robust mutex. Nothing in it points anywhere; what must be found is an index.
#ifndef HVD_TRANSPORT_SHM_LAYOUT_H_
#define HVD_TRANSPORT_SHM_LAYOUT_H_

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "ops/core/recorder.h"
#include "ops/core/scheduler.h"

namespace hvd::shm {

inline constexpr uint64_t kMagic = 0x3172657370647668ull;  // "hvdsper1"
inline constexpr int kMaxRanks = 256;                      // on one host
inline constexpr int kMaxBoardSlots = 1024;                // collectives in flight on the board
inline constexpr int kSlotBits = 10;
static_assert(kMaxBoardSlots == 1 << kSlotBits, "a queue's entry is a ticket and a slot");
// A slot is in a queue once, and once more where a plan was left.
inline constexpr int kQueueEntries = 2 * kMaxBoardSlots;
inline constexpr int kMaxWorldRanks = 4096;  // on all hosts
inline constexpr int kMaxPlanEntries = 2048;
inline constexpr int kBoardBuckets = 1024;
inline constexpr int kNameBytes = 128;    // of a collective's name, for messages; cut where longer
inline constexpr int kTextBytes = 8192;   // of an abort or divergence report
inline constexpr int kStackBytes = 4096;  // of a rank's answer to where its Python stands
inline constexpr int kCacheLine = 64;
inline constexpr int kTraffics = 3;     // kinds of transfers, see store_choice.h
inline constexpr int kSizeClasses = 7;  // of transfers

static_assert(std::atomic<uint64_t>::is_always_lock_free, "shared memory needs lock-free atomics");
static_assert(std::atomic<uint32_t>::is_always_lock_free, "shared memory needs lock-free atomics");

enum RankState : uint32_t { kAbsent = 0, kAttached = 1, kLeft = 2 };

// The state of one rank, each field that others poll on a line of its own.
struct RankLine {
  // Futex word: 0 awake, else 1 + what the rank sleeps for (see waiter.h).
  alignas(kCacheLine) std::atomic<uint32_t> sleeping;
  // Progress through the agreed schedule, see Progress() in shm_communicator.h.
  alignas(kCacheLine) std::atomic<uint64_t> published;  // data that others may read
  alignas(kCacheLine) std::atomic<uint64_t> consumed;   // data of others that has been read
  // Entries ever written to this rank's queue of agreed collectives.
  alignas(kCacheLine) std::atomic<uint64_t> queued;

  alignas(kCacheLine) std::atomic<uint32_t> state;  // RankState
  std::atomic<int32_t> pid;
  std::atomic<int32_t> global_rank;  // among all hosts
  // How many checks in a row found this rank waiting for others with its processor idle.
  std::atomic<uint32_t> quiet_checks;
  std::atomic<uint64_t> checks;  // grows while the engine's thread is alive
};

// What a rank's watcher (a thread that sleeps otherwise) can be called for: bits.
enum WatcherCall : uint32_t {
  kCallStack = 1,   // say where this rank's Python stands
  kCallDump = 2,    // write the flight recorder to a file
  kCallAbort = 4,   // the job was aborted
  kCallReturn = 8,  // end
};

// What one rank says about itself, for the others to read, also after its death.
struct RankReport {
  alignas(kCacheLine) std::atomic<uint32_t> calls;  // futex word of the watcher: WatcherCall bits
  std::atomic<uint32_t> stack_answers;              // grows once `stack` has been written
  char stack[kStackBytes];
  FlightRing flight_ring;
};

// How a process ended, as the launcher has seen it: it alone can.
struct Obituary {
  std::atomic<uint32_t> is_known;
  int32_t returncode;  // exit code, or minus the signal's number
};

// One collective, from its first announcement until all of its members have executed it.
struct BoardSlot {
  int32_t process_set;
  int32_t last_rank;  // who announced it last
  uint64_t key_low;
  uint64_t key_high;
  uint64_t id_low;  // the key without the occurrence
  uint64_t id_high;
  uint64_t fingerprint;         // of the first announcement
  std::atomic<int64_t> ticket;  // once published, else 0
  int64_t posted_ns;            // CLOCK_MONOTONIC, of the first announcement
  int64_t published_ns;         // CLOCK_MONOTONIC
  int64_t deadline_ns;          // CLOCK_MONOTONIC, the earliest that a member has set; 0 for none
  int32_t next;                 // in its bucket's chain, or -1
  uint8_t in_use;
  uint8_t mismatch;
  uint8_t published;
  uint8_t failed;
  uint8_t reported;  // as stalled
  // Of a collective that spans hosts: see crossing.h.
  uint8_t spans;
  uint8_t by_all;     // every rank of the job has announced it, or can
  uint8_t plannable;  // it may be part of a plan
  uint8_t ready;      // all of this host have announced it: in the list of ready slots
  uint8_t opening;    // Opening
  uint8_t leaves;     // no collective: this host leaves the plan
  uint8_t is_join;
  uint8_t has_participants;  // not all of the process set take part
  int32_t ready_next;        // in the list, or -1
  uint32_t told_epoch;       // the coordinator was told in this epoch; 0 for not yet
  uint32_t plan_epoch;       // in which it was published by plan; 0 for not
  int64_t plan_position;
  int32_t given_back;                          // members that found the plan left
  uint64_t participants[kMaxWorldRanks / 64];  // the process set, until it was agreed
  std::atomic<int32_t> done;  // members that have executed it, of those it was published to
  int32_t recipients;         // members it was published to
  uint64_t member_bits[kMaxRanks / 64];
  uint64_t arrived_bits[kMaxRanks / 64];
  char name[kNameBytes];
};

// What a plan repeats.
struct PlanEntry {
  uint64_t id_low;
  uint64_t id_high;
  uint64_t fingerprint;
  uint8_t opening;  // Opening
};

// How far this host is in agreeing with the others: see crossing.h.
struct Crossing {
  std::atomic<uint32_t> calls;  // futex word of the host's agent
  uint32_t epoch;               // from 1; grows when a plan is left
  std::atomic<uint8_t> plan_active;
  // A rank is about to leave the job. It takes part in the plan until that has ended, and waits for
  // the coordinator's word that no other one will begin.
  uint8_t departing;
  std::atomic<uint8_t> plans_over;
  uint8_t plan_leaving;  // said so, and waits for the others to see it
  int32_t plan_length;
  int64_t plan_position;   // collectives that were published by it
  int64_t out_of_step_ns;  // CLOCK_MONOTONIC: since when something else than the next is ready
  int32_t ready_head;      // list of slots that this host is ready for, by age
  int32_t ready_tail;
  int32_t failing;       // a slot that shall fail on all hosts, or -1
  uint8_t failing_code;  // Code; its text is the board's
  // How far CLOCK_MONOTONIC of this host is behind that of host 0, give or take the error; measured
  // so often. Written by the agent.
  std::atomic<int64_t> clock_offset_ns;
  std::atomic<int64_t> clock_error_ns;
  std::atomic<uint32_t> clock_measurements;
  std::atomic<uint64_t> hosts_left[kMaxWorldRanks / 64];  // their ranks have all left the job
  PlanEntry plan[kMaxPlanEntries];
};

struct Board {
  pthread_mutex_t mutex;  // robust: a rank that dies holding it is noticed
  int64_t next_ticket;
  int32_t next_free;  // where to look for a free slot first
  std::atomic<int32_t> free_slots;
  std::atomic<uint64_t> activity;  // grows with every announcement and every completion
  char failure_text[kTextBytes];   // why the slots marked `failed` cannot complete
  int32_t buckets[kBoardBuckets];
  int32_t join_slots[kMaxProcessSets];  // of each process set: the join in progress, or -1
  Crossing crossing;
  BoardSlot slots[kMaxBoardSlots];
};

struct Header {
  std::atomic<uint64_t> magic;  // last to be written: the segment is ready
  std::atomic<uint64_t> generation;
  uint64_t unused[6];
  Obituary obituaries[kMaxRanks];  // written by the launcher, which knows this offset: 64
  int32_t ranks;
  int32_t slots_per_rank;
  int64_t chunk_bytes;
  uint8_t has_launcher;  // it writes obituaries
  std::atomic<uint8_t> store_choices[kTraffics][kSizeClasses];
  std::atomic<int32_t> creator_pid;
  std::atomic<uint32_t> abort_state;  // 0 none, 1 text being written, 2 aborted
  char abort_text[kTextBytes];
  Board board;
};
static_assert(offsetof(Header, obituaries) == 64, "see hvd_keras/launch/obituary.py");
static_assert(sizeof(Obituary) == 8, "see hvd_keras/launch/obituary.py");

}  // namespace hvd::shm

#endif  // HVD_TRANSPORT_SHM_LAYOUT_H_
