// HvdRank, HvdSize, HvdLocalRank, HvdLocalSize, HvdProcessSetIncluded: what the world looks like
// when the graph runs, which may be another process than the one that built it.
#include <algorithm>
#include <functional>
#include <vector>

#include "ops/tensorflow/collective_kernel.h"
#include "ops/world/world.h"

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

constexpr int kNotInitialized = -1;
constexpr int kUnknownProcessSet = -3;

// Writes one number that is computed from the world when the graph runs.
class WorldKernel : public OpKernel {
 public:
  WorldKernel(OpKernelConstruction* context, std::function<int(World*)> value)
      : OpKernel(context), value_(std::move(value)) {}

  void Compute(OpKernelContext* context) override {
    tensorflow::Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, tensorflow::TensorShape({}), &output));
    std::shared_ptr<World> world;
    const bool initialized = World::Current(&world).ok();
    output->scalar<int32_t>()() = initialized ? value_(world.get()) : kNotInitialized;
  }

 private:
  const std::function<int(World*)> value_;
};

class RankKernel : public WorldKernel {
 public:
  explicit RankKernel(OpKernelConstruction* context)
      : WorldKernel(context, [](World* world) { return world->config().rank; }) {}
};

class LocalRankKernel : public WorldKernel {
 public:
  explicit LocalRankKernel(OpKernelConstruction* context)
      : WorldKernel(context, [](World* world) { return world->config().local_rank; }) {}
};

class LocalSizeKernel : public WorldKernel {
 public:
  explicit LocalSizeKernel(OpKernelConstruction* context)
      : WorldKernel(context, [](World* world) { return world->config().local_size; }) {}
};

// Applies `value` to the ranks of the process set named by the attribute.
std::function<int(World*)> OfProcessSet(
    OpKernelConstruction* context,
    std::function<int(World*, const std::vector<int>& ranks)> value) {
  int process_set = 0;
  const absl::Status read = context->GetAttr("process_set", &process_set);
  if (!read.ok()) context->SetStatus(read);
  return [process_set, value = std::move(value)](World* world) {
    std::vector<int> ranks;
    if (!world->engine().GetProcessSet(process_set, &ranks).ok()) return kUnknownProcessSet;
    return value(world, ranks);
  };
}

class SizeKernel : public WorldKernel {
 public:
  explicit SizeKernel(OpKernelConstruction* context)
      : WorldKernel(context, OfProcessSet(context, [](World*, const std::vector<int>& ranks) {
                      return static_cast<int>(ranks.size());
                    })) {}
};

class ProcessSetIncludedKernel : public WorldKernel {
 public:
  explicit ProcessSetIncludedKernel(OpKernelConstruction* context)
      : WorldKernel(context, OfProcessSet(context, [](World* world, const std::vector<int>& ranks) {
                      const int rank = world->config().rank;
                      return std::binary_search(ranks.begin(), ranks.end(), rank) ? 1 : 0;
                    })) {}
};

REGISTER_KERNEL_BUILDER(Name("HvdRank").Device(tensorflow::DEVICE_CPU), RankKernel);
REGISTER_KERNEL_BUILDER(Name("HvdLocalRank").Device(tensorflow::DEVICE_CPU), LocalRankKernel);
REGISTER_KERNEL_BUILDER(Name("HvdLocalSize").Device(tensorflow::DEVICE_CPU), LocalSizeKernel);
REGISTER_KERNEL_BUILDER(Name("HvdSize").Device(tensorflow::DEVICE_CPU), SizeKernel);
REGISTER_KERNEL_BUILDER(Name("HvdProcessSetIncluded").Device(tensorflow::DEVICE_CPU),
                        ProcessSetIncludedKernel);

}  // namespace
}  // namespace hvd::tf
