// Backoff: how long to sleep between two looks at something that announces itself to nobody.
#ifndef HVD_CORE_BACKOFF_H_
#define HVD_CORE_BACKOFF_H_

#include <algorithm>
#include <cstdint>

namespace hvd {

// A sleep in proportion to the wait so far lengthens it by a sixteenth at most, and costs a number
// of looks that grows with its logarithm.
inline int64_t BackoffNs(int64_t waited_ns, int64_t longest_ns) {
  return std::clamp<int64_t>(waited_ns / 16, 20'000, longest_ns);
}

}  // namespace hvd

#endif  // HVD_CORE_BACKOFF_H_
