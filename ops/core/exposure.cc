#include "ops/core/exposure.h"

#include <algorithm>
#include <cctype>

namespace hvd {

std::string ExposureMeter::PassOf(const std::string& name, uint64_t occurrence) const {
  if (bases_.empty()) return {};
  // BASE.NUMBER, or BASE.NUMBER@ITERATION in a loop.
  const size_t iteration = std::min(name.rfind('@'), name.size());
  const size_t dot = name.rfind('.', iteration);
  if (dot == std::string::npos || dot + 1 >= iteration) return {};
  const bool is_number = std::all_of(name.begin() + dot + 1, name.begin() + iteration,
                                     [](unsigned char c) { return std::isdigit(c) != 0; });
  const std::string base = name.substr(0, dot);
  if (!is_number || bases_.count(base) == 0) return {};
  return base + name.substr(iteration) + "/" + std::to_string(occurrence);
}

bool ExposureMeter::Called(const std::string& name, uint64_t occurrence, int64_t now_ns,
                           Interval* waited) {
  const std::string pass = PassOf(name, occurrence);
  bool has_waited = false;
  if (!pass.empty() && pass == last_pass_) {
    wait_ = {};  // the backward pass was at work meanwhile
  } else {
    has_waited = Settle(waited);
  }
  ++pending_;
  last_pass_ = pass;
  wait_ = {now_ns, 0};
  return has_waited;
}

void ExposureMeter::Ended(int64_t now_ns) {
  if (--pending_ == 0) wait_.end_ns = now_ns;
}

bool ExposureMeter::Settle(Interval* waited) {
  if (pending_ > 0 || wait_.end_ns <= wait_.begin_ns) return false;
  *waited = wait_;
  exposed_ns_ += wait_.end_ns - wait_.begin_ns;
  wait_ = {};
  return true;
}

}  // namespace hvd
