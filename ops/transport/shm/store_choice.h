// StoreChooser: finds out, while the job runs, with which stores large transfers are fastest.
//
// Whether data is better written through the cache or past it depends on which caches the ranks'
// processors share, on the size, and, in a virtual machine, on where the processors are just now: a
// wrong guess costs up to four times the time, in either direction. So one rank of the host times
// what it takes part in, tries the ways in turn, keeps the fastest, and tries again when that
// becomes slower. It writes its choice to the segment, from where all ranks take it. That they
// should use the same one at the same time is a matter of speed only.
#ifndef HVD_TRANSPORT_SHM_STORE_CHOICE_H_
#define HVD_TRANSPORT_SHM_STORE_CHOICE_H_

#include <array>
#include <cstdint>
#include <memory>

#include "ops/core/stores.h"
#include "ops/transport/shm/segment.h"

namespace hvd::shm {

// What a collective does with the data, as far as its speed goes.
enum class Traffic : uint8_t {
  kReduceAll,    // each rank reads all slots and reduces
  kReduceShare,  // each rank reduces its share, and copies the others'
  kCopy,         // no reduction
};
static_assert(kTraffics == 3, "see layout.h");

struct StoreChoice {
  Stores slot = Stores::kCached;    // what others will read
  Stores output = Stores::kCached;  // what the caller will read
  bool streams() const { return slot == Stores::kStreaming || output == Stores::kStreaming; }
};
inline constexpr int kStoreChoices = 4;

// The search, for one kind and size of transfer.
class StoreSearch {
 public:
  // 0 to kStoreChoices - 1; 0 is all cached.
  int choice() const { return choice_; }

  // One transfer has taken `ns_per_byte`; the choice may be another one after it.
  void Record(double ns_per_byte);

 private:
  void EndWindow();
  void Settle();

  int choice_ = 0;
  int samples_ = 0;        // of the window in progress
  double fastest_ = 0;     // of it
  bool searching_ = true;  // else the choice is the best one seen
  std::array<double, kStoreChoices> found_{};
  double settled_ = 0;  // what the best one took when it was chosen
  int slow_windows_ = 0;
  int64_t windows_ = 0;  // since it was chosen
  int64_t patience_ = 64;
};

class StoreChooser {
 public:
  // Transfers of fewer bytes stay in the cache.
  static constexpr int64_t kMinBytes = 16 * 1024;

  explicit StoreChooser(std::shared_ptr<Segment> segment) : segment_(std::move(segment)) {}

  StoreChoice Choose(Traffic traffic, int64_t bytes) const;

  // For one rank of the host only, and for transfers that all ranks of the host took part in.
  void Record(Traffic traffic, int64_t bytes, int64_t ns);

 private:
  static int SizeClass(int64_t bytes);

  const std::shared_ptr<Segment> segment_;
  std::array<std::array<StoreSearch, kSizeClasses>, kTraffics> searches_;
};

}  // namespace hvd::shm

#endif  // HVD_TRANSPORT_SHM_STORE_CHOICE_H_
