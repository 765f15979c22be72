// Engine: the one thread of a process that runs collectives, and the way in.
//
// Submit() may be called from any thread and returns at once. The engine's thread takes what the
// scheduler has agreed with the other ranks, executes it through the communicator of its process
// set, and reports through Request::done.
#ifndef HVD_CORE_ENGINE_H_
#define HVD_CORE_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "ops/core/communicator.h"
#include "ops/core/request.h"
#include "ops/core/scheduler.h"

namespace hvd {

// A group of ranks, and how they talk.
struct ProcessSet {
  std::vector<int> ranks;  // global, ascending
  std::unique_ptr<Communicator> communicator;
};

// Counters since the engine started. Read without a lock: each is exact, together they are a
// sample.
struct EngineStats {
  std::atomic<int64_t> collectives{0};
  std::atomic<int64_t> failures{0};
  std::atomic<int64_t> bytes{0};  // of all inputs
};

class Engine {
 public:
  // `world` is process set 0 and has all ranks.
  Engine(int rank, ProcessSet world, std::unique_ptr<Scheduler> scheduler);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Ends in exactly one call of request->done, here or later on the engine's thread. A name may be
  // submitted again at any time: its occurrences are counted, and matched in their order.
  void Submit(std::unique_ptr<Request> request);

  // Ends the thread; what is still pending fails with kAborted, what comes later with
  // kFailedPrecondition. Idempotent.
  void Shutdown();

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(world_ranks_.size()); }
  const EngineStats& stats() const { return stats_; }

 private:
  void Run();
  void Finish(Assignment assignment, const Status& status);
  void FailAll(const Status& status);
  Status Execute(const Assignment& assignment);
  Status ExecuteAllreduce(const Assignment& assignment, const ProcessSet& set);
  Status ExecuteAllgather(const Assignment& assignment, const ProcessSet& set);
  Status ExecuteBroadcast(const Assignment& assignment, const ProcessSet& set);
  Status ExplainMismatch(const Assignment& assignment, const ProcessSet& set);
  MatchKey NextKey(const Request& request);

  const int rank_;
  const std::vector<int> world_ranks_;
  const std::unique_ptr<Scheduler> scheduler_;

  std::mutex mutex_;  // guards what follows
  std::map<int32_t, std::shared_ptr<ProcessSet>> sets_;
  std::unordered_map<std::string, uint64_t> occurrences_;
  Status ended_;  // not ok once nothing may be submitted any more

  EngineStats stats_;
  std::thread thread_;
};

}  // namespace hvd

#endif  // HVD_CORE_ENGINE_H_
