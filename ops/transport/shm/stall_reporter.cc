#include "ops/transport/shm/stall_reporter.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <set>

#include "ops/core/clock.h"
#include "ops/core/ranks.h"
#include "ops/transport/shm/board.h"
#include "ops/transport/shm/process.h"

namespace hvd::shm {
namespace {

constexpr int64_t kAnswerNs = 1'000'000'000;  // for a rank to say where it stands
constexpr size_t kMaxCollectives = 6;         // named in a message, of all and of each rank
constexpr size_t kMaxRanksDescribed = 8;
constexpr int kRecordsSearched = 100;  // for names like the one that a rank has not called

std::string Seconds(int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof(text), ns < 10'000'000'000 ? "%.1f s" : "%.0f s",
                static_cast<double>(ns) / 1e9);
  return text;
}

// How many characters have to be changed, added or removed to make one of the other.
size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

// The name in a board slot's label, "allreduce 'name'".
std::string NameOf(const std::string& label) {
  const size_t begin = label.find('\'');
  const size_t end = label.rfind('\'');
  return begin == end ? label : label.substr(begin + 1, end - begin - 1);
}

std::string LabelOf(const FlightEntry& entry) {
  return std::string(Name(entry.kind)) + " '" + entry.name + "'";
}

int64_t ToNs(double seconds) { return static_cast<int64_t>(seconds * 1e9); }

}  // namespace

StallReporter::StallReporter(std::shared_ptr<Segment> segment, int rank, double warning_seconds,
                             double shutdown_seconds)
    : segment_(std::move(segment)),
      rank_(rank),
      warning_ns_(ToNs(warning_seconds)),
      shutdown_ns_(ToNs(shutdown_seconds)),
      answers_before_(segment_->ranks(), 0) {}

bool StallReporter::IsDue(int64_t waited_ns, bool reported) const {
  const bool warns = warning_ns_ > 0 && waited_ns > warning_ns_ && !reported;
  return warns || (shutdown_ns_ > 0 && waited_ns > shutdown_ns_);
}

Status StallReporter::CheckBoard() {
  std::vector<Stalled> stalled;
  HVD_RETURN_IF_ERROR(Overdue(false, &stalled));
  if (stalled.empty()) {
    asked_at_ns_ = 0;
    return Status::Ok();
  }
  std::set<int> missing;
  for (const Stalled& one : stalled) missing.insert(one.missing.begin(), one.missing.end());
  if (!HaveAnswered({missing.begin(), missing.end()})) return Status::Ok();
  stalled.clear();
  HVD_RETURN_IF_ERROR(Overdue(true, &stalled));
  if (stalled.empty()) return Status::Ok();

  std::string text = "some ranks have waited for " + Seconds(stalled[0].waited_ns) +
                     " for others in a collective:";
  for (size_t i = 0; i < std::min(stalled.size(), kMaxCollectives); ++i) {
    text += "\n  " + stalled[i].label + ": called by " +
            RankList(segment_->GlobalRanks(stalled[i].arrived)) + ", not by " +
            RankList(segment_->GlobalRanks(stalled[i].missing));
  }
  if (stalled.size() > kMaxCollectives) {
    text += "\n  and " + std::to_string(stalled.size() - kMaxCollectives) + " more";
  }
  size_t described = 0;
  for (int rank : missing) {
    if (++described > kMaxRanksDescribed) break;
    text += "\n" + DescribeRank(rank, NameOf(stalled[0].label));
  }
  return Report(text, stalled[0].waited_ns);
}

Status StallReporter::CheckPeer(int peer, int64_t waited_ns) {
  if (waited_ns < warning_ns_) peer_reported_ = false;  // another wait than the last one
  if (!IsDue(waited_ns, peer_reported_) || !HaveAnswered({peer})) return Status::Ok();
  peer_reported_ = true;
  std::string current = "a collective";
  for (const FlightEntry& entry : ReadRecords(segment_->report(rank_).flight_ring)) {
    if (entry.started_ns != 0 && entry.ended_ns == 0) current = LabelOf(entry);
  }
  return Report("rank " + std::to_string(segment_->global_rank(rank_)) + " has waited for " +
                    Seconds(waited_ns) + " in the middle of " + current +
                    ", which all ranks have called:\n" + DescribeRank(peer, ""),
                waited_ns);
}

Status StallReporter::Overdue(bool mark, std::vector<Stalled>* stalled) {
  if (warning_ns_ == 0 && shutdown_ns_ == 0) return Status::Ok();
  const int64_t now = ClockNs(CLOCK_MONOTONIC);
  BoardLock lock(segment_.get());
  HVD_RETURN_IF_ERROR(lock.status());
  for (BoardSlot& slot : segment_->board().slots) {
    if (!slot.in_use || slot.published || !IsDue(now - slot.posted_ns, slot.reported)) continue;
    const std::vector<int> arrived = RanksOf(slot.arrived_bits, segment_->ranks());
    if (slot.ready || arrived.empty() || arrived.front() != rank_) continue;
    stalled->push_back(
        {slot.name, arrived, MissingRanks(segment_.get(), slot), now - slot.posted_ns});
    if (mark) slot.reported = 1;
  }
  std::sort(stalled->begin(), stalled->end(),
            [](const Stalled& a, const Stalled& b) { return a.waited_ns > b.waited_ns; });
  return Status::Ok();
}

bool StallReporter::HaveAnswered(const std::vector<int>& ranks) {
  const int64_t now = ClockNs(CLOCK_MONOTONIC);
  if (asked_at_ns_ == 0) {
    for (int rank : ranks) {
      answers_before_[rank] = segment_->report(rank).stack_answers.load();
      segment_->CallWatcher(rank, kCallStack);
    }
    asked_at_ns_ = now;
    return false;
  }
  const bool all = std::all_of(ranks.begin(), ranks.end(), [this](int rank) {
    return segment_->report(rank).stack_answers.load() != answers_before_[rank];
  });
  return all || now - asked_at_ns_ > kAnswerNs;
}

std::string StallReporter::WaitsIn(int rank) {
  std::vector<std::string> labels;
  BoardLock lock(segment_.get());
  if (!lock.status().ok()) return "";
  for (const BoardSlot& slot : segment_->board().slots) {
    if (slot.in_use && !slot.published && HasBit(slot.arrived_bits, rank)) {
      labels.push_back(slot.name);
    }
  }
  std::string text;
  for (size_t i = 0; i < std::min(labels.size(), kMaxCollectives); ++i) {
    text += (i == 0 ? " It waits itself in " : ", ") + labels[i];
  }
  if (labels.size() > kMaxCollectives) {
    text += " and " + std::to_string(labels.size() - kMaxCollectives) + " more";
  }
  return text.empty() ? text : text + ".";
}

std::string StallReporter::Stack(int rank) {
  RankReport& report = segment_->report(rank);
  if (report.stack_answers.load(std::memory_order_acquire) == answers_before_[rank]) {
    return "\n  It did not say where it stands.";
  }
  std::string text = "\n  Its main thread, most recent call last:\n    ";
  for (char c : std::string(report.stack, strnlen(report.stack, kStackBytes))) {
    text += c;
    if (c == '\n') text += "    ";
  }
  return text.substr(0, text.find_last_not_of(" \n") + 1);
}

std::string StallReporter::DescribeRank(int rank, const std::string& missing_name) {
  const pid_t pid = segment_->line(rank).pid.load();
  const std::string state = ProcessState(pid);
  std::string text = RankOnThisHost(segment_->global_rank(rank), pid) +
                     (state.empty() ? "" : " is " + state) + ". ";
  const std::vector<FlightEntry> entries =
      ReadLastRecords(segment_->report(rank).flight_ring, kRecordsSearched);
  if (entries.empty()) {
    text += "It has called no collective yet.";
  } else {
    const FlightEntry& last = entries.back();
    const int64_t now = ClockNs(CLOCK_REALTIME);
    text += "The last that it called is " + LabelOf(last) + ", " + Seconds(now - last.posted_ns) +
            " ago, " + (last.ended_ns != 0 ? "which has ended." : "which has not ended.");
  }
  text += WaitsIn(rank);
  const FlightEntry* nearest = nullptr;
  size_t distance = missing_name.size() / 3 + 1;  // further away is another name
  for (const FlightEntry& entry : entries) {
    const size_t d = EditDistance(entry.name, missing_name);
    if (d == 0 || d > distance) continue;
    distance = d;
    nearest = &entry;
  }
  if (nearest != nullptr) {
    text += " The nearest to '" + missing_name + "' that it called is '" + nearest->name + "'.";
  }
  return text + Stack(rank);
}

Status StallReporter::Report(const std::string& text, int64_t waited_ns) {
  asked_at_ns_ = 0;
  if (shutdown_ns_ > 0 && waited_ns > shutdown_ns_) {
    segment_->Abort("the job was ended, as HVD_STALL_SHUTDOWN_TIME_SECONDS asks for: " + text);
    return segment_->AbortStatus();
  }
  std::fprintf(stderr, "hvd_keras: stall: %s\n", text.c_str());
  return Status::Ok();
}

}  // namespace hvd::shm
