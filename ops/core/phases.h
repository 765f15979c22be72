// PhaseTimes: what a communicator spends the time of one collective on.
#ifndef HVD_CORE_PHASES_H_
#define HVD_CORE_PHASES_H_

#include <time.h>

#include <cstdint>

#include "ops/core/clock.h"

namespace hvd {

// In nanoseconds, added up over all chunks.
struct PhaseTimes {
  int64_t pack = 0;     // copying inputs to where others can read them
  int64_t wait = 0;     // for other ranks of this host, in the middle of it
  int64_t network = 0;  // for other hosts
  int64_t reduce = 0;
  int64_t unpack = 0;  // copying results to the outputs
};

// A stopwatch whose every lap is added to one phase. Without times to add to it does nothing, not
// even read the clock.
class PhaseLaps {
 public:
  explicit PhaseLaps(PhaseTimes* times)
      : times_(times), last_ns_(times == nullptr ? 0 : ClockNs(CLOCK_MONOTONIC)) {}

  // What has passed since the last lap belongs to `phase`.
  void End(int64_t PhaseTimes::*phase) {
    if (times_ == nullptr) return;
    const int64_t now = ClockNs(CLOCK_MONOTONIC);
    times_->*phase += now - last_ns_;
    last_ns_ = now;
  }

 private:
  PhaseTimes* const times_;
  int64_t last_ns_;
};

}  // namespace hvd

#endif  // HVD_CORE_PHASES_H_
