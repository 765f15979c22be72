// Collectives among ranks of several hosts, with threads as ranks.
#include <gtest/gtest.h>

#include <time.h>

#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "ops/hosts/thread_hosts.h"

namespace hvd::hosts {
namespace {

struct Layout {
  const char* name;
  std::vector<int> ranks_per_host;
  bool round_robin;
};

class HostsTest : public testing::TestWithParam<Layout> {
 protected:
  void Run(const std::function<void(const HostRank&)>& body) {
    ThreadHostsOptions options;
    options.ranks_per_host = GetParam().ranks_per_host;
    options.round_robin = GetParam().round_robin;
    EXPECT_EQ(RunHosts(options, body), 0);
  }
};

Reduction Of(ReduceOp op, double prescale = 1.0, double postscale = 1.0) {
  Reduction how;
  how.op = op;
  how.prescale = prescale;
  how.postscale = postscale;
  return how;
}

int64_t SumOfRanks(int size) { return int64_t{size} * (size + 1) / 2; }  // each counts as rank + 1

// Below and above the size from which messages go to all hosts at once, and odd ones.
const std::vector<int64_t> kCounts = {1, 7, 1000, 8192, 8193, 100'003, 600'001};

TEST_P(HostsTest, AllreduceSums) {
  Run([](const HostRank& me) {
    const int size = me.rank->size();
    for (int64_t count : kCounts) {
      std::vector<float> data(count);
      for (int64_t i = 0; i < count; ++i)
        data[i] = static_cast<float>((me.rank->rank() + 1) * (i % 97));
      ASSERT_TRUE(me.rank->Allreduce("sum", DataType::kFloat32, Of(ReduceOp::kSum), &data).ok());
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(data[i], static_cast<float>(SumOfRanks(size) * (i % 97))) << i << " of " << count;
      }
    }
  });
}

TEST_P(HostsTest, AllreduceOfEveryWidth) {
  Run([](const HostRank& me) {
    const int size = me.rank->size();
    for (int64_t count : kCounts) {
      std::vector<int8_t> small(count);
      for (int64_t i = 0; i < count; ++i) small[i] = static_cast<int8_t>(120 - me.rank->rank());
      // The sum does not fit the type; the average does.
      ASSERT_TRUE(me.rank->Allreduce("int8", DataType::kInt8, Of(ReduceOp::kAverage), &small).ok());
      const int64_t sum = int64_t{120} * size - int64_t{size} * (size - 1) / 2;
      for (int64_t i = 0; i < count; ++i) ASSERT_EQ(small[i], sum / size);

      std::vector<double> wide(count);
      for (int64_t i = 0; i < count; ++i) wide[i] = me.rank->rank() == i % size ? -3.0 - i : i;
      ASSERT_TRUE(me.rank->Allreduce("min", DataType::kFloat64, Of(ReduceOp::kMin), &wide).ok());
      for (int64_t i = 0; i < count; ++i) ASSERT_EQ(wide[i], -3.0 - i);

      // bfloat16 1 + 2^-7, the last bit: a rounding in between would lose or double it.
      std::vector<uint16_t> half(count, me.rank->rank() == 0 ? 0x3f81 : 0x3f80);
      ASSERT_TRUE(
          me.rank->Allreduce("bf16", DataType::kBfloat16, Of(ReduceOp::kSum, 2.0, 0.5), &half)
              .ok());
      float expected = static_cast<float>(size) + 0x1p-7f;
      uint32_t bits;
      std::memcpy(&bits, &expected, 4);
      bits = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
      for (int64_t i = 0; i < count; ++i) ASSERT_EQ(half[i], bits);
    }
  });
}

TEST_P(HostsTest, AllgatherOfDifferentLengths) {
  Run([](const HostRank& me) {
    for (int64_t unit : {0, 1, 700, 150'000}) {
      std::vector<int32_t> mine(unit * (me.rank->rank() % 3), me.rank->rank() + 1);
      std::iota(mine.begin(), mine.end(), 1000 * me.rank->rank());
      std::vector<int32_t> expected;
      for (int r = 0; r < me.rank->size(); ++r) {
        std::vector<int32_t> part(unit * (r % 3));
        std::iota(part.begin(), part.end(), 1000 * r);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      std::vector<int32_t> output;
      ASSERT_TRUE(me.rank->Allgather("gather", mine, &output).ok());
      ASSERT_EQ(output, expected);
    }
  });
}

TEST_P(HostsTest, BroadcastFromEveryRank) {
  Run([](const HostRank& me) {
    for (int root = 0; root < me.rank->size(); ++root) {
      for (int64_t count : {1, 999, 700'001}) {
        std::vector<int32_t> data(count, -1);
        if (me.rank->rank() == root) std::iota(data.begin(), data.end(), root);
        ASSERT_TRUE(me.rank->Broadcast("b", root, &data).ok());
        for (int64_t i = 0; i < count; ++i) ASSERT_EQ(data[i], root + i);
      }
    }
  });
}

TEST_P(HostsTest, AlltoallAndReducescatter) {
  Run([](const HostRank& me) {
    const int size = me.rank->size(), rank = me.rank->rank();
    // To rank k: (rank + k) % 4 thousand rows of the value 100 rank + k.
    std::vector<int64_t> splits, received;
    std::vector<int32_t> data, output, expected;
    for (int k = 0; k < size; ++k) {
      splits.push_back((rank + k) % 4 * 50'000);
      data.insert(data.end(), splits.back(), 100 * rank + k);
      expected.insert(expected.end(), (rank + k) % 4 * 50'000, 100 * k + rank);
    }
    ASSERT_TRUE(me.rank->Alltoall("a", data, splits, &output, &received).ok());
    EXPECT_EQ(output, expected);

    std::vector<int32_t> rows(3 * size + 1, rank + 1), share;
    ASSERT_TRUE(me.rank->Reducescatter("r", ReduceOp::kSum, rows, &share).ok());
    EXPECT_EQ(share, std::vector<int32_t>(rank == 0 ? 4 : 3, SumOfRanks(size)));
  });
}

TEST_P(HostsTest, ProcessSetsAndJoin) {
  Run([](const HostRank& me) {
    const int size = me.rank->size(), rank = me.rank->rank();
    // The first and the last rank are on different hosts.
    ASSERT_TRUE(me.rank->engine().AddProcessSet(1, {0, size - 1}).ok());
    std::vector<float> data(3, static_cast<float>(rank + 1));
    if (rank == 0 || rank == size - 1) {
      ASSERT_TRUE(me.rank->Allreduce("p", DataType::kFloat32, Of(ReduceOp::kSum), &data, 1).ok());
      EXPECT_EQ(data[0], static_cast<float>(1 + size));
    }
    // Rank r has r batches; those that have no more join.
    for (int step = 0; step < rank; ++step) {
      std::vector<float> batch(2, static_cast<float>(rank));
      ASSERT_TRUE(
          me.rank->Allreduce("step", DataType::kFloat32, Of(ReduceOp::kAverage), &batch).ok());
      const float live = static_cast<float>(size - 1 - step);
      EXPECT_EQ(batch[0], (step + 1 + size - 1) * live / 2 / live);
    }
    int last = -1;
    ASSERT_TRUE(me.rank->Join(&last).ok());
    EXPECT_EQ(last, size - 1);
    std::vector<float> after(2, 1.0f);
    ASSERT_TRUE(me.rank->Allreduce("after", DataType::kFloat32, Of(ReduceOp::kSum), &after).ok());
    EXPECT_EQ(after[0], static_cast<float>(size));
  });
}

TEST_P(HostsTest, DisagreementIsAnErrorOnAllRanks) {
  Run([](const HostRank& me) {
    std::vector<float> data(me.rank->rank() == me.rank->size() - 1 ? 4 : 3, 1.0f);
    const Status status = me.rank->Allreduce("odd", DataType::kFloat32, Of(ReduceOp::kSum), &data);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("[4]"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("rank " + std::to_string(me.rank->size() - 1) + ":"),
              std::string::npos)
        << status.message();
    std::vector<float> again(3, 1.0f);
    EXPECT_TRUE(me.rank->Allreduce("even", DataType::kFloat32, Of(ReduceOp::kSum), &again).ok());
  });
}

// Each host's clock is a second ahead of the one before.
TEST(HostsClock, EachHostLearnsHowFarItsClockIsFromTheFirstOnes) {
  constexpr int64_t kSkewNs = 1'000'000'000;
  ThreadHostsOptions options;
  options.ranks_per_host = {1, 1, 1};
  options.agent.clock_skew_ns = kSkewNs;
  EXPECT_EQ(RunHosts(options,
                     [&](const HostRank& me) {
                       const shm::Crossing& crossing = me.segment->board().crossing;
                       while (me.host > 0 && crossing.clock_measurements.load() == 0) {
                         const timespec pause{0, 1'000'000};
                         nanosleep(&pause, nullptr);
                       }
                       // Before a host has left, all must have been answered.
                       int32_t unused = 0;
                       std::vector<int32_t> all;
                       ASSERT_TRUE(me.rank->Allgather("end", {unused}, &all).ok());
                       const int64_t found = crossing.clock_offset_ns.load();
                       const int64_t error = crossing.clock_error_ns.load();
                       EXPECT_LE(std::abs(found + me.host * kSkewNs), error);
                       EXPECT_LT(error, kSkewNs / 2);
                     }),
            0);
}

INSTANTIATE_TEST_SUITE_P(Layouts, HostsTest,
                         testing::Values(Layout{"TwoByOne", {1, 1}, false},
                                         Layout{"TwoByTwo", {2, 2}, false},
                                         Layout{"ThreeUneven", {3, 1, 2}, false},
                                         Layout{"RoundRobin", {2, 2, 1}, true},
                                         Layout{"Five", {1, 1, 1, 1, 1}, false}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace hvd::hosts
