#include "ops/core/exposure.h"

#include <gtest/gtest.h>

namespace hvd {
namespace {

TEST(ExposureMeter, CountsFromTheLastCallToTheEndOfAll) {
  ExposureMeter meter;
  ExposureMeter::Interval waited;
  EXPECT_FALSE(meter.Called("a", 0, 100, &waited));
  EXPECT_FALSE(meter.Called("b", 0, 150, &waited));
  meter.Ended(170);
  EXPECT_FALSE(meter.Settle(&waited));  // one is pending
  meter.Ended(190);
  ASSERT_TRUE(meter.Called("c", 0, 300, &waited));
  EXPECT_EQ(waited.begin_ns, 150);
  EXPECT_EQ(waited.end_ns, 190);
  EXPECT_EQ(meter.exposed_ns(), 40);
  meter.Ended(305);
  ASSERT_TRUE(meter.Settle(&waited));
  EXPECT_FALSE(meter.Settle(&waited));
  EXPECT_EQ(meter.exposed_ns(), 45);
}

TEST(ExposureMeter, BetweenTheBucketsOfABackwardPassNothingWaits) {
  ExposureMeter meter;
  meter.AddBuckets("f/gradients");
  ExposureMeter::Interval waited;
  for (uint64_t step = 0; step < 3; ++step) {
    const int64_t begin = 1000 * static_cast<int64_t>(step);
    meter.Called("f/gradients.0", step, begin, &waited);
    meter.Ended(begin + 10);
    EXPECT_FALSE(meter.Called("f/gradients.1", step, begin + 100, &waited));
    meter.Ended(begin + 130);
  }
  EXPECT_EQ(meter.exposed_ns(), 60);  // of the last bucket of each of two steps
  meter.Settle(&waited);
  EXPECT_EQ(meter.exposed_ns(), 90);
}

TEST(ExposureMeter, OtherNumberedNamesAreNoBuckets) {
  ExposureMeter meter;
  meter.AddBuckets("gradients");
  ExposureMeter::Interval waited;
  for (const char* name : {"x.0", "x.1", "gradients", "gradients.", "gradients.x", "gradients.0"}) {
    meter.Called(name, 0, 100, &waited);
    meter.Ended(110);
  }
  EXPECT_EQ(meter.exposed_ns(), 50);
  // Iterations of a loop are different passes.
  meter.Called("gradients.0@1", 0, 200, &waited);
  meter.Ended(210);
  EXPECT_TRUE(meter.Called("gradients.1@2", 0, 300, &waited));
  EXPECT_EQ(meter.exposed_ns(), 70);
}

}  // namespace
}  // namespace hvd
