#include "ops/transport/shm/store_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "ops/transport/shm/thread_world.h"

namespace hvd::shm {
namespace {

using Costs = std::array<double, kStoreChoices>;  // ns per byte of each choice

// Records transfers; how many of them were not the fastest way.
int Transfers(StoreSearch* search, const Costs& costs, int count) {
  int other_than_best = 0;
  const int best = static_cast<int>(std::min_element(costs.begin(), costs.end()) - costs.begin());
  for (int i = 0; i < count; ++i) {
    if (search->choice() != best) ++other_than_best;
    search->Record(costs[search->choice()]);
  }
  return other_than_best;
}

TEST(StoreSearch, KeepsTheFastest) {
  for (int best = 0; best < kStoreChoices; ++best) {
    Costs costs{1.0, 1.1, 1.2, 1.3};
    costs[best] = 0.5;
    StoreSearch search;
    Transfers(&search, costs, 16);
    EXPECT_EQ(search.choice(), best);
  }
}

TEST(StoreSearch, TriesWhatIsHopelessTwiceOnly) {
  StoreSearch search;
  // Two windows of four, for the first and what is better, and two transfers for each of the rest.
  Transfers(&search, {1.0, 4.0, 4.0, 0.9}, 4 + 2 + 2 + 4);
  EXPECT_EQ(search.choice(), 3);
}

TEST(StoreSearch, StreamsOnlyWhereItIsWorthIt) {
  StoreSearch search;
  Transfers(&search, {1.0, 0.97, 0.98, 0.96}, 100);
  EXPECT_EQ(search.choice(), 0);
}

TEST(StoreSearch, OneSlowTransferInAWindowDoesNotCount) {
  StoreSearch search;
  const Costs costs{1.0, 0.5, 1.1, 1.2};
  for (int i = 0; i < 200; ++i) {
    search.Record(i % 3 == 0 ? 50.0 : costs[search.choice()]);
  }
  EXPECT_EQ(search.choice(), 1);
}

TEST(StoreSearch, FollowsAMachineThatChanges) {
  StoreSearch search;
  const Costs shared_cache{1.0, 1.5, 0.8, 1.4}, other{4.0, 1.1, 3.8, 1.0};
  for (int round = 0; round < 5; ++round) {
    Transfers(&search, shared_cache, 40);
    EXPECT_EQ(search.choice(), 2);
    Transfers(&search, other, 40);
    EXPECT_EQ(search.choice(), 3);
  }
}

// In a way that the choice in use does not feel.
TEST(StoreSearch, LooksAgainWithoutACauseButSeldom) {
  StoreSearch search;
  Transfers(&search, {1.0, 2.0, 2.0, 2.0}, 40);
  EXPECT_EQ(search.choice(), 0);
  Transfers(&search, {1.0, 2.0, 2.0, 0.5}, 500);
  EXPECT_EQ(search.choice(), 3);
  EXPECT_LT(Transfers(&search, {1.0, 2.0, 2.0, 0.5}, 100'000), 200);
}

TEST(StoreChooser, KeepsKindsAndSizesApart) {
  std::shared_ptr<Segment> segment;
  ASSERT_TRUE(Segment::CreateAnonymous({}, &segment).ok());
  StoreChooser chooser(segment);
  const auto number = [&](Traffic traffic, int64_t bytes) {
    const StoreChoice choice = chooser.Choose(traffic, bytes);
    return (choice.slot == Stores::kStreaming ? 1 : 0) +
           (choice.output == Stores::kStreaming ? 2 : 0);
  };
  const int64_t large = int64_t{1} << 40;
  for (int i = 0; i < 40; ++i) {
    chooser.Record(Traffic::kCopy, large, number(Traffic::kCopy, large) == 2 ? 1 << 20 : 1 << 22);
    const int64_t small = StoreChooser::kMinBytes;
    chooser.Record(Traffic::kCopy, small, number(Traffic::kCopy, small) == 1 ? 100 : 1000);
    chooser.Record(Traffic::kReduceAll, small - 1, 1);
  }
  EXPECT_EQ(number(Traffic::kCopy, large), 2);
  EXPECT_EQ(number(Traffic::kCopy, StoreChooser::kMinBytes), 1);
  EXPECT_EQ(number(Traffic::kReduceAll, large), 0);
  EXPECT_EQ(number(Traffic::kCopy, 1), 0);
  // Another rank of the host, which has measured nothing, follows.
  EXPECT_EQ(StoreChooser(segment).Choose(Traffic::kCopy, large).output, Stores::kStreaming);
}

class StoresInCollectives : public testing::TestWithParam<int> {};

// Whatever the search tries, the bytes are right: sizes and places that fit no cache line.
TEST_P(StoresInCollectives, ResultsDoNotDependOnTheStores) {
  const int ranks = GetParam();
  SegmentOptions options;
  options.ranks = ranks;
  options.chunk_bytes = 8192;
  RunRanks(options, [&](Rank* rank) {
    const int me = rank->rank();
    for (int round = 0; round < 24; ++round) {
      std::vector<float> data(20'001 + round);
      for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i % 1000 + me);
      ASSERT_TRUE(rank->Allreduce("sum", DataType::kFloat32, Reduction(), &data).ok());
      std::vector<int32_t> whole(ranks * 5'003 + round, me), share, gathered;
      ASSERT_TRUE(rank->Allgather("gather", whole, &gathered).ok());
      ASSERT_TRUE(rank->Reducescatter("scatter", ReduceOp::kSum, whole, &share).ok());
      std::vector<int32_t> sent(20'001, me == ranks - 1 ? round : -1);
      ASSERT_TRUE(rank->Broadcast("broadcast", ranks - 1, &sent).ok());
      for (size_t i = 0; i < data.size(); ++i) {
        const auto expected =
            static_cast<float>(ranks * (i % 1000) + static_cast<size_t>(ranks * (ranks - 1) / 2));
        ASSERT_EQ(data[i], expected) << "at " << i << " in round " << round;
      }
      ASSERT_EQ(gathered.size(), whole.size() * static_cast<size_t>(ranks));
      for (size_t i = 0; i < gathered.size(); ++i) {
        ASSERT_EQ(gathered[i], static_cast<int32_t>(i / whole.size()));
      }
      for (int32_t value : share) ASSERT_EQ(value, ranks * (ranks - 1) / 2);
      for (int32_t value : sent) ASSERT_EQ(value, round);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, StoresInCollectives, testing::Values(1, 2, 3, 4, 5));

}  // namespace
}  // namespace hvd::shm
