#include "ops/core/execute.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "ops/core/adasum.h"
#include "ops/core/ranks.h"

namespace hvd {
namespace {

// Text of one rank in the exchange that explains a mismatch.
constexpr size_t kDescriptionBytes = 2048;

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

Reduction ReductionOf(const Request& request, int members) {
  Reduction reduction;
  reduction.dtype = request.dtype;
  reduction.op = request.reduce_op;
  reduction.prescale = request.prescale;
  reduction.postscale = request.postscale;
  reduction.divisor = members;
  return reduction;
}

Status Allreduce(const Execution& e) {
  const Request& request = *e.assignment.request;
  const Reduction reduction = ReductionOf(request, e.communicator->size());
  const std::vector<Buffer> buffers = ByteBuffers(request);
  if (reduction.op == ReduceOp::kAdasum) {
    return AdasumAllreduce(e.assignment.ticket, reduction, buffers, e.communicator);
  }
  return e.communicator->Allreduce(e.assignment.ticket, reduction, buffers);
}

Status Broadcast(const Execution& e) {
  const Request& request = *e.assignment.request;
  const std::vector<int>& ranks = e.assignment.ranks;
  const auto root = std::find(ranks.begin(), ranks.end(), request.root_rank);
  if (root == ranks.end()) {
    return InvalidArgument("broadcast '" + request.name + "': the root, rank " +
                           std::to_string(request.root_rank) +
                           ", has joined (hvd.join()) and sends nothing any more");
  }
  return e.communicator->Broadcast(e.assignment.ticket, static_cast<int>(root - ranks.begin()),
                                   ByteBuffers(request));
}

// Calls `allocate`, and tells all members if one of them cannot: they would wait for its data.
Status AllocateTogether(const Execution& e, const std::vector<std::vector<int64_t>>& rows) {
  Request& request = *e.assignment.request;
  const int members = e.communicator->size();
  const Status allocated = request.allocate(rows, &request.pieces);
  const auto failed = static_cast<uint8_t>(allocated.code());
  std::vector<uint8_t> failures(members);
  HVD_RETURN_IF_ERROR(e.communicator->Allgather(
      e.assignment.ticket, {{&failed, failures.data(), std::vector<int64_t>(members, 1)}}));
  HVD_RETURN_IF_ERROR(allocated);
  for (int m = 0; m < members; ++m) {
    if (!failures[m]) continue;
    const std::string who = "rank " + std::to_string(e.assignment.ranks[m]);
    const std::string what = std::string(Name(request.kind)) + " '" + request.name + "'";
    if (static_cast<Code>(failures[m]) == Code::kInvalidArgument) {
      return InvalidArgument(who + " was made for another output of " + what +
                             " than the ranks' tensors give; its own error says more");
    }
    return ResourceExhausted(who + " could not allocate the output of " + what);
  }
  return Status::Ok();
}

// Every member's `mine`, one after another. All are of the same length.
Status GatherNumbers(const Execution& e, const std::vector<int64_t>& mine,
                     std::vector<int64_t>* all) {
  const int members = e.communicator->size();
  all->resize(mine.size() * members);
  const auto bytes = static_cast<int64_t>(mine.size() * sizeof(int64_t));
  return e.communicator->Allgather(
      e.assignment.ticket, {{mine.data(), all->data(), std::vector<int64_t>(members, bytes)}});
}

Status Allgather(const Execution& e) {
  const Request& request = *e.assignment.request;
  const size_t num_pieces = request.pieces.size();
  const int members = e.communicator->size();
  std::vector<int64_t> mine, all;
  for (const Piece& piece : request.pieces) mine.push_back(piece.shape[0]);
  HVD_RETURN_IF_ERROR(GatherNumbers(e, mine, &all));
  std::vector<std::vector<int64_t>> rows(num_pieces, std::vector<int64_t>(members));
  for (size_t p = 0; p < num_pieces; ++p) {
    for (int m = 0; m < members; ++m) rows[p][m] = all[m * num_pieces + p];
  }
  HVD_RETURN_IF_ERROR(AllocateTogether(e, rows));

  std::vector<GatherBuffer> buffers(num_pieces);
  for (size_t p = 0; p < num_pieces; ++p) {
    const Piece& piece = request.pieces[p];
    buffers[p] = {piece.input, piece.output, rows[p]};
    for (int64_t& bytes : buffers[p].bytes) bytes *= RowBytes(piece, request.dtype);
  }
  return e.communicator->Allgather(e.assignment.ticket, buffers);
}

Status Reducescatter(const Execution& e) {
  const Request& request = *e.assignment.request;
  const size_t me = std::find(e.set.begin(), e.set.end(), e.rank) - e.set.begin();
  std::vector<std::vector<int64_t>> rows;
  for (const Piece& piece : request.pieces) {
    rows.push_back({ShareOutRows(piece.shape[0], e.set.size())[me]});
  }
  HVD_RETURN_IF_ERROR(AllocateTogether(e, rows));

  std::vector<ScatterBuffer> buffers;
  for (const Piece& piece : request.pieces) {
    // By member of the process set; the shares of those that have joined go to nobody.
    std::vector<int64_t> bytes = ShareOutRows(piece.shape[0], e.set.size());
    for (int64_t& share : bytes) share *= RowBytes(piece, request.dtype);
    const int64_t begin = std::accumulate(bytes.begin(), bytes.begin() + me, int64_t{0});
    buffers.push_back(
        {piece.input, piece.output, begin, bytes[me], piece.NumElements() * SizeOf(request.dtype)});
  }
  return e.communicator->Reducescatter(e.assignment.ticket,
                                       ReductionOf(request, e.communicator->size()), buffers);
}

Status Alltoall(const Execution& e) {
  const Request& request = *e.assignment.request;
  const int members = e.communicator->size();
  const size_t all_members = e.set.size();
  std::vector<int64_t> all;
  HVD_RETURN_IF_ERROR(GatherNumbers(e, request.splits, &all));
  // all[m * all_members + k]: rows from member m to the k-th rank of the set, who may have joined.
  const size_t me = std::find(e.set.begin(), e.set.end(), e.rank) - e.set.begin();
  std::vector<std::vector<int64_t>> rows(1);
  for (int m = 0; m < members; ++m) rows[0].push_back(all[m * all_members + me]);
  HVD_RETURN_IF_ERROR(AllocateTogether(e, rows));

  const Piece& piece = request.pieces[0];
  const int64_t row_bytes = RowBytes(piece, request.dtype);
  std::vector<AlltoallPart> parts(members);
  int64_t received = 0;
  for (int m = 0; m < members; ++m) {
    const auto begin = all.begin() + static_cast<int64_t>(m * all_members);
    parts[m].total = std::accumulate(begin, begin + all_members, int64_t{0}) * row_bytes;
    parts[m].begin = std::accumulate(begin, begin + me, int64_t{0}) * row_bytes;
    parts[m].bytes = rows[0][m] * row_bytes;
    parts[m].output_begin = received;
    received += parts[m].bytes;
    const size_t k = std::find(e.set.begin(), e.set.end(), e.assignment.ranks[m]) - e.set.begin();
    const auto splits = request.splits.begin();
    parts[m].send_begin = std::accumulate(splits, splits + k, int64_t{0}) * row_bytes;
    parts[m].send_bytes = request.splits[k] * row_bytes;
  }
  return e.communicator->Alltoall(e.assignment.ticket, piece.input, piece.output, parts);
}

Status Join(const Execution& e) {
  e.assignment.request->joined(e.assignment.last_rank);
  return Status::Ok();
}

}  // namespace

std::vector<int64_t> ShareOutRows(int64_t rows, size_t members) {
  const auto count = static_cast<int64_t>(members);
  std::vector<int64_t> shares(members, rows / count);
  for (int64_t m = 0; m < rows % count; ++m) ++shares[m];
  return shares;
}

Status ExecuteCollective(const Execution& e) {
  switch (e.assignment.request->kind) {
    case CollectiveKind::kAllreduce:
      return Allreduce(e);
    case CollectiveKind::kAllgather:
      return Allgather(e);
    case CollectiveKind::kBroadcast:
      return Broadcast(e);
    case CollectiveKind::kBarrier:
      return Status::Ok();  // to have agreed on it *is* the barrier
    case CollectiveKind::kReducescatter:
      return Reducescatter(e);
    case CollectiveKind::kAlltoall:
      return Alltoall(e);
    case CollectiveKind::kJoin:
      return Join(e);
  }
  return Internal("unknown collective");
}

Status ExplainMismatch(const Execution& e) {
  const Request& request = *e.assignment.request;
  const int members = e.communicator->size();
  std::string mine = Describe(request, kDescriptionBytes - 1);
  mine.resize(kDescriptionBytes, '\0');
  std::string all(kDescriptionBytes * members, '\0');
  HVD_RETURN_IF_ERROR(e.communicator->Allgather(
      e.assignment.ticket,
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
  return InvalidArgument("the ranks disagree about the collective '" + request.name +
                         "', which must be the same on all of them:" +
                         GroupByDescription(e.assignment.ranks, descriptions));
}

}  // namespace hvd
