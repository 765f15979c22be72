// The reduction kernels for x86-64 processors with AVX2.
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "ops/core/reduce_variants.h"

#pragma GCC target("avx2,f16c")

namespace hvd::reduce_avx2 {
namespace {

// Of 64 bytes; `to` at the start of a line.
inline void StreamLine(void* to, const void* from) {
  auto* target = static_cast<__m256i*>(to);
  const auto* source = static_cast<const __m256i*>(from);
  _mm256_stream_si256(target, _mm256_load_si256(source));
  _mm256_stream_si256(target + 1, _mm256_load_si256(source + 1));
}

}  // namespace

#include "ops/core/reduce_kernels.inc"
}  // namespace hvd::reduce_avx2
#endif  // __x86_64__
