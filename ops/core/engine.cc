#include "ops/core/engine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ops/core/hash.h"

namespace hvd {
namespace {

// Text of one rank in the exchange that explains a mismatch.
constexpr size_t kDescriptionBytes = 2048;

// "rank 3", "ranks 0-2,5".
std::string RankList(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (i > 0) text += ",";
    text += std::to_string(ranks[i]);
    if (last > i) text += (last == i + 1 ? "," : "-") + std::to_string(ranks[last]);
    i = last;
  }
  return text;
}

// One line for each distinct description, with the ranks that sent it.
std::string GroupByDescription(const std::vector<int>& ranks,
                               const std::vector<std::string>& descriptions) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (size_t i = 0; i < ranks.size(); ++i) {
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const auto& g) { return g.first == descriptions[i]; });
    if (group == groups.end()) group = groups.insert(groups.end(), {descriptions[i], {}});
    group->second.push_back(ranks[i]);
  }
  std::string text;
  for (const auto& [description, members] : groups) {
    text += "\n  " + RankList(members) + ": " + description;
  }
  return text;
}

int64_t RowBytes(const Piece& piece, DataType dtype) {
  int64_t elements = 1;
  for (size_t i = 1; i < piece.shape.size(); ++i) elements *= piece.shape[i];
  return elements * SizeOf(dtype);
}

std::vector<Buffer> ByteBuffers(const Request& request) {
  std::vector<Buffer> buffers;
  buffers.reserve(request.pieces.size());
  for (const Piece& piece : request.pieces) {
    buffers.push_back({piece.input, piece.output, piece.NumElements() * SizeOf(request.dtype)});
  }
  return buffers;
}

}  // namespace

Engine::Engine(int rank, ProcessSet world, std::unique_ptr<Scheduler> scheduler)
    : rank_(rank), world_ranks_(world.ranks), scheduler_(std::move(scheduler)) {
  sets_[0] = std::make_shared<ProcessSet>(std::move(world));
  thread_ = std::thread([this] { Run(); });
}

Engine::~Engine() { Shutdown(); }

MatchKey Engine::NextKey(const Request& request) {
  const uint64_t occurrence =
      occurrences_[std::to_string(request.process_set) + "/" + request.name]++;
  uint64_t h = HashMix(static_cast<uint64_t>(request.process_set), occurrence);
  return {HashString(h, request.name), HashString(~h, request.name)};
}

void Engine::Submit(std::unique_ptr<Request> request) {
  Status status;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto set = sets_.find(request->process_set);
    if (!ended_.ok()) {
      status = ended_;
    } else if (set == sets_.end()) {
      status =
          InvalidArgument("process set " + std::to_string(request->process_set) +
                          " does not exist, or rank " + std::to_string(rank_) + " is not in it");
    } else {
      request->fault = ValidateRequest(*request, set->second->ranks);
      Announcement announcement{NextKey(*request), Fingerprint(*request), &set->second->ranks,
                                std::move(request)};
      status = scheduler_->Post(&announcement);
      request = std::move(announcement.request);
    }
  }
  if (!status.ok()) request->done(status);
}

void Engine::Run() {
  Status status;
  while (true) {
    Assignment assignment;
    status = scheduler_->Next(&assignment);
    if (!status.ok()) break;
    Status result = Execute(assignment);
    Finish(std::move(assignment), result);
  }
  FailAll(status);
}

void Engine::Finish(Assignment assignment, const Status& status) {
  stats_.collectives.fetch_add(1, std::memory_order_relaxed);
  if (!status.ok()) stats_.failures.fetch_add(1, std::memory_order_relaxed);
  // The place on the board first: `done` may lead to the next request at once.
  scheduler_->Complete(assignment.handle);
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
  for (auto& request : scheduler_->Drain()) request->done(pending);
}

void Engine::Shutdown() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (ended_.ok()) ended_ = FailedPrecondition("hvd.shutdown() has been called on this rank");
  }
  scheduler_->Interrupt();
  if (thread_.joinable()) thread_.join();
}

Status Engine::Execute(const Assignment& assignment) {
  if (assignment.verdict == Assignment::Verdict::kFailed) return assignment.error;
  const Request& request = *assignment.request;
  std::shared_ptr<ProcessSet> set;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = sets_.find(request.process_set);
    if (found != sets_.end()) set = found->second;
  }
  if (!set) {
    return Internal("process set " + std::to_string(request.process_set) + " was removed while '" +
                    request.name + "' was pending");
  }
  if (assignment.verdict == Assignment::Verdict::kMismatch)
    return ExplainMismatch(assignment, *set);
  for (const Piece& piece : request.pieces) {
    stats_.bytes.fetch_add(piece.NumElements() * SizeOf(request.dtype), std::memory_order_relaxed);
  }
  switch (request.kind) {
    case CollectiveKind::kAllreduce:
      return ExecuteAllreduce(assignment, *set);
    case CollectiveKind::kAllgather:
      return ExecuteAllgather(assignment, *set);
    case CollectiveKind::kBroadcast:
      return ExecuteBroadcast(assignment, *set);
    case CollectiveKind::kBarrier:
      return Status::Ok();  // to have agreed on it *is* the barrier
  }
  return Internal("unknown collective");
}

Status Engine::ExecuteAllreduce(const Assignment& assignment, const ProcessSet& set) {
  const Request& request = *assignment.request;
  Reduction reduction;
  reduction.dtype = request.dtype;
  reduction.op = request.reduce_op;
  reduction.prescale = request.prescale;
  reduction.postscale = request.postscale;
  reduction.divisor = set.communicator->size();
  return set.communicator->Allreduce(assignment.ticket, reduction, ByteBuffers(request));
}

Status Engine::ExecuteBroadcast(const Assignment& assignment, const ProcessSet& set) {
  const Request& request = *assignment.request;
  const auto root = std::lower_bound(set.ranks.begin(), set.ranks.end(), request.root_rank);
  return set.communicator->Broadcast(assignment.ticket, static_cast<int>(root - set.ranks.begin()),
                                     ByteBuffers(request));
}

Status Engine::ExecuteAllgather(const Assignment& assignment, const ProcessSet& set) {
  Request& request = *assignment.request;
  const size_t num_pieces = request.pieces.size();
  const int members = set.communicator->size();

  // First the sizes: rows_by_member[member * num_pieces + piece].
  std::vector<int64_t> mine(num_pieces);
  for (size_t p = 0; p < num_pieces; ++p) mine[p] = request.pieces[p].shape[0];
  std::vector<int64_t> rows_by_member(num_pieces * members);
  const int64_t row_bytes = static_cast<int64_t>(num_pieces * sizeof(int64_t));
  HVD_RETURN_IF_ERROR(set.communicator->Allgather(
      assignment.ticket,
      {{mine.data(), rows_by_member.data(), std::vector<int64_t>(members, row_bytes)}}));

  std::vector<std::vector<int64_t>> rows(num_pieces, std::vector<int64_t>(members));
  for (size_t p = 0; p < num_pieces; ++p) {
    for (int m = 0; m < members; ++m) rows[p][m] = rows_by_member[m * num_pieces + p];
  }
  // A rank that cannot allocate tells the others, or they would wait for its data.
  const Status allocated = request.allocate(rows, &request.pieces);
  const uint8_t failed = allocated.ok() ? 0 : 1;
  std::vector<uint8_t> failures(members);
  HVD_RETURN_IF_ERROR(set.communicator->Allgather(
      assignment.ticket, {{&failed, failures.data(), std::vector<int64_t>(members, 1)}}));
  HVD_RETURN_IF_ERROR(allocated);
  for (int m = 0; m < members; ++m) {
    if (failures[m]) {
      return ResourceExhausted("rank " + std::to_string(set.ranks[m]) +
                               " could not allocate the output of allgather '" + request.name +
                               "'");
    }
  }

  std::vector<GatherBuffer> buffers(num_pieces);
  for (size_t p = 0; p < num_pieces; ++p) {
    const Piece& piece = request.pieces[p];
    buffers[p] = {piece.input, piece.output, rows[p]};
    for (int64_t& bytes : buffers[p].bytes) bytes *= RowBytes(piece, request.dtype);
  }
  return set.communicator->Allgather(assignment.ticket, buffers);
}

Status Engine::ExplainMismatch(const Assignment& assignment, const ProcessSet& set) {
  const Request& request = *assignment.request;
  const int members = set.communicator->size();
  std::string mine = Describe(request, kDescriptionBytes - 1);
  mine.resize(kDescriptionBytes, '\0');
  std::string all(kDescriptionBytes * members, '\0');
  HVD_RETURN_IF_ERROR(set.communicator->Allgather(
      assignment.ticket,
      {{mine.data(), all.data(), std::vector<int64_t>(members, kDescriptionBytes)}}));
  std::vector<std::string> descriptions;
  for (int m = 0; m < members; ++m) {
    descriptions.emplace_back(all.c_str() + m * kDescriptionBytes);
  }
  const bool agreed = std::all_of(descriptions.begin(), descriptions.end(),
                                  [&](const std::string& d) { return d == descriptions[0]; });
  // All ranks made the same mistake: no need for a table of who sent what.
  if (agreed && !request.fault.ok()) {
    return InvalidArgument(std::string(Name(request.kind)) + " '" + request.name +
                           "': " + request.fault.message());
  }
  return InvalidArgument(
      "the ranks disagree about the collective '" + request.name +
      "', which must be the same on all of them:" + GroupByDescription(set.ranks, descriptions));
}

}  // namespace hvd
