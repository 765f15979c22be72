// Coordinator: agrees what all hosts execute, in which order, and when that is known beforehand.
//
// One per job, on host 0; it speaks with one agent per host. It neither waits nor sends: it takes a
// message and says which messages follow from it. So a test, or a simulation of a thousand hosts,
// can drive it without a network.
#ifndef HVD_HOSTS_COORDINATOR_H_
#define HVD_HOSTS_COORDINATOR_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ops/core/host_map.h"
#include "ops/hosts/message.h"
#include "ops/hosts/plan_learner.h"

namespace hvd::hosts {

struct Outgoing {
  int host;
  Message message;
};

class Coordinator {
 public:
  explicit Coordinator(HostMap map);

  // Takes what a host has sent: kReady, kFail, kBeat, kDepart or kBye. `now_ns` is any steady
  // clock.
  void Take(int host, const Message& message, int64_t now_ns, std::vector<Outgoing>* out);

  // Whether an answer of another host is awaited.
  bool AwaitsOthers(int me) const;

  // To be called now and then: fails what waits in a circle. The evidence is that every host has
  // said, after the last thing that happened, that all its ranks wait and nothing moves.
  void CheckCircle(std::vector<Outgoing>* out);

  // Collectives that some hosts have waited in for longer than `patience_ns`, in words, each told
  // once; empty if there are none. *oldest_ns is the longest wait.
  std::string DescribeOverdue(int64_t now_ns, int64_t patience_ns, int64_t* oldest_ns);

  // All ranks of all hosts have left.
  bool all_left() const { return left_count_ == map_.hosts(); }
  bool has_left(int host) const { return left_[host]; }

 private:
  struct Pending {
    shm::ReadySlot first;  // as the first host announced it
    std::vector<int> hosts;
    std::map<int, shm::ReadySlot> ready;  // by host
    int64_t since_ns = 0;
    bool mismatch = false;
    bool reported = false;
  };
  using Key = std::pair<uint64_t, uint64_t>;

  void TakeReady(int host, const Message& message, int64_t now_ns, std::vector<Outgoing>* out);
  void TakeFail(int host, const Message& message, std::vector<Outgoing>* out);
  void TakeBye(int host, std::vector<Outgoing>* out);
  bool IsComplete(const Pending& pending) const;
  // The ranks that take part, or none for the whole process set.
  std::vector<int> Participants(const Pending& pending) const;
  void Execute(const Key& key, std::vector<Outgoing>* out);
  void Learn(const Pending& pending, bool by_all, std::vector<Outgoing>* out);
  void FailForLeaver(const Key& key, int host, std::vector<Outgoing>* out);
  void ToAll(const Message& message, std::vector<Outgoing>* out) const;
  std::vector<int> MissingHosts(const Pending& pending) const;
  std::string RanksOfHosts(const std::vector<int>& hosts) const;

  const HostMap map_;
  std::map<Key, Pending> pending_;
  std::map<int32_t, Key> joins_;  // of each process set: the join that has begun
  std::vector<bool> left_;
  int left_count_ = 0;
  PlanLearner learner_;
  uint32_t epoch_ = 1;
  bool is_planned_ = false;
  bool may_plan_ = true;  // until a rank departs
  // Of the circle check: per host, how often it was quiet since something happened, and what waits.
  std::vector<int> quiet_beats_;
  std::vector<std::string> waiting_;
};

}  // namespace hvd::hosts

#endif  // HVD_HOSTS_COORDINATOR_H_
