// ShmScheduler: the Scheduler of ranks that share a host, by way of the board; what spans hosts
// passes it as well, see crossing.h.
#ifndef HVD_TRANSPORT_SHM_SHM_SCHEDULER_H_
#define HVD_TRANSPORT_SHM_SHM_SCHEDULER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "ops/core/host_map.h"
#include "ops/core/scheduler.h"
#include "ops/transport/shm/board.h"
#include "ops/transport/shm/stall_reporter.h"
#include "ops/transport/shm/stuck_detector.h"
#include "ops/transport/shm/waiter.h"

namespace hvd::shm {

// How long ranks wait before something is said or done; seconds, 0 for never.
struct Patience {
  double deadlock_seconds = 0;  // all wait for one another, without any sign of life
  double stall_warning_seconds = 0;
  double stall_shutdown_seconds = 0;
  double idle_share = 0.05;  // see StuckDetector
};

// After how many checks in a row without a sign of life a rank counts as waiting for `seconds`.
int QuietChecks(double seconds);

class ShmScheduler : public Scheduler {
 public:
  // `rank` is the caller's, of all hosts. Makes `waiter` report stalls, too.
  ShmScheduler(std::shared_ptr<Segment> segment, std::shared_ptr<Waiter> waiter, HostMap map,
               int rank, const Patience& patience);

  Status Post(Announcement* announcement) override;
  Status Next(Assignment* assignment) override;
  void Complete(int64_t handle) override;
  Status GiveBack(Assignment assignment) override;
  void Interrupt() override;
  std::vector<std::unique_ptr<Request>> Drain() override;

 private:
  // What was announced and not handed out.
  struct Pending {
    std::unique_ptr<Request> request;
    std::vector<int> ranks;  // the process set
  };

  Members MembersOf(const std::vector<int>& ranks) const;
  // False if the board is full.
  Status TryPost(Announcement* announcement, bool* posted);
  Status PostDeferred();
  Status WaitForQueue();
  // Interrupted, and nothing is left that others need this rank for.
  bool MayLeave() const;
  // False for an entry that is void.
  bool Take(Assignment* assignment);

  const std::shared_ptr<Segment> segment_;
  const std::shared_ptr<Waiter> waiter_;
  const HostMap map_;
  const int host_;
  const int rank_;  // among those of this host
  StuckDetector stuck_detector_;
  std::shared_ptr<StallReporter> stall_reporter_;
  uint64_t taken_ = 0;  // entries of this rank's queue that were handed out
  std::atomic<bool> interrupted_{false};
  std::atomic<int64_t> pending_{0};  // announced or deferred, and not handed out

  // By board slot. Written under the board's lock before a slot is published, read after that.
  std::vector<Pending> requests_;

  std::mutex deferred_mutex_;
  std::deque<Announcement> deferred_;  // found the board full
  std::atomic<bool> has_deferred_{false};
};

}  // namespace hvd::shm

#endif  // HVD_TRANSPORT_SHM_SHM_SCHEDULER_H_
