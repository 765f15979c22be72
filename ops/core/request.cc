#include "ops/core/request.h"

#include <algorithm>
#include <cstdio>

#include "ops/core/hash.h"

namespace hvd {
namespace {

std::string ShapeText(const std::vector<int64_t>& shape, bool any_first_dimension) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ",";
    text += (i == 0 && any_first_dimension) ? "*" : std::to_string(shape[i]);
  }
  return text + "]";
}

bool Reduces(CollectiveKind kind) {
  return kind == CollectiveKind::kAllreduce || kind == CollectiveKind::kReducescatter;
}

// Whether the first dimension may differ between ranks.
bool IsUneven(CollectiveKind kind) {
  return kind == CollectiveKind::kAllgather || kind == CollectiveKind::kAlltoall;
}

Status CheckSplits(const Request& request, size_t members) {
  int64_t total = 0;
  for (int64_t rows : request.splits) {
    if (rows < 0)
      return InvalidArgument("a split of alltoall is negative: " + std::to_string(rows));
    total += rows;
  }
  const int64_t rows = request.pieces[0].shape[0];
  if (request.splits.size() == members && total == rows) return Status::Ok();
  return InvalidArgument("alltoall needs one split for each of the " + std::to_string(members) +
                         " ranks, which add up to the first dimension, " + std::to_string(rows) +
                         "; it got " + std::to_string(request.splits.size()) +
                         ", which add up to " + std::to_string(total));
}

std::string NumberText(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof(buffer), "%.9g", value);
  return buffer;
}

}  // namespace

const char* Name(CollectiveKind kind) {
  constexpr const char* kNames[] = {"allreduce",     "allgather", "broadcast", "barrier",
                                    "reducescatter", "alltoall",  "join"};
  return kNames[static_cast<int>(kind)];
}

Status ValidateRequest(const Request& request, const std::vector<int>& ranks) {
  HVD_RETURN_IF_ERROR(request.fault);
  if (Reduces(request.kind)) {
    HVD_RETURN_IF_ERROR(
        CheckReduction(request.dtype, request.reduce_op, request.prescale, request.postscale));
  }
  if (request.kind == CollectiveKind::kReducescatter && request.reduce_op == ReduceOp::kAdasum) {
    return InvalidArgument("reducescatter knows no Adasum; use allreduce");
  }
  if (request.kind == CollectiveKind::kBroadcast &&
      std::find(ranks.begin(), ranks.end(), request.root_rank) == ranks.end()) {
    return InvalidArgument("root_rank " + std::to_string(request.root_rank) +
                           " does not exist: the process set has " + std::to_string(ranks.size()) +
                           " ranks, from " + std::to_string(ranks.front()) + " to " +
                           std::to_string(ranks.back()));
  }
  if (IsUneven(request.kind) || request.kind == CollectiveKind::kReducescatter) {
    for (const Piece& piece : request.pieces) {
      if (!piece.shape.empty()) continue;
      return InvalidArgument(std::string(Name(request.kind)) +
                             " works along the first dimension, and a scalar has none; reshape it "
                             "to [1]");
    }
  }
  if (request.kind == CollectiveKind::kAlltoall) {
    HVD_RETURN_IF_ERROR(CheckSplits(request, ranks.size()));
  }
  return Status::Ok();
}

uint64_t Fingerprint(const Request& request) {
  const bool uneven = IsUneven(request.kind);
  uint64_t h = HashMix(1, static_cast<uint64_t>(request.kind));
  h = HashMix(h, static_cast<uint64_t>(request.dtype));
  if (Reduces(request.kind)) {
    h = HashMix(h, static_cast<uint64_t>(request.reduce_op));
    h = HashDouble(h, request.prescale);
    h = HashDouble(h, request.postscale);
  }
  if (request.kind == CollectiveKind::kBroadcast) {
    h = HashMix(h, static_cast<uint64_t>(request.root_rank));
  }
  h = HashMix(h, request.pieces.size());
  for (const Piece& piece : request.pieces) {
    h = HashMix(h, piece.shape.size());
    for (size_t i = uneven ? 1 : 0; i < piece.shape.size(); ++i) {
      h = HashMix(h, static_cast<uint64_t>(piece.shape[i]));
    }
  }
  return h;
}

std::string Describe(const Request& request, size_t max_bytes) {
  std::string text = Name(request.kind);
  if (Reduces(request.kind)) {
    text += std::string("(") + Name(request.reduce_op) + ")";
  }
  if (!request.pieces.empty()) {
    const size_t count = request.pieces.size();
    text += " of " + (count == 1
                          ? std::string("a ") + Name(request.dtype) + " tensor, shape"
                          : std::to_string(count) + " " + Name(request.dtype) + " tensors, shapes");
    for (const Piece& piece : request.pieces) {
      text += " " + ShapeText(piece.shape, IsUneven(request.kind));
      if (text.size() > max_bytes) break;
    }
  }
  if (request.kind == CollectiveKind::kBroadcast) {
    text += ", root_rank " + std::to_string(request.root_rank);
  }
  if (request.prescale != 1.0) text += ", prescale " + NumberText(request.prescale);
  if (request.postscale != 1.0) text += ", postscale " + NumberText(request.postscale);
  if (!request.fault.ok()) text += " (" + request.fault.message() + ")";
  if (text.size() > max_bytes) text = text.substr(0, max_bytes - 3) + "...";
  return text;
}

}  // namespace hvd
