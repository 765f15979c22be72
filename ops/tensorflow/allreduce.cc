// HvdAllreduce: element-wise reduction of one or more tensors over all ranks.
#include <cstring>
#include <utility>

#include "ops/tensorflow/collective_kernel.h"

namespace hvd::tf {
namespace {

REGISTER_OP("HvdAllreduce")
    .Input("tensors: N * T")
    .Output("outputs: N * T")
    .Attr("N: int >= 1")
    .Attr("T: " HVD_ALL_TYPES)
    .Attr("tensor_name: string = ''")
    .Attr("reduce_op: {'sum', 'average', 'min', 'max', 'product'} = 'sum'")
    .Attr("prescale_bits: int = 4607182418800017408")
    .Attr("postscale_bits: int = 4607182418800017408")
    .Attr("process_set: int = 0")
    .SetIsStateful()
    .SetShapeFn(SameShapes)
    .Doc(R"doc(
Reduces tensors element by element over all ranks of a process set; every rank gets the result.

All tensors of one call travel together. Each input is multiplied by the prescale factor, the inputs
are combined in rank order, averages are divided by the number of ranks, and the result is multiplied
by the postscale factor. float16 and bfloat16 are accumulated in float32.

tensors: the same types and shapes on all ranks.
tensor_name: matches the call across ranks; defaults to the name of the node.
prescale_bits, postscale_bits: the bits of a float64 (TensorFlow has no such attribute type).
)doc");

double FromBits(int64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

ReduceOp ToReduceOp(const std::string& name) {
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax}) {
    if (name == Name(op)) return op;
  }
  return ReduceOp::kProduct;
}

class AllreduceKernel : public CollectiveKernel {
 public:
  explicit AllreduceKernel(tensorflow::OpKernelConstruction* context) : CollectiveKernel(context) {
    std::string reduce_op;
    int64_t prescale_bits = 0, postscale_bits = 0;
    OP_REQUIRES_OK(context, context->GetAttr("reduce_op", &reduce_op));
    OP_REQUIRES_OK(context, context->GetAttr("prescale_bits", &prescale_bits));
    OP_REQUIRES_OK(context, context->GetAttr("postscale_bits", &postscale_bits));
    reduce_op_ = ToReduceOp(reduce_op);
    prescale_ = FromBits(prescale_bits);
    postscale_ = FromBits(postscale_bits);
  }

  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) override {
    auto request = NewRequest(context, CollectiveKind::kAllreduce);
    request->reduce_op = reduce_op_;
    request->prescale = prescale_;
    request->postscale = postscale_;
    AllocateOutputsLikeInputs(context, request.get());
    Submit(context, std::move(request), std::move(done));
  }

 private:
  ReduceOp reduce_op_ = ReduceOp::kSum;
  double prescale_ = 1.0;
  double postscale_ = 1.0;
};

REGISTER_KERNEL_BUILDER(Name("HvdAllreduce").Device(tensorflow::DEVICE_CPU), AllreduceKernel);

}  // namespace
}  // namespace hvd::tf
