// How far the clocks of hosts are apart, for timelines: what is told by messages there and back.
#include <algorithm>
#include <utility>

#include "ops/core/clock.h"
#include "ops/hosts/agent.h"

namespace hvd::hosts {
namespace {

// The fastest of some round trips tells most. Clocks drift apart by a millisecond in minutes.
constexpr int kClockRounds = 12;
constexpr int64_t kClockPauseNs = 60'000'000'000;
constexpr int64_t kClockLookNs = 20'000'000;  // host 0 looks more often while it is asked

}  // namespace

void Agent::AskClock(int64_t now_ns) {
  if (coordinator_ || awaits_clock_ || said_bye_ || now_ns < clock_due_ns_) return;
  awaits_clock_ = true;
  Message message;
  message.kind = Message::Kind::kClock;
  message.clock_ns[0] = ClockNs(CLOCK_MONOTONIC) + options_.clock_skew_ns;
  lines_[0]->queue.push_back(std::move(message));
}

void Agent::AnswerClock(int from_host, Message message) {
  message.clock_ns[1] = ClockNs(CLOCK_MONOTONIC) + options_.clock_skew_ns;
  foreign_until_ns_ = std::max(foreign_until_ns_, ClockNs(CLOCK_MONOTONIC) + kClockLookNs);
  message.clock_ns[2] = ClockNs(CLOCK_MONOTONIC) + options_.clock_skew_ns;
  for (const auto& line : lines_) {
    if (line->host == from_host) line->queue.push_back(message);
  }
}

void Agent::TakeClock(const Message& message) {
  const int64_t now = ClockNs(CLOCK_MONOTONIC) + options_.clock_skew_ns;
  const auto [asked, received, answered] = message.clock_ns;
  const int64_t round_trip = (now - asked) - (answered - received);
  awaits_clock_ = false;
  if (clock_rounds_ == 0 || round_trip < best_round_trip_ns_) {
    best_round_trip_ns_ = round_trip;
    best_offset_ns_ = ((received - asked) + (answered - now)) / 2;
  }
  if (++clock_rounds_ < kClockRounds) return;
  clock_rounds_ = 0;
  shm::Crossing& crossing = segment_->board().crossing;
  crossing.clock_offset_ns.store(best_offset_ns_);
  crossing.clock_error_ns.store((best_round_trip_ns_ + 1) / 2);
  crossing.clock_measurements.fetch_add(1);
  clock_due_ns_ = ClockNs(CLOCK_MONOTONIC) + kClockPauseNs;
}

}  // namespace hvd::hosts
