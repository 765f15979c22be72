// For tests: a job whose ranks are threads of this process, each with an engine of its own.
#ifndef HVD_TRANSPORT_SHM_THREAD_WORLD_H_
#define HVD_TRANSPORT_SHM_THREAD_WORLD_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ops/core/engine.h"
#include "ops/transport/shm/segment.h"
#include "ops/transport/shm/shm_communicator.h"
#include "ops/transport/shm/shm_scheduler.h"

namespace hvd::shm {

// Waits for any number of requests and remembers how each ended.
class Results {
 public:
  std::function<void(const Status&)> Expect() {
    std::lock_guard<std::mutex> lock(mutex_);
    const size_t index = statuses_.size();
    statuses_.emplace_back();
    ++pending_;
    return [this, index](const Status& status) {
      std::lock_guard<std::mutex> inner(mutex_);
      statuses_[index] = status;
      if (--pending_ == 0) changed_.notify_all();
    };
  }

  std::vector<Status> Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return pending_ == 0; });
    return statuses_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int pending_ = 0;
  std::vector<Status> statuses_;
};

class Rank {
 public:
  Rank(std::shared_ptr<Segment> segment, int rank, double deadlock_seconds)
      : waiter_(std::make_shared<Waiter>(segment, rank, 100)) {
    ProcessSet world;
    world.ranks.resize(segment->ranks());
    std::iota(world.ranks.begin(), world.ranks.end(), 0);
    world.communicator = std::make_unique<ShmCommunicator>(
        segment, waiter_, std::make_shared<SlotLedger>(segment->slots_per_rank()), world.ranks,
        rank);
    engine_ = std::make_unique<Engine>(
        rank, std::move(world),
        std::make_unique<ShmScheduler>(segment, waiter_, rank, deadlock_seconds));
  }

  int rank() const { return engine_->rank(); }
  int size() const { return engine_->size(); }
  Engine& engine() { return *engine_; }

  // Blocking forms of the collectives, on typed vectors.
  template <typename T>
  Status Allreduce(const std::string& name, DataType dtype, const Reduction& how,
                   std::vector<T>* data) {
    Results results;
    auto request = std::make_unique<Request>();
    request->kind = CollectiveKind::kAllreduce;
    request->name = name;
    request->dtype = dtype;
    request->reduce_op = how.op;
    request->prescale = how.prescale;
    request->postscale = how.postscale;
    request->pieces.push_back({data->data(), data->data(), {static_cast<int64_t>(data->size())}});
    request->done = results.Expect();
    engine_->Submit(std::move(request));
    return results.Wait()[0];
  }

  Status Allgather(const std::string& name, const std::vector<int32_t>& data,
                   std::vector<int32_t>* output) {
    Results results;
    auto request = std::make_unique<Request>();
    request->kind = CollectiveKind::kAllgather;
    request->name = name;
    request->dtype = DataType::kInt32;
    request->pieces.push_back({data.data(), nullptr, {static_cast<int64_t>(data.size())}});
    request->allocate = [output](const std::vector<std::vector<int64_t>>& rows,
                                 std::vector<Piece>* pieces) {
      output->assign(std::accumulate(rows[0].begin(), rows[0].end(), int64_t{0}), -1);
      (*pieces)[0].output = output->data();
      return Status::Ok();
    };
    request->done = results.Expect();
    engine_->Submit(std::move(request));
    return results.Wait()[0];
  }

  Status Broadcast(const std::string& name, int root, std::vector<int32_t>* data) {
    Results results;
    auto request = std::make_unique<Request>();
    request->kind = CollectiveKind::kBroadcast;
    request->name = name;
    request->dtype = DataType::kInt32;
    request->root_rank = root;
    request->pieces.push_back({data->data(), data->data(), {static_cast<int64_t>(data->size())}});
    request->done = results.Expect();
    engine_->Submit(std::move(request));
    return results.Wait()[0];
  }

 private:
  std::shared_ptr<Waiter> waiter_;
  std::unique_ptr<Engine> engine_;
};

// Runs `body` once for each of `ranks` ranks, in threads, over one segment.
inline void RunRanks(const SegmentOptions& options, const std::function<void(Rank*)>& body,
                     double deadlock_seconds = 0) {
  std::shared_ptr<Segment> segment;
  const Status created = Segment::CreateAnonymous(options, &segment);
  if (!created.ok()) std::abort();
  std::vector<std::thread> threads;
  for (int r = 0; r < options.ranks; ++r) {
    threads.emplace_back([&, r] {
      if (!segment->Attach(r, std::chrono::seconds(30)).ok()) std::abort();
      {
        Rank rank(segment, r, deadlock_seconds);
        body(&rank);
        rank.engine().Shutdown();
      }
      segment->line(r).state.store(kLeft);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace hvd::shm

#endif  // HVD_TRANSPORT_SHM_THREAD_WORLD_H_
