#include "ops/xla/collectives.h"

#include "ops/core/execute.h"
#include "ops/tensorflow/collective_kernel.h"

namespace hvd::xla_ops {
namespace {

using tensorflow::OpKernelConstruction;

absl::Status DescribeReduction(OpKernelConstruction* op, Attributes* attributes) {
  tf::ReductionAttrs reduction;
  TF_RETURN_IF_ERROR(reduction.Read(op));
  attributes->Set("reduce_op", static_cast<int64_t>(reduction.op));
  attributes->SetBits("prescale", reduction.prescale);
  attributes->SetBits("postscale", reduction.postscale);
  return absl::OkStatus();
}

absl::Status DescribeRoot(OpKernelConstruction* op, Attributes* attributes) {
  int root_rank = 0;
  TF_RETURN_IF_ERROR(op->GetAttr("root_rank", &root_rank));
  attributes->Set("root_rank", root_rank);
  return absl::OkStatus();
}

absl::Status DescribeTimeout(OpKernelConstruction* op, Attributes* attributes) {
  float timeout_seconds = 0;
  TF_RETURN_IF_ERROR(op->GetAttr("timeout_seconds", &timeout_seconds));
  attributes->SetBits("timeout", timeout_seconds);
  return absl::OkStatus();
}

int64_t RowsOfAll(int64_t rows, int64_t members, int64_t) { return rows * members; }

int64_t RowsOfShare(int64_t rows, int64_t members, int64_t index) {
  return ShareOutRows(rows, static_cast<size_t>(members))[index];
}

// The shapes of allgather and alltoall hold where the ranks' shares are equal. Where they turn out
// not to be, all ranks get an error when the call runs.
constexpr Collective kCollectives[] = {
    {"HvdAllreduce", CollectiveKind::kAllreduce, DescribeReduction, nullptr},
    {"HvdBroadcast", CollectiveKind::kBroadcast, DescribeRoot, nullptr},
    {"HvdReducescatter", CollectiveKind::kReducescatter, DescribeReduction, RowsOfShare},
    {"HvdAllgather", CollectiveKind::kAllgather, nullptr, RowsOfAll},
    {"HvdAlltoall", CollectiveKind::kAlltoall, nullptr, nullptr},
    {"HvdBarrier", CollectiveKind::kBarrier, DescribeTimeout, nullptr},
};

}  // namespace

const Collective* FindCollective(const std::string& op) {
  for (const Collective& collective : kCollectives) {
    if (op == collective.op) return &collective;
  }
  return nullptr;
}

}  // namespace hvd::xla_ops
