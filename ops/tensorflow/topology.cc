// HvdRank, HvdSize, HvdLocalRank, HvdLocalSize, HvdProcessSetIncluded: what the world looks like
// when the graph runs, which may be another process than the one that built it.
#include "ops/world/topology.h"

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace hvd::tf {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

absl::Status ScalarShape(tensorflow::shape_inference::InferenceContext* context) {
  context->set_output(0, context->Scalar());
  return absl::OkStatus();
}

REGISTER_OP("HvdRank")
    .Output("rank: int32")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc("The rank of this process; -1 before hvd.init().");
REGISTER_OP("HvdLocalRank")
    .Output("rank: int32")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc("The rank of this process among those of its host; -1 before hvd.init().");
REGISTER_OP("HvdLocalSize")
    .Output("size: int32")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc("The number of ranks on this host; -1 before hvd.init().");
REGISTER_OP("HvdSize")
    .Output("size: int32")
    .Attr("process_set: int = 0")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc("The number of ranks of a process set; -1 before hvd.init(), -3 if it does not exist.");
REGISTER_OP("HvdProcessSetIncluded")
    .Output("included: int32")
    .Attr("process_set: int = 0")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc(
        "1 if this rank is in the process set, else 0; -1 before hvd.init(), -3 if it does not "
        "exist.");

// Writes one number that is looked up when the graph runs.
template <Topology what>
class TopologyKernel : public OpKernel {
 public:
  explicit TopologyKernel(OpKernelConstruction* context) : OpKernel(context) {
    if (context->HasAttr("process_set")) {
      OP_REQUIRES_OK(context, context->GetAttr("process_set", &process_set_));
    }
  }

  void Compute(OpKernelContext* context) override {
    tensorflow::Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, tensorflow::TensorShape({}), &output));
    output->scalar<int32_t>()() = TopologyNow(what, process_set_);
  }

 private:
  int process_set_ = 0;
};

#define HVD_REGISTER_TOPOLOGY(op, what) \
  REGISTER_KERNEL_BUILDER(Name(op).Device(tensorflow::DEVICE_CPU), TopologyKernel<Topology::what>)

HVD_REGISTER_TOPOLOGY("HvdRank", kRank);
HVD_REGISTER_TOPOLOGY("HvdLocalRank", kLocalRank);
HVD_REGISTER_TOPOLOGY("HvdLocalSize", kLocalSize);
HVD_REGISTER_TOPOLOGY("HvdSize", kSize);
HVD_REGISTER_TOPOLOGY("HvdProcessSetIncluded", kProcessSetIncluded);

}  // namespace
}  // namespace hvd::tf
