// Request: all that crosses from a framework kernel into the engine.
#ifndef HVD_CORE_REQUEST_H_
#define HVD_CORE_REQUEST_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ops/core/dtype.h"
#include "ops/core/reduce.h"
#include "ops/core/status.h"

namespace hvd {

enum class CollectiveKind : uint8_t {
  kAllreduce,
  kAllgather,
  kBroadcast,
  kBarrier,
  kReducescatter,
  kAlltoall,
  kJoin,
};

// "allreduce", "allgather", ...
const char* Name(CollectiveKind kind);

// One tensor of a request. The memory belongs to the caller and must live until `done` has run.
struct Piece {
  const void* input = nullptr;
  void* output = nullptr;  // may equal input; may be left to Request::allocate
  std::vector<int64_t> shape;

  int64_t NumElements() const {
    int64_t count = 1;
    for (int64_t dimension : shape) count *= dimension;
    return count;
  }
};

struct Request {
  CollectiveKind kind = CollectiveKind::kBarrier;
  std::string name;  // the same on all ranks; may be used again, see Engine
  int32_t process_set = 0;
  DataType dtype = DataType::kUint8;  // of all pieces
  std::vector<Piece> pieces;

  // Allreduce, reducescatter.
  ReduceOp reduce_op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;

  // Broadcast: the global rank that sends.
  int root_rank = 0;

  // Alltoall, which has one piece: the rows for each member of the process set.
  std::vector<int64_t> splits;

  // Allgather, alltoall, reducescatter: called once, on the engine's thread; allocates the outputs
  // and stores their addresses in `pieces`. rows[piece] are the first dimensions of an output's
  // parts: those that come from each member; of a reducescatter this rank's share alone. It answers
  // kInvalidArgument where the outputs are there already, and not of that shape.
  std::function<Status(const std::vector<std::vector<int64_t>>& rows, std::vector<Piece>* pieces)>
      allocate;

  // Join: called before `done`, with the rank that joined last.
  std::function<void(int last_rank)> joined;

  // Called exactly once, on any thread; must not block.
  std::function<void(const Status&)> done;

  // Barrier: how long to wait for the others; 0 for ever.
  double timeout_seconds = 0;

  // A fault that only this rank can see (a type without meaning for the operation, say). The
  // request is announced all the same, so that the other ranks get an error instead of a wait.
  Status fault;

  // The engine's.
  uint64_t record = 0;      // its number in the flight recorder
  uint64_t occurrence = 0;  // of its name
  int64_t called_ns = 0;    // CLOCK_MONOTONIC
  int32_t thread = 0;       // that called it
};

// Checks what one rank can check alone; `ranks` are the global ranks of the process set.
Status ValidateRequest(const Request& request, const std::vector<int>& ranks);

// A hash of everything that must agree between ranks. The first dimension of an allgather or
// alltoall is left out, since it may differ.
uint64_t Fingerprint(const Request& request);

// The same in words, for example "allreduce(average) of 2 float32 tensors, shapes [3,4] [4]"; at
// most `max_bytes` long.
std::string Describe(const Request& request, size_t max_bytes);

}  // namespace hvd

#endif  // HVD_CORE_REQUEST_H_
