// HvdBroadcast: every rank gets the tensors of one.
#include <utility>

#include "ops/tensorflow/collective_kernel.h"

namespace hvd::tf {
namespace {

REGISTER_OP("HvdBroadcast")
    .Input("tensors: N * T")
    .Output("outputs: N * T")
    .Attr("N: int >= 1")
    .Attr("T: " HVD_ALL_TYPES)
    .HVD_CALL_ATTRS.Attr("root_rank: int")
    .SetIsStateful()
    .SetShapeFn(SameShapes)
    .Doc(R"doc(
Copies the tensors of rank `root_rank` to all ranks of a process set.

tensors: the same types and shapes on all ranks; the values are used at the root only.
tensor_name: matches the call across ranks; defaults to the name of the node.
root_rank: a global rank, also in a process set.
)doc");

class BroadcastKernel : public CollectiveKernel {
 public:
  explicit BroadcastKernel(tensorflow::OpKernelConstruction* context) : CollectiveKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("root_rank", &root_rank_));
  }

  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) override {
    auto request = NewRequest(context, CollectiveKind::kBroadcast);
    request->root_rank = root_rank_;
    AllocateOutputsLikeInputs(context, request.get());
    Submit(context, std::move(request), std::move(done));
  }

 private:
  int root_rank_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("HvdBroadcast").Device(tensorflow::DEVICE_CPU), BroadcastKernel);

}  // namespace
}  // namespace hvd::tf
