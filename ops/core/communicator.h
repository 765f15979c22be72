// Communicator: how the members of one process set move and reduce memory.
//
// This header is the whole contract of a transport. All members call the same function with the
// same ticket, in the order of their tickets; the scheduler sees to that. A member is named by its
// index in the process set, 0 to size() - 1. Sizes are in bytes or elements as said, always int64.
// A function returns when the outputs are complete and the inputs may be changed.
#ifndef HVD_CORE_COMMUNICATOR_H_
#define HVD_CORE_COMMUNICATOR_H_

#include <cstdint>
#include <vector>

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

// What this member gets from another one's input: `bytes` from `begin` on, out of `total`.
struct AlltoallPart {
  int64_t total;
  int64_t begin;
  int64_t bytes;
  int64_t output_begin;  // where it goes
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
};

}  // namespace hvd

#endif  // HVD_CORE_COMMUNICATOR_H_
