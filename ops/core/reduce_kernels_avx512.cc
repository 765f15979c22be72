// The reduction kernels for x86-64 processors with AVX-512.
#if defined(__x86_64__)
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "ops/core/reduce_variants.h"

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,f16c,prefer-vector-width=512")

namespace hvd::reduce_avx512 {
#include "ops/core/reduce_kernels.inc"
}  // namespace hvd::reduce_avx512
#endif  // __x86_64__
