#include "ops/core/reduce.h"

#include <string>

#include "ops/core/reduce_variants.h"

namespace hvd {
namespace {

struct Variant {
  decltype(&reduce_baseline::Reduce) reduce;
  decltype(&reduce_baseline::ToPartial) to_partial;
  decltype(&reduce_baseline::FinishPartials) finish_partials;
};

Variant ChooseVariant() {
#if defined(__x86_64__) && defined(__GNUC__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return {reduce_avx512::Reduce, reduce_avx512::ToPartial, reduce_avx512::FinishPartials};
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
    return {reduce_avx2::Reduce, reduce_avx2::ToPartial, reduce_avx2::FinishPartials};
  }
#endif
  return {reduce_baseline::Reduce, reduce_baseline::ToPartial, reduce_baseline::FinishPartials};
}

const Variant& Kernels() {
  static const Variant variant = ChooseVariant();
  return variant;
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
            int64_t count, Stores stores) {
  Kernels().reduce(reduction, inputs, num_inputs, output, count, stores);
}

DataType PartialType(const Reduction& reduction) {
  switch (reduction.dtype) {
    case DataType::kFloat16:
    case DataType::kBfloat16:
      return DataType::kFloat32;
    case DataType::kUint8:
    case DataType::kUint16:
    case DataType::kUint32:
      return reduction.op == ReduceOp::kAverage ? DataType::kUint64 : reduction.dtype;
    case DataType::kInt8:
    case DataType::kInt16:
    case DataType::kInt32:
      return reduction.op == ReduceOp::kAverage ? DataType::kInt64 : reduction.dtype;
    default:
      return reduction.dtype;
  }
}

Reduction OfPartials(const Reduction& reduction) {
  Reduction partials;
  partials.dtype = PartialType(reduction);
  partials.op = reduction.op == ReduceOp::kAverage ? ReduceOp::kSum : reduction.op;
  return partials;
}

void ToPartial(const Reduction& reduction, const void* input, void* partial, int64_t count) {
  if (PartialType(reduction) != reduction.dtype) {
    return Kernels().to_partial(reduction, input, partial, count);
  }
  Reduction scale = OfPartials(reduction);
  scale.prescale = reduction.prescale;
  Reduce(scale, &input, 1, partial, count);
}

void FinishPartials(const Reduction& reduction, const void* const* partials, int num_partials,
                    void* output, int64_t count) {
  if (PartialType(reduction) != reduction.dtype) {
    return Kernels().finish_partials(reduction, partials, num_partials, output, count);
  }
  Reduction finish = reduction;
  finish.prescale = 1.0;
  Reduce(finish, partials, num_partials, output, count);
}

}  // namespace hvd
