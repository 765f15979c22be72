#include "ops/hosts/agent.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "ops/core/backoff.h"
#include "ops/core/clock.h"
#include "ops/core/ranks.h"
#include "ops/hosts/abandon.h"
#include "ops/transport/shm/board.h"
#include "ops/transport/shm/crossing.h"

namespace hvd::hosts {
namespace {

using Kind = Message::Kind;

constexpr size_t kToCoordinatorBytes = 32 * 1024;
constexpr size_t kFromCoordinatorBytes = 256 * 1024;  // the longest plan, and a text
constexpr int64_t kBeatNs = 500'000'000;
constexpr int64_t kLongestLookNs = 1'000'000;
constexpr int64_t kForeignLookNs = 200'000;
constexpr int64_t kForeignNs = 10'000'000'000;
// Others of the plan are ready, its next collective is not: a rank may be late with it, or do
// something else altogether.
constexpr int64_t kPlanPatienceNs = 50'000'000;
constexpr int64_t kGapNs = 1'000'000'000;        // this process itself did not run
constexpr int64_t kLastWordsNs = 1'000'000'000;  // for an abort to get out
constexpr size_t kMaxWaitingLines = 6;

int64_t Now() { return ClockNs(CLOCK_MONOTONIC); }
int64_t ToNs(double seconds) { return static_cast<int64_t>(seconds * 1e9); }

}  // namespace

Agent::Agent(std::shared_ptr<shm::Segment> segment, std::shared_ptr<shm::Waiter> waiter,
             std::shared_ptr<Messenger> messenger, const HostMap& map, int rank,
             const AgentOptions& options)
    : segment_(std::move(segment)),
      waiter_(std::move(waiter)),
      messenger_(std::move(messenger)),
      map_(map),
      host_(map.host_of(rank)),
      options_(options) {
  if (host_ == 0) coordinator_ = std::make_unique<Coordinator>(map_);
  const int64_t now = Now();
  for (int h = 0; h < map_.hosts(); ++h) {
    if (h == host_ || (host_ != 0 && h != 0)) continue;
    auto line = std::make_unique<Line>();
    line->host = h;
    line->heard_ns = now;
    line->receiving.resize(host_ == 0 ? kToCoordinatorBytes : kFromCoordinatorBytes);
    lines_.push_back(std::move(line));
  }
  last_step_ns_ = last_beat_ns_ = last_progress_ns_ = now;
  thread_ = std::thread([this] { Run(); });
}

Agent::~Agent() { Shutdown(); }

void Agent::Shutdown() {
  stopping_.store(true);
  shm::CallAgent(segment_.get());
  if (thread_.joinable()) thread_.join();
}

void Agent::Run() {
  Status status;
  for (const auto& line : lines_) StartReceive(line.get());
  while (status.ok()) {
    bool progressed = false;
    status = Step(&progressed);
    if (!status.ok()) break;
    if (said_bye_ && std::none_of(lines_.begin(), lines_.end(),
                                  [](const auto& line) { return line->is_open; })) {
      WaitForSends(kLastWordsNs);
      return;
    }
    const int64_t now = Now();
    if (progressed) last_progress_ns_ = now;
    if (!progressed) {
      seen_calls_ = shm::WaitForAgentCall(segment_.get(), seen_calls_, SleepNs(now));
    }
  }
  segment_->Abort(status.message());
  SpreadAbort();
  // The library between the hosts may still write there.
  Abandon(std::move(lines_));
}

Status Agent::Step(bool* progressed) {
  HVD_RETURN_IF_ERROR(segment_->AbortStatus());
  const int64_t now = Now();
  if (now - last_step_ns_ > kGapNs) {
    // Not the others were silent: this process was stopped, or did not get a processor.
    for (const auto& line : lines_) line->heard_ns += now - last_step_ns_;
  }
  last_step_ns_ = now;
  HVD_RETURN_IF_ERROR(TellReady(progressed));
  HVD_RETURN_IF_ERROR(ReceiveAll(progressed));
  if (now - last_beat_ns_ >= kBeatNs) HVD_RETURN_IF_ERROR(Beat(now));
  SayGoodbye();
  AskClock(now);
  HVD_RETURN_IF_ERROR(SendAll(progressed));
  awaits_answer_ = AwaitsAnswer();
  return segment_->AbortStatus();
}

Status Agent::TellReady(bool* progressed) {
  std::vector<int> to_wake;
  std::vector<Message> messages;
  {
    shm::BoardLock lock(segment_.get());
    HVD_RETURN_IF_ERROR(lock.status());
    shm::Crossing& crossing = segment_->board().crossing;
    to_wake = shm::LeaveIfOutOfStep(segment_.get(), kPlanPatienceNs, &out_of_step_wait_ns_);
    uint32_t epoch = 0;
    for (shm::ReadySlot& ready : shm::TakeUntold(segment_.get(), &epoch)) {
      Message message;
      message.kind = Kind::kReady;
      message.epoch = epoch;
      message.plan_position = crossing.plan_position;
      message.ready = std::move(ready);
      messages.push_back(std::move(message));
    }
    if (crossing.departing && !said_depart_) {
      said_depart_ = true;
      messages.emplace_back();
      messages.back().kind = Kind::kDepart;
    }
    if (crossing.failing >= 0) {
      const shm::BoardSlot& slot = segment_->board().slots[crossing.failing];
      Message message;
      message.kind = Kind::kFail;
      message.key = {slot.key_low, slot.key_high};
      message.code = static_cast<Code>(crossing.failing_code);
      message.text = segment_->board().failure_text;
      messages.push_back(std::move(message));
      crossing.failing = -1;
    }
  }
  Wake(to_wake);
  *progressed |= !messages.empty();
  for (Message& message : messages) Tell(std::move(message));
  return Status::Ok();
}

void Agent::Tell(Message message) {
  if (!coordinator_) {
    lines_[0]->queue.push_back(std::move(message));
    return;
  }
  Handle(host_, message);
}

void Agent::StartReceive(Line* line) {
  const Status status =
      messenger_->Receive(map_.leader_of(line->host), Channel::kControl, line->receiving.data(),
                          static_cast<int64_t>(line->receiving.size()), &line->receive);
  if (!status.ok()) segment_->Abort(status.message());
}

Status Agent::ReceiveAll(bool* progressed) {
  for (const auto& line : lines_) {
    while (line->is_open) {
      HVD_RETURN_IF_ERROR(messenger_->Test(&line->receive));
      if (line->receive.is_pending) break;
      *progressed = true;
      line->heard_ns = Now();
      std::vector<Message> messages;
      HVD_RETURN_IF_ERROR(Parse(line->receiving.data(), line->receiving.size(), &messages));
      for (const Message& message : messages) {
        if (message.kind == Kind::kBye) line->is_open = false;
        Handle(line->host, message);
      }
      if (line->is_open) StartReceive(line.get());
    }
  }
  return Status::Ok();
}

void Agent::Handle(int from_host, const Message& message) {
  if (message.kind == Kind::kAbort) {
    abort_received_ = true;
    segment_->Abort(message.text);
    return;
  }
  if (message.kind == Kind::kClock) {
    return coordinator_ ? AnswerClock(from_host, message) : TakeClock(message);
  }
  if (!coordinator_) return FromCoordinator(message);
  const int64_t now = Now();
  const std::vector<int>& set = message.ready.set;
  if (message.kind == Kind::kReady && !set.empty() && map_.HostsOf(set).front() != 0) {
    foreign_until_ns_ = now + kForeignNs;
  }
  std::vector<Outgoing> out;
  coordinator_->Take(from_host, message, now, &out);
  Deliver(std::move(out));
}

void Agent::Deliver(std::vector<Outgoing> out) {
  for (Outgoing& one : out) {
    if (one.host == host_) {
      FromCoordinator(one.message);
      continue;
    }
    for (const auto& line : lines_) {
      if (line->host == one.host) line->queue.push_back(std::move(one.message));
    }
  }
}

void Agent::FromCoordinator(const Message& message) {
  std::vector<int> to_wake;
  if (message.kind == Kind::kAbort) return segment_->Abort(message.text);
  if (message.kind == Kind::kLeft) {
    segment_->board().crossing.hosts_left[message.host / 64].fetch_or(uint64_t{1}
                                                                      << (message.host % 64));
    return;
  }
  if (message.kind == Kind::kDepart) {
    segment_->board().crossing.plans_over.store(1);
    for (int r = 0; r < segment_->ranks(); ++r) to_wake.push_back(r);
  } else {
    shm::BoardLock lock(segment_.get());
    if (!lock.status().ok()) return;
    if (message.kind == Kind::kExecute) {
      to_wake = shm::PublishAgreed(segment_.get(), message.agreement);
    } else if (message.kind == Kind::kPlan) {
      to_wake = shm::StartPlan(segment_.get(), message.plan);
    } else if (message.kind == Kind::kFail) {
      shm::SetFailureText(&segment_->board(), message.text);
      to_wake = shm::FailKey(segment_.get(), message.key, message.code);
    } else if (message.kind == Kind::kFailAll) {
      shm::SetFailureText(&segment_->board(), message.text);
      to_wake = shm::FailAllSpanning(segment_.get(), message.code);
    }
  }
  Wake(to_wake);
}

void Agent::Wake(const std::vector<int>& ranks) {
  for (int rank : ranks) waiter_->Wake(rank, shm::Waiter::kQueue);
}

Status Agent::SendAll(bool* progressed) {
  for (const auto& line : lines_) {
    if (line->send.is_pending) HVD_RETURN_IF_ERROR(messenger_->Test(&line->send));
    if (line->send.is_pending || line->queue.empty()) continue;
    const size_t most = coordinator_ ? kFromCoordinatorBytes : kToCoordinatorBytes;
    line->sending.clear();
    bool only_beats = true;  // or clocks: nothing about collectives
    while (!line->queue.empty() && Append(line->queue.front(), most, &line->sending)) {
      const Kind kind = line->queue.front().kind;
      only_beats &= kind == Kind::kBeat || kind == Kind::kClock;
      line->queue.pop_front();
    }
    if (line->sending.empty()) return Internal("a control message is longer than a batch");
    (only_beats ? stats_.beats : stats_.control_messages).fetch_add(1, std::memory_order_relaxed);
    HVD_RETURN_IF_ERROR(messenger_->Send(map_.leader_of(line->host), Channel::kControl,
                                         line->sending.data(),
                                         static_cast<int64_t>(line->sending.size()), &line->send));
    *progressed = true;
  }
  return Status::Ok();
}

bool Agent::IsQuiet() {
  if (options_.quiet_checks == 0) return false;
  for (int r = 0; r < segment_->ranks(); ++r) {
    const shm::RankLine& line = segment_->line(r);
    if (line.state.load() == shm::kLeft) continue;
    if (line.quiet_checks.load() < static_cast<uint32_t>(options_.quiet_checks)) return false;
  }
  return true;
}

Status Agent::Beat(int64_t now_ns) {
  last_beat_ns_ = now_ns;
  Message beat;
  beat.is_quiet = IsQuiet();
  if (beat.is_quiet) {
    shm::BoardLock lock(segment_.get());
    HVD_RETURN_IF_ERROR(lock.status());
    if (segment_->board().crossing.plan_active) {
      beat.is_quiet = false;
    } else {
      beat.text = shm::DescribeWaiting(segment_.get(), kMaxWaitingLines);
    }
  }
  if (!said_bye_) Tell(beat);
  if (coordinator_) {
    // Also to hosts that have said goodbye: they wait for the others to.
    for (const auto& line : lines_) {
      if (!said_bye_) line->queue.push_back(Message());
    }
    std::vector<Outgoing> out;
    coordinator_->CheckCircle(&out);
    Deliver(std::move(out));
    HVD_RETURN_IF_ERROR(CheckStalls(now_ns));
  }
  return CheckLines(now_ns);
}

Status Agent::CheckLines(int64_t now_ns) {
  for (const auto& line : lines_) {
    const int64_t silent_ns = now_ns - line->heard_ns;
    if (!line->is_open || silent_ns < ToNs(options_.lost_seconds)) continue;
    char seconds[32];
    std::snprintf(seconds, sizeof(seconds), "%.1f s", static_cast<double>(silent_ns) / 1e9);
    return Aborted(Describe(line->host) + " has sent no sign of life to " + Describe(host_) +
                   " for " + seconds +
                   ": the machine, its link, or its first rank is down (HVD_HOST_TIMEOUT_SECONDS "
                   "sets the wait)");
  }
  return Status::Ok();
}

Status Agent::CheckStalls(int64_t now_ns) {
  const int64_t warning_ns = ToNs(options_.stall_warning_seconds);
  const int64_t shutdown_ns = ToNs(options_.stall_shutdown_seconds);
  int64_t oldest_ns = 0;
  if (warning_ns == 0 && shutdown_ns == 0) return Status::Ok();
  const std::string lines =
      coordinator_->DescribeOverdue(now_ns, warning_ns > 0 ? warning_ns : shutdown_ns, &oldest_ns);
  const bool over = shutdown_ns > 0 && oldest_ns > shutdown_ns;
  if (lines.empty() && !over) return Status::Ok();
  const std::string text = "some hosts have waited for " +
                           std::to_string(oldest_ns / 1'000'000'000) +
                           " s for others in a collective:" + lines;
  if (over) {
    return Aborted("the job was ended, as HVD_STALL_SHUTDOWN_TIME_SECONDS asks for: " + text);
  }
  std::fprintf(stderr, "hvd_keras: stall: %s\n", text.c_str());
  return Status::Ok();
}

bool Agent::AllHereLeft() {
  for (int r = 0; r < segment_->ranks(); ++r) {
    if (segment_->line(r).state.load() != shm::kLeft) return false;
  }
  return true;
}

// Says goodbye, once there is nobody left here; on host 0, once there is nobody left anywhere.
void Agent::SayGoodbye() {
  if (!stopping_.load() || said_bye_ || !AllHereLeft()) return;
  Message bye;
  bye.kind = Kind::kBye;
  if (!coordinator_) {
    said_bye_ = true;
    return Tell(bye);
  }
  if (!coordinator_->has_left(host_)) Handle(host_, bye);
  if (!coordinator_->all_left()) return;
  said_bye_ = true;
  for (const auto& line : lines_) line->queue.push_back(bye);
}

bool Agent::AwaitsAnswer() {
  const bool sends = std::any_of(lines_.begin(), lines_.end(), [](const auto& line) {
    return line->send.is_pending || !line->queue.empty();
  });
  const bool departs = said_depart_ && segment_->board().crossing.plans_over.load() == 0;
  if (sends || departs || awaits_clock_ || (said_bye_ && !coordinator_)) return true;
  if (coordinator_) return coordinator_->AwaitsOthers(host_);
  shm::BoardLock lock(segment_.get());
  const shm::Crossing& crossing = segment_->board().crossing;
  return lock.status().ok() && !crossing.plan_active && crossing.ready_head >= 0;
}

int64_t Agent::SleepNs(int64_t now_ns) const {
  int64_t sleep = std::max<int64_t>(last_beat_ns_ + kBeatNs - now_ns, 20'000);
  if (out_of_step_wait_ns_ > 0) sleep = std::min(sleep, out_of_step_wait_ns_);
  if (stopping_.load()) sleep = std::min(sleep, kLongestLookNs);
  if (now_ns < foreign_until_ns_) sleep = std::min(sleep, kForeignLookNs);
  if (awaits_answer_)
    sleep = std::min(sleep, BackoffNs(now_ns - last_progress_ns_, kLongestLookNs));
  return sleep;
}

void Agent::SpreadAbort() {
  Message abort;
  abort.kind = Kind::kAbort;
  abort.text = segment_->AbortStatus().message();
  // A host does not tell the coordinator what it has from there.
  if (coordinator_ || !abort_received_) {
    for (const auto& line : lines_) {
      line->queue.clear();
      line->queue.push_back(abort);
    }
  }
  WaitForSends(kLastWordsNs);
}

void Agent::WaitForSends(int64_t longest_ns) {
  const int64_t begin = Now();
  bool progressed = false;
  while (SendAll(&progressed).ok()) {
    const bool is_done = std::all_of(lines_.begin(), lines_.end(), [](const auto& line) {
      return !line->send.is_pending && line->queue.empty();
    });
    const int64_t waited = Now() - begin;
    if (is_done || waited > longest_ns) return;
    const int64_t ns = BackoffNs(waited, kLongestLookNs);
    const timespec pause{0, ns};
    nanosleep(&pause, nullptr);
  }
}

std::string Agent::Describe(int host) const {
  return "host " + map_.name(host) + " (" + RankList(map_.ranks_of(host)) + ")";
}

}  // namespace hvd::hosts
