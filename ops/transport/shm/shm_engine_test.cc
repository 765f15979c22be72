// The engine and the shared-memory transport together, with threads as ranks.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "ops/transport/shm/thread_world.h"

namespace hvd::shm {
namespace {

SegmentOptions Options(int ranks, int64_t chunk_bytes = 256, int slots = 4) {
  SegmentOptions options;
  options.ranks = ranks;
  options.chunk_bytes = chunk_bytes;
  options.slots_per_rank = slots;
  return options;
}

Reduction Sum() { return Reduction(); }
Reduction Average() {
  Reduction r;
  r.op = ReduceOp::kAverage;
  return r;
}

class ShmEngine : public testing::TestWithParam<int> {
 protected:
  int ranks() const { return GetParam(); }
};

// What a single rank cannot do: disagree, leave others waiting.
class ShmEngineOfMany : public ShmEngine {};

INSTANTIATE_TEST_SUITE_P(Ranks, ShmEngine, testing::Values(1, 2, 3, 4, 8));
INSTANTIATE_TEST_SUITE_P(Ranks, ShmEngineOfMany, testing::Values(2, 3, 4, 8));

TEST_P(ShmEngine, AllreduceOfEverySizeAroundAChunk) {
  // Chunks of 64 bytes, 16 floats: small sizes here behave like gigabytes with the default.
  RunRanks(Options(ranks(), 64), [](Rank* rank) {
    for (int64_t count : {0, 1, 15, 16, 17, 31, 32, 33, 64, 100, 1000, 5000}) {
      std::vector<float> data(count);
      for (int64_t i = 0; i < count; ++i) data[i] = static_cast<float>(i + rank->rank() * 1000);
      ASSERT_TRUE(rank->Allreduce("x", DataType::kFloat32, Sum(), &data).ok());
      const int n = rank->size();
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(data[i], static_cast<float>(i * n + 1000 * n * (n - 1) / 2)) << count;
      }
    }
  });
}

TEST_P(ShmEngine, ResultsAreTheSameBitsOnAllRanksInRankOrder) {
  RunRanks(Options(ranks(), 128), [](Rank* rank) {
    const auto value = [](int r, int i) { return std::sin(static_cast<float>(i + 13 * r)) * 1e3f; };
    std::vector<float> data(999);
    for (int i = 0; i < 999; ++i) data[i] = value(rank->rank(), i);
    ASSERT_TRUE(rank->Allreduce("x", DataType::kFloat32, Average(), &data).ok());
    for (int i = 0; i < 999; ++i) {
      float expected = value(0, i);
      for (int r = 1; r < rank->size(); ++r) expected += value(r, i);
      expected /= static_cast<float>(rank->size());
      ASSERT_EQ(std::memcmp(&data[i], &expected, 4), 0);
    }
  });
}

TEST_P(ShmEngine, GroupsTravelAsOneStreamAcrossChunkBorders) {
  RunRanks(Options(ranks(), 64), [](Rank* rank) {
    std::vector<std::vector<int32_t>> inputs, outputs;
    for (int count : {5, 0, 40, 1, 16, 3}) {
      inputs.emplace_back(count, rank->rank() + count);
      outputs.emplace_back(count, -1);
    }
    Results results;
    auto request = std::make_unique<Request>();
    request->kind = CollectiveKind::kAllreduce;
    request->name = "group";
    request->dtype = DataType::kInt32;
    for (size_t i = 0; i < inputs.size(); ++i) {
      request->pieces.push_back(
          {inputs[i].data(), outputs[i].data(), {static_cast<int64_t>(inputs[i].size())}});
    }
    request->done = results.Expect();
    rank->engine().Submit(std::move(request));
    ASSERT_TRUE(results.Wait()[0].ok());
    const int n = rank->size();
    for (size_t i = 0; i < inputs.size(); ++i) {
      for (int32_t x : outputs[i]) {
        ASSERT_EQ(x, n * (n - 1) / 2 + n * static_cast<int>(inputs[i].size()));
      }
    }
  });
}

TEST_P(ShmEngine, AllgatherOfUnevenParts) {
  RunRanks(Options(ranks(), 64), [](Rank* rank) {
    for (int factor : {0, 1, 7, 100}) {
      std::vector<int32_t> mine(rank->rank() * factor, rank->rank());
      std::vector<int32_t> all, expected;
      ASSERT_TRUE(rank->Allgather("g", mine, &all).ok());
      for (int r = 0; r < rank->size(); ++r) expected.insert(expected.end(), r * factor, r);
      ASSERT_EQ(all, expected);
    }
  });
}

TEST_P(ShmEngine, BroadcastFromEveryRoot) {
  RunRanks(Options(ranks(), 64), [](Rank* rank) {
    for (int root = 0; root < rank->size(); ++root) {
      std::vector<int32_t> data(333, rank->rank());
      ASSERT_TRUE(rank->Broadcast("b", root, &data).ok());
      ASSERT_EQ(data, std::vector<int32_t>(333, root));
    }
  });
}

// Each rank submits the same 200 reductions in an order of its own, none waiting for another.
TEST_P(ShmEngine, AnyOrderOfSubmissionMatchesByName) {
  RunRanks(Options(ranks()), [](Rank* rank) {
    constexpr int kCount = 200;
    std::vector<int> order(kCount);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(rank->rank()));
    std::vector<std::vector<int64_t>> data(kCount);
    Results results;
    for (int i : order) {
      data[i].assign(1 + i, i * 10 + rank->rank());
      auto request = std::make_unique<Request>();
      request->kind = CollectiveKind::kAllreduce;
      request->name = "t" + std::to_string(i);
      request->dtype = DataType::kInt64;
      request->pieces.push_back({data[i].data(), data[i].data(), {1 + i}});
      request->done = results.Expect();
      rank->engine().Submit(std::move(request));
    }
    for (const Status& status : results.Wait()) ASSERT_TRUE(status.ok()) << status.message();
    const int n = rank->size();
    for (int i = 0; i < kCount; ++i) {
      ASSERT_EQ(data[i], std::vector<int64_t>(1 + i, i * 10 * n + n * (n - 1) / 2));
    }
  });
}

// More in flight than the board holds, in opposite orders.
TEST_P(ShmEngine, AFullBoardDefersAndStillMatches) {
  RunRanks(Options(ranks()), [](Rank* rank) {
    constexpr int kCount = 3 * kMaxBoardSlots;
    std::vector<int32_t> data(kCount);
    Results results;
    for (int k = 0; k < kCount; ++k) {
      const int i = rank->rank() % 2 == 0 ? k : kCount - 1 - k;
      data[i] = i + rank->rank();
      auto request = std::make_unique<Request>();
      request->kind = CollectiveKind::kAllreduce;
      request->name = "t" + std::to_string(i);
      request->dtype = DataType::kInt32;
      request->pieces.push_back({&data[i], &data[i], {1}});
      request->done = results.Expect();
      rank->engine().Submit(std::move(request));
    }
    for (const Status& status : results.Wait()) ASSERT_TRUE(status.ok()) << status.message();
    const int n = rank->size();
    for (int i = 0; i < kCount; ++i) ASSERT_EQ(data[i], i * n + n * (n - 1) / 2);
  });
}

// The same name in flight several times: occurrences pair up in each rank's order of submission.
TEST_P(ShmEngine, OccurrencesOfANameKeepTheirOrder) {
  RunRanks(Options(ranks()), [](Rank* rank) {
    constexpr int kCount = 50;
    std::vector<int32_t> data(kCount);
    Results results;
    for (int i = 0; i < kCount; ++i) {
      data[i] = i;
      auto request = std::make_unique<Request>();
      request->kind = CollectiveKind::kAllreduce;
      request->name = "same";
      request->dtype = DataType::kInt32;
      request->pieces.push_back({&data[i], &data[i], {1}});
      request->done = results.Expect();
      rank->engine().Submit(std::move(request));
    }
    for (const Status& status : results.Wait()) ASSERT_TRUE(status.ok());
    for (int i = 0; i < kCount; ++i) ASSERT_EQ(data[i], i * rank->size());
  });
}

TEST_P(ShmEngineOfMany, DisagreementIsAnErrorOnAllRanksThatSaysWhoSentWhat) {
  RunRanks(Options(ranks()), [](Rank* rank) {
    const bool odd = rank->rank() == rank->size() - 1;
    std::vector<float> floats(odd ? 3 : 2, 1.f);
    Status status = rank->Allreduce("shape", DataType::kFloat32, Sum(), &floats);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("'shape'"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("shape [2]"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("rank " + std::to_string(rank->size() - 1) + ": "),
              std::string::npos)
        << status.message();

    status = rank->Allreduce("op", DataType::kFloat32, odd ? Average() : Sum(), &floats);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("average"), std::string::npos) << status.message();

    status = rank->Allreduce("dtype", odd ? DataType::kInt32 : DataType::kUint32, Sum(), &floats);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);

    std::vector<int32_t> ints(4, rank->rank());
    status = rank->Broadcast("root", odd ? 1 : 0, &ints);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    status = rank->Broadcast("kind", 0, &ints);
    EXPECT_TRUE(status.ok()) << "the engine goes on after a mismatch";
  });
}

TEST_P(ShmEngine, AFaultOfOneRankIsAnErrorOnAll) {
  RunRanks(Options(ranks()), [](Rank* rank) {
    std::vector<int32_t> data(4, 1);
    const int bad_root = rank->rank() == 0 ? 99 : 0;
    const Status status = rank->Broadcast("b", bad_root, &data);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("root_rank 99 does not exist"), std::string::npos)
        << status.message();
  });
}

TEST_P(ShmEngine, AnOutputThatCannotBeAllocatedFailsOnAllRanks) {
  RunRanks(Options(ranks()), [](Rank* rank) {
    int32_t value = 1;
    Results results;
    auto request = std::make_unique<Request>();
    request->kind = CollectiveKind::kAllgather;
    request->name = "g";
    request->dtype = DataType::kInt32;
    request->pieces.push_back({&value, nullptr, {1}});
    std::vector<int32_t> output(rank->size());
    request->allocate = [&](const std::vector<std::vector<int64_t>>&, std::vector<Piece>* pieces) {
      (*pieces)[0].output = output.data();
      return rank->rank() == 0 ? ResourceExhausted("no memory") : Status::Ok();
    };
    request->done = results.Expect();
    rank->engine().Submit(std::move(request));
    EXPECT_EQ(results.Wait()[0].code(), Code::kResourceExhausted);
  });
}

TEST_P(ShmEngineOfMany, DifferentNamesEndInAnErrorThatNamesThem) {
  RunRanks(
      Options(ranks()),
      [](Rank* rank) {
        std::vector<float> data(2, 1.f);
        const std::string name = rank->rank() == 0 ? "left" : "right";
        const Status status = rank->Allreduce(name, DataType::kFloat32, Sum(), &data);
        EXPECT_EQ(status.code(), Code::kInvalidArgument);
        EXPECT_NE(status.message().find("'left': called by rank 0"), std::string::npos)
            << status.message();
        EXPECT_NE(status.message().find("'right'"), std::string::npos) << status.message();
        // Both names can be used again, although each rank has called one of them only.
        EXPECT_TRUE(rank->Allreduce("left", DataType::kFloat32, Sum(), &data).ok());
        EXPECT_TRUE(rank->Allreduce("right", DataType::kFloat32, Sum(), &data).ok());
      },
      Patience{/*deadlock_seconds=*/0.25, 0, 0});
}

// One rank waits while another has nothing pending, for longer than the deadlock time: legitimate.
TEST_P(ShmEngine, ARankThatIsLateIsNotADeadlock) {
  RunRanks(
      Options(ranks()),
      [](Rank* rank) {
        if (rank->rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1200));
        std::vector<float> data(2, 1.f);
        EXPECT_TRUE(rank->Allreduce("x", DataType::kFloat32, Sum(), &data).ok());
      },
      Patience{/*deadlock_seconds=*/0.25, 0, 0});
}

TEST_P(ShmEngineOfMany, ARankThatLeavesIsNamed) {
  RunRanks(Options(ranks()), [](Rank* rank) {
    if (rank->rank() == 0) return;
    std::vector<float> data(2, 1.f);
    const Status status = rank->Allreduce("late", DataType::kFloat32, Sum(), &data);
    EXPECT_EQ(status.code(), Code::kAborted);
    EXPECT_NE(status.message().find("rank 0 has left"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("'late'"), std::string::npos) << status.message();
  });
}

TEST_P(ShmEngineOfMany, ShutdownFailsWhatIsPendingAndWhatComesLater) {
  RunRanks(Options(ranks()), [](Rank* rank) {
    if (rank->rank() != 0) return;
    float value = 1.f;
    const auto request_for = [&](Results* results) {
      auto request = std::make_unique<Request>();
      request->kind = CollectiveKind::kAllreduce;
      request->name = "pending";
      request->dtype = DataType::kFloat32;
      request->pieces.push_back({&value, &value, {1}});
      request->done = results->Expect();
      return request;
    };
    Results before, after;
    rank->engine().Submit(request_for(&before));
    rank->engine().Shutdown();
    EXPECT_EQ(before.Wait()[0].code(), Code::kAborted);
    rank->engine().Submit(request_for(&after));
    EXPECT_EQ(after.Wait()[0].code(), Code::kFailedPrecondition);
  });
}

// Everything at once: random kinds, sizes and delays, several threads on each rank.
TEST_P(ShmEngine, RandomMixOfCollectivesFromSeveralThreads) {
  RunRanks(Options(ranks(), 192, 2), [](Rank* rank) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([rank, t] {
        std::mt19937 shared(100 + t);               // the same on all ranks
        std::mt19937 own(1000 * rank->rank() + t);  // of this rank
        const int n = rank->size();
        const std::string prefix = "thread" + std::to_string(t) + ".";
        for (int i = 0; i < 60; ++i) {
          const int kind = static_cast<int>(shared() % 3);
          const int count = static_cast<int>(shared() % 500);
          if (own() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 300));
          std::vector<int32_t> data(count, rank->rank() + i);
          if (kind == 0) {
            ASSERT_TRUE(rank->Allreduce(prefix + "r", DataType::kInt32, Sum(), &data).ok());
            ASSERT_EQ(data, std::vector<int32_t>(count, n * i + n * (n - 1) / 2));
          } else if (kind == 1) {
            const int root = static_cast<int>(shared() % n);
            ASSERT_TRUE(rank->Broadcast(prefix + "b", root, &data).ok());
            ASSERT_EQ(data, std::vector<int32_t>(count, root + i));
          } else {
            data.resize(count / (1 + rank->rank()));
            std::vector<int32_t> all, expected;
            ASSERT_TRUE(rank->Allgather(prefix + "g", data, &all).ok());
            for (int r = 0; r < n; ++r) expected.insert(expected.end(), count / (1 + r), r + i);
            ASSERT_EQ(all, expected);
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

TEST(ShmEngineSingle, SixtyFourRanks) {
  RunRanks(Options(64, 4096), [](Rank* rank) {
    const int n = rank->size();
    for (int count : {1, 5000, 20000}) {  // direct, and shared out among the ranks
      std::vector<int64_t> data(count);
      for (int i = 0; i < count; ++i) data[i] = i + rank->rank();
      ASSERT_TRUE(rank->Allreduce("x", DataType::kInt64, Sum(), &data).ok());
      for (int i = 0; i < count; ++i) ASSERT_EQ(data[i], int64_t{i} * n + n * (n - 1) / 2);
    }
    std::vector<int32_t> mine(rank->rank(), rank->rank()), all, expected;
    ASSERT_TRUE(rank->Allgather("g", mine, &all).ok());
    for (int r = 0; r < n; ++r) expected.insert(expected.end(), r, r);
    ASSERT_EQ(all, expected);
  });
}

TEST(ShmEngineSingle, TooManyStepsIsAnErrorNotAWrongNumber) {
  RunRanks(Options(2, 64), [](Rank* rank) {
    // 2^24 chunks of 64 bytes: more steps than a ticket can count. Never touched: the size is
    // checked first.
    auto request = std::make_unique<Request>();
    request->kind = CollectiveKind::kAllreduce;
    request->name = "huge";
    request->dtype = DataType::kUint8;
    char byte = 0;
    request->pieces.push_back({&byte, &byte, {int64_t{64} << 24}});
    Results results;
    request->done = results.Expect();
    rank->engine().Submit(std::move(request));
    const Status status = results.Wait()[0];
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("HVD_CHUNK_BYTES"), std::string::npos) << status.message();
  });
}

}  // namespace
}  // namespace hvd::shm
