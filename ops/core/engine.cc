#include "ops/core/engine.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "ops/core/execute.h"
#include "ops/core/hash.h"
#include "ops/core/ranks.h"

namespace hvd {

Engine::Engine(int rank, int size, CommunicatorFactory make_communicator,
               std::unique_ptr<Scheduler> scheduler, FlightRing* flight_ring)
    : rank_(rank),
      size_(size),
      make_communicator_(std::move(make_communicator)),
      scheduler_(std::move(scheduler)),
      recorder_(flight_ring) {
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

void Engine::Recount(const Assignment& assignment) {
  std::lock_guard<std::mutex> lock(mutex_);
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
  const uint64_t record = recorder_.Posted(**request, occurrence, fingerprint);
  (*request)->record = record;
  const MatchKey id = IdOf(**request);
  Announcement announcement{KeyOf(id, occurrence), id, fingerprint, ranks, std::move(*request)};
  const Status status = scheduler_->Post(&announcement);
  *request = std::move(announcement.request);
  if (!status.ok()) recorder_.Ended(record, status.code());
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
    status = scheduler_->Next(&assignment);
    if (!status.ok()) break;
    if (assignment.verdict == Assignment::Verdict::kLeavePlan) {
      status = LeavePlan(std::move(assignment));
      if (!status.ok()) break;
      continue;
    }
    recorder_.Started(assignment.request->record);
    Status result = Execute(assignment);
    if (result.code() == Code::kPlanLeft) {
      status = scheduler_->GiveBack(std::move(assignment));
      if (!status.ok()) break;
      continue;
    }
    Finish(std::move(assignment), result);
  }
  FailAll(status);
}

Status Engine::LeavePlan(Assignment assignment) {
  HVD_RETURN_IF_ERROR(
      CommunicatorOf(assignment.ranks)->LeavePlan(assignment.ticket, assignment.opening));
  return scheduler_->GiveBack(std::move(assignment));
}

void Engine::Finish(Assignment assignment, const Status& status) {
  stats_.collectives.fetch_add(1, std::memory_order_relaxed);
  if (!status.ok()) stats_.failures.fetch_add(1, std::memory_order_relaxed);
  // The place on the board first: `done` may lead to the next request at once.
  scheduler_->Complete(assignment.handle);
  Recount(assignment);
  recorder_.Ended(assignment.request->record, status.code());
  assignment.request->done(status);
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
  for (const Piece& piece : request.pieces) {
    stats_.bytes.fetch_add(piece.NumElements() * SizeOf(request.dtype), std::memory_order_relaxed);
  }
  return ExecuteCollective(execution);
}

}  // namespace hvd
