#include "ops/core/reduce.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "ops/core/reduce_variants.h"

namespace hvd {
namespace {

using ReduceFunction = void (*)(const Reduction&, const void* const*, int, void*, int64_t, Stores);

struct Variant {
  const char* name;
  ReduceFunction reduce;
};

// Those which this processor can run.
std::vector<Variant> Variants() {
  std::vector<Variant> variants = {{"baseline", reduce_baseline::Reduce}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
    variants.push_back({"avx2", reduce_avx2::Reduce});
  }
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    variants.push_back({"avx512", reduce_avx512::Reduce});
  }
#endif
  return variants;
}

template <typename T>
std::vector<T> Apply(const Variant& variant, const Reduction& reduction,
                     const std::vector<std::vector<T>>& inputs) {
  std::vector<const void*> pointers;
  for (const auto& input : inputs) pointers.push_back(input.data());
  std::vector<T> output(inputs[0].size(), T(77));
  variant.reduce(reduction, pointers.data(), static_cast<int>(pointers.size()), output.data(),
                 static_cast<int64_t>(output.size()), Stores::kCached);
  // The same bits with streaming stores, at any place in a line, and nothing beside them.
  for (size_t place : {0, 1, 5}) {
    std::vector<T> streamed(output.size() + place + 1, T(77));
    variant.reduce(reduction, pointers.data(), static_cast<int>(pointers.size()),
                   streamed.data() + place, static_cast<int64_t>(output.size()),
                   Stores::kStreaming);
    DrainStores();
    EXPECT_EQ(std::memcmp(streamed.data() + place, output.data(), output.size() * sizeof(T)), 0);
    const T around(77);
    EXPECT_EQ(std::memcmp(&streamed.back(), &around, sizeof(T)), 0);
    if (place > 0) {
      EXPECT_EQ(std::memcmp(&streamed[place - 1], &around, sizeof(T)), 0);
    }
  }
  return output;
}

Reduction Make(DataType dtype, ReduceOp op, int64_t divisor = 1, double pre = 1, double post = 1) {
  Reduction r;
  r.dtype = dtype;
  r.op = op;
  r.divisor = divisor;
  r.prescale = pre;
  r.postscale = post;
  return r;
}

// A float of value m * 2^e, written down independently of the code under test.
float HalfToFloat(uint16_t bits) {
  const int sign = bits >> 15, exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  float value;
  if (exponent == 31) {
    value =
        mantissa ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<float>(mantissa), -24);
  } else {
    value = std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  }
  return sign ? -value : value;
}

bool SameHalf(uint16_t a, uint16_t b) {
  if (std::isnan(HalfToFloat(a)) && std::isnan(HalfToFloat(b))) return true;
  return a == b;
}

TEST(Reduce, Float16PassesThroughUnchanged) {
  std::vector<uint16_t> all(65536);
  for (int i = 0; i < 65536; ++i) all[i] = static_cast<uint16_t>(i);
  for (const Variant& v : Variants()) {
    // One input: converted to float32 and back.
    const auto out = Apply<uint16_t>(v, Make(DataType::kFloat16, ReduceOp::kSum), {all});
    for (int i = 0; i < 65536; ++i) ASSERT_TRUE(SameHalf(out[i], all[i])) << v.name << " " << i;
  }
}

TEST(Reduce, Float16IsRoundedOnceToNearestEven) {
  // 2048 + 1 + 1: with float16 accumulation, 2048 + 1 would stay 2048.
  const uint16_t k2048 = 0x6800, kOne = 0x3c00, k2050 = 0x6801;
  // 2048 + 1 = 2049 lies between 2048 and 2050; even is 2048. 2050 + 1 = 2051 goes to 2052.
  for (const Variant& v : Variants()) {
    const Reduction sum = Make(DataType::kFloat16, ReduceOp::kSum);
    EXPECT_EQ(Apply<uint16_t>(v, sum, {{k2048}, {kOne}, {kOne}})[0], k2050);
    EXPECT_EQ(Apply<uint16_t>(v, sum, {{k2048}, {kOne}})[0], k2048);
    EXPECT_EQ(Apply<uint16_t>(v, sum, {{k2050}, {kOne}})[0], 0x6802);
  }
}

TEST(Reduce, Float16AverageDoesNotOverflow) {
  const uint16_t kLargest = 0x7bff;
  for (const Variant& v : Variants()) {
    const Reduction mean = Make(DataType::kFloat16, ReduceOp::kAverage, 2);
    EXPECT_EQ(Apply<uint16_t>(v, mean, {{kLargest}, {kLargest}})[0], kLargest);
    const Reduction sum = Make(DataType::kFloat16, ReduceOp::kSum);
    EXPECT_EQ(Apply<uint16_t>(v, sum, {{kLargest}, {kLargest}})[0], 0x7c00);  // infinity
  }
}

TEST(Reduce, Float16RoundsEveryFloatLikeTheReference) {
  // Products with a power of two reach subnormals and every rounding position.
  std::vector<uint16_t> values;
  for (int i = 0; i < 31744; i += 3) values.push_back(static_cast<uint16_t>(i));
  for (const Variant& v : Variants()) {
    for (double factor : {1.0 / 3, 1.0 / 1024, 1e-4, 1.7}) {
      const auto out =
          Apply<uint16_t>(v, Make(DataType::kFloat16, ReduceOp::kSum, 1, factor), {values});
      for (size_t i = 0; i < values.size(); ++i) {
        const float exact = HalfToFloat(values[i]) * static_cast<float>(factor);
        const float got = HalfToFloat(out[i]);
        if (std::isinf(got)) {
          ASSERT_GE(exact, 65520.f) << v.name;
          continue;
        }
        // Nearest: neither neighbour is closer; ties go to the even mantissa.
        const float error = std::fabs(got - exact);
        for (int step : {-1, 1}) {
          const int neighbour = out[i] + step;
          if (neighbour < 0 || neighbour > 0x7bff) continue;
          const float other = std::fabs(HalfToFloat(static_cast<uint16_t>(neighbour)) - exact);
          ASSERT_TRUE(error < other || (error == other && out[i] % 2 == 0))
              << v.name << " " << values[i] << " " << factor;
        }
      }
    }
  }
}

TEST(Reduce, Bfloat16IsRoundedOnceToNearestEven) {
  // 256 + 1 + 1 = 258 is a bfloat16; 256 + 1 = 257 is not, and goes to even, 256.
  const uint16_t k256 = 0x4380, kOne = 0x3f80, k258 = 0x4381, kNan = 0x7fc0;
  for (const Variant& v : Variants()) {
    const Reduction sum = Make(DataType::kBfloat16, ReduceOp::kSum);
    EXPECT_EQ(Apply<uint16_t>(v, sum, {{k256}, {kOne}, {kOne}})[0], k258);
    EXPECT_EQ(Apply<uint16_t>(v, sum, {{k256}, {kOne}})[0], k256);
    const uint16_t nan = Apply<uint16_t>(v, sum, {{kNan}, {kOne}})[0];
    EXPECT_EQ(nan & 0x7f80, 0x7f80);
    EXPECT_NE(nan & 0x007f, 0);
  }
}

TEST(Reduce, IntegersWrapAndAveragesDoNot) {
  for (const Variant& v : Variants()) {
    EXPECT_EQ(Apply<int8_t>(v, Make(DataType::kInt8, ReduceOp::kSum), {{127}, {1}})[0], -128);
    EXPECT_EQ(Apply<int8_t>(v, Make(DataType::kInt8, ReduceOp::kAverage, 2), {{127}, {125}})[0],
              126);
    EXPECT_EQ(Apply<int32_t>(v, Make(DataType::kInt32, ReduceOp::kAverage, 2), {{-3}, {0}})[0], -1);
    EXPECT_EQ(
        Apply<int32_t>(v, Make(DataType::kInt32, ReduceOp::kAverage, 3), {{49}, {49}, {49}})[0],
        49);
    EXPECT_EQ(
        Apply<uint16_t>(v, Make(DataType::kUint16, ReduceOp::kProduct), {{65535}, {65535}})[0], 1);
    const int64_t big = (int64_t{1} << 53) + 1;  // not a float64
    EXPECT_EQ(Apply<int64_t>(v, Make(DataType::kInt64, ReduceOp::kSum), {{big}, {0}})[0], big);
    EXPECT_EQ(
        Apply<uint64_t>(v, Make(DataType::kUint64, ReduceOp::kAverage, 1), {{~uint64_t{0}}})[0],
        ~uint64_t{0});
  }
}

TEST(Reduce, ScaledIntegersAreTruncatedAndSaturate) {
  for (const Variant& v : Variants()) {
    EXPECT_EQ(Apply<int32_t>(v, Make(DataType::kInt32, ReduceOp::kSum, 1, 0.5), {{3}, {5}})[0], 3);
    EXPECT_EQ(Apply<int32_t>(v, Make(DataType::kInt32, ReduceOp::kSum, 1, 1, 1e20), {{3}})[0],
              std::numeric_limits<int32_t>::max());
  }
}

TEST(Reduce, MinimumAndMaximumKeepNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Variant& v : Variants()) {
    for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      EXPECT_TRUE(std::isnan(Apply<float>(v, Make(DataType::kFloat32, op), {{nan}, {1.f}})[0]));
      EXPECT_TRUE(std::isnan(Apply<float>(v, Make(DataType::kFloat32, op), {{1.f}, {nan}})[0]));
    }
  }
}

TEST(Reduce, BoolIsLogical) {
  for (const Variant& v : Variants()) {
    // Any non-zero byte counts as true, and the result is 0 or 1.
    EXPECT_EQ(Apply<uint8_t>(v, Make(DataType::kBool, ReduceOp::kMin), {{2, 0}, {1, 1}}),
              (std::vector<uint8_t>{1, 0}));
    EXPECT_EQ(Apply<uint8_t>(v, Make(DataType::kBool, ReduceOp::kMax), {{0, 0}, {4, 0}}),
              (std::vector<uint8_t>{1, 0}));
  }
  EXPECT_FALSE(CheckReduction(DataType::kBool, ReduceOp::kSum, 1, 1).ok());
  EXPECT_FALSE(CheckReduction(DataType::kBool, ReduceOp::kMax, 2, 1).ok());
  EXPECT_TRUE(CheckReduction(DataType::kBool, ReduceOp::kMax, 1, 1).ok());
}

// Every count around the block and vector sizes, at every alignment, in place and not; the sums of
// these floats depend on their order, so equal bits prove the order.
TEST(Reduce, AllVariantsAgreeToTheBitAndInPlace) {
  for (int ranks : {1, 2, 3, 5}) {
    for (int64_t count : {0, 1, 7, 15, 16, 17, 1023, 1024, 1025, 3000}) {
      for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kProduct, ReduceOp::kMin}) {
        std::vector<std::vector<float>> inputs(ranks);
        for (int r = 0; r < ranks; ++r) {
          for (int64_t i = 0; i < count + 1; ++i) {
            inputs[r].push_back(std::sin(static_cast<float>(i * 31 + r * 7)) * 1.1f);
          }
        }
        std::vector<float> expected(count);
        for (int64_t i = 0; i < count; ++i) {
          float value = inputs[0][i + 1];
          for (int r = 1; r < ranks; ++r) {
            const float x = inputs[r][i + 1];
            if (op == ReduceOp::kProduct)
              value *= x;
            else if (op == ReduceOp::kMin)
              value = std::min(value, x);
            else
              value += x;
          }
          expected[i] = op == ReduceOp::kAverage ? value / static_cast<float>(ranks) : value;
        }
        const Reduction reduction = Make(DataType::kFloat32, op, ranks);
        for (const Variant& v : Variants()) {
          for (int i = 0; i < 2 * ranks; ++i) {
            const int target = i / 2;
            const Stores stores = i % 2 == 0 ? Stores::kCached : Stores::kStreaming;
            auto copies = inputs;
            std::vector<const void*> pointers;
            for (auto& copy : copies) pointers.push_back(copy.data() + 1);
            float* output = copies[target].data() + 1;
            v.reduce(reduction, pointers.data(), ranks, output, count, stores);
            DrainStores();
            ASSERT_TRUE(count == 0 ||
                        std::memcmp(output, expected.data(), count * sizeof(float)) == 0)
                << v.name << " ranks " << ranks << " count " << count << " " << Name(op);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace hvd
