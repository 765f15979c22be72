// The reduction kernels for x86-64 processors with AVX-512.
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "ops/core/reduce_variants.h"

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,f16c,prefer-vector-width=512")

namespace hvd::reduce_avx512 {
namespace {

// Of 64 bytes; `to` at the start of a line.
inline void StreamLine(void* to, const void* from) {
  _mm512_stream_si512(static_cast<__m512i*>(to), _mm512_load_si512(from));
}

}  // namespace

#include "ops/core/reduce_kernels.inc"
}  // namespace hvd::reduce_avx512
#endif  // __x86_64__
