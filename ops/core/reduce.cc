#include "ops/core/reduce.h"

#include <string>

#include "ops/core/reduce_variants.h"

namespace hvd {
namespace {

using ReduceFunction = void (*)(const Reduction&, const void* const*, int, void*, int64_t);

ReduceFunction ChooseVariant() {
#if defined(__x86_64__) && defined(__GNUC__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return reduce_avx512::Reduce;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
    return reduce_avx2::Reduce;
  }
#endif
  return reduce_baseline::Reduce;
}

}  // namespace

const char* Name(ReduceOp op) {
  constexpr const char* kNames[] = {"sum", "average", "min", "max", "product", "adasum"};
  return kNames[static_cast<int>(op)];
}

Status CheckReduction(DataType dtype, ReduceOp op, double prescale, double postscale) {
  if (op == ReduceOp::kAdasum && dtype != DataType::kFloat32 && dtype != DataType::kFloat64) {
    return InvalidArgument(std::string("Adasum of ") + Name(dtype) +
                           " is not defined; cast to float32 first");
  }
  if (dtype != DataType::kBool) return Status::Ok();
  if (op == ReduceOp::kSum || op == ReduceOp::kAverage) {
    return InvalidArgument(std::string("the ") + Name(op) +
                           " of bool has no meaning; use min (logical and), max (logical or), or "
                           "cast to an integer type first");
  }
  if (prescale != 1.0 || postscale != 1.0) {
    return InvalidArgument("bool cannot be scaled; use prescale = postscale = 1");
  }
  return Status::Ok();
}

void Reduce(const Reduction& reduction, const void* const* inputs, int num_inputs, void* output,
            int64_t count) {
  static const ReduceFunction function = ChooseVariant();
  function(reduction, inputs, num_inputs, output, count);
}

}  // namespace hvd
