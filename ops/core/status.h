// Status: the result of every function of this library that can fail.
//
// Exceptions do not cross the library's boundaries: TensorFlow is built without them and a Python
// exception belongs to the binding alone.
#ifndef HVD_CORE_STATUS_H_
#define HVD_CORE_STATUS_H_

#include <string>
#include <utility>

namespace hvd {

enum class Code {
  kOk = 0,
  kInvalidArgument,     // the request is wrong, or the ranks disagree about it
  kFailedPrecondition,  // not initialised, or already shut down
  kAborted,             // a peer died or left, or the job was aborted
  kDeadlineExceeded,    // a wait had a deadline and it passed
  kResourceExhausted,   // memory or descriptors
  kUnavailable,         // what the environment promised is not there
  kInternal,            // a defect of this library
  kPlanLeft,            // between engine and communicator: to be agreed anew, not an error
};

// The name of a code as Python sees it, for example "InvalidArgument".
const char* CodeName(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status Ok() { return Status(); }

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

inline Status InvalidArgument(std::string m) { return {Code::kInvalidArgument, std::move(m)}; }
inline Status FailedPrecondition(std::string m) {
  return {Code::kFailedPrecondition, std::move(m)};
}
inline Status Aborted(std::string m) { return {Code::kAborted, std::move(m)}; }
inline Status DeadlineExceeded(std::string m) { return {Code::kDeadlineExceeded, std::move(m)}; }
inline Status ResourceExhausted(std::string m) { return {Code::kResourceExhausted, std::move(m)}; }
inline Status Unavailable(std::string m) { return {Code::kUnavailable, std::move(m)}; }
inline Status Internal(std::string m) { return {Code::kInternal, std::move(m)}; }

// "what: strerror(error)", for a failed system call.
std::string ErrnoMessage(const std::string& what, int error);

}  // namespace hvd

#define HVD_RETURN_IF_ERROR(expression)        \
  do {                                         \
    ::hvd::Status hvd_status_ = (expression);  \
    if (!hvd_status_.ok()) return hvd_status_; \
  } while (false)

#endif  // HVD_CORE_STATUS_H_
