// World: the one engine of this process, and which transport it got.
#ifndef HVD_WORLD_WORLD_H_
#define HVD_WORLD_WORLD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/core/engine.h"
#include "ops/core/host_map.h"
#include "ops/core/status.h"
#include "ops/core/timeline.h"
#include "ops/hosts/agent.h"
#include "ops/hosts/exchange.h"
#include "ops/transport/shm/segment.h"
#include "ops/transport/shm/waiter.h"

namespace hvd {

struct WorldConfig {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among the ranks of this host
  int local_size = 1;
  int cross_rank = 0;  // of the host
  int cross_size = 1;
  std::string segment;  // address of the host's shared segment; unused if local_size is 1
  // Where there are several hosts: the host of each rank, their names, and the way between them.
  std::vector<int> host_of_rank;
  std::vector<std::string> host_names;
  std::string mpi_library;
  uint64_t mpi_communicator = 0;
  double host_timeout_seconds = 6;
  double start_timeout_seconds = 30;
  double deadlock_seconds = 1;
  double stall_warning_seconds = 60;
  double stall_shutdown_seconds = 0;
  int64_t chunk_bytes = 256 * 1024;
};

class World {
 public:
  // Returns when all ranks have called it. kFailedPrecondition if it has been called already.
  static Status Init(const WorldConfig& config);

  // Leaves the job. Does nothing without Init(), and in a forked child.
  static void Shutdown();

  // Makes a signal call this rank's watcher to write the flight recorder. Does nothing where the
  // program handles or ignores the signal itself. Returns whether it will.
  static bool CallWatcherOnSignal(int signum);

  // The world, or why there is none.
  static Status Current(std::shared_ptr<World>* world);

  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  const WorldConfig& config() const { return config_; }
  Engine& engine() { return *engine_; }
  const shm::Waiter& waiter() const { return *waiter_; }
  shm::Segment& segment() { return *segment_; }
  // Of this rank.
  Timeline& timeline() { return timeline_; }
  Status StartTimeline(const std::string& path, bool mark_cycles, int64_t max_bytes);
  void StopTimeline();
  // Null on one host; the agent also on all but the first rank of each host.
  const hosts::Exchange* exchange() const { return exchange_.get(); }
  const hosts::Agent* agent() const { return agent_.get(); }

 private:
  explicit World(const WorldConfig& config) : config_(config) {}
  Status Start(uint64_t generation);
  Status OpenSegment(uint64_t generation);
  Status StartBetweenHosts();
  CommunicatorFactory MakeFactory();

  const WorldConfig config_;
  HostMap map_;
  std::shared_ptr<shm::Segment> segment_;
  std::shared_ptr<shm::Waiter> waiter_;
  std::shared_ptr<hosts::Exchange> exchange_;
  std::unique_ptr<hosts::Agent> agent_;
  Timeline timeline_;  // before the engine, which writes to it
  std::unique_ptr<Engine> engine_;
};

}  // namespace hvd

#endif  // HVD_WORLD_WORLD_H_
