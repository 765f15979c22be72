// Crossing: the part of the board that has to do with other hosts.
//
// A collective whose process set has ranks elsewhere is *ready* on a host once all its members
// there have announced it. The host's agent (ops/hosts) tells the coordinator, and publishes it
// when all hosts are ready. A training step repeats itself, so the coordinator hands out a *plan*,
// the sequence that it has seen come again: from then on whoever announces last on a host publishes
// the next collective of the plan at once, and no message is sent but the data.
//
// A host that has something else to do leaves the plan: its ranks take part in the opening of the
// next planned collective and say so there (Communicator::LeavePlan). All ranks of all hosts see it
// in the same collective, so all hosts leave the plan at the same position; what was published
// beyond is taken back, and agreed anew in the next epoch.
#ifndef HVD_TRANSPORT_SHM_CROSSING_H_
#define HVD_TRANSPORT_SHM_CROSSING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ops/core/scheduler.h"
#include "ops/transport/shm/segment.h"

namespace hvd::shm {

// Wakes the host's agent. Callable from any process of the host.
void CallAgent(Segment* segment);
// Waits for that, for `ns` at most; `seen` is what the last call has returned.
uint32_t WaitForAgentCall(Segment* segment, uint32_t seen, int64_t ns);

// Each of these needs the board's lock; those that return ranks want them woken.

// All members on this host have announced it.
std::vector<int> MarkReady(Segment* segment, int32_t slot);

// What the coordinator has to know of a ready slot.
struct ReadySlot {
  MatchKey key;
  MatchKey id;
  uint64_t fingerprint = 0;
  int32_t process_set = 0;
  int32_t last_rank = 0;          // global
  std::vector<int> set;           // the process set; empty for all ranks
  std::vector<int> participants;  // those of this host that announced it
  Opening opening = Opening::kDoubling;
  bool mismatch = false;
  bool is_join = false;
  bool plannable = false;
  std::string name;
};

// The ready slots that the coordinator does not know of in this epoch; they count as told.
std::vector<ReadySlot> TakeUntold(Segment* segment, uint32_t* epoch);

// Agreed: all members on all hosts are ready. `participants` is empty where it is the whole process
// set. Does nothing for a collective that this host is not ready for.
struct Agreement {
  MatchKey key;
  bool mismatch = false;
  int32_t last_rank = 0;
  std::vector<int> participants;
};
std::vector<int> PublishAgreed(Segment* segment, const Agreement& agreement);

// Starts a plan, with the first entry as the next collective.
std::vector<int> StartPlan(Segment* segment, const std::vector<PlanEntry>& entries);

// Leaves the plan if its next collective has not become ready for `patience_ns`, while others have.
// Returns the ranks to wake; *wait_ns is how long until that can be the case, 0 for no such thing.
std::vector<int> LeaveIfOutOfStep(Segment* segment, int64_t patience_ns, int64_t* wait_ns);

// A rank of this host wants to leave the job.
std::vector<int> Depart(Segment* segment);

// A rank has executed, up to its opening, a collective in which a host has left the plan.
void GiveBack(Segment* segment, int32_t slot);

// Fails the waiting collective of this key, or all that span hosts, with the board's failure text.
std::vector<int> FailKey(Segment* segment, const MatchKey& key, Code code);
std::vector<int> FailAllSpanning(Segment* segment, Code code);

// Asks the agent to fail this slot, which cannot complete, on all hosts. The text is the board's.
void AskToFail(Segment* segment, int32_t slot, Code code);

// One line for each collective that spans hosts and waits here: who has called it, who has not.
std::string DescribeWaiting(Segment* segment, size_t max_lines);

}  // namespace hvd::shm

#endif  // HVD_TRANSPORT_SHM_CROSSING_H_
