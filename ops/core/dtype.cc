#include "ops/core/dtype.h"

namespace hvd {
namespace {

struct Entry {
  const char* name;
  int64_t size;
};

constexpr Entry kEntries[kNumDataTypes] = {
    {"bool", 1},     {"uint8", 1},   {"int8", 1},    {"uint16", 2}, {"int16", 2},
    {"uint32", 4},   {"int32", 4},   {"uint64", 8},  {"int64", 8},  {"float16", 2},
    {"bfloat16", 2}, {"float32", 4}, {"float64", 8},
};

}  // namespace

int64_t SizeOf(DataType dtype) { return kEntries[static_cast<int>(dtype)].size; }

const char* Name(DataType dtype) { return kEntries[static_cast<int>(dtype)].name; }

}  // namespace hvd
