#include "ops/world/topology.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "ops/world/world.h"

namespace hvd {
namespace {

constexpr int32_t kNotInitialized = -1;
constexpr int32_t kUnknownProcessSet = -3;

}  // namespace

int32_t TopologyNow(Topology what, int32_t process_set) {
  std::shared_ptr<World> world;
  if (!World::Current(&world).ok()) return kNotInitialized;
  const WorldConfig& config = world->config();
  if (what == Topology::kRank) return config.rank;
  if (what == Topology::kLocalRank) return config.local_rank;
  if (what == Topology::kLocalSize) return config.local_size;
  std::vector<int> ranks;
  if (!world->engine().GetProcessSet(process_set, &ranks).ok()) return kUnknownProcessSet;
  if (what == Topology::kSize) return static_cast<int32_t>(ranks.size());
  return std::binary_search(ranks.begin(), ranks.end(), config.rank) ? 1 : 0;
}

}  // namespace hvd
