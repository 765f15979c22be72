// HvdBarrier: no rank passes before all have arrived.
#include <utility>

#include "ops/tensorflow/collective_kernel.h"

namespace hvd::tf {
namespace {

REGISTER_OP("HvdBarrier")
    .HVD_CALL_ATTRS.SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext*) { return absl::OkStatus(); })
    .Doc(R"doc(
Returns once all ranks of a process set have reached it.

tensor_name: matches the call across ranks; defaults to the name of the node.
)doc");

class BarrierKernel : public CollectiveKernel {
 public:
  using CollectiveKernel::CollectiveKernel;

  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) override {
    Submit(context, NewRequest(context, CollectiveKind::kBarrier), std::move(done));
  }
};

REGISTER_KERNEL_BUILDER(Name("HvdBarrier").Device(tensorflow::DEVICE_CPU), BarrierKernel);

}  // namespace
}  // namespace hvd::tf
