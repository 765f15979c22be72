// The reduction kernels for every processor.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "ops/core/reduce_variants.h"

namespace hvd::reduce_baseline {
namespace {

// Of 64 bytes; `to` at the start of a line.
inline void StreamLine(void* to, const void* from) {
#if defined(__x86_64__)
  auto* target = static_cast<__m128i*>(to);
  const auto* source = static_cast<const __m128i*>(from);
  for (int i = 0; i < 4; ++i) _mm_stream_si128(target + i, _mm_load_si128(source + i));
#else
  std::memcpy(to, from, 64);
#endif
}

}  // namespace

#include "ops/core/reduce_kernels.inc"
}  // namespace hvd::reduce_baseline
