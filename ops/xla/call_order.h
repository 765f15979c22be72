// The order in which the collectives of one compilation have to start.
//
// XLA runs whatever has all that it needs, in an order of its own in each run and on each rank. It
// keeps to data alone. The ranks match calls of the same name by their order, so each takes the
// result of the one before as an operand, which it does not look at. Not a result made for that:
// where nothing uses it, XLA gives the memory of it to all calls alike, and then runs them one
// after another.
#ifndef HVD_XLA_CALL_ORDER_H_
#define HVD_XLA_CALL_ORDER_H_

#include <map>
#include <string>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "xla/hlo/builder/xla_builder.h"

namespace hvd::xla_ops {

// The calls of one XLA computation: a function, or the body of a loop or branch in it.
class CallOrder : public tensorflow::ResourceBase {
 public:
  // That of the computation which is being built. An error where the name is used in another
  // computation of the same compilation, since nothing orders the two. Release with Unref().
  static absl::Status Of(tensorflow::OpKernelContext* context, const std::string& computation,
                         const std::string& name, CallOrder** order);

  // The first result of the call before this one of the same name; not valid if there is none.
  xla::XlaOp Before(const std::string& name) const;

  // How many calls there are so far.
  int size() const { return size_; }

  // Tells the first result of a call.
  void Add(const std::string& name, xla::XlaOp result);

  std::string DebugString() const override { return "the order of hvd_keras's collectives"; }

 private:
  std::map<std::string, xla::XlaOp> last_of_name_;
  int size_ = 0;
};

}  // namespace hvd::xla_ops

#endif  // HVD_XLA_CALL_ORDER_H_
