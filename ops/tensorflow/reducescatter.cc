// HvdReducescatter: reduces tensors over all ranks; each rank gets its share of the rows.
#include <utility>

#include "ops/tensorflow/collective_kernel.h"

namespace hvd::tf {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("HvdReducescatter")
    .Input("tensors: N * T")
    .Output("outputs: N * T")
    .Attr("N: int >= 1")
    .Attr("T: " HVD_ALL_TYPES)
    .HVD_CALL_ATTRS.HVD_REDUCTION_ATTRS.SetIsStateful()
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
Reduces tensors like HvdAllreduce and shares the result out along the first dimension, in rank order:
with d rows and n ranks the first d % n ranks get one row more than the others.

tensors: the same types and shapes on all ranks.
tensor_name: matches the call across ranks; defaults to the name of the node.
)doc");

class ReducescatterKernel : public CollectiveKernel {
 public:
  explicit ReducescatterKernel(tensorflow::OpKernelConstruction* context)
      : CollectiveKernel(context) {
    OP_REQUIRES_OK(context, reduction_.Read(context));
  }

  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) override {
    auto request = NewRequest(context, CollectiveKind::kReducescatter);
    reduction_.CopyTo(request.get());
    AllocateOutputsByRows(context, request.get());
    Submit(context, std::move(request), std::move(done));
  }

 private:
  ReductionAttrs reduction_;
};

REGISTER_KERNEL_BUILDER(Name("HvdReducescatter").Device(tensorflow::DEVICE_CPU),
                        ReducescatterKernel);

}  // namespace
}  // namespace hvd::tf
