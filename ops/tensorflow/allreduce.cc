// HvdAllreduce: element-wise reduction of one or more tensors over all ranks.
#include <utility>

#include "ops/tensorflow/collective_kernel.h"

namespace hvd::tf {
namespace {

REGISTER_OP("HvdAllreduce")
    .Input("tensors: N * T")
    .Output("outputs: N * T")
    .Attr("N: int >= 1")
    .Attr("T: " HVD_ALL_TYPES)
    .HVD_CALL_ATTRS.HVD_REDUCTION_ATTRS.SetIsStateful()
    .SetShapeFn(SameShapes)
    .Doc(R"doc(
Reduces tensors element by element over all ranks of a process set; every rank gets the result.

All tensors of one call travel together. Each input is multiplied by the prescale factor, the inputs
are combined in rank order, averages are divided by the number of ranks, and the result is multiplied
by the postscale factor. float16 and bfloat16 are accumulated in float32. Adasum (float32 and float64) adds orthogonal gradients and averages equal ones.

tensors: the same types and shapes on all ranks.
tensor_name: matches the call across ranks; defaults to the name of the node.
prescale_bits, postscale_bits: the bits of a float64 (TensorFlow has no such attribute type).
)doc");

class AllreduceKernel : public CollectiveKernel {
 public:
  explicit AllreduceKernel(tensorflow::OpKernelConstruction* context) : CollectiveKernel(context) {
    OP_REQUIRES_OK(context, reduction_.Read(context));
  }

  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) override {
    auto request = NewRequest(context, CollectiveKind::kAllreduce);
    reduction_.CopyTo(request.get());
    AllocateOutputsLikeInputs(context, request.get());
    Submit(context, std::move(request), std::move(done));
  }

 private:
  ReductionAttrs reduction_;
};

REGISTER_KERNEL_BUILDER(Name("HvdAllreduce").Device(tensorflow::DEVICE_CPU), AllreduceKernel);

}  // namespace
}  // namespace hvd::tf
