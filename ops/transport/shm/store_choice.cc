#include "ops/transport/shm/store_choice.h"

#include <algorithm>

namespace hvd::shm {
namespace {

// Transfers measured before a choice is judged, by the fastest: what makes one slow by chance, such
// as a peer that was asleep, is no fault of the choice. The first is not counted: others may have
// begun it with the choice before.
constexpr int kWindow = 4;
// Not worth another try once it has taken so much longer than the best one.
constexpr double kHopeless = 1.5;
// Streaming must be so much faster, since callers like to find their data in the cache.
constexpr double kWorthIt = 0.95;
// Slower than it was when it was chosen: what it depends on may have changed.
constexpr double kSlower = 1.25;
constexpr int kSlowWindows = 2;
constexpr int64_t kMaxPatience = 4096;  // windows between two searches without any cause

constexpr bool StreamsSlot(int choice) { return (choice & 1) != 0; }
constexpr bool StreamsOutput(int choice) { return (choice & 2) != 0; }

}  // namespace

void StoreSearch::Record(double ns_per_byte) {
  if (++samples_ == 1) return;
  fastest_ = samples_ == 2 ? ns_per_byte : std::min(fastest_, ns_per_byte);
  const double best =
      choice_ == 0 ? fastest_ : *std::min_element(found_.begin(), found_.begin() + choice_);
  const bool hopeless = searching_ && fastest_ > kHopeless * best;
  if (samples_ == kWindow || hopeless) EndWindow();
}

void StoreSearch::EndWindow() {
  samples_ = 0;
  if (searching_) {
    found_[choice_] = fastest_;
    if (choice_ + 1 < kStoreChoices) {
      ++choice_;
    } else {
      Settle();
    }
    return;
  }
  slow_windows_ = fastest_ > kSlower * settled_ ? slow_windows_ + 1 : 0;
  if (slow_windows_ < kSlowWindows && ++windows_ < patience_) return;
  // Seldom without a cause: trying slow ways costs time.
  if (slow_windows_ < kSlowWindows) patience_ = std::min(2 * patience_, kMaxPatience);
  searching_ = true;
  choice_ = 0;
}

void StoreSearch::Settle() {
  choice_ = 0;
  for (int other = 1; other < kStoreChoices; ++other) {
    const double to_beat = choice_ == 0 ? kWorthIt * found_[0] : found_[choice_];
    if (found_[other] < to_beat) choice_ = other;
  }
  settled_ = found_[choice_];
  searching_ = false;
  slow_windows_ = 0;
  windows_ = 0;
}

// Powers of four.
int StoreChooser::SizeClass(int64_t bytes) {
  int size_class = 0;
  for (int64_t limit = 4 * kMinBytes; bytes >= limit && size_class + 1 < kSizeClasses; limit *= 4) {
    ++size_class;
  }
  return size_class;
}

StoreChoice StoreChooser::Choose(Traffic traffic, int64_t bytes) const {
  StoreChoice choice;
  if (bytes < kMinBytes) return choice;
  const int number =
      segment_->header().store_choices[static_cast<int>(traffic)][SizeClass(bytes)].load(
          std::memory_order_relaxed);
  if (StreamsSlot(number)) choice.slot = Stores::kStreaming;
  if (StreamsOutput(number)) choice.output = Stores::kStreaming;
  return choice;
}

void StoreChooser::Record(Traffic traffic, int64_t bytes, int64_t ns) {
  if (bytes < kMinBytes) return;
  const int row = static_cast<int>(traffic), column = SizeClass(bytes);
  StoreSearch& search = searches_[row][column];
  search.Record(static_cast<double>(ns) / static_cast<double>(bytes));
  segment_->header().store_choices[row][column].store(static_cast<uint8_t>(search.choice()),
                                                      std::memory_order_relaxed);
}

}  // namespace hvd::shm
