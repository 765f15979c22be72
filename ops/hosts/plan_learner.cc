#include "ops/hosts/plan_learner.h"

#include <algorithm>

#include "ops/core/hash.h"

namespace hvd::hosts {
namespace {

constexpr int64_t kMaxRepeats = 16;
constexpr size_t kMaxHistory = size_t{kMaxRepeats + 1} * shm::kMaxPlanEntries;

uint64_t HashOf(const shm::PlanEntry& entry) {
  return HashMix(HashMix(entry.id_low, entry.id_high), entry.fingerprint);
}

}  // namespace

bool PlanLearner::Repeats(int64_t period) const {
  const auto end = static_cast<int64_t>(history_.size());
  if (period > shm::kMaxPlanEntries) return false;
  const uint64_t last = sums_[end] - sums_[end - period];
  for (int64_t repeat = 1; repeat < repeats_; ++repeat) {
    const int64_t window_end = end - repeat * period;
    if (sums_[window_end] - sums_[window_end - period] != last) return false;
  }
  return true;
}

bool PlanLearner::Add(const shm::PlanEntry& entry, std::vector<shm::PlanEntry>* plan) {
  if (history_.size() >= kMaxHistory) Forget();
  if (sums_.empty()) sums_.push_back(0);
  history_.push_back(entry);
  sums_.push_back(sums_.back() + HashOf(entry));
  // All of them: with another order, the same collective does not come again after one period.
  const auto longest = static_cast<int64_t>(history_.size()) / repeats_;
  for (int64_t period = 1; period <= longest; ++period) {
    if (!Repeats(period)) continue;
    plan->assign(history_.end() - period, history_.end());
    plan_length_ = period;
    Forget();
    return true;
  }
  return false;
}

void PlanLearner::Forget() {
  history_.clear();
  sums_.clear();
}

void PlanLearner::PlanWasLeft(int64_t collectives) {
  Forget();
  const bool lasted = collectives >= 2 * plan_length_;
  repeats_ = lasted ? 2 : std::min(repeats_ + 1, kMaxRepeats);
}

}  // namespace hvd::hosts
