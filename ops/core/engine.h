// Engine: the one thread of a process that runs collectives, and the way in.
//
// Submit() may be called from any thread and returns at once. The engine's thread takes what the
// scheduler has agreed with the other ranks, executes it through the communicator of its process
// set, and reports through Request::done.
#ifndef HVD_CORE_ENGINE_H_
#define HVD_CORE_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "ops/core/communicator.h"
#include "ops/core/exposure.h"
#include "ops/core/phases.h"
#include "ops/core/recorder.h"
#include "ops/core/request.h"
#include "ops/core/scheduler.h"
#include "ops/core/timeline.h"

namespace hvd {

// Makes the communicator of some ranks (global, ascending) of which this rank is one.
using CommunicatorFactory =
    std::function<std::shared_ptr<Communicator>(const std::vector<int>& ranks)>;

// Counters since the engine started. Read without a lock: each is exact, together they are a
// sample.
struct EngineStats {
  std::atomic<int64_t> collectives{0};
  std::atomic<int64_t> failures{0};
  std::atomic<int64_t> bytes{0};    // of all inputs
  std::atomic<int64_t> planned{0};  // collectives that no message was sent for, but their data
  // Of collectives with others, in nanoseconds: from this rank's call until all had called, and
  // from the first rank of this host to this one.
  std::atomic<int64_t> waited_ns{0};
  std::atomic<int64_t> late_ns{0};
  std::atomic<int64_t> last{0};  // collectives that this rank was the last to call
};

class Engine {
 public:
  // Process set 0 has all ranks.
  Engine(int rank, int size, CommunicatorFactory make_communicator,
         std::unique_ptr<Scheduler> scheduler, FlightRing* flight_ring = nullptr,
         Timeline* timeline = nullptr);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Ends in exactly one call of request->done, here or later on the engine's thread. A name may be
  // submitted again at any time: its occurrences are counted, and matched in their order.
  void Submit(std::unique_ptr<Request> request);

  // Makes a process set known under an id, which must be the same on all ranks. This rank need not
  // be a member.
  Status AddProcessSet(int32_t id, std::vector<int> ranks);
  Status RemoveProcessSet(int32_t id);
  // The ranks of a process set.
  Status GetProcessSet(int32_t id, std::vector<int>* ranks);

  // Ends the thread; what is still pending fails with kAborted, what comes later with
  // kFailedPrecondition. Idempotent.
  void Shutdown();

  int rank() const { return rank_; }
  int size() const { return size_; }
  const EngineStats& stats() const { return stats_; }

  // How long the program has waited for collectives, see ExposureMeter.
  int64_t ExposedNs();
  // Collectives called BASE.0, BASE.1, ... are the buckets of a backward pass.
  void AddBuckets(const std::string& base);

 private:
  Status Post(std::unique_ptr<Request>* request);
  void Run();
  void Finish(Assignment assignment, int64_t started_ns, const Status& status);
  void FailAll(const Status& status);
  Status Execute(const Assignment& assignment);
  Communicator* CommunicatorOf(const std::vector<int>& ranks);
  Status LeavePlan(Assignment assignment);
  static MatchKey IdOf(const Request& request);
  static MatchKey KeyOf(const MatchKey& id, uint64_t occurrence);
  static std::string OccurrenceName(const Request& request);
  // Makes the ranks count alike again where some made calls in which others took no part: starts
  // anew after a join, and takes back calls that could not complete.
  void Recount(const Assignment& assignment);
  // With the lock: `request` is called, or ends without having been announced.
  void NoteCall(Request* request, uint64_t occurrence);
  void RecordExposed(const ExposureMeter::Interval& waited);
  void CountWaits(const Assignment& assignment);
  bool records() const { return timeline_ != nullptr && timeline_->is_on(); }
  TimelineRecord RecordOf(const Assignment& assignment, int64_t started_ns, int64_t ended_ns,
                          const Status& status);
  void ForgetOccurrences(int32_t process_set);

  const int rank_;
  const int size_;
  const CommunicatorFactory make_communicator_;
  const std::unique_ptr<Scheduler> scheduler_;
  FlightRecorder recorder_;
  Timeline* const timeline_;  // may be null
  PhaseTimes phases_;         // of the collective in progress; engine's thread only
  std::map<std::vector<int>, std::shared_ptr<Communicator>> communicators_;  // engine's thread only

  std::mutex mutex_;  // guards what follows
  std::map<int32_t, std::vector<int>> sets_;
  std::unordered_map<std::string, uint64_t> occurrences_;
  Status ended_;  // not ok once nothing may be submitted any more
  ExposureMeter exposure_;

  EngineStats stats_;
  std::thread thread_;
};

}  // namespace hvd

#endif  // HVD_CORE_ENGINE_H_
