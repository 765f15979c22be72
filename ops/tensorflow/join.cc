// HvdJoin: a rank that has no more data lets the others go on without it.
#include <memory>
#include <utility>

#include "ops/tensorflow/collective_kernel.h"

namespace hvd::tf {
namespace {

REGISTER_OP("HvdJoin")
    .Output("last_rank: int32")
    .HVD_CALL_ATTRS.SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      context->set_output(0, context->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Returns once all ranks of a process set have joined. Until then the collectives of the others do not
wait for the ranks that have: these contribute nothing, and averages are those of the others.

last_rank: the rank that joined last.
tensor_name: matches the call across ranks.
)doc");

class JoinKernel : public CollectiveKernel {
 public:
  using CollectiveKernel::CollectiveKernel;

  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) override {
    tensorflow::Tensor* last_rank = nullptr;
    OP_REQUIRES_OK_ASYNC(
        context, context->allocate_output(0, tensorflow::TensorShape({}), &last_rank), done);
    auto request = NewRequest(context, CollectiveKind::kJoin);
    request->joined = [last_rank](int rank) { last_rank->scalar<int32_t>()() = rank; };
    Submit(context, std::move(request), std::move(done));
  }
};

REGISTER_KERNEL_BUILDER(Name("HvdJoin").Device(tensorflow::DEVICE_CPU), JoinKernel);

}  // namespace
}  // namespace hvd::tf
