// Where this process stands in the world, as numbers that a graph can ask for while it runs.
#ifndef HVD_WORLD_TOPOLOGY_H_
#define HVD_WORLD_TOPOLOGY_H_

#include <cstdint>

namespace hvd {

enum class Topology : int32_t {
  kRank,
  kLocalRank,
  kLocalSize,
  kSize,                // of a process set
  kProcessSetIncluded,  // 1 if this rank is in it, else 0
};

// -1 before hvd.init(), -3 for a process set that does not exist.
int32_t TopologyNow(Topology what, int32_t process_set);

}  // namespace hvd

#endif  // HVD_WORLD_TOPOLOGY_H_
