#include "ops/core/engine.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "ops/core/clock.h"
#include "ops/core/execute.h"
#include "ops/core/hash.h"
#include "ops/core/ranks.h"

namespace hvd {
namespace {

int64_t Now() { return ClockNs(CLOCK_MONOTONIC); }

int64_t BytesOf(const Request& request) {
  int64_t bytes = 0;
  for (const Piece& piece : request.pieces) bytes += piece.NumElements() * SizeOf(request.dtype);
  return bytes;
}

// A small number for the calling thread, for as long as it lives.
int32_t ThreadNumber() {
  static std::atomic<int32_t> threads{0};
  thread_local const int32_t number = ++threads;
  return number;
}

}  // namespace

Engine::Engine(int rank, int size, CommunicatorFactory make_communicator,
               std::unique_ptr<Scheduler> scheduler, FlightRing* flight_ring, Timeline* timeline)
    : rank_(rank),
      size_(size),
      make_communicator_(std::move(make_communicator)),
      scheduler_(std::move(scheduler)),
      recorder_(flight_ring),
      timeline_(timeline) {
  sets_[0].resize(size);
  std::iota(sets_[0].begin(), sets_[0].end(), 0);
  thread_ = std::thread([this] { Run(); });
}

Engine::~Engine() { Shutdown(); }

std::string Engine::OccurrenceName(const Request& request) {
  return std::to_string(request.process_set) + "/" + request.name;
}

void Engine::ForgetOccurrences(int32_t process_set) {
  const std::string prefix = std::to_string(process_set) + "/";
  for (auto it = occurrences_.begin(); it != occurrences_.end();) {
    it = it->first.compare(0, prefix.size(), prefix) == 0 ? occurrences_.erase(it) : std::next(it);
  }
}

void Engine::NoteCall(Request* request, uint64_t occurrence) {
  request->occurrence = occurrence;
  request->called_ns = Now();
  ExposureMeter::Interval waited;
  if (exposure_.Called(request->name, occurrence, request->called_ns, &waited)) {
    RecordExposed(waited);
  }
  if (records()) request->thread = ThreadNumber();
}

void Engine::RecordExposed(const ExposureMeter::Interval& waited) {
  if (!records()) return;
  TimelineRecord record;
  record.kind = TimelineRecord::Kind::kExposed;
  record.begin_ns = waited.begin_ns;
  record.end_ns = waited.end_ns;
  timeline_->Add(record);
}

int64_t Engine::ExposedNs() {
  std::lock_guard<std::mutex> lock(mutex_);
  ExposureMeter::Interval waited;
  if (exposure_.Settle(&waited)) RecordExposed(waited);
  return exposure_.exposed_ns();
}

void Engine::AddBuckets(const std::string& base) {
  std::lock_guard<std::mutex> lock(mutex_);
  exposure_.AddBuckets(base);
}

void Engine::Recount(const Assignment& assignment) {
  std::lock_guard<std::mutex> lock(mutex_);
  exposure_.Ended(Now());
  const Request& request = *assignment.request;
  if (assignment.verdict == Assignment::Verdict::kFailed) {
    --occurrences_[OccurrenceName(request)];
  } else if (request.kind == CollectiveKind::kJoin) {
    ForgetOccurrences(request.process_set);
  }
}

MatchKey Engine::IdOf(const Request& request) {
  const uint64_t h = HashMix(0, static_cast<uint64_t>(request.process_set));
  return {HashString(h, request.name), HashString(~h, request.name)};
}

MatchKey Engine::KeyOf(const MatchKey& id, uint64_t occurrence) {
  return {HashMix(id.low, occurrence), HashMix(id.high, occurrence)};
}

Status Engine::AddProcessSet(int32_t id, std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  const bool repeats = std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end();
  if (ranks.empty() || repeats || ranks.front() < 0 || ranks.back() >= size_) {
    return InvalidArgument("a process set needs different ranks from 0 to " +
                           std::to_string(size_ - 1) + ", at least one");
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (id < 0 || id >= kMaxProcessSets) {
    return ResourceExhausted("there can be at most " + std::to_string(kMaxProcessSets) +
                             " process sets; remove those that are not needed any more");
  }
  if (!sets_.emplace(id, std::move(ranks)).second) {
    return InvalidArgument("process set " + std::to_string(id) + " exists already");
  }
  return Status::Ok();
}

Status Engine::RemoveProcessSet(int32_t id) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (id == 0) return InvalidArgument("the process set of all ranks cannot be removed");
  if (sets_.erase(id) == 0) {
    return InvalidArgument("process set " + std::to_string(id) + " does not exist");
  }
  ForgetOccurrences(id);  // the number may be given again, to other ranks
  return Status::Ok();
}

Status Engine::GetProcessSet(int32_t id, std::vector<int>* ranks) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto set = sets_.find(id);
  if (set == sets_.end()) {
    return InvalidArgument("process set " + std::to_string(id) +
                           " does not exist, or has been removed");
  }
  *ranks = set->second;
  return Status::Ok();
}

Status Engine::Post(std::unique_ptr<Request>* request) {
  std::lock_guard<std::mutex> lock(mutex_);
  HVD_RETURN_IF_ERROR(ended_);
  auto set = sets_.find((*request)->process_set);
  if (set == sets_.end()) {
    return InvalidArgument(std::string(Name((*request)->kind)) + " '" + (*request)->name +
                           "': process set " + std::to_string((*request)->process_set) +
                           " does not exist, or has been removed");
  }
  const std::vector<int>& ranks = set->second;
  if (!std::binary_search(ranks.begin(), ranks.end(), rank_)) {
    return InvalidArgument(std::string(Name((*request)->kind)) + " '" + (*request)->name +
                           "': rank " + std::to_string(rank_) + " is not in process set " +
                           std::to_string(set->first) + ", which has " + RankList(ranks));
  }
  (*request)->fault = ValidateRequest(**request, ranks);
  const uint64_t occurrence = occurrences_[OccurrenceName(**request)]++;
  const uint64_t fingerprint = Fingerprint(**request);
  NoteCall(request->get(), occurrence);
  const uint64_t record = recorder_.Posted(**request, occurrence, fingerprint);
  (*request)->record = record;
  TimelineRecord submit;
  const bool records_submit = records();
  if (records_submit) {
    submit.kind = TimelineRecord::Kind::kSubmit;
    submit.begin_ns = (*request)->called_ns;
    submit.thread = (*request)->thread;
    submit.number = static_cast<int64_t>(occurrence);
    submit.process_set = (*request)->process_set;
    submit.SetName((*request)->name);
  }
  const MatchKey id = IdOf(**request);
  Announcement announcement{KeyOf(id, occurrence), id, fingerprint, ranks, std::move(*request)};
  const Status status = scheduler_->Post(&announcement);
  *request = std::move(announcement.request);
  if (!status.ok()) {
    recorder_.Ended(record, status.code());
    exposure_.Ended(Now());
  }
  if (records_submit) {
    submit.end_ns = Now();
    timeline_->Add(submit);
  }
  return status;
}

void Engine::Submit(std::unique_ptr<Request> request) {
  const Status status = Post(&request);
  if (!status.ok()) request->done(status);
}

void Engine::Run() {
  Status status;
  while (true) {
    Assignment assignment;
    const int64_t looked_ns = Now();
    status = scheduler_->Next(&assignment);
    if (!status.ok()) break;
    if (assignment.verdict == Assignment::Verdict::kLeavePlan) {
      status = LeavePlan(std::move(assignment));
      if (!status.ok()) break;
      continue;
    }
    const int64_t started_ns = Now();
    if (timeline_ != nullptr && timeline_->marks_cycles() && assignment.agreed_ns > looked_ns) {
      TimelineRecord cycle;
      cycle.kind = TimelineRecord::Kind::kCycle;
      cycle.begin_ns = started_ns;
      timeline_->Add(cycle);
    }
    recorder_.Started(assignment.request->record);
    Status result = Execute(assignment);
    if (result.code() == Code::kPlanLeft) {
      status = scheduler_->GiveBack(std::move(assignment));
      if (!status.ok()) break;
      continue;
    }
    Finish(std::move(assignment), started_ns, result);
  }
  FailAll(status);
}

Status Engine::LeavePlan(Assignment assignment) {
  HVD_RETURN_IF_ERROR(
      CommunicatorOf(assignment.ranks)->LeavePlan(assignment.ticket, assignment.opening));
  return scheduler_->GiveBack(std::move(assignment));
}

void Engine::CountWaits(const Assignment& assignment) {
  if (assignment.agreed_ns == 0 || assignment.ranks.size() < 2) return;
  const int64_t called_ns = assignment.request->called_ns;
  const auto add = [](int64_t ns, std::atomic<int64_t>* total) {
    if (ns > 0) total->fetch_add(ns, std::memory_order_relaxed);
  };
  add(assignment.agreed_ns - called_ns, &stats_.waited_ns);
  add(called_ns - assignment.first_ns, &stats_.late_ns);
  add(assignment.last_rank == rank_ ? 1 : 0, &stats_.last);
}

TimelineRecord Engine::RecordOf(const Assignment& assignment, int64_t started_ns, int64_t ended_ns,
                                const Status& status) {
  const Request& request = *assignment.request;
  TimelineRecord record;
  record.kind = TimelineRecord::Kind::kCollective;
  record.collective = request.kind;
  record.dtype = request.dtype;
  record.code = status.code();
  record.by_plan = assignment.by_plan;
  record.process_set = request.process_set;
  record.pieces = static_cast<int32_t>(request.pieces.size());
  record.last_rank = assignment.last_rank;
  record.ranks = static_cast<int32_t>(assignment.ranks.size());
  record.number = static_cast<int64_t>(request.occurrence);
  record.bytes = BytesOf(request);
  record.begin_ns = request.called_ns;
  record.end_ns = ended_ns;
  record.first_ns = assignment.first_ns;
  record.agreed_ns = assignment.agreed_ns;
  record.started_ns = assignment.verdict == Assignment::Verdict::kExecute ? started_ns : 0;
  record.phases = phases_;
  if (record.started_ns > 0) record.transport = CommunicatorOf(assignment.ranks)->transport();
  record.SetName(request.name);
  return record;
}

void Engine::Finish(Assignment assignment, int64_t started_ns, const Status& status) {
  const int64_t ended_ns = Now();
  stats_.collectives.fetch_add(1, std::memory_order_relaxed);
  if (!status.ok()) stats_.failures.fetch_add(1, std::memory_order_relaxed);
  // The place on the board first: `done` may lead to the next request at once.
  scheduler_->Complete(assignment.handle);
  Recount(assignment);
  CountWaits(assignment);
  recorder_.Ended(assignment.request->record, status.code());
  if (!records()) return assignment.request->done(status);
  // Before `done`: the program may end the timeline as soon as it has the result.
  TimelineRecord record = RecordOf(assignment, started_ns, ended_ns, status);
  timeline_->Add(record);
  record.kind = TimelineRecord::Kind::kCallback;
  record.begin_ns = Now();
  assignment.request->done(status);
  record.end_ns = Now();
  timeline_->Add(record);
}

void Engine::FailAll(const Status& status) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (ended_.ok()) ended_ = status;
  }
  // Nothing can be added any more, since Submit holds the lock while it posts.
  const bool stopped = status.code() == Code::kFailedPrecondition;
  const Status pending = stopped
                             ? Aborted("hvd.shutdown() was called on rank " +
                                       std::to_string(rank_) + " while this collective was pending")
                             : status;
  for (auto& request : scheduler_->Drain()) {
    recorder_.Ended(request->record, pending.code());
    request->done(pending);
  }
}

void Engine::Shutdown() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (ended_.ok()) ended_ = FailedPrecondition("hvd.shutdown() has been called on this rank");
  }
  scheduler_->Interrupt();
  if (thread_.joinable()) thread_.join();
}

Communicator* Engine::CommunicatorOf(const std::vector<int>& ranks) {
  std::shared_ptr<Communicator>& communicator = communicators_[ranks];
  if (!communicator) communicator = make_communicator_(ranks);
  return communicator.get();
}

Status Engine::Execute(const Assignment& assignment) {
  phases_ = {};
  if (assignment.verdict == Assignment::Verdict::kFailed) return assignment.error;
  const Request& request = *assignment.request;
  std::vector<int> set;
  HVD_RETURN_IF_ERROR(GetProcessSet(request.process_set, &set));
  const Execution execution{assignment, set, rank_, CommunicatorOf(assignment.ranks)};
  if (assignment.verdict == Assignment::Verdict::kMismatch) return ExplainMismatch(execution);
  if (assignment.by_plan) {
    execution.communicator->FollowPlan();
    stats_.planned.fetch_add(1, std::memory_order_relaxed);
  }
  stats_.bytes.fetch_add(BytesOf(request), std::memory_order_relaxed);
  execution.communicator->set_phases(records() ? &phases_ : nullptr);
  return ExecuteCollective(execution);
}

}  // namespace hvd
