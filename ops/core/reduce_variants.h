// The reduction kernels, compiled once per instruction set and chosen at run time (reduce.cc).
#ifndef HVD_CORE_REDUCE_VARIANTS_H_
#define HVD_CORE_REDUCE_VARIANTS_H_

#include <cstdint>

#include "ops/core/reduce.h"
#include "ops/core/stores.h"

#define HVD_DECLARE_REDUCE_VARIANT(variant)                                                        \
  namespace hvd::variant {                                                                         \
  void Reduce(const Reduction& reduction, const void* const* inputs, int num_inputs, void* output, \
              int64_t count, Stores stores);                                                       \
  void ToPartial(const Reduction& reduction, const void* input, void* partial, int64_t count);     \
  void FinishPartials(const Reduction& reduction, const void* const* partials, int num_partials,   \
                      void* output, int64_t count);                                                \
  }

HVD_DECLARE_REDUCE_VARIANT(reduce_baseline)
HVD_DECLARE_REDUCE_VARIANT(reduce_avx2)
HVD_DECLARE_REDUCE_VARIANT(reduce_avx512)

#undef HVD_DECLARE_REDUCE_VARIANT

#endif  // HVD_CORE_REDUCE_VARIANTS_H_
