// The reduction kernels for every processor.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "ops/core/reduce_variants.h"

namespace hvd::reduce_baseline {
#include "ops/core/reduce_kernels.inc"
}  // namespace hvd::reduce_baseline
