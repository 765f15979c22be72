// For tests: a job whose hosts are segments, and whose ranks are threads, of this process.
#ifndef HVD_HOSTS_THREAD_HOSTS_H_
#define HVD_HOSTS_THREAD_HOSTS_H_

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "ops/core/engine.h"
#include "ops/hosts/agent.h"
#include "ops/hosts/exchange.h"
#include "ops/hosts/hosts_communicator.h"
#include "ops/transport/shm/segment.h"
#include "ops/transport/shm/shm_communicator.h"
#include "ops/transport/shm/shm_scheduler.h"
#include "ops/transport/shm/thread_world.h"

namespace hvd::hosts {

// Messages between threads. What is sent from or to a rank that was cut off is lost.
class Network {
 public:
  using Route = std::tuple<int, int, int>;  // from, to, channel

  void Send(const Route& route, const void* data, int64_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (IsCut(route)) return;
    const char* begin = static_cast<const char*>(data);
    sent_[route].emplace_back(begin, begin + bytes);
  }

  // True once the next message has been copied.
  bool Receive(const Route& route, void* data, int64_t max_bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& queue = sent_[route];
    if (queue.empty()) return false;
    if (static_cast<int64_t>(queue.front().size()) > max_bytes) std::abort();
    if (!queue.front().empty()) std::memcpy(data, queue.front().data(), queue.front().size());
    queue.pop_front();
    return true;
  }

  void Cut(const std::vector<int>& ranks) {
    std::lock_guard<std::mutex> lock(mutex_);
    cut_.insert(ranks.begin(), ranks.end());
  }

  // Messages that nobody has received.
  int64_t Unreceived() {
    std::lock_guard<std::mutex> lock(mutex_);
    int64_t count = 0;
    for (const auto& [route, queue] : sent_) count += static_cast<int64_t>(queue.size());
    return count;
  }

 private:
  bool IsCut(const Route& route) const {
    return cut_.count(std::get<0>(route)) != cut_.count(std::get<1>(route));
  }

  std::mutex mutex_;
  std::map<Route, std::deque<std::vector<char>>> sent_;
  std::set<int> cut_;
};

class ThreadMessenger : public Messenger {
 public:
  ThreadMessenger(std::shared_ptr<Network> network, int rank, int size)
      : network_(std::move(network)), rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Status Send(int to, Channel channel, const void* data, int64_t bytes,
              Transfer* transfer) override {
    network_->Send({rank_, to, static_cast<int>(channel)}, data, bytes);
    *transfer = {};
    return Status::Ok();
  }

  Status Receive(int from, Channel channel, void* data, int64_t max_bytes,
                 Transfer* transfer) override {
    std::lock_guard<std::mutex> lock(mutex_);
    transfer->handle = ++last_handle_;
    transfer->is_pending = true;
    const Network::Route route{from, rank_, static_cast<int>(channel)};
    posted_[route].push_back({transfer->handle, data, max_bytes});
    return Status::Ok();
  }

  // Receives are matched in the order in which they were posted, as those of MPI are.
  Status Test(Transfer* transfer) override {
    if (!transfer->is_pending) return Status::Ok();
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [route, posted] : posted_) {
      while (!posted.empty() &&
             network_->Receive(route, posted.front().data, posted.front().max_bytes)) {
        complete_.insert(posted.front().handle);
        posted.pop_front();
      }
    }
    transfer->is_pending = complete_.erase(transfer->handle) == 0;
    return Status::Ok();
  }

 private:
  struct Posted {
    uint64_t handle;
    void* data;
    int64_t max_bytes;
  };

  const std::shared_ptr<Network> network_;
  const int rank_;
  const int size_;
  std::mutex mutex_;
  uint64_t last_handle_ = 0;
  std::map<Network::Route, std::deque<Posted>> posted_;
  std::set<uint64_t> complete_;
};

struct ThreadHostsOptions {
  std::vector<int> ranks_per_host;  // hosts take their ranks one after another
  bool round_robin = false;         // ranks are dealt out to the hosts in turn instead
  int64_t chunk_bytes = 4096;
  AgentOptions agent;
  shm::Patience patience;
};

// What a rank's body gets to see beyond its collectives.
struct HostRank {
  shm::Rank* rank;
  int host;
  Network* network;
  shm::Segment* segment;
  const ExchangeStats* sent;
  const AgentStats* control;  // of its host's agent; null on others than the first rank
};

inline HostMap MapOf(const ThreadHostsOptions& options) {
  std::vector<int> left = options.ranks_per_host;
  std::vector<int> hosts;
  const int num_hosts = static_cast<int>(left.size());
  while (std::any_of(left.begin(), left.end(), [](int n) { return n > 0; })) {
    for (int h = 0; h < num_hosts; ++h) {
      const int take = options.round_robin ? std::min(left[h], 1) : left[h];
      hosts.insert(hosts.end(), take, h);
      left[h] -= take;
    }
  }
  return HostMap(hosts);
}

inline void RunOneRank(const ThreadHostsOptions& options, const HostMap& map, int r,
                       const std::shared_ptr<Network>& network,
                       const std::shared_ptr<shm::Segment>& segment,
                       const std::function<void(const HostRank&)>& body) {
  const int local = map.local(r);
  const int host = map.host_of(r);
  if (!segment->Attach(local, r, std::chrono::seconds(30)).ok()) std::abort();
  auto waiter = std::make_shared<shm::Waiter>(segment, local, 100);
  auto messenger = std::make_shared<ThreadMessenger>(network, r, map.size());
  auto exchange = std::make_shared<Exchange>(
      messenger, [segment](int, int64_t) { return segment->AbortStatus(); }, 20'000);
  auto ledger = std::make_shared<shm::SlotLedger>(segment);
  auto make = [=, &map](const std::vector<int>& ranks) -> std::shared_ptr<Communicator> {
    std::vector<int> here;
    for (int rank : ranks) {
      if (map.host_of(rank) == host) here.push_back(map.local(rank));
    }
    auto inside = std::make_shared<shm::ShmCommunicator>(segment, waiter, ledger, here, local);
    if (here.size() == ranks.size()) return inside;
    return std::make_shared<HostsCommunicator>(inside, exchange, map, ranks, r);
  };
  std::unique_ptr<Agent> agent;
  if (local == 0) {
    AgentOptions agent_options = options.agent;
    agent_options.clock_skew_ns *= host;
    agent = std::make_unique<Agent>(segment, waiter, messenger, map, r, agent_options);
  }
  {
    shm::Rank rank(std::make_unique<Engine>(
        r, map.size(), make,
        std::make_unique<shm::ShmScheduler>(segment, waiter, map, r, options.patience),
        &segment->report(local).flight_ring));
    body({&rank, host, network.get(), segment.get(), &exchange->stats(),
          agent ? &agent->stats() : nullptr});
    rank.engine().Shutdown();
  }
  segment->line(local).state.store(shm::kLeft);
  if (agent) agent->Shutdown();
}

// Runs `body` once for each rank, in threads. Returns how many messages nobody has received.
inline int64_t RunHosts(const ThreadHostsOptions& options,
                        const std::function<void(const HostRank&)>& body) {
  const HostMap map = MapOf(options);
  auto network = std::make_shared<Network>();
  std::vector<std::shared_ptr<shm::Segment>> segments(map.hosts());
  for (int h = 0; h < map.hosts(); ++h) {
    shm::SegmentOptions segment;
    segment.ranks = static_cast<int>(map.ranks_of(h).size());
    segment.chunk_bytes = options.chunk_bytes;
    if (!shm::Segment::CreateAnonymous(segment, &segments[h]).ok()) std::abort();
  }
  std::vector<std::thread> threads;
  for (int r = 0; r < map.size(); ++r) {
    threads.emplace_back(
        [&, r] { RunOneRank(options, map, r, network, segments[map.host_of(r)], body); });
  }
  for (std::thread& thread : threads) thread.join();
  return network->Unreceived();
}

}  // namespace hvd::hosts

#endif  // HVD_HOSTS_THREAD_HOSTS_H_
