#include "ops/tensorflow/collective_kernel.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <numeric>
#include <utility>

#include "ops/world/world.h"

namespace hvd::tf {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// Iterations of a tf.while_loop may run side by side, on each rank in an order of its own. A name
// of their own keeps them apart. TensorFlow never runs more than parallel_iterations of them at
// once, so that the names can be used again after a while and stay few.
constexpr int64_t kLoopNames = 256;

absl::StatusCode ToAbsl(Code code) {
  switch (code) {
    case Code::kOk:
      return absl::StatusCode::kOk;
    case Code::kInvalidArgument:
      return absl::StatusCode::kInvalidArgument;
    case Code::kFailedPrecondition:
      return absl::StatusCode::kFailedPrecondition;
    case Code::kAborted:
      return absl::StatusCode::kAborted;
    case Code::kDeadlineExceeded:
      return absl::StatusCode::kDeadlineExceeded;
    case Code::kResourceExhausted:
      return absl::StatusCode::kResourceExhausted;
    case Code::kUnavailable:
      return absl::StatusCode::kUnavailable;
    case Code::kPlanLeft:
    case Code::kInternal:
      return absl::StatusCode::kInternal;
  }
  return absl::StatusCode::kInternal;
}

// Large outputs are fresh pages, and to make them one by one, 4 KiB at a time, can cost as much as
// the collective itself. A hint: where the kernel does not take it, nothing is lost.
void AdviseHugePages(void* memory, int64_t bytes) {
  constexpr uintptr_t kHugePage = 2 << 20;
  const uintptr_t begin =
      (reinterpret_cast<uintptr_t>(memory) + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(memory) + bytes) / kHugePage * kHugePage;
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace

bool ToDataType(tensorflow::DataType from, DataType* to) {
  switch (from) {
    case tensorflow::DT_BOOL:
      *to = DataType::kBool;
      return true;
    case tensorflow::DT_UINT8:
      *to = DataType::kUint8;
      return true;
    case tensorflow::DT_INT8:
      *to = DataType::kInt8;
      return true;
    case tensorflow::DT_UINT16:
      *to = DataType::kUint16;
      return true;
    case tensorflow::DT_INT16:
      *to = DataType::kInt16;
      return true;
    case tensorflow::DT_UINT32:
      *to = DataType::kUint32;
      return true;
    case tensorflow::DT_INT32:
      *to = DataType::kInt32;
      return true;
    case tensorflow::DT_UINT64:
      *to = DataType::kUint64;
      return true;
    case tensorflow::DT_INT64:
      *to = DataType::kInt64;
      return true;
    case tensorflow::DT_HALF:
      *to = DataType::kFloat16;
      return true;
    case tensorflow::DT_BFLOAT16:
      *to = DataType::kBfloat16;
      return true;
    case tensorflow::DT_FLOAT:
      *to = DataType::kFloat32;
      return true;
    case tensorflow::DT_DOUBLE:
      *to = DataType::kFloat64;
      return true;
    default:
      return false;
  }
}

absl::Status ToTensorflow(const Status& status) {
  return absl::Status(ToAbsl(status.code()), status.message());
}

CollectiveKernel::CollectiveKernel(tensorflow::OpKernelConstruction* context)
    : AsyncOpKernel(context) {
  OP_REQUIRES_OK(context, context->GetAttr("tensor_name", &tensor_name_));
  OP_REQUIRES_OK(context, context->GetAttr("process_set", &process_set_));
  OP_REQUIRES_OK(context, context->GetAttr("numbered_passes", &numbered_passes_));
  if (tensor_name_.empty()) tensor_name_ = name();
}

std::unique_ptr<Request> CollectiveKernel::NewRequest(OpKernelContext* context,
                                                      CollectiveKind kind) const {
  auto request = std::make_unique<Request>();
  request->kind = kind;
  request->name = tensor_name_;
  const int64_t iteration = context->frame_iter().iter_id;
  if (numbered_passes_ && iteration > 0)
    request->name += "@" + std::to_string(iteration % kLoopNames);
  request->process_set = process_set_;
  if (context->num_inputs() == 0) return request;

  if (!ToDataType(context->input_dtype(0), &request->dtype)) {
    request->fault =
        InvalidArgument("tensors of type " + tensorflow::DataTypeString(context->input_dtype(0)) +
                        " cannot travel between ranks");
  }
  request->pieces.resize(context->num_inputs());
  for (int i = 0; i < context->num_inputs(); ++i) {
    const Tensor& input = context->input(i);
    request->pieces[i].input = input.tensor_data().data();
    const auto dimensions = input.shape().dim_sizes();
    request->pieces[i].shape.assign(dimensions.begin(), dimensions.end());
  }
  return request;
}

void CollectiveKernel::AllocateOutputsLikeInputs(OpKernelContext* context, Request* request) {
  for (int i = 0; i < context->num_inputs(); ++i) {
    Tensor* output = nullptr;
    const absl::Status allocated =
        context->forward_input_or_allocate_output({i}, i, context->input(i).shape(), &output);
    if (!allocated.ok()) {
      request->fault = ResourceExhausted(std::string(allocated.message()));
      return;
    }
    request->pieces[i].output = const_cast<char*>(output->tensor_data().data());
    if (request->pieces[i].output != request->pieces[i].input) {
      AdviseHugePages(request->pieces[i].output, output->tensor_data().size());
    }
  }
}

Status CollectiveKernel::AllocateByRows(OpKernelContext* context,
                                        const std::vector<std::vector<int64_t>>& rows,
                                        std::vector<Piece>* pieces) {
  for (size_t i = 0; i < pieces->size(); ++i) {
    const int index = static_cast<int>(i);
    tensorflow::TensorShape shape = context->input(index).shape();
    shape.set_dim(0, std::accumulate(rows[i].begin(), rows[i].end(), int64_t{0}));
    Tensor* output = nullptr;
    const absl::Status allocated = context->allocate_output(index, shape, &output);
    if (!allocated.ok()) return ResourceExhausted(std::string(allocated.message()));
    (*pieces)[i].output = const_cast<char*>(output->tensor_data().data());
    AdviseHugePages((*pieces)[i].output, output->tensor_data().size());
  }
  return Status::Ok();
}

void CollectiveKernel::AllocateOutputsByRows(OpKernelContext* context, Request* request) {
  request->allocate = [context](const std::vector<std::vector<int64_t>>& rows,
                                std::vector<Piece>* pieces) {
    return AllocateByRows(context, rows, pieces);
  };
}

void CollectiveKernel::Submit(OpKernelContext* context, std::unique_ptr<Request> request,
                              DoneCallback done) {
  std::shared_ptr<World> world;
  const Status current = World::Current(&world);
  OP_REQUIRES_OK_ASYNC(context, ToTensorflow(current), done);
  request->done = [context, done = std::move(done)](const Status& status) {
    if (!status.ok()) context->SetStatus(ToTensorflow(status));
    done();
  };
  world->engine().Submit(std::move(request));
}

absl::Status ReductionAttrs::Read(tensorflow::OpKernelConstruction* context) {
  std::string name;
  int64_t prescale_bits = 0, postscale_bits = 0;
  TF_RETURN_IF_ERROR(context->GetAttr("reduce_op", &name));
  TF_RETURN_IF_ERROR(context->GetAttr("prescale_bits", &prescale_bits));
  TF_RETURN_IF_ERROR(context->GetAttr("postscale_bits", &postscale_bits));
  for (ReduceOp candidate : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax,
                             ReduceOp::kProduct, ReduceOp::kAdasum}) {
    if (name == Name(candidate)) op = candidate;
  }
  std::memcpy(&prescale, &prescale_bits, sizeof(prescale));
  std::memcpy(&postscale, &postscale_bits, sizeof(postscale));
  return absl::OkStatus();
}

void ReductionAttrs::CopyTo(Request* request) const {
  request->reduce_op = op;
  request->prescale = prescale;
  request->postscale = postscale;
}

absl::Status SameShapes(tensorflow::shape_inference::InferenceContext* context) {
  for (int i = 0; i < context->num_inputs(); ++i) context->set_output(i, context->input(i));
  return absl::OkStatus();
}

}  // namespace hvd::tf
