// Element-wise reduction over ranks. (Adasum is not element-wise: see adasum.h.)
//
// One definition serves every transport: out[i] = finish(x_0[i] o x_1[i] o ... o x_{n-1}[i]),
// always in rank order, so that all ranks, and all runs, get the same bits. float16 and bfloat16
// are accumulated in float32 and rounded once.
#ifndef HVD_CORE_REDUCE_H_
#define HVD_CORE_REDUCE_H_

#include <cstdint>

#include "ops/core/dtype.h"
#include "ops/core/status.h"
#include "ops/core/stores.h"

namespace hvd {

enum class ReduceOp : uint8_t { kSum, kAverage, kMin, kMax, kProduct, kAdasum };

// "sum", "average", "min", "max", "product", "adasum".
const char* Name(ReduceOp op);

// What is computed: each input times `prescale`, combined, divided by `divisor` for kAverage, times
// `postscale`. Integer averages are truncated towards zero after an exact 64-bit sum; other integer
// operations wrap around. A scaled integer is computed in float64 and truncated towards zero.
struct Reduction {
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  int64_t divisor = 1;  // number of contributing ranks
};

// Whether the operation has a meaning for the type (sums of bool have none).
Status CheckReduction(DataType dtype, ReduceOp op, double prescale, double postscale);

// Reduces `count` elements of `inputs[0..num_inputs)` into `output`, which may be one of the inputs
// (the same address, not an overlapping one). Neither needs more alignment than its element. With
// streaming stores the output needs DrainStores() before another thread may read it.
void Reduce(const Reduction& reduction, const void* const* inputs, int num_inputs, void* output,
            int64_t count, Stores stores = Stores::kCached);

// The same in two steps, for inputs that are combined in more than one place. What travels between
// the steps are partial results, of a type that loses nothing: float32 for float16 and bfloat16,
// 64 bits for integer averages, else the type itself.
DataType PartialType(const Reduction& reduction);

// Combines partial results: a Reduction of their type, without scaling.
Reduction OfPartials(const Reduction& reduction);

// One input, scaled, as a partial result.
void ToPartial(const Reduction& reduction, const void* input, void* partial, int64_t count);

// Combines partial results, in order, and finishes: division, scaling, rounding. `output` may be
// the first of them.
void FinishPartials(const Reduction& reduction, const void* const* partials, int num_partials,
                    void* output, int64_t count);

}  // namespace hvd

#endif  // HVD_CORE_REDUCE_H_
