#include "ops/xla/call_order.h"

#include "absl/status/status.h"

namespace hvd::xla_ops {
namespace {

constexpr char kResourceName[] = "hvd_keras.call_order";

// TensorFlow builds a body once more, under another name, where it knows some of its inputs or
// wants them in another order: "while_body_17_const_0_rearrange_1".
// TensorFlow builds a body once more, under another name, where it knows some of its inputs or
// wants them in another order: "while_body_17_const_0_rearrange_1[]", with its attributes behind
// it.
std::string WithoutCopyNumbers(std::string computation) {
  computation = computation.substr(0, computation.find('['));
  const auto ends_with = [&computation](const std::string& tail, size_t end) {
    return end >= tail.size() && computation.compare(end - tail.size(), tail.size(), tail) == 0;
  };
  while (true) {
    const size_t end = computation.find_last_not_of("0123456789") + 1;
    if (end == computation.size()) return computation;
    if (ends_with("_const_", end)) {
      computation.resize(end - 7);
    } else if (ends_with("_rearrange_", end)) {
      computation.resize(end - 11);
    } else {
      return computation;
    }
  }
}

// Which computation uses a name: of the whole compilation, whose resource manager is its own.
class NamesInUse : public tensorflow::ResourceBase {
 public:
  // Returns the computation that uses it already, or the one given.
  std::string User(const std::string& name, const std::string& computation) {
    return users_.emplace(name, computation).first->second;
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
  const std::string own = WithoutCopyNumbers(computation);
  const std::string user = names->User(name, own);
  names->Unref();
  if (user != own) {
    return absl::UnimplementedError(
        "the collective '" + name +
        "' is called in several places of one function with jit_compile=True, in " + user +
        " and in " + own +
        ", of which at least one is a loop or branch. XLA does not tell in which order they run, "
        "so the ranks could "
        "not match them; call it from a tf.function of its own in each place, or give each call a "
        "name of its own");
  }
  return context->step_container()->LookupOrCreate<CallOrder>(resources, kResourceName, order,
                                                              [](CallOrder** made) {
                                                                *made = new CallOrder();
                                                                return absl::OkStatus();
                                                              });
}

xla::XlaOp CallOrder::Before(const std::string& name) const {
  const auto last = last_of_name_.find(name);
  return last == last_of_name_.end() ? xla::XlaOp() : last->second;
}

void CallOrder::Add(const std::string& name, xla::XlaOp result) {
  ++size_;
  last_of_name_[name] = result;
}

}  // namespace hvd::xla_ops
