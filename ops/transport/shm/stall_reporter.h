// StallReporter: says who has not come to a collective, after a time in which it should have.
//
// A stall is not an error: a rank may evaluate for an hour while the others wait. So it is reported
// on stderr, once, by the lowest of the ranks that wait: which ranks are missing from which
// collective, what each of them did last, and where its Python stands. Only where a shutdown time
// is set does it end the job.
#ifndef HVD_TRANSPORT_SHM_STALL_REPORTER_H_
#define HVD_TRANSPORT_SHM_STALL_REPORTER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/transport/shm/segment.h"

namespace hvd::shm {

class StallReporter {
 public:
  // Seconds that a collective may wait before it is reported, and before the job is ended; 0 for
  // never.
  StallReporter(std::shared_ptr<Segment> segment, int rank, double warning_seconds,
                double shutdown_seconds);

  // To be called at regular intervals by the engine's thread: while it waits for its queue with
  // collectives pending, and while it waits for a peer in the middle of one.
  Status CheckBoard();
  Status CheckPeer(int peer, int64_t waited_ns);

 private:
  struct Stalled {
    std::string label;
    std::vector<int> arrived;
    std::vector<int> missing;
    int64_t waited_ns = 0;
  };

  // The collectives that this rank has to report. `mark` notes them as reported.
  Status Overdue(bool mark, std::vector<Stalled>* stalled);
  // Asks these ranks where they stand; true once they have answered or had the time to.
  bool HaveAnswered(const std::vector<int>& ranks);
  bool IsDue(int64_t waited_ns, bool reported) const;
  std::string DescribeRank(int rank, const std::string& missing_name);
  std::string WaitsIn(int rank);
  std::string Stack(int rank);
  Status Report(const std::string& text, int64_t waited_ns);

  const std::shared_ptr<Segment> segment_;
  const int rank_;
  const int64_t warning_ns_;
  const int64_t shutdown_ns_;
  int64_t asked_at_ns_ = 0;
  std::vector<uint32_t> answers_before_;  // by rank, when they were asked
  bool peer_reported_ = false;
};

}  // namespace hvd::shm

#endif  // HVD_TRANSPORT_SHM_STALL_REPORTER_H_
