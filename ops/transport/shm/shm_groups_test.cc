// Reducescatter, alltoall, Adasum, process sets and join, with threads as ranks.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "ops/transport/shm/thread_world.h"

namespace hvd::shm {
namespace {

SegmentOptions Options(int ranks, int64_t chunk_bytes = 64) {
  SegmentOptions options;
  options.ranks = ranks;
  options.chunk_bytes = chunk_bytes;
  return options;
}

Reduction With(ReduceOp op) {
  Reduction reduction;
  reduction.op = op;
  return reduction;
}

class ShmGroups : public testing::TestWithParam<int> {
 protected:
  int ranks() const { return GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(Ranks, ShmGroups, testing::Values(1, 2, 3, 4, 8));

TEST_P(ShmGroups, ReducescatterSharesOutUnevenRows) {
  RunRanks(Options(ranks()), [](Rank* rank) {
    const int n = rank->size(), me = rank->rank();
    for (int rows : {0, 1, n - 1, n, n + 1, 5 * n + 2, 300}) {
      std::vector<int32_t> data(rows), mine, expected;
      for (int i = 0; i < rows; ++i) data[i] = i + 100 * me;
      ASSERT_TRUE(rank->Reducescatter("s", ReduceOp::kSum, data, &mine).ok());
      const int begin = me * (rows / n) + std::min(me, rows % n);
      const int count = rows / n + (me < rows % n ? 1 : 0);
      for (int i = begin; i < begin + count; ++i) {
        expected.push_back(i * n + 100 * n * (n - 1) / 2);
      }
      ASSERT_EQ(mine, expected) << rows;
    }
  });
}

TEST_P(ShmGroups, AlltoallWithUnevenSplits) {
  RunRanks(Options(ranks()), [](Rank* rank) {
    const int n = rank->size(), me = rank->rank();
    for (int factor : {0, 1, 13}) {
      // Rank s sends (s + d) * factor rows of value 100 s + d to rank d.
      std::vector<int32_t> data, received_data, expected;
      std::vector<int64_t> splits, received, expected_splits;
      for (int d = 0; d < n; ++d) {
        splits.push_back((me + d) * factor);
        data.insert(data.end(), (me + d) * factor, 100 * me + d);
        expected_splits.push_back((d + me) * factor);
        expected.insert(expected.end(), (d + me) * factor, 100 * d + me);
      }
      ASSERT_TRUE(rank->Alltoall("a", data, splits, &received_data, &received).ok());
      ASSERT_EQ(received, expected_splits);
      ASSERT_EQ(received_data, expected);
    }
  });
}

TEST_P(ShmGroups, BadSplitsAreAnErrorOnAllRanks) {
  RunRanks(Options(ranks()), [](Rank* rank) {
    std::vector<int64_t> splits(rank->size(), 1), received;
    if (rank->rank() == 0) splits[0] = 2;
    std::vector<int32_t> output;
    const Status status =
        rank->Alltoall("a", std::vector<int32_t>(rank->size()), splits, &output, &received);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("one split for each"), std::string::npos) << status.message();
  });
}

TEST_P(ShmGroups, AdasumAddsOrthogonalAndAveragesEqualVectors) {
  RunRanks(Options(ranks()), [](Rank* rank) {
    const int n = rank->size(), me = rank->rank();
    std::vector<float> equal(50, 3.f);
    ASSERT_TRUE(rank->Allreduce("e", DataType::kFloat32, With(ReduceOp::kAdasum), &equal).ok());
    for (float x : equal) ASSERT_FLOAT_EQ(x, 3.f);
    std::vector<double> orthogonal(n, 0.0);
    orthogonal[me] = me + 1;
    ASSERT_TRUE(
        rank->Allreduce("o", DataType::kFloat64, With(ReduceOp::kAdasum), &orthogonal).ok());
    for (int i = 0; i < n; ++i) ASSERT_DOUBLE_EQ(orthogonal[i], i + 1);
  });
}

TEST(ShmGroupsSingle, AdasumOfTwoFollowsItsFormula) {
  RunRanks(Options(2), [](Rank* rank) {
    // a = (1, 2), b = (3, -1): a.b = 1, |a|^2 = 5, |b|^2 = 10.
    std::vector<double> data =
        rank->rank() == 0 ? std::vector<double>{1, 2} : std::vector<double>{3, -1};
    ASSERT_TRUE(rank->Allreduce("x", DataType::kFloat64, With(ReduceOp::kAdasum), &data).ok());
    EXPECT_DOUBLE_EQ(data[0], 0.9 * 1 + 0.95 * 3);
    EXPECT_DOUBLE_EQ(data[1], 0.9 * 2 - 0.95 * 1);
  });
}

TEST(ShmGroupsSingle, AdasumOfIntegersIsRefused) {
  RunRanks(Options(2), [](Rank* rank) {
    std::vector<int32_t> data(2, 1);
    EXPECT_EQ(rank->Allreduce("x", DataType::kInt32, With(ReduceOp::kAdasum), &data).code(),
              Code::kInvalidArgument);
  });
}

TEST(ShmGroupsSingle, ProcessSetsWorkOnTheirMembersOnly) {
  RunRanks(Options(4), [](Rank* rank) {
    const int me = rank->rank();
    ASSERT_TRUE(rank->engine().AddProcessSet(1, {3, 1}).ok());
    ASSERT_TRUE(rank->engine().AddProcessSet(2, {0, 2, 3}).ok());
    for (int set : {1, 2}) {
      std::vector<int> ranks;
      ASSERT_TRUE(rank->engine().GetProcessSet(set, &ranks).ok());
      const bool member = std::count(ranks.begin(), ranks.end(), me) > 0;
      std::vector<int32_t> data(100, me);
      const Status status =
          rank->Allreduce("x", DataType::kInt32, With(ReduceOp::kSum), &data, set);
      if (!member) {
        EXPECT_EQ(status.code(), Code::kInvalidArgument);
        EXPECT_NE(status.message().find("rank " + std::to_string(me) + " is not in process set"),
                  std::string::npos)
            << status.message();
        continue;
      }
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_EQ(data, std::vector<int32_t>(100, std::accumulate(ranks.begin(), ranks.end(), 0)));
      // The root is a global rank.
      std::vector<int32_t> value(70, me);
      ASSERT_TRUE(rank->Broadcast("b", ranks[1], &value, set).ok());
      ASSERT_EQ(value, std::vector<int32_t>(70, ranks[1]));
      EXPECT_EQ(rank->Broadcast("c", set == 1 ? 0 : 1, &value, set).code(), Code::kInvalidArgument);
    }
    std::vector<int32_t> all(3, 1);
    ASSERT_TRUE(rank->Allreduce("x", DataType::kInt32, With(ReduceOp::kSum), &all).ok());
    ASSERT_EQ(all[0], 4);
    ASSERT_TRUE(rank->engine().RemoveProcessSet(1).ok());
    EXPECT_EQ(rank->Allreduce("x", DataType::kInt32, With(ReduceOp::kSum), &all, 1).code(),
              Code::kInvalidArgument);
  });
}

TEST(ShmGroupsSingle, BadProcessSetsAreRefused) {
  RunRanks(Options(2), [](Rank* rank) {
    for (const std::vector<int>& ranks : {std::vector<int>{}, {0, 0}, {2}, {-1, 0}}) {
      EXPECT_EQ(rank->engine().AddProcessSet(5, ranks).code(), Code::kInvalidArgument);
    }
    EXPECT_EQ(rank->engine().AddProcessSet(0, {0}).code(), Code::kInvalidArgument);
    EXPECT_EQ(rank->engine().AddProcessSet(kMaxProcessSets, {0}).code(), Code::kResourceExhausted);
    EXPECT_EQ(rank->engine().RemoveProcessSet(0).code(), Code::kInvalidArgument);
    EXPECT_EQ(rank->engine().RemoveProcessSet(7).code(), Code::kInvalidArgument);
  });
}

// Two disjoint sets: one gets through many collectives while the other waits for a late member.
TEST(ShmGroupsSingle, DisjointProcessSetsDoNotWaitForOneAnother) {
  std::atomic<bool> others_done{false};
  RunRanks(Options(4), [&](Rank* rank) {
    const int me = rank->rank(), set = me < 2 ? 1 : 2;
    ASSERT_TRUE(rank->engine().AddProcessSet(1, {0, 1}).ok());
    ASSERT_TRUE(rank->engine().AddProcessSet(2, {2, 3}).ok());
    if (me == 0) {
      while (!others_done) std::this_thread::yield();
    }
    for (int i = 0; i < 2000; ++i) {
      std::vector<int32_t> data(30, me);
      ASSERT_TRUE(rank->Allreduce("x", DataType::kInt32, With(ReduceOp::kSum), &data, set).ok());
      ASSERT_EQ(data[29], set == 1 ? 1 : 5);
    }
    if (me == 3) others_done = true;
  });
}

TEST_P(ShmGroups, JoinedRanksAreNotWaitedForAndAveragesAreOfTheOthers) {
  RunRanks(Options(ranks()), [](Rank* rank) {
    const int n = rank->size(), me = rank->rank();
    // Rank r takes part in the first r + 1 rounds.
    for (int round = 0; round <= me; ++round) {
      std::vector<double> data(40, me + 1);
      Reduction average = With(ReduceOp::kAverage);
      ASSERT_TRUE(rank->Allreduce("x", DataType::kFloat64, average, &data).ok());
      double sum = 0;
      for (int r = round; r < n; ++r) sum += r + 1;
      ASSERT_DOUBLE_EQ(data[39], sum / (n - round));
      std::vector<int32_t> gathered, expected;
      ASSERT_TRUE(rank->Allgather("g", {me}, &gathered).ok());
      for (int r = round; r < n; ++r) expected.push_back(r);
      ASSERT_EQ(gathered, expected);
    }
    int last_rank = -1;
    ASSERT_TRUE(rank->Join(&last_rank).ok());
    EXPECT_EQ(last_rank, n - 1);
    // Then everything is as before.
    std::vector<int32_t> data(3, 1);
    ASSERT_TRUE(rank->Allreduce("x", DataType::kInt32, With(ReduceOp::kSum), &data).ok());
    ASSERT_EQ(data[0], n);
  });
}

TEST(ShmGroupsSingle, JoinWithTheOtherCollectives) {
  RunRanks(Options(3), [](Rank* rank) {
    const int me = rank->rank();
    int last_rank = -1;
    if (me == 1) {
      ASSERT_TRUE(rank->Join(&last_rank).ok());
      return;
    }
    std::vector<int32_t> data(7, me + 1), output;
    // Shares stay those of three ranks: 3, 2 and 2 rows.
    ASSERT_TRUE(rank->Reducescatter("s", ReduceOp::kSum, data, &output).ok());
    EXPECT_EQ(output, std::vector<int32_t>(me == 0 ? 3 : 2, 4));
    std::vector<int64_t> received;
    ASSERT_TRUE(
        rank->Alltoall("a", {10 * me, 10 * me + 1, 10 * me + 2}, {1, 1, 1}, &output, &received)
            .ok());
    EXPECT_EQ(output, (std::vector<int32_t>{me, 20 + me}));
    EXPECT_EQ(received, (std::vector<int64_t>{1, 1}));
    ASSERT_TRUE(rank->Broadcast("b", 2, &data).ok());
    EXPECT_EQ(data[0], 3);
    const Status status = rank->Broadcast("b", 1, &data);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("has joined"), std::string::npos) << status.message();
    ASSERT_TRUE(rank->Join(&last_rank).ok());
    EXPECT_NE(last_rank, 1);
  });
}

TEST(ShmGroupsSingle, ARankThatJoinsReleasesThoseWhoWait) {
  RunRanks(Options(2), [](Rank* rank) {
    int last_rank = -1;
    if (rank->rank() == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      ASSERT_TRUE(rank->Join(&last_rank).ok());
      return;
    }
    std::vector<int32_t> data(2, 7);
    ASSERT_TRUE(rank->Allreduce("x", DataType::kInt32, With(ReduceOp::kSum), &data).ok());
    EXPECT_EQ(data[0], 7);
    ASSERT_TRUE(rank->Join(&last_rank).ok());
    EXPECT_EQ(last_rank, 1);
  });
}

}  // namespace
}  // namespace hvd::shm
