// What several hosts do when one of them fails. Threads as ranks.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "ops/hosts/thread_hosts.h"

namespace hvd::hosts {
namespace {

ThreadHostsOptions TwoByTwo() {
  ThreadHostsOptions options;
  options.ranks_per_host = {2, 2};
  options.agent.lost_seconds = 1;
  return options;
}

Status Allreduce(const HostRank& me, const std::string& name, int64_t count = 10) {
  std::vector<float> data(count, 1.0f);
  return me.rank->Allreduce(name, DataType::kFloat32, Reduction(), &data);
}

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(HostsFaultTest, ACutLinkEndsInAnErrorOnAllRanks) {
  RunHosts(TwoByTwo(), [](const HostRank& me) {
    // Long enough for a plan: nobody would ask the coordinator.
    for (int step = 0; step < 50; ++step) ASSERT_TRUE(Allreduce(me, "g", 20'000).ok());
    if (me.rank->rank() == 3) me.network->Cut({2, 3});
    Status status;
    while (status.ok()) status = Allreduce(me, "g", 20'000);
    EXPECT_EQ(status.code(), Code::kAborted);
    EXPECT_TRUE(Contains(status.message(), "has sent no sign of life")) << status.message();
    EXPECT_TRUE(Contains(status.message(), me.host == 0 ? "(ranks 2,3)" : "(ranks 0,1)"))
        << status.message();
  });
}

TEST(HostsFaultTest, AnAbortReachesAllHosts) {
  RunHosts(TwoByTwo(), [](const HostRank& me) {
    for (int step = 0; step < 20; ++step) ASSERT_TRUE(Allreduce(me, "g").ok());
    if (me.rank->rank() == 2) me.segment->AbortForException(0, "KeyError: 'x'");
    Status status;
    while (status.ok()) status = Allreduce(me, "g");
    EXPECT_EQ(status.code(), Code::kAborted);
    EXPECT_TRUE(Contains(status.message(), "rank 2 (host ")) << status.message();
    EXPECT_TRUE(Contains(status.message(), "KeyError: 'x'")) << status.message();
  });
}

TEST(HostsFaultTest, DifferentNamesOnDifferentHosts) {
  ThreadHostsOptions options = TwoByTwo();
  options.patience.deadlock_seconds = 0.5;
  // All ranks are threads of one process here: what its agents use while its ranks wait, with a
  // sanitizer, may be more than one rank's process may.
  options.patience.idle_share = 1;
  options.agent.quiet_checks = shm::QuietChecks(options.patience.deadlock_seconds);
  RunHosts(options, [](const HostRank& me) {
    const Status status = Allreduce(me, me.host == 0 ? "here" : "there");
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_TRUE(Contains(status.message(), "'here': called by ranks 0,1")) << status.message();
    EXPECT_TRUE(Contains(status.message(), "'there': called by ranks 2,3")) << status.message();
    EXPECT_TRUE(Allreduce(me, "same").ok());
  });
}

TEST(HostsFaultTest, AHostThatHasLeft) {
  RunHosts(TwoByTwo(), [](const HostRank& me) {
    for (int step = 0; step < 20; ++step) ASSERT_TRUE(Allreduce(me, "g").ok());
    if (me.host == 1) return;
    const Status status = Allreduce(me, "g");
    EXPECT_EQ(status.code(), Code::kAborted);
    EXPECT_TRUE(Contains(status.message(), "ranks 2,3 have left the job")) << status.message();
  });
}

TEST(HostsFaultTest, ARankThatHasLeft) {
  RunHosts(TwoByTwo(), [](const HostRank& me) {
    ASSERT_TRUE(Allreduce(me, "g").ok());
    if (me.rank->rank() == 3) return;
    const Status status = Allreduce(me, "h");
    EXPECT_EQ(status.code(), Code::kAborted);
    EXPECT_TRUE(Contains(status.message(), "rank 3 has left the job")) << status.message();
  });
}

TEST(HostsFaultTest, ABarrierHasATimeout) {
  RunHosts(TwoByTwo(), [](const HostRank& me) {
    const auto barrier = [&](double timeout) {
      return me.rank->Run(CollectiveKind::kBarrier, "b",
                          [&](Request* request) { request->timeout_seconds = timeout; });
    };
    if (me.rank->rank() != 2) {
      const Status status = barrier(0.3);
      EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
      EXPECT_TRUE(Contains(status.message(), "has waited until its timeout")) << status.message();
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    }
    EXPECT_TRUE(Allreduce(me, "after").ok());
    EXPECT_TRUE(barrier(20).ok());
  });
}

}  // namespace
}  // namespace hvd::hosts
