#include "ops/core/communicator.h"

namespace hvd {
namespace {

// Up to this size a round more costs less than messages to everybody.
constexpr int64_t kDoublingBytes = 32 * 1024;

}  // namespace

Opening OpeningOf(int64_t allreduce_bytes) {
  return allreduce_bytes <= kDoublingBytes ? Opening::kDoubling : Opening::kDirect;
}

Status Communicator::LeavePlan(Ticket, Opening) {
  return Internal("a plan between hosts was left by ranks of one host");
}

}  // namespace hvd
