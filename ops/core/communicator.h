// Communicator: how the members of one process set move and reduce memory.
//
// This header is the whole contract of a transport. All members call the same function with the
// same ticket, in the order of their tickets; the scheduler sees to that. A member is named by its
// index in the process set, 0 to size() - 1. Sizes are in bytes or elements as said, always int64.
// A function returns when the outputs are complete and the inputs may be changed.
//
// A communicator that spans hosts also carries the hosts' word on the plan (see plan.h): a
// collective that is executed by plan ends with kPlanLeft, its outputs untouched, where a host has
// something else to do.
#ifndef HVD_CORE_COMMUNICATOR_H_
#define HVD_CORE_COMMUNICATOR_H_

#include <cstdint>
#include <vector>

#include "ops/core/phases.h"
#include "ops/core/reduce.h"
#include "ops/core/status.h"

namespace hvd {

// A collective's place in the agreed schedule: increasing, never used twice, the same on all
// members.
using Ticket = int64_t;

// A contiguous part of what a member sends, and where the result goes. `output` may equal `input`.
struct Buffer {
  const void* input;
  void* output;
  int64_t bytes;
};

// What each member contributes to one gathered tensor, in member order along `output`.
struct GatherBuffer {
  const void* input;
  void* output;
  std::vector<int64_t> bytes;  // of each member
};

// A tensor that is reduced and shared out. This member gets `share_bytes` from `share_begin` on;
// the shares of the others are their business.
struct ScatterBuffer {
  const void* input;
  void* output;
  int64_t share_begin;
  int64_t share_bytes;
  int64_t total_bytes;
};

// What this member gets from another one's input: `bytes` from `begin` on, out of `total`; and
// what it sends to that member of its own.
struct AlltoallPart {
  int64_t total;
  int64_t begin;
  int64_t bytes;
  int64_t output_begin;  // where it goes
  int64_t send_begin;
  int64_t send_bytes;
};

// How a collective that was executed by plan begins between hosts, and so how a host that leaves
// the plan takes part in it without having its data.
enum class Opening : uint8_t {
  kDoubling,  // in rounds, with a partner each
  kDirect,    // with every other host at once
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int index() const = 0;
  virtual int size() const = 0;

  // All buffers hold elements of reduction.dtype and travel as one stream.
  virtual Status Allreduce(Ticket ticket, const Reduction& reduction,
                           const std::vector<Buffer>& buffers) = 0;

  virtual Status Allgather(Ticket ticket, const std::vector<GatherBuffer>& buffers) = 0;

  virtual Status Reducescatter(Ticket ticket, const Reduction& reduction,
                               const std::vector<ScatterBuffer>& buffers) = 0;

  // parts[m]: what this member gets from member m.
  virtual Status Alltoall(Ticket ticket, const void* input, void* output,
                          const std::vector<AlltoallPart>& parts) = 0;

  // `input` is read at the root only.
  virtual Status Broadcast(Ticket ticket, int root, const std::vector<Buffer>& buffers) = 0;

  // What it moves data with, in capitals.
  virtual const char* transport() const = 0;

  // Where the calls from now on add up what they spend their time on; null for nowhere.
  virtual void set_phases(PhaseTimes* phases) { phases_ = phases; }

  // The next call is by plan: it may end with kPlanLeft.
  virtual void FollowPlan() {}

  // In place of a planned collective which this host does not take part in: tells the others.
  virtual Status LeavePlan(Ticket ticket, Opening opening);

 protected:
  PhaseTimes* phases() const { return phases_; }

 private:
  PhaseTimes* phases_ = nullptr;
};

// How an allreduce of so many bytes opens.
Opening OpeningOf(int64_t allreduce_bytes);

}  // namespace hvd

#endif  // HVD_CORE_COMMUNICATOR_H_
