// The time, in nanoseconds.
#ifndef HVD_CORE_CLOCK_H_
#define HVD_CORE_CLOCK_H_

#include <time.h>

#include <cstdint>

namespace hvd {

inline int64_t ClockNs(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

}  // namespace hvd

#endif  // HVD_CORE_CLOCK_H_
