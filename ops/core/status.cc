#include "ops/core/status.h"

#include <system_error>

namespace hvd {

const char* CodeName(Code code) {
  switch (code) {
    case Code::kOk:
      return "Ok";
    case Code::kInvalidArgument:
      return "InvalidArgument";
    case Code::kFailedPrecondition:
      return "FailedPrecondition";
    case Code::kAborted:
      return "Aborted";
    case Code::kDeadlineExceeded:
      return "DeadlineExceeded";
    case Code::kResourceExhausted:
      return "ResourceExhausted";
    case Code::kUnavailable:
      return "Unavailable";
    case Code::kPlanLeft:
    case Code::kInternal:
      return "Internal";
  }
  return "Internal";
}

std::string ErrnoMessage(const std::string& what, int error) {
  return what + ": " + std::generic_category().message(error);
}

}  // namespace hvd
