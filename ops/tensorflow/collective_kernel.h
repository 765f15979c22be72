// What the kernels of all collectives share: attributes, the way into the engine and back.
#ifndef HVD_TENSORFLOW_COLLECTIVE_KERNEL_H_
#define HVD_TENSORFLOW_COLLECTIVE_KERNEL_H_

#include <memory>
#include <string>
#include <vector>

#include "ops/core/request.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace hvd::tf {

// The types of REGISTER_OP attributes, as text.
#define HVD_ALL_TYPES                                                                        \
  "{bool, uint8, int8, uint16, int16, uint32, int32, uint64, int64, half, bfloat16, float, " \
  "double}"

// What every collective has. numbered_passes: whether passes of a loop may run side by side, on
// each rank in an order of its own, so that each needs a name of its own; false where they cannot,
// which makes the names those that a function compiled by XLA uses, where no pass has a number.
#define HVD_CALL_ATTRS \
  Attr("tensor_name: string = ''").Attr("process_set: int = 0").Attr("numbered_passes: bool = true")

// An asynchronous kernel: it submits a request and returns; the engine's thread calls `done`.
class CollectiveKernel : public tensorflow::AsyncOpKernel {
 public:
  explicit CollectiveKernel(tensorflow::OpKernelConstruction* context);

 protected:
  // A request with its name, process set and type filled in, and with the shapes of all inputs.
  std::unique_ptr<Request> NewRequest(tensorflow::OpKernelContext* context,
                                      CollectiveKind kind) const;

  // One output for each input, of the same shape, in the input's own memory where TensorFlow allows
  // it. A failure becomes the request's fault, so that the other ranks learn of it.
  static void AllocateOutputsLikeInputs(tensorflow::OpKernelContext* context, Request* request);

  // For outputs whose first dimensions the ranks have to agree on: allocated when they have.
  static void AllocateOutputsByRows(tensorflow::OpKernelContext* context, Request* request);
  static Status AllocateByRows(tensorflow::OpKernelContext* context,
                               const std::vector<std::vector<int64_t>>& rows,
                               std::vector<Piece>* pieces);

  // Hands the request over; `done` is called once it is through.
  static void Submit(tensorflow::OpKernelContext* context, std::unique_ptr<Request> request,
                     DoneCallback done);

 private:
  std::string tensor_name_;
  int process_set_ = 0;
  bool numbered_passes_ = true;
};

// Each output has the shape of its input.
absl::Status SameShapes(tensorflow::shape_inference::InferenceContext* context);

absl::Status ToTensorflow(const Status& status);

// Whether tensors of the type can travel, and as what.
bool ToDataType(tensorflow::DataType from, DataType* to);

// The attributes of a reduction.
#define HVD_REDUCTION_ATTRS                                                        \
  Attr("reduce_op: {'sum', 'average', 'min', 'max', 'product', 'adasum'} = 'sum'") \
      .Attr("prescale_bits: int = 4607182418800017408")                            \
      .Attr("postscale_bits: int = 4607182418800017408")

struct ReductionAttrs {
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;

  absl::Status Read(tensorflow::OpKernelConstruction* context);
  void CopyTo(Request* request) const;
};

}  // namespace hvd::tf

#endif  // HVD_TENSORFLOW_COLLECTIVE_KERNEL_H_
