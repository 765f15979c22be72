// How an op becomes a custom call when XLA compiles the function around it.
//
// The call goes to a handler in handlers.cc, which hands a Request to the engine and returns a
// future: the request that the op's ordinary kernel makes too, so that a rank whose function is
// compiled and one whose function is not meet each other.
//
// All lowerings are in this file, since the header below takes half a minute to compile.
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/tensorflow/collective_kernel.h"
#include "ops/world/topology.h"
#include "ops/world/world.h"
#include "ops/xla/attributes.h"
#include "ops/xla/call_order.h"
#include "ops/xla/collectives.h"
#include "ops/xla/custom_calls.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape_util.h"

namespace hvd::xla_ops {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::XlaOpKernelContext;

// A custom call while it is being put together.
struct Call {
  Attributes attributes;
  std::vector<xla::XlaOp> operands;
  std::vector<xla::Shape> operand_shapes;
  std::vector<xla::Shape> results;
  // The first `in_place` results lie where the operands of the same numbers lay.
  int in_place = 0;

  void AddOperand(xla::XlaOp operand, const xla::Shape& shape) {
    operands.push_back(operand);
    operand_shapes.push_back(shape);
  }

  // Side effects are declared, so that XLA does not merge, drop, move or repeat calls.
  xla::XlaOp Emit(xla::XlaBuilder* builder, const char* target) const {
    std::vector<std::pair<xla::ShapeIndex, std::pair<int64_t, xla::ShapeIndex>>> aliasing(in_place);
    for (int i = 0; i < in_place; ++i) {
      aliasing[i].first.push_back(i);
      aliasing[i].second.first = i;
    }
    return xla::CustomCallWithLayout(builder, target, operands,
                                     xla::ShapeUtil::MakeTupleShape(results), operand_shapes,
                                     attributes.Text(), /*has_side_effect=*/true, aliasing,
                                     /*literal=*/nullptr, xla::CustomCallSchedule::SCHEDULE_NONE,
                                     xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
  }
};

// Row by row, as TensorFlow keeps tensors. XLA would choose another layout where it finds one
// faster, and might not choose the same on all ranks.
xla::Shape RowByRow(const xla::Shape& shape) {
  return xla::ShapeUtil::MakeShapeWithDescendingLayout(shape.element_type(), shape.dimensions());
}

xla::Shape ShapeOf(xla::PrimitiveType type, std::vector<int64_t> dimensions) {
  return xla::ShapeUtil::MakeShapeWithDescendingLayout(type, dimensions);
}

// XLA runs a computation of few or small operations one after another, each when the one before
// has ended: then a collective would keep the others from starting, and two ranks for which XLA has
// chosen different orders would wait for each other. These calls do nothing, and make it large.
void KeepDataflow(xla::XlaBuilder* builder) {
  constexpr int kOperations = 8;    // up to so many are few
  constexpr int64_t kBytes = 1024;  // 512 are small
  for (int i = 0; i < kOperations; ++i) {
    Call call;
    call.results.push_back(ShapeOf(xla::U8, {kBytes}));
    call.Emit(builder, kFenceCall);
  }
}

class CollectiveLowering : public tensorflow::XlaOpKernel {
 public:
  explicit CollectiveLowering(OpKernelConstruction* context)
      : XlaOpKernel(context), collective_(*FindCollective(context->def().op())) {
    OP_REQUIRES_OK(context, context->GetAttr("tensor_name", &name_));
    OP_REQUIRES_OK(context, context->GetAttr("process_set", &process_set_));
    if (name_.empty()) name_ = name();
    attributes_.Set("kind", static_cast<int64_t>(collective_.kind));
    attributes_.Set("name", name_);
    attributes_.Set("process_set", process_set_);
    if (collective_.describe == nullptr) return;
    OP_REQUIRES_OK(context, collective_.describe(context, &attributes_));
  }

  void Compile(XlaOpKernelContext* context) override {
    Call call;
    call.attributes = attributes_;
    OP_REQUIRES_OK(context, FindRanks());
    OP_REQUIRES_OK(context, AddPieces(context, &call));
    OP_REQUIRES_OK(context, AddSplits(context, &call));
    CallOrder* order = nullptr;
    OP_REQUIRES_OK(context, CallOrder::Of(context->op_kernel_context(), context->builder()->name(),
                                          name_, &order));
    const tensorflow::core::ScopedUnref unref(order);
    if (order->size() == 1) KeepDataflow(context->builder());
    const xla::XlaOp before = order->Before(name_);
    if (before.valid()) {
      const auto shape = context->builder()->GetShape(before);
      OP_REQUIRES_OK(context, shape.status());
      call.AddOperand(before, RowByRow(*shape));
    }
    // Something that the next one can take, of a barrier.
    if (call.results.empty()) call.results.push_back(ShapeOf(xla::U64, {}));

    const xla::XlaOp result = call.Emit(context->builder(), kCollectiveCall);
    for (int i = 0; i < context->num_outputs(); ++i) {
      context->SetOutput(i, xla::GetTupleElement(result, i));
    }
    order->Add(name_, xla::GetTupleElement(result, 0));
  }

 private:
  // The tensors that travel: all inputs, but for the splits of an alltoall.
  int NumPieces(const XlaOpKernelContext& context) const {
    return collective_.kind == CollectiveKind::kAlltoall ? 1 : context.num_inputs();
  }

  absl::Status FindRanks() {
    std::shared_ptr<World> world;
    std::vector<int> ranks;
    Status status = World::Current(&world);
    if (status.ok()) status = world->engine().GetProcessSet(process_set_, &ranks);
    if (!status.ok()) return tf::ToTensorflow(status);
    members_ = static_cast<int64_t>(ranks.size());
    index_ = std::find(ranks.begin(), ranks.end(), world->config().rank) - ranks.begin();
    return absl::OkStatus();
  }

  absl::Status AddPieces(XlaOpKernelContext* context, Call* call) const {
    const int count = NumPieces(*context);
    DataType dtype = DataType::kUint8;
    if (count > 0 && !tf::ToDataType(context->input_type(0), &dtype)) {
      return absl::InvalidArgumentError("a tensor of this type cannot travel between ranks");
    }
    for (int i = 0; i < count; ++i) {
      TF_ASSIGN_OR_RETURN(const xla::Shape shape, context->InputXlaShape(i));
      if (shape.is_dynamic()) return DataDependentSize(shape);
      call->AddOperand(context->Input(i), RowByRow(shape));
      xla::Shape result = RowByRow(shape);
      // Where this rank is not a member, the engine refuses the call, whatever its shape.
      if (collective_.output_rows != nullptr && index_ < members_) {
        result.set_dimensions(
            0, static_cast<int>(collective_.output_rows(shape.dimensions(0), members_, index_)));
      }
      call->results.push_back(std::move(result));
    }
    // XLA gives memory that is not needed any more to the next that needs some, which then has to
    // wait. In place, the operand's memory stays taken, and nothing waits for the collective but
    // what needs its result.
    if (collective_.output_rows == nullptr && collective_.kind != CollectiveKind::kAlltoall) {
      call->in_place = count;
    }
    call->attributes.Set("dtype", static_cast<int64_t>(dtype));
    call->attributes.Set("pieces", count);
    call->attributes.Set("members", members_);
    return absl::OkStatus();
  }

  absl::Status DataDependentSize(const xla::Shape& shape) const {
    return absl::UnimplementedError(
        std::string(Name(collective_.kind)) + " '" + name_ +
        "' is in a function with jit_compile=True, and the size of its tensor depends on data (" +
        shape.ToString() + "): pad the tensor to a fixed size, or leave jit_compile out");
  }

  // They are read when the call runs, so they need not be constants.
  absl::Status AddSplits(XlaOpKernelContext* context, Call* call) const {
    for (int i = NumPieces(*context); i < context->num_inputs(); ++i) {
      TF_ASSIGN_OR_RETURN(const xla::Shape shape, context->InputXlaShape(i));
      call->AddOperand(context->Input(i), RowByRow(shape));
      call->results.push_back(ShapeOf(shape.element_type(), {members_}));
    }
    return absl::OkStatus();
  }

  const Collective& collective_;
  std::string name_;
  int process_set_ = 0;
  Attributes attributes_;
  int64_t members_ = 0;
  int64_t index_ = 0;
};

// HvdFence: hands tensors on, all at once. XLA orders a function's operations so as to need little
// memory: it would put the update of the weights of one bucket right before the gradients of the
// next, into the same memory, and so make the backward pass wait for each bucket. With all buckets
// going through one fence, no update comes before the last bucket has been sent.
class FenceLowering : public tensorflow::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(XlaOpKernelContext* context) override {
    Call call;
    call.in_place = context->num_inputs();
    for (int i = 0; i < context->num_inputs(); ++i) {
      const auto shape = context->InputXlaShape(i);
      OP_REQUIRES_OK(context, shape.status());
      call.AddOperand(context->Input(i), RowByRow(*shape));
      call.results.push_back(RowByRow(*shape));
    }
    const xla::XlaOp result = call.Emit(context->builder(), kFenceCall);
    for (int i = 0; i < context->num_outputs(); ++i) {
      context->SetOutput(i, xla::GetTupleElement(result, i));
    }
  }
};

// HvdRank, HvdSize, ...: looked up in each run, since a compiled function may outlive the world
// that it was compiled in.
template <Topology what>
class TopologyLowering : public tensorflow::XlaOpKernel {
 public:
  explicit TopologyLowering(OpKernelConstruction* context) : XlaOpKernel(context) {
    int process_set = 0;
    if (context->HasAttr("process_set")) {
      OP_REQUIRES_OK(context, context->GetAttr("process_set", &process_set));
    }
    call_.attributes.Set("what", static_cast<int64_t>(what));
    call_.attributes.Set("process_set", process_set);
    call_.results.push_back(ShapeOf(xla::S32, {}));
  }

  void Compile(XlaOpKernelContext* context) override {
    context->SetOutput(0, xla::GetTupleElement(call_.Emit(context->builder(), kTopologyCall), 0));
  }

 private:
  Call call_;
};

// What cannot be compiled says so, and what to do.
class NoLowering : public tensorflow::XlaOpKernel {
 public:
  NoLowering(OpKernelConstruction* context, std::string reason)
      : XlaOpKernel(context), reason_(std::move(reason)) {}

  void Compile(XlaOpKernelContext* context) override {
    context->CtxFailure(absl::UnimplementedError(reason_));
  }

 private:
  const std::string reason_;
};

class JoinLowering : public NoLowering {
 public:
  explicit JoinLowering(OpKernelConstruction* context)
      : NoLowering(context,
                   "hvd.join() is in a function with jit_compile=True, whose shapes are fixed, and "
                   "the shapes of the other ranks' collectives depend on who has joined; call it "
                   "outside of the compiled function") {}
};

class GpuLowering : public NoLowering {
 public:
  explicit GpuLowering(OpKernelConstruction* context)
      : NoLowering(context,
                   context->def().op() +
                       " is in a function that XLA compiles for a GPU, where this release has no "
                       "collectives; leave jit_compile out, or, in Keras, call "
                       "model.compile(..., jit_compile=False)") {}
};

// Not REGISTER_XLA_OP, which is ignored once the process has compiled anything with XLA.
#define HVD_REGISTER_LOWERING(op, ...)                                                   \
  REGISTER_KERNEL_BUILDER(Name(op).Device(tensorflow::DEVICE_CPU_XLA_JIT), __VA_ARGS__); \
  REGISTER_KERNEL_BUILDER(Name(op).Device(tensorflow::DEVICE_GPU_XLA_JIT), GpuLowering)

HVD_REGISTER_LOWERING("HvdAllreduce", CollectiveLowering);
HVD_REGISTER_LOWERING("HvdBroadcast", CollectiveLowering);
HVD_REGISTER_LOWERING("HvdReducescatter", CollectiveLowering);
HVD_REGISTER_LOWERING("HvdAllgather", CollectiveLowering);
HVD_REGISTER_LOWERING("HvdAlltoall", CollectiveLowering);
HVD_REGISTER_LOWERING("HvdBarrier", CollectiveLowering);
HVD_REGISTER_LOWERING("HvdJoin", JoinLowering);
HVD_REGISTER_LOWERING("HvdFence", FenceLowering);
HVD_REGISTER_LOWERING("HvdRank", TopologyLowering<Topology::kRank>);
HVD_REGISTER_LOWERING("HvdLocalRank", TopologyLowering<Topology::kLocalRank>);
HVD_REGISTER_LOWERING("HvdLocalSize", TopologyLowering<Topology::kLocalSize>);
HVD_REGISTER_LOWERING("HvdSize", TopologyLowering<Topology::kSize>);
HVD_REGISTER_LOWERING("HvdProcessSetIncluded", TopologyLowering<Topology::kProcessSetIncluded>);

}  // namespace
}  // namespace hvd::xla_ops
