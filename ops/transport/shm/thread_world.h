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
  explicit Rank(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}

  Rank(std::shared_ptr<Segment> segment, int rank, const Patience& patience)
      : waiter_(std::make_shared<Waiter>(segment, rank, 100)) {
    auto ledger = std::make_shared<SlotLedger>(segment);
    auto make_communicator = [segment, waiter = waiter_, ledger,
                              rank](const std::vector<int>& ranks) {
      return std::make_shared<ShmCommunicator>(segment, waiter, ledger, ranks, rank);
    };
    engine_ = std::make_unique<Engine>(
        rank, segment->ranks(), std::move(make_communicator),
        std::make_unique<ShmScheduler>(segment, waiter_, HostMap::OneHost(segment->ranks()), rank,
                                       patience),
        &segment->report(rank).flight_ring);
  }

  int rank() const { return engine_->rank(); }
  int size() const { return engine_->size(); }
  Engine& engine() { return *engine_; }

  // Submits what `fill` makes of an empty request, and waits for it.
  Status Run(CollectiveKind kind, const std::string& name,
             const std::function<void(Request*)>& fill, int process_set = 0) {
    Results results;
    auto request = std::make_unique<Request>();
    request->kind = kind;
    request->name = name;
    request->process_set = process_set;
    request->dtype = DataType::kInt32;
    fill(request.get());
    request->done = results.Expect();
    engine_->Submit(std::move(request));
    return results.Wait()[0];
  }

  // Blocking forms of the collectives, on typed vectors.
  template <typename T>
  Status Allreduce(const std::string& name, DataType dtype, const Reduction& how,
                   std::vector<T>* data, int process_set = 0) {
    return Run(
        CollectiveKind::kAllreduce, name,
        [&](Request* request) {
          request->dtype = dtype;
          request->reduce_op = how.op;
          request->prescale = how.prescale;
          request->postscale = how.postscale;
          request->pieces.push_back(
              {data->data(), data->data(), {static_cast<int64_t>(data->size())}});
        },
        process_set);
  }

  Status Allgather(const std::string& name, const std::vector<int32_t>& data,
                   std::vector<int32_t>* output, int process_set = 0) {
    return Run(
        CollectiveKind::kAllgather, name,
        [&](Request* request) {
          request->pieces.push_back({data.data(), nullptr, {static_cast<int64_t>(data.size())}});
          request->allocate = AllocateInto(output, nullptr);
        },
        process_set);
  }

  Status Broadcast(const std::string& name, int root, std::vector<int32_t>* data,
                   int process_set = 0) {
    return Run(
        CollectiveKind::kBroadcast, name,
        [&](Request* request) {
          request->root_rank = root;
          request->pieces.push_back(
              {data->data(), data->data(), {static_cast<int64_t>(data->size())}});
        },
        process_set);
  }

  Status Reducescatter(const std::string& name, ReduceOp op, const std::vector<int32_t>& data,
                       std::vector<int32_t>* output, int process_set = 0) {
    return Run(
        CollectiveKind::kReducescatter, name,
        [&](Request* request) {
          request->reduce_op = op;
          request->pieces.push_back({data.data(), nullptr, {static_cast<int64_t>(data.size())}});
          request->allocate = AllocateInto(output, nullptr);
        },
        process_set);
  }

  Status Alltoall(const std::string& name, const std::vector<int32_t>& data,
                  const std::vector<int64_t>& splits, std::vector<int32_t>* output,
                  std::vector<int64_t>* received, int process_set = 0) {
    return Run(
        CollectiveKind::kAlltoall, name,
        [&](Request* request) {
          request->splits = splits;
          request->pieces.push_back({data.data(), nullptr, {static_cast<int64_t>(data.size())}});
          request->allocate = AllocateInto(output, received);
        },
        process_set);
  }

  Status Join(int* last_rank, int process_set = 0) {
    return Run(
        CollectiveKind::kJoin, "join",
        [&](Request* request) { request->joined = [last_rank](int last) { *last_rank = last; }; },
        process_set);
  }

 private:
  static std::function<Status(const std::vector<std::vector<int64_t>>&, std::vector<Piece>*)>
  AllocateInto(std::vector<int32_t>* output, std::vector<int64_t>* received) {
    return [=](const std::vector<std::vector<int64_t>>& rows, std::vector<Piece>* pieces) {
      if (received != nullptr) *received = rows[0];
      output->assign(std::accumulate(rows[0].begin(), rows[0].end(), int64_t{0}), -1);
      (*pieces)[0].output = output->data();
      return Status::Ok();
    };
  }

  std::shared_ptr<Waiter> waiter_;
  std::unique_ptr<Engine> engine_;
};

// Runs `body` once for each of `ranks` ranks, in threads, over one segment.
inline void RunRanks(const SegmentOptions& options, const std::function<void(Rank*)>& body,
                     const Patience& patience = {}) {
  std::shared_ptr<Segment> segment;
  const Status created = Segment::CreateAnonymous(options, &segment);
  if (!created.ok()) std::abort();
  std::vector<std::thread> threads;
  for (int r = 0; r < options.ranks; ++r) {
    threads.emplace_back([&, r] {
      if (!segment->Attach(r, r, std::chrono::seconds(30)).ok()) std::abort();
      {
        Rank rank(segment, r, patience);
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
