// Timelines of engines at work, with threads as ranks.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "ops/core/timeline.h"
#include "ops/transport/shm/thread_world.h"

namespace hvd::shm {
namespace {

constexpr int kRanks = 3;
constexpr int kCalls = 50;

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// What one rank's timeline has of `body`; the last rank comes late to "late".
std::string TimelineOf(std::shared_ptr<Segment> segment, int rank, const std::string& path) {
  Timeline timeline;
  TimelineOptions options;
  options.path = path;
  options.max_bytes = 64 << 20;
  options.mark_cycles = true;
  options.rank = rank;
  options.size = kRanks;
  EXPECT_TRUE(timeline.Start(std::move(options)).ok());
  auto waiter = std::make_shared<Waiter>(segment, rank, 100);
  auto ledger = std::make_shared<SlotLedger>(segment);
  Rank me(std::make_unique<Engine>(
      rank, kRanks,
      [=](const std::vector<int>& ranks) {
        return std::make_shared<ShmCommunicator>(segment, waiter, ledger, ranks, rank);
      },
      std::make_unique<ShmScheduler>(segment, waiter, HostMap::OneHost(kRanks), rank, Patience()),
      nullptr, &timeline));
  Reduction sum;
  sum.op = ReduceOp::kSum;
  for (int i = 0; i < kCalls; ++i) {
    std::vector<float> data(5000, static_cast<float>(rank + 1));
    EXPECT_TRUE(me.Allreduce("a", DataType::kFloat32, sum, &data).ok());
    EXPECT_EQ(data[0], 6.0f);
  }
  EXPECT_TRUE(me.Run(CollectiveKind::kBarrier, "b", [](Request*) {}).ok());
  if (rank == kRanks - 1) std::this_thread::sleep_for(std::chrono::milliseconds(500));
  std::vector<float> data(4, 1.0f);
  EXPECT_TRUE(me.Allreduce("late", DataType::kFloat32, sum, &data).ok());
  // All are waited for one after another, so nothing is hidden.
  EXPECT_GT(me.engine().ExposedNs(), 0);
  const EngineStats& stats = me.engine().stats();
  EXPECT_GT((rank == kRanks - 1 ? stats.late_ns : stats.waited_ns).load(), 100'000'000);
  me.engine().Shutdown();
  timeline.Stop();
  EXPECT_EQ(timeline.dropped(), 0);
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  unlink(path.c_str());
  return text.str();
}

TEST(ShmTimeline, HasWhatEachRankDid) {
  char name[] = "/tmp/hvd-shm-timeline-XXXXXX";
  const std::string folder = mkdtemp(name);
  SegmentOptions options;
  options.ranks = kRanks;
  options.chunk_bytes = 4096;
  std::shared_ptr<Segment> segment;
  ASSERT_TRUE(Segment::CreateAnonymous(options, &segment).ok());
  std::vector<std::string> texts(kRanks);
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      ASSERT_TRUE(segment->Attach(r, r, std::chrono::seconds(30)).ok());
      texts[r] = TimelineOf(segment, r, folder + "/" + std::to_string(r) + ".json");
      segment->line(r).state.store(kLeft);
    });
  }
  for (std::thread& thread : threads) thread.join();
  rmdir(folder.c_str());
  for (const std::string& text : texts) {
    EXPECT_EQ(Count(text, R"("name":"SUBMIT")"), kCalls + 2);
    EXPECT_EQ(Count(text, R"("name":"CALLBACK")"), kCalls + 2);
    EXPECT_EQ(Count(text, R"("name":"NEGOTIATE_ALLREDUCE")"), kCalls + 1);
    EXPECT_EQ(Count(text, R"("name":"SHM_ALLREDUCE")"), kCalls + 1);
    EXPECT_EQ(Count(text, R"("name":"SHM_BARRIER")"), 1);
    EXPECT_EQ(Count(text, R"("name":"REDUCE")"), kCalls + 1);
    EXPECT_EQ(Count(text, R"("bytes":20000,"tensors":1,"dtype":"float32")"), kCalls);
    EXPECT_GT(Count(text, R"("name":"EXPOSED")"), 0);
    // Each call comes after the end of the one before, when there is nothing to do any more.
    EXPECT_GT(Count(text, R"("name":"CYCLE_START")"), 0);
    const size_t late = text.find(R"({"name":"late")");
    ASSERT_NE(late, std::string::npos);
    const size_t last = text.find(R"("last_rank":)", late);
    EXPECT_EQ(text.substr(last, 13), R"("last_rank":2)");
  }
}

}  // namespace
}  // namespace hvd::shm
