#include "ops/xla/call_order.h"

#include "absl/status/status.h"

namespace hvd::xla_ops {
namespace {

constexpr char kResourceName[] = "hvd_keras.call_order";

// Which computation uses a name: of the whole compilation, whose resource manager is its own.
class NamesInUse : public tensorflow::ResourceBase {
 public:
  // A body may be built several times, under the same name.
  bool IsFree(const std::string& name, const std::string& computation) {
    return users_.emplace(name, computation).first->second == computation;
  }

  std::string DebugString() const override { return "the names of hvd_keras's collectives"; }

 private:
  std::map<std::string, std::string> users_;
};

}  // namespace

absl::Status CallOrder::Of(tensorflow::OpKernelContext* context, const std::string& computation,
                           const std::string& name, CallOrder** order) {
  tensorflow::ResourceMgr* resources = context->resource_manager();
  NamesInUse* names = nullptr;
  TF_RETURN_IF_ERROR(resources->LookupOrCreate<NamesInUse>(
      resources->default_container(), kResourceName, &names, [](NamesInUse** made) {
        *made = new NamesInUse();
        return absl::OkStatus();
      }));
  const bool is_free = names->IsFree(name, computation);
  names->Unref();
  if (!is_free) {
    return absl::UnimplementedError(
        "the collective '" + name +
        "' is called in several places of one function with jit_compile=True, of which at least "
        "one is in a loop or branch. XLA does not tell in which order they run, so the ranks could "
        "not match them; call it from a tf.function of its own in each place, or give each call a "
        "name of its own");
  }
  return context->step_container()->LookupOrCreate<CallOrder>(resources, kResourceName, order,
                                                              [](CallOrder** made) {
                                                                *made = new CallOrder();
                                                                return absl::OkStatus();
                                                              });
}

std::vector<xla::XlaOp> CallOrder::Before(const std::string& name, bool is_barrier) const {
  std::vector<xla::XlaOp> tokens;
  if (barrier_.valid()) tokens.push_back(barrier_);
  for (const auto& [other, token] : last_of_name_) {
    if (is_barrier || other == name) tokens.push_back(token);
  }
  return tokens;
}

void CallOrder::Add(const std::string& name, bool is_barrier, xla::XlaOp token) {
  ++size_;
  if (is_barrier) {
    last_of_name_.clear();
    barrier_ = token;
  } else {
    last_of_name_[name] = token;
  }
}

}  // namespace hvd::xla_ops
