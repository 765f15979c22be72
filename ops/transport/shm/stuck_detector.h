// StuckDetector: finds collectives on the board that can never complete, or shall not.
//
// Three kinds: a member has left the job, the time that a barrier was given is over, or the ranks
// wait for one another in different collectives. The last is only called so on evidence: each rank
// concerned waits for a collective, nothing has been announced or completed anywhere, and the
// processes have used no processor time, for `quiet_checks` checks in a row. A rank that computes,
// reads or sleeps while it has nothing pending is not stuck, however long it takes.
#ifndef HVD_TRANSPORT_SHM_STUCK_DETECTOR_H_
#define HVD_TRANSPORT_SHM_STUCK_DETECTOR_H_

#include <cstdint>
#include <vector>

#include "ops/transport/shm/segment.h"
#include "ops/transport/shm/waiter.h"

namespace hvd::shm {

class StuckDetector {
 public:
  // `quiet_checks` = 0 switches the last kind off. A process that has used less than `idle_share`
  // of one processor counts as one that has used no time.
  StuckDetector(Segment* segment, Waiter* waiter, int rank, int quiet_checks, double idle_share);

  // To be called at regular intervals by the engine's thread while it waits for its queue.
  Status Check(bool has_pending);

 private:
  bool IsQuiet(bool has_pending);
  bool AllAlive();
  std::vector<bool> Dependencies();
  // Fails the first collective that this rank has announced and for which `reason` gives a text.
  template <typename Reason>
  Status FailFirst(Code code, const Reason& reason);
  Status FailWhatMissesALeaver();
  Status FailWhatIsLate();
  Status FailWhatWaitsInACircle();

  Segment* const segment_;
  Waiter* const waiter_;
  const int rank_;
  const uint32_t quiet_checks_needed_;
  const double idle_share_;
  uint32_t quiet_checks_ = 0;
  uint64_t last_activity_ = 0;
  int64_t last_cpu_ns_ = 0;
  int64_t last_time_ns_ = 0;
  std::vector<uint64_t> seen_checks_;  // of each rank, at the last check
};

}  // namespace hvd::shm

#endif  // HVD_TRANSPORT_SHM_STUCK_DETECTOR_H_
