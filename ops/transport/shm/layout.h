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
inline constexpr int kBoardBuckets = 1024;
inline constexpr int kNameBytes = 128;    // of a collective's name, for messages; cut where longer
inline constexpr int kTextBytes = 8192;   // of an abort or divergence report
inline constexpr int kStackBytes = 4096;  // of a rank's answer to where its Python stands
inline constexpr int kCacheLine = 64;

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
  uint64_t fingerprint;  // of the first announcement
  int64_t ticket;        // once published
  int64_t posted_ns;     // CLOCK_MONOTONIC, of the first announcement
  int64_t deadline_ns;   // CLOCK_MONOTONIC, the earliest that a member has set; 0 for none
  int32_t next;          // in its bucket's chain, or -1
  uint8_t in_use;
  uint8_t mismatch;
  uint8_t published;
  uint8_t failed;
  uint8_t reported;           // as stalled
  std::atomic<int32_t> done;  // members that have executed it, of those it was published to
  int32_t recipients;         // members it was published to
  uint64_t member_bits[kMaxRanks / 64];
  uint64_t arrived_bits[kMaxRanks / 64];
  char name[kNameBytes];
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
  std::atomic<int32_t> creator_pid;
  std::atomic<uint32_t> abort_state;  // 0 none, 1 text being written, 2 aborted
  char abort_text[kTextBytes];
  Board board;
};
static_assert(offsetof(Header, obituaries) == 64, "see hvd_keras/launch/obituary.py");
static_assert(sizeof(Obituary) == 8, "see hvd_keras/launch/obituary.py");

}  // namespace hvd::shm

#endif  // HVD_TRANSPORT_SHM_LAYOUT_H_
