#include "ops/core/timeline.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <utility>

#include "ops/core/clock.h"
#include "ops/core/timeline_format.h"

namespace hvd {
namespace {

// Power of two. What one round can take; at 4 MiB it is more than a busy job makes in a round.
constexpr uint64_t kCells = 16384;
constexpr int64_t kMaxBatchBytes = 1 << 20;
constexpr auto kRound = std::chrono::milliseconds(200);

// Larger than the caches that a core has for itself, and quickly copied.
constexpr size_t kMemcpyBytes = size_t{32} << 20;
constexpr int kMemcpyRuns = 3;

constexpr char kCut[] = "...";

// How fast this rank copies memory: what a collective is compared with. Others may be doing the
// same.
double MeasureMemcpy() {
  std::vector<char> from(kMemcpyBytes, 1), to(kMemcpyBytes, 2);
  int64_t best_ns = 0;
  for (int run = 0; run < kMemcpyRuns; ++run) {
    from[static_cast<size_t>(run)] = static_cast<char>(run);
    const int64_t begin = ClockNs(CLOCK_MONOTONIC);
    std::memcpy(to.data(), from.data(), kMemcpyBytes);
    // So that the copy is not left out.
    asm volatile("" : : "r"(to.data()) : "memory");
    const int64_t ns = std::max<int64_t>(ClockNs(CLOCK_MONOTONIC) - begin, 1);
    if (best_ns == 0 || ns < best_ns) best_ns = ns;
  }
  return static_cast<double>(kMemcpyBytes) * 1e9 / static_cast<double>(best_ns);
}

}  // namespace

void TimelineRecord::SetName(const std::string& text) {
  const size_t room = kTimelineNameBytes - 1;
  if (text.size() <= room) {
    std::memcpy(name, text.data(), text.size());
    name[text.size()] = '\0';
    return;
  }
  const size_t cut = sizeof(kCut) - 1;
  std::memcpy(name, kCut, cut);
  std::memcpy(name + cut, text.data() + text.size() - (room - cut), room - cut);
  name[room] = '\0';
}

Timeline::Timeline() = default;

Timeline::~Timeline() { Stop(); }

Status Timeline::Start(TimelineOptions options) {
  std::lock_guard<std::mutex> life(life_mutex_);
  if (thread_.joinable()) {
    return FailedPrecondition("a timeline is being written already, to " + file_.path() +
                              "; call hvd.stop_timeline() first");
  }
  if (!cells_) {
    cells_ = std::make_unique<Cell[]>(kCells);
    for (uint64_t i = 0; i < kCells; ++i) cells_[i].turn.store(i, std::memory_order_relaxed);
  }
  TimelineRecord late;
  while (Take(&late)) {
  }
  options_ = std::move(options);
  format_ = std::make_unique<TimelineFormat>(options_.rank);
  dropped_.store(0);
  said_dropped_ = 0;
  has_complained_ = false;
  said_offset_ = {};
  HVD_RETURN_IF_ERROR(
      file_.Open(options_.path, options_.max_bytes, [this](int part) { return Preamble(part); }));
  stopping_ = false;
  marks_cycles_.store(options_.mark_cycles);
  thread_ = std::thread([this] { Run(); });
  is_on_.store(true);
  return Status::Ok();
}

void Timeline::Stop() {
  std::lock_guard<std::mutex> life(life_mutex_);
  if (!thread_.joinable()) return;
  is_on_.store(false);
  marks_cycles_.store(false);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
  file_.Close();
}

void Timeline::Add(const TimelineRecord& record) {
  if (!is_on_.load(std::memory_order_acquire)) return;
  uint64_t number = next_in_.load(std::memory_order_relaxed);
  Cell* cell = nullptr;
  while (true) {
    cell = &cells_[number % kCells];
    const uint64_t turn = cell->turn.load(std::memory_order_acquire);
    if (turn == number) {
      if (next_in_.compare_exchange_weak(number, number + 1, std::memory_order_relaxed)) break;
    } else if (turn < number) {
      dropped_.fetch_add(1, std::memory_order_relaxed);
      return;
    } else {
      number = next_in_.load(std::memory_order_relaxed);
    }
  }
  cell->record = record;
  cell->turn.store(number + 1, std::memory_order_seq_cst);  // before `asleep_` is read
  if (asleep_.load(std::memory_order_seq_cst)) Wake();
}

bool Timeline::HasRecords() const {
  return cells_[next_out_ % kCells].turn.load(std::memory_order_seq_cst) == next_out_ + 1;
}

bool Timeline::Take(TimelineRecord* record) {
  if (!HasRecords()) return false;
  Cell& cell = cells_[next_out_ % kCells];
  *record = cell.record;
  cell.turn.store(next_out_ + kCells, std::memory_order_release);
  ++next_out_;
  return true;
}

void Timeline::Wake() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!asleep_.exchange(false)) return;
  changed_.notify_all();
}

void Timeline::Run() {
  memcpy_bytes_per_second_ = MeasureMemcpy();
  std::string measured;
  format_->AppendMetadata(
      "hvd_keras_memcpy", 0,
      "\"bytes_per_second\":" + std::to_string(static_cast<int64_t>(memcpy_bytes_per_second_)),
      &measured);
  Write(measured, 0);
  while (true) {
    const bool worked = WriteRound();
    std::unique_lock<std::mutex> lock(mutex_);
    if (stopping_) break;
    if (worked) {
      changed_.wait_for(lock, kRound, [this] { return stopping_; });
      continue;
    }
    asleep_.store(true, std::memory_order_seq_cst);
    if (HasRecords()) {
      asleep_.store(false);
      continue;
    }
    changed_.wait(lock, [this] { return stopping_ || !asleep_.load(); });
    asleep_.store(false);
    if (!stopping_) {
      // Most of a burst is still to come.
      changed_.wait_for(lock, kRound, [this] { return stopping_; });
    }
  }
  while (WriteRound()) {
  }
}

bool Timeline::WriteRound() {
  rounds_.fetch_add(1);
  std::string text;
  TimelineRecord record;
  int64_t records = 0;
  bool worked = false;
  // A part of the file has room for each of these.
  const auto most = static_cast<size_t>(std::min(kMaxBatchBytes, options_.max_bytes / 16));
  for (uint64_t i = 0; i < kCells && Take(&record); ++i) {
    worked = true;
    format_->Append(record, &text);
    ++records;
    if (text.size() < most) continue;
    Write(text, records);
    text.clear();
    records = 0;
  }
  if (!worked) return false;
  const int64_t dropped = dropped_.load();
  if (dropped > said_dropped_) {
    format_->AppendNote("DROPPED " + std::to_string(dropped - said_dropped_) + " records",
                        ClockNs(CLOCK_MONOTONIC), &text);
    format_->AppendMetadata("hvd_keras_dropped", 0, "\"records\":" + std::to_string(dropped),
                            &text);
    said_dropped_ = dropped;
  }
  if (options_.clock_offset) {
    const ClockOffset offset = options_.clock_offset();
    if (offset.offset_ns != said_offset_.offset_ns || offset.error_ns != said_offset_.error_ns) {
      said_offset_ = offset;
      format_->AppendMetadata("hvd_keras_clock", 0,
                              "\"offset_ns\":" + std::to_string(offset.offset_ns) +
                                  ",\"error_ns\":" + std::to_string(offset.error_ns),
                              &text);
    }
  }
  if (!text.empty()) Write(text, records);
  return true;
}

void Timeline::Write(const std::string& text, int64_t records) {
  const Status status = file_.Append(text);
  if (status.ok()) return;
  dropped_.fetch_add(records, std::memory_order_relaxed);
  if (has_complained_) return;
  has_complained_ = true;
  std::fprintf(stderr,
               "hvd_keras: the timeline of rank %d lacks events: %s. It is valid up to here, and "
               "goes on when there is room again\n",
               options_.rank, status.message().c_str());
}

std::string Timeline::Preamble(int part) {
  const int64_t offset = ClockNs(CLOCK_REALTIME) - ClockNs(CLOCK_MONOTONIC);
  const auto number = [](const char* key, int64_t value) {
    return ",\"" + std::string(key) + "\":" + std::to_string(value);
  };
  std::string text;
  format_->AppendMetadata(
      "hvd_keras_timeline", 0,
      "\"format\":1" + number("part", part) + number("rank", options_.rank) +
          number("size", options_.size) + number("local_rank", options_.local_rank) +
          number("cross_rank", options_.cross_rank) + number("process", getpid()) +
          ",\"host\":" + JsonString(options_.host) + number("realtime_minus_ts_ns", offset),
      &text);
  format_->AppendMetadata(
      "process_name", 0,
      "\"name\":" + JsonString("rank " + std::to_string(options_.rank) + " on " + options_.host),
      &text);
  format_->AppendMetadata("process_sort_index", 0,
                          "\"sort_index\":" + std::to_string(options_.rank), &text);
  if (memcpy_bytes_per_second_ > 0) {
    format_->AppendMetadata(
        "hvd_keras_memcpy", 0,
        "\"bytes_per_second\":" + std::to_string(static_cast<int64_t>(memcpy_bytes_per_second_)),
        &text);
  }
  format_->AppendTrackNames(&text);
  // Said again where it matters, since the part in which it was said may be gone.
  said_offset_ = {};
  said_dropped_ = 0;
  return text.substr(2);  // the first element has none before it
}

}  // namespace hvd
