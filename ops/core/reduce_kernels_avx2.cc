// The reduction kernels for x86-64 processors with AVX2.
#if defined(__x86_64__)
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "ops/core/reduce_variants.h"

#pragma GCC target("avx2,f16c")

namespace hvd::reduce_avx2 {
#include "ops/core/reduce_kernels.inc"
}  // namespace hvd::reduce_avx2
#endif  // __x86_64__
