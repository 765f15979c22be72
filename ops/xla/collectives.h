// The collectives that XLA can compile, and what tells one from the others.
#ifndef HVD_XLA_COLLECTIVES_H_
#define HVD_XLA_COLLECTIVES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ops/core/request.h"
#include "ops/xla/attributes.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace hvd::xla_ops {

struct Collective {
  const char* op;
  CollectiveKind kind;

  // Copies the attributes of the op that only this kind has; null if there are none.
  absl::Status (*describe)(tensorflow::OpKernelConstruction* op, Attributes* attributes);

  // The first dimension of the output whose input has `rows`, on the index-th of the process set's
  // members; null where outputs have the shapes of their inputs.
  int64_t (*output_rows)(int64_t rows, int64_t members, int64_t index);
};

// nullptr: there is none of this name.
const Collective* FindCollective(const std::string& op);

}  // namespace hvd::xla_ops

#endif  // HVD_XLA_COLLECTIVES_H_
