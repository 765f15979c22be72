// HvdAlltoall: every rank sends a part of its tensor to each of the others.
#include <algorithm>
#include <utility>

#include "ops/tensorflow/collective_kernel.h"

namespace hvd::tf {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("HvdAlltoall")
    .Input("tensor: T")
    .Input("splits: int64")
    .Output("output: T")
    .Output("received_splits: int64")
    .Attr("T: " HVD_ALL_TYPES)
    .HVD_CALL_ATTRS.SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle shape, splits;
      TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(0), 1, &shape));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 1, &splits));
      TF_RETURN_IF_ERROR(context->ReplaceDim(shape, 0, context->UnknownDim(), &shape));
      context->set_output(0, shape);
      context->set_output(1, context->UnknownShapeOfRank(1));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Sends splits[k] rows of the tensor, in order, to the k-th rank of a process set, and joins what the
ranks send to this one, in rank order.

tensor: the same type and shape on all ranks, but for the first dimension.
splits: one number for each rank; their sum is the first dimension.
received_splits: how many rows came from each rank (those that take part, see HvdJoin).
tensor_name: matches the call across ranks; defaults to the name of the node.
)doc");

class AlltoallKernel : public CollectiveKernel {
 public:
  using CollectiveKernel::CollectiveKernel;

  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) override {
    auto request = NewRequest(context, CollectiveKind::kAlltoall);
    request->pieces.resize(1);  // the splits are not sent as a tensor
    const auto splits = context->input(1).flat<int64_t>();
    request->splits.assign(splits.data(), splits.data() + splits.size());
    request->allocate = [context](const std::vector<std::vector<int64_t>>& rows,
                                  std::vector<Piece>* pieces) {
      tensorflow::Tensor* received = nullptr;
      const absl::Status allocated = context->allocate_output(
          1, tensorflow::TensorShape({static_cast<int64_t>(rows[0].size())}), &received);
      if (!allocated.ok()) return ResourceExhausted(std::string(allocated.message()));
      std::copy(rows[0].begin(), rows[0].end(), received->flat<int64_t>().data());
      return AllocateByRows(context, rows, pieces);
    };
    Submit(context, std::move(request), std::move(done));
  }
};

REGISTER_KERNEL_BUILDER(Name("HvdAlltoall").Device(tensorflow::DEVICE_CPU), AlltoallKernel);

}  // namespace
}  // namespace hvd::tf
