// HvdAllgather: joins the tensors of all ranks along their first dimension.
#include <utility>

#include "ops/tensorflow/collective_kernel.h"

namespace hvd::tf {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("HvdAllgather")
    .Input("tensors: N * T")
    .Output("outputs: N * T")
    .Attr("N: int >= 1")
    .Attr("T: " HVD_ALL_TYPES)
    .HVD_CALL_ATTRS.SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      for (int i = 0; i < context->num_inputs(); ++i) {
        ShapeHandle shape;
        TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(i), 1, &shape));
        TF_RETURN_IF_ERROR(context->ReplaceDim(shape, 0, context->UnknownDim(), &shape));
        context->set_output(i, shape);
      }
      return absl::OkStatus();
    })
    .Doc(R"doc(
Concatenates the tensors of all ranks of a process set along the first dimension, in rank order; every
rank gets the result.

tensors: the same types and shapes on all ranks, but for the first dimension, which may differ.
tensor_name: matches the call across ranks; defaults to the name of the node.
)doc");

class AllgatherKernel : public CollectiveKernel {
 public:
  using CollectiveKernel::CollectiveKernel;

  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) override {
    auto request = NewRequest(context, CollectiveKind::kAllgather);
    AllocateOutputsByRows(context, request.get());
    Submit(context, std::move(request), std::move(done));
  }
};

REGISTER_KERNEL_BUILDER(Name("HvdAllgather").Device(tensorflow::DEVICE_CPU), AllgatherKernel);

}  // namespace
}  // namespace hvd::tf
