#include "ops/core/stores.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hvd {
namespace {

#if defined(__x86_64__)

constexpr int64_t kLine = 64;

// All of these: `to` at the start of a line, whole lines. A line is written at once, since half of
// one would be written to memory twice.
void StreamLinesSse2(char* to, const char* from, int64_t lines) {
  for (int64_t i = 0; i < lines; ++i, to += kLine, from += kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from);
    auto* target = reinterpret_cast<__m128i*>(to);
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
}

__attribute__((target("avx512f"))) void StreamLinesAvx512(char* to, const char* from,
                                                          int64_t lines) {
  for (int64_t i = 0; i < lines; ++i) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i * kLine),
                        _mm512_loadu_si512(from + i * kLine));
  }
}

void StreamLines(char* to, const char* from, int64_t lines) {
  static const auto stream =
      __builtin_cpu_supports("avx512f") ? StreamLinesAvx512 : StreamLinesSse2;
  stream(to, from, lines);
}

void StreamingCopy(char* to, const char* from, int64_t bytes) {
  const int64_t past_line = static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) % kLine);
  const int64_t head = std::min(bytes, (kLine - past_line) % kLine);
  std::memcpy(to, from, static_cast<size_t>(head));
  const int64_t lines = (bytes - head) / kLine;
  StreamLines(to + head, from + head, lines);
  const int64_t done = head + lines * kLine;
  std::memcpy(to + done, from + done, static_cast<size_t>(bytes - done));
}

#endif  // __x86_64__

}  // namespace

void Copy(void* to, const void* from, int64_t bytes, Stores stores) {
#if defined(__x86_64__)
  if (stores == Stores::kStreaming) {
    StreamingCopy(static_cast<char*>(to), static_cast<const char*>(from), bytes);
    return;
  }
#endif
  (void)stores;
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

void DrainStores() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace hvd
