// Element types that travel, and what is known of each.
#ifndef HVD_CORE_DTYPE_H_
#define HVD_CORE_DTYPE_H_

#include <cstdint>

namespace hvd {

enum class DataType : uint8_t {
  kBool,
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kUint64,
  kInt64,
  kFloat16,
  kBfloat16,
  kFloat32,
  kFloat64,
};

inline constexpr int kNumDataTypes = 13;

// Bytes of one element.
int64_t SizeOf(DataType dtype);

// The name users know, for example "bfloat16".
const char* Name(DataType dtype);

}  // namespace hvd

#endif  // HVD_CORE_DTYPE_H_
