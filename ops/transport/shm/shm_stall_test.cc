// Ranks that do not come: barriers with a timeout, the report of a stall, its end.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "ops/transport/shm/thread_world.h"

namespace hvd::shm {
namespace {

using std::chrono::milliseconds;

SegmentOptions Ranks(int ranks) {
  SegmentOptions options;
  options.ranks = ranks;
  options.chunk_bytes = 256;
  return options;
}

Reduction Sum() {
  Reduction reduction;
  reduction.op = ReduceOp::kSum;
  return reduction;
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Barrier, NamesTheRanksThatDidNotComeInTime) {
  RunRanks(Ranks(3), [](Rank* rank) {
    std::vector<float> data(1, 1.f);
    if (rank->rank() < 2) {
      const Status status = rank->Run(CollectiveKind::kBarrier, "door",
                                      [](Request* request) { request->timeout_seconds = 0.3; });
      EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
      EXPECT_TRUE(
          Has(status.message(), "barrier 'door' has waited until its timeout for rank 2 (h"))
          << status.message();
    }
    EXPECT_TRUE(rank->Allreduce("x", DataType::kFloat32, Sum(), &data).ok());
    // The name is as good as new.
    EXPECT_TRUE(rank->Run(CollectiveKind::kBarrier, "door", [](Request*) {}).ok());
  });
}

TEST(Barrier, WithATimeoutThatIsNotReachedIsABarrier) {
  RunRanks(Ranks(3), [](Rank* rank) {
    for (int i = 0; i < 20; ++i) {
      EXPECT_TRUE(rank->Run(CollectiveKind::kBarrier, "door",
                            [](Request* request) { request->timeout_seconds = 20; })
                      .ok());
    }
  });
}

// Plays the watcher of a rank: answers where it stands.
class Watcher {
 public:
  Watcher(std::shared_ptr<Segment> segment, int rank)
      : segment_(std::move(segment)), rank_(rank), thread_([this] { Run(); }) {}
  ~Watcher() {
    segment_->CallWatcher(rank_, kCallReturn);
    thread_.join();
  }

 private:
  void Run() {
    while (true) {
      const uint32_t calls = segment_->WaitForCalls(rank_, std::chrono::seconds(20));
      if ((calls & kCallReturn) != 0) return;
      if ((calls & kCallStack) == 0) continue;
      std::strcpy(segment_->report(rank_).stack, "File \"train.py\", line 7, in load\n");
      segment_->report(rank_).stack_answers.fetch_add(1, std::memory_order_release);
    }
  }

  const std::shared_ptr<Segment> segment_;
  const int rank_;
  std::thread thread_;
};

// Rank 1 of three comes `late` to an allreduce, after one of its own choice. Returns rank 0's
// status and what was written to stderr.
std::string RunLateRank(const Patience& patience, milliseconds late, bool answers,
                        std::vector<Status>* statuses) {
  std::shared_ptr<Segment> segment;
  EXPECT_TRUE(Segment::CreateAnonymous(Ranks(3), &segment).ok());
  statuses->assign(3, Status::Ok());
  testing::internal::CaptureStderr();
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      EXPECT_TRUE(segment->Attach(r, r, std::chrono::seconds(30)).ok());
      {
        std::unique_ptr<Watcher> watcher;
        if (answers) watcher = std::make_unique<Watcher>(segment, r);
        Rank rank(segment, r, patience);
        std::vector<float> data(1, 1.f);
        EXPECT_TRUE(rank.Allreduce("gradients.0", DataType::kFloat32, Sum(), &data).ok());
        if (r == 1) std::this_thread::sleep_for(late);
        (*statuses)[r] = rank.Allreduce("gradients.1", DataType::kFloat32, Sum(), &data);
        rank.engine().Shutdown();
      }
      segment->line(r).state.store(kLeft);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return testing::internal::GetCapturedStderr();
}

TEST(Stall, IsReportedOnceWithWhatTheMissingRankDid) {
  std::vector<Status> statuses;
  const std::string text = RunLateRank({0, 0.3, 0}, milliseconds(1600), true, &statuses);
  for (const Status& status : statuses) EXPECT_TRUE(status.ok());
  EXPECT_TRUE(Has(text, "hvd_keras: stall: some ranks have waited for")) << text;
  EXPECT_TRUE(Has(text, "allreduce 'gradients.1': called by ranks 0,2, not by rank 1")) << text;
  EXPECT_TRUE(Has(text, "rank 1 (host ")) << text;
  EXPECT_TRUE(Has(text, "The last that it called is allreduce 'gradients.0'")) << text;
  EXPECT_TRUE(Has(text, "which has ended")) << text;
  EXPECT_TRUE(Has(text, "The nearest to 'gradients.1' that it called is 'gradients.0'")) << text;
  EXPECT_TRUE(Has(text, "File \"train.py\", line 7, in load")) << text;
  EXPECT_EQ(text.find("stall:"), text.rfind("stall:")) << text;
}

TEST(Stall, OfARankThatCannotSayWhereItStandsIsReportedToo) {
  std::vector<Status> statuses;
  const std::string text = RunLateRank({0, 0.3, 0}, milliseconds(2600), false, &statuses);
  EXPECT_TRUE(Has(text, "not by rank 1")) << text;
  EXPECT_TRUE(Has(text, "It did not say where it stands.")) << text;
}

TEST(Stall, EndsTheJobWhereThatIsAskedFor) {
  std::vector<Status> statuses;
  const std::string text = RunLateRank({0, 0.3, 1.0}, milliseconds(4000), true, &statuses);
  for (const Status& status : statuses) {
    EXPECT_EQ(status.code(), Code::kAborted);
    EXPECT_TRUE(Has(status.message(), "HVD_STALL_SHUTDOWN_TIME_SECONDS")) << status.message();
    EXPECT_TRUE(Has(status.message(), "not by rank 1")) << status.message();
    EXPECT_TRUE(Has(status.message(), "in load")) << status.message();
  }
  EXPECT_TRUE(Has(text, "hvd_keras: stall: ")) << text;
}

TEST(Stall, BeforeItsTimeNothingIsSaid) {
  std::vector<Status> statuses;
  EXPECT_EQ(RunLateRank({0, 5, 0}, milliseconds(700), true, &statuses), "");
  EXPECT_EQ(RunLateRank({0, 0, 0}, milliseconds(700), true, &statuses), "");
}

}  // namespace
}  // namespace hvd::shm
