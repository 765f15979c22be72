// ExposureMeter: how long the program has waited for collectives, and did nothing else.
//
// What a program computes meanwhile cannot be seen from here, but from what it calls: the time from
// the last call until no collective is pending any more is taken for waiting. Between the buckets
// of one backward pass it is not: the pass goes on, which the next bucket shows.
#ifndef HVD_CORE_EXPOSURE_H_
#define HVD_CORE_EXPOSURE_H_

#include <cstdint>
#include <string>
#include <unordered_set>

namespace hvd {

// Not thread-safe. Times are of CLOCK_MONOTONIC, in nanoseconds.
class ExposureMeter {
 public:
  struct Interval {
    int64_t begin_ns = 0;
    int64_t end_ns = 0;
  };

  // Collectives called `base`.0, `base`.1, ... are the buckets of a backward pass, of one in each
  // occurrence.
  void AddBuckets(const std::string& base) { bases_.insert(base); }

  // A collective is called. Returns whether, before it, the program has waited; and when.
  bool Called(const std::string& name, uint64_t occurrence, int64_t now_ns, Interval* waited);

  // One of those called has ended.
  void Ended(int64_t now_ns);

  // Counts a wait that has ended, though the next call might show that it was none.
  bool Settle(Interval* waited);

  int64_t exposed_ns() const { return exposed_ns_; }

 private:
  // The backward pass that a collective is a bucket of; empty for none.
  std::string PassOf(const std::string& name, uint64_t occurrence) const;

  std::unordered_set<std::string> bases_;
  int pending_ = 0;
  std::string last_pass_;  // of the last call
  Interval wait_;          // from the last call on; not yet counted if it has an end
  int64_t exposed_ns_ = 0;
};

}  // namespace hvd

#endif  // HVD_CORE_EXPOSURE_H_
