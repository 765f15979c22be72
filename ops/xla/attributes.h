// What a custom call carries from compile time to run time, as XLA wants it: the text of an MLIR
// dictionary, such as {name = "gradients.0", kind = 0 : i64}.
#ifndef HVD_XLA_ATTRIBUTES_H_
#define HVD_XLA_ATTRIBUTES_H_

#include <cstdint>
#include <string>

namespace hvd::xla_ops {

class Attributes {
 public:
  void Set(const char* key, int64_t value);
  void Set(const char* key, const std::string& value);
  // As the integer of its bits: what is printed and parsed again need not be the same number.
  void SetBits(const char* key, double value);

  std::string Text() const { return "{" + text_ + "}"; }

 private:
  void Key(const char* key);

  std::string text_;
};

}  // namespace hvd::xla_ops

#endif  // HVD_XLA_ATTRIBUTES_H_
