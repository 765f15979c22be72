// PlanLearner: finds out what a training step repeats.
#ifndef HVD_HOSTS_PLAN_LEARNER_H_
#define HVD_HOSTS_PLAN_LEARNER_H_

#include <cstdint>
#include <vector>

#include "ops/transport/shm/layout.h"

namespace hvd::hosts {

class PlanLearner {
 public:
  // Notes that a collective was agreed on. Returns true, with the sequence, once the last ones have
  // come again. Their order may differ from time to time, as that in which ranks are ready does:
  // the last one counts.
  bool Add(const shm::PlanEntry& entry, std::vector<shm::PlanEntry>* plan);

  // Something that no plan can hold.
  void Forget();

  // A plan was left, after so many collectives. One that did not last was no step, but a repetition
  // within: the next one has to be seen more often.
  void PlanWasLeft(int64_t collectives);

 private:
  bool Repeats(int64_t period) const;

  std::vector<shm::PlanEntry> history_;
  std::vector<uint64_t> sums_;  // of all hashes before an entry: equal differences, equal multisets
  int64_t repeats_ = 2;
  int64_t plan_length_ = 0;
};

}  // namespace hvd::hosts

#endif  // HVD_HOSTS_PLAN_LEARNER_H_
