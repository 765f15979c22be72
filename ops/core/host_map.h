// HostMap: which rank runs on which host.
#ifndef HVD_CORE_HOST_MAP_H_
#define HVD_CORE_HOST_MAP_H_

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace hvd {

class HostMap {
 public:
  HostMap() = default;

  // `host_of_rank`: hosts are numbered from 0, without gaps. `names`, by host, are for messages.
  explicit HostMap(std::vector<int> host_of_rank, std::vector<std::string> names = {})
      : host_of_(std::move(host_of_rank)), names_(std::move(names)) {
    if (host_of_.empty()) return;
    ranks_of_.resize(1 + *std::max_element(host_of_.begin(), host_of_.end()));
    for (int rank = 0; rank < size(); ++rank) {
      local_.push_back(static_cast<int>(ranks_of_[host_of_[rank]].size()));
      ranks_of_[host_of_[rank]].push_back(rank);
    }
  }

  static HostMap OneHost(int size) { return HostMap(std::vector<int>(size, 0)); }

  int size() const { return static_cast<int>(host_of_.size()); }
  int hosts() const { return static_cast<int>(ranks_of_.size()); }
  int host_of(int rank) const { return host_of_[rank]; }
  // A rank's number among those of its host.
  int local(int rank) const { return local_[rank]; }
  // The ranks of a host, ascending.
  const std::vector<int>& ranks_of(int host) const { return ranks_of_[host]; }
  std::string name(int host) const {
    return host < static_cast<int>(names_.size()) ? names_[host] : std::to_string(host);
  }
  // Who speaks for a host.
  int leader_of(int host) const { return ranks_of_[host][0]; }

  // The hosts of some ranks, ascending.
  std::vector<int> HostsOf(const std::vector<int>& ranks) const {
    std::vector<int> hosts;
    for (int rank : ranks) hosts.push_back(host_of_[rank]);
    std::sort(hosts.begin(), hosts.end());
    hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
    return hosts;
  }

 private:
  std::vector<int> host_of_;  // by rank
  std::vector<int> local_;    // by rank
  std::vector<std::vector<int>> ranks_of_;
  std::vector<std::string> names_;
};

}  // namespace hvd

#endif  // HVD_CORE_HOST_MAP_H_
