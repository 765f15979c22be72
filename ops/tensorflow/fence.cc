// HvdFence: hands tensors on once all of them exist. Of use where XLA compiles, see ops/xla.
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace hvd::tf {
namespace {

REGISTER_OP("HvdFence")
    .Input("tensors: T")
    .Output("outputs: T")
    .Attr("T: list(type) >= 1")
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      for (int i = 0; i < context->num_inputs(); ++i) context->set_output(i, context->input(i));
      return absl::OkStatus();
    })
    .Doc("Hands the tensors on, once all of them exist.");

class FenceKernel : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) override {
    for (int i = 0; i < context->num_inputs(); ++i) context->set_output(i, context->input(i));
  }
};

REGISTER_KERNEL_BUILDER(Name("HvdFence").Device(tensorflow::DEVICE_CPU), FenceKernel);

}  // namespace
}  // namespace hvd::tf
