// HvdBarrier: no rank passes before all have arrived.
#include <utility>

#include "ops/tensorflow/collective_kernel.h"

namespace hvd::tf {
namespace {

REGISTER_OP("HvdBarrier")
    .HVD_CALL_ATTRS.Attr("timeout_seconds: float = 0.0")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext*) { return absl::OkStatus(); })
    .Doc(R"doc(
Returns once all ranks of a process set have reached it.

tensor_name: matches the call across ranks; defaults to the name of the node.
timeout_seconds: after which those who wait get an error that names the missing ranks; 0 for never.
)doc");

class BarrierKernel : public CollectiveKernel {
 public:
  explicit BarrierKernel(tensorflow::OpKernelConstruction* context) : CollectiveKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("timeout_seconds", &timeout_seconds_));
  }

  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) override {
    auto request = NewRequest(context, CollectiveKind::kBarrier);
    request->timeout_seconds = timeout_seconds_;
    Submit(context, std::move(request), std::move(done));
  }

 private:
  float timeout_seconds_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("HvdBarrier").Device(tensorflow::DEVICE_CPU), BarrierKernel);

}  // namespace
}  // namespace hvd::tf
