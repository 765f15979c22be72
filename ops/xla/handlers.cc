// What compiled functions call: each custom call that lowering.cc has put there comes here when
// the function runs.
//
// A handler never waits. It hands its request to the engine and returns a future, so that XLA goes
// on with what does not need the result: the rest of the backward pass, other collectives. A
// handler that waited would take threads from the computation, and two ranks that XLA runs in
// different orders would wait for each other.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/core/request.h"
#include "ops/world/topology.h"
#include "ops/world/world.h"
#include "ops/xla/completion.h"
#include "ops/xla/custom_calls.h"
#include "xla/ffi/api/ffi.h"

// Declared in xla/ffi/ffi_api.h, which includes headers of MLIR that TensorFlow does not ship.
namespace xla::ffi {
const XLA_FFI_Api* GetXlaFfiApi();
}

namespace hvd::xla_ops {
namespace {

namespace ffi = ::xla::ffi;

ffi::ErrorCode ToXla(Code code) {
  switch (code) {
    case Code::kOk:
      return ffi::ErrorCode::kOk;
    case Code::kInvalidArgument:
      return ffi::ErrorCode::kInvalidArgument;
    case Code::kFailedPrecondition:
      return ffi::ErrorCode::kFailedPrecondition;
    case Code::kAborted:
      return ffi::ErrorCode::kAborted;
    case Code::kDeadlineExceeded:
      return ffi::ErrorCode::kDeadlineExceeded;
    case Code::kResourceExhausted:
      return ffi::ErrorCode::kResourceExhausted;
    case Code::kUnavailable:
      return ffi::ErrorCode::kUnavailable;
    case Code::kPlanLeft:
    case Code::kInternal:
      return ffi::ErrorCode::kInternal;
  }
  return ffi::ErrorCode::kInternal;
}

// The attributes of a call; `missing` tells that one was not there.
class Reader {
 public:
  explicit Reader(const ffi::Dictionary& dictionary) : dictionary_(dictionary) {}

  int64_t Number(std::string_view key) {
    const auto value = dictionary_.get<int64_t>(key);
    if (value.has_value()) return *value;
    missing_ = true;
    return 0;
  }
  int64_t NumberOr(std::string_view key, int64_t otherwise) const {
    return dictionary_.contains(key) ? *dictionary_.get<int64_t>(key) : otherwise;
  }
  double BitsOr(std::string_view key, double otherwise) const {
    if (!dictionary_.contains(key)) return otherwise;
    const int64_t bits = *dictionary_.get<int64_t>(key);
    std::memcpy(&otherwise, &bits, sizeof(bits));
    return otherwise;
  }
  std::string Text(std::string_view key) {
    const auto value = dictionary_.get<std::string_view>(key);
    if (value.has_value()) return std::string(*value);
    missing_ = true;
    return "";
  }
  bool missing() const { return missing_; }

 private:
  const ffi::Dictionary& dictionary_;
  bool missing_ = false;
};

std::string RowsText(const std::vector<int64_t>& rows) {
  std::string text;
  for (const int64_t count : rows) text += (text.empty() ? "" : ", ") + std::to_string(count);
  return text;
}

// Where the ranks' parts are not what the function was compiled for.
Status OtherRows(const Request& request, const std::vector<int64_t>& rows, int64_t expected) {
  const std::string what = std::string(Name(request.kind)) + " '" + request.name + "'";
  std::string fix = "call it outside of the compiled function";
  if (request.kind == CollectiveKind::kAllgather) fix = "pad the tensors to one length, or " + fix;
  if (request.kind == CollectiveKind::kAlltoall) fix = "send equally many to each rank, or " + fix;
  return InvalidArgument(
      what +
      " is in a function with jit_compile=True, whose shapes are fixed: this rank's output has "
      "room for " +
      std::to_string(expected) + " rows, but the ranks that take part send " + RowsText(rows) +
      " (in rank order); " + fix);
}

// Checks that the outputs, which XLA has allocated, fit. `members`: how many ranks the process set
// had when the function was compiled.
Status CheckRows(const Request& request, size_t members,
                 const std::vector<std::vector<int64_t>>& rows,
                 const std::vector<int64_t>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    int64_t total = 0;
    bool fits = request.kind == CollectiveKind::kReducescatter || rows[i].size() == members;
    for (const int64_t count : rows[i]) {
      total += count;
      // Also where the sum happens to be right here: on other ranks it is not.
      if (request.kind == CollectiveKind::kAllgather) fits &= count == request.pieces[i].shape[0];
    }
    if (!fits || total != expected[i]) return OtherRows(request, rows[i], expected[i]);
  }
  return Status::Ok();
}

std::unique_ptr<Request> RequestOf(Reader* attributes) {
  auto request = std::make_unique<Request>();
  request->kind = static_cast<CollectiveKind>(attributes->Number("kind"));
  request->name = attributes->Text("name");
  request->process_set = static_cast<int32_t>(attributes->Number("process_set"));
  request->dtype = static_cast<DataType>(attributes->Number("dtype"));
  request->reduce_op = static_cast<ReduceOp>(
      attributes->NumberOr("reduce_op", static_cast<int64_t>(ReduceOp::kSum)));
  request->prescale = attributes->BitsOr("prescale", 1.0);
  request->postscale = attributes->BitsOr("postscale", 1.0);
  request->timeout_seconds = attributes->BitsOr("timeout", 0.0);
  request->root_rank = static_cast<int>(attributes->NumberOr("root_rank", 0));
  return request;
}

// Adds the memory that the call works on. Operands: the pieces, the splits of an alltoall, results
// of earlier calls. Results: the pieces, the received splits of an alltoall; a number of a barrier.
bool AddMemory(const ffi::RemainingArgs& operands, const ffi::RemainingRets& results,
               int64_t num_pieces, int64_t members, Request* request) {
  std::vector<int64_t> rows;  // of the outputs
  for (int64_t i = 0; i < num_pieces; ++i) {
    const auto input = operands.get<ffi::AnyBuffer>(i);
    auto output = results.get<ffi::AnyBuffer>(i);
    if (!input.has_value() || !output.has_value()) return false;
    const auto shape = input->dimensions();
    request->pieces.push_back({input->untyped_data(), (*output)->untyped_data(), {}});
    request->pieces.back().shape.assign(shape.begin(), shape.end());
    rows.push_back(shape.size() == 0 ? 1 : (*output)->dimensions()[0]);
  }
  int64_t* received = nullptr;
  if (request->kind == CollectiveKind::kAlltoall) {
    const auto splits = operands.get<ffi::AnyBuffer>(1);
    auto counts = results.get<ffi::AnyBuffer>(1);
    if (!splits.has_value() || !counts.has_value()) return false;
    const auto* begin = static_cast<const int64_t*>(splits->untyped_data());
    request->splits.assign(begin, begin + splits->element_count());
    received = static_cast<int64_t*>((*counts)->untyped_data());
  }
  request->allocate = [request, members, rows, received](
                          const std::vector<std::vector<int64_t>>& sent, std::vector<Piece>*) {
    HVD_RETURN_IF_ERROR(CheckRows(*request, static_cast<size_t>(members), sent, rows));
    if (received != nullptr) std::copy(sent[0].begin(), sent[0].end(), received);
    return Status::Ok();
  };
  return true;
}

void Complete(ffi::Promise promise, const Status& status) {
  CompletionThreads::Get().Run([promise, status]() mutable {
    if (status.ok()) {
      promise.SetAvailable();
    } else {
      promise.SetError(ffi::Error(ToXla(status.code()), status.message()));
    }
  });
}

ffi::Future Collective(ffi::RemainingArgs operands, ffi::RemainingRets results,
                       ffi::Dictionary dictionary) {
  ffi::Promise promise;
  ffi::Future future(promise);
  Reader attributes(dictionary);
  auto request = RequestOf(&attributes);
  const int64_t num_pieces = attributes.Number("pieces");
  const int64_t members = attributes.Number("members");
  std::shared_ptr<World> world;
  const Status current = World::Current(&world);
  if (!current.ok()) {
    Complete(promise, current);
  } else if (attributes.missing() ||
             !AddMemory(operands, results, num_pieces, members, request.get())) {
    Complete(promise, Internal("XLA has not passed on what its call of '" + request->name +
                               "' was compiled with"));
  } else {
    request->done = [promise](const Status& status) { Complete(promise, status); };
    world->engine().Submit(std::move(request));
  }
  return future;
}

ffi::Error Fence(ffi::RemainingArgs, ffi::RemainingRets, ffi::Dictionary) {
  return ffi::Error::Success();
}

ffi::Error TopologyOf(ffi::RemainingRets results, ffi::Dictionary dictionary) {
  Reader attributes(dictionary);
  const auto what = static_cast<Topology>(attributes.Number("what"));
  const auto process_set = static_cast<int32_t>(attributes.Number("process_set"));
  auto output = results.get<ffi::AnyBuffer>(0);
  if (attributes.missing() || !output.has_value()) {
    return ffi::Error::Internal("XLA has not passed on what its call was compiled with");
  }
  *static_cast<int32_t*>((*output)->untyped_data()) = TopologyNow(what, process_set);
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kCollectiveHandler, Collective,
                       ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs());
XLA_FFI_DEFINE_HANDLER(kFenceHandler, Fence,
                       ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs());
XLA_FFI_DEFINE_HANDLER(kTopologyHandler, TopologyOf, ffi::Ffi::Bind().RemainingRets().Attrs());

XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kCollectiveCall, "Host", kCollectiveHandler);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kFenceCall, "Host", kFenceHandler);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kTopologyCall, "Host", kTopologyHandler);

}  // namespace
}  // namespace hvd::xla_ops
