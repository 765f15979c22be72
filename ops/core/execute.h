// Executes one agreed collective: what each kind asks of its communicator.
#ifndef HVD_CORE_EXECUTE_H_
#define HVD_CORE_EXECUTE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/core/communicator.h"
#include "ops/core/scheduler.h"
#include "ops/core/status.h"

namespace hvd {

struct Execution {
  const Assignment& assignment;
  const std::vector<int>& set;  // all ranks of the process set, joined or not
  int rank;                     // this one
  Communicator* communicator;   // of assignment.ranks
};

Status ExecuteCollective(const Execution& execution);

// How a reducescatter shares `rows` out: the rows of each member of a process set, as equal as can
// be, the first ones get one more.
std::vector<int64_t> ShareOutRows(int64_t rows, size_t members);

// The error of ranks that announced different things: who sent what. All of them call it.
Status ExplainMismatch(const Execution& execution);

}  // namespace hvd

#endif  // HVD_CORE_EXECUTE_H_
