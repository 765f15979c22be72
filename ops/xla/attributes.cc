#include "ops/xla/attributes.h"

#include <cstring>

namespace hvd::xla_ops {
namespace {

// MLIR knows no escapes but \\, \", \n, \t and two hexadecimal digits. A user may name a tensor
// anything, so whatever is not plain goes as digits.
std::string Quoted(const std::string& value) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string text = "\"";
  for (const char character : value) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte < 0x20 || byte > 0x7e || byte == '"' || byte == '\\') {
      text += {'\\', kDigits[byte >> 4], kDigits[byte & 15]};
    } else {
      text += character;
    }
  }
  return text + "\"";
}

}  // namespace

void Attributes::Key(const char* key) {
  if (!text_.empty()) text_ += ", ";
  text_ += key;
  text_ += " = ";
}

void Attributes::Set(const char* key, int64_t value) {
  Key(key);
  text_ += std::to_string(value) + " : i64";
}

void Attributes::Set(const char* key, const std::string& value) {
  Key(key);
  text_ += Quoted(value);
}

void Attributes::SetBits(const char* key, double value) {
  int64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  Set(key, bits);
}

}  // namespace hvd::xla_ops
