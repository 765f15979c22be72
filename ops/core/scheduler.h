// Scheduler: agrees with the other ranks what is executed next.
//
// Ranks announce requests in any order. Once every member of a process set has announced the same
// key, the collective gets a ticket, and Next() hands it out on each member in ticket order. A
// member that has announced a join, which the others have yet to do, is not waited for and takes no
// part.
#ifndef HVD_CORE_SCHEDULER_H_
#define HVD_CORE_SCHEDULER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/core/communicator.h"
#include "ops/core/request.h"
#include "ops/core/status.h"

namespace hvd {

// Process sets have numbers below this.
inline constexpr int kMaxProcessSets = 256;

// What the ranks match: (process set, name, occurrence), hashed to 128 bits.
struct MatchKey {
  uint64_t low = 0;
  uint64_t high = 0;

  bool operator==(const MatchKey& other) const { return low == other.low && high == other.high; }
};

struct Announcement {
  MatchKey key;
  MatchKey id;  // the same without the occurrence: what a plan is made of
  uint64_t fingerprint = 0;
  std::vector<int> ranks;  // global ranks of the process set, ascending
  std::unique_ptr<Request> request;
};

struct Assignment {
  enum class Verdict {
    kExecute,
    kMismatch,   // all members arrived, but they announced different things
    kFailed,     // it can never complete; `error` says why, and only some members got it
    kLeavePlan,  // no request: this host leaves the plan, in place of a collective it has not got
  };
  Verdict verdict = Verdict::kExecute;
  Ticket ticket = 0;
  Status error;
  std::unique_ptr<Request> request;
  std::vector<int> ranks;  // who takes part: the process set without those that have joined
  int last_rank = 0;       // who announced it last
  // CLOCK_MONOTONIC: when the first rank of this host announced it, and when all ranks had; 0 where
  // it never came to that.
  int64_t first_ns = 0;
  int64_t agreed_ns = 0;
  bool by_plan = false;                  // it may end with kPlanLeft
  Opening opening = Opening::kDoubling;  // kLeavePlan: of the collective that others may be in
  int64_t handle = 0;                    // for Complete(), GiveBack()
};

class Scheduler {
 public:
  virtual ~Scheduler() = default;

  // Announces a request. Never blocks on other ranks. On an error the request is given back through
  // the announcement.
  virtual Status Post(Announcement* announcement) = 0;

  // Waits for the next collective. An error is final: the job was aborted, or Interrupt() was
  // called (kFailedPrecondition).
  virtual Status Next(Assignment* assignment) = 0;

  // The collective of this handle has been executed here.
  virtual void Complete(int64_t handle) = 0;

  // It ended with kPlanLeft, or was kLeavePlan: all that was planned after it, and the collective
  // itself, has to be agreed anew.
  virtual Status GiveBack(Assignment assignment) = 0;

  // Makes Next() return. Callable from any thread.
  virtual void Interrupt() = 0;

  // Takes back all requests that were announced and not handed out.
  virtual std::vector<std::unique_ptr<Request>> Drain() = 0;
};

}  // namespace hvd

#endif  // HVD_CORE_SCHEDULER_H_
