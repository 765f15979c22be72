// The life of a segment among real processes.
#include "ops/transport/shm/segment.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "ops/transport/shm/process.h"
#include "ops/transport/shm/waiter.h"

namespace hvd::shm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

SegmentOptions TwoRanks() {
  SegmentOptions options;
  options.ranks = 2;
  options.chunk_bytes = 4096;
  return options;
}

// The anonymous file that the launcher holds.
class Launcher {
 public:
  Launcher() : fd_(memfd_create("hvd-test", MFD_CLOEXEC)) {}
  ~Launcher() { close(fd_); }
  std::string address() const {
    return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd_);
  }

 private:
  int fd_;
};

// Runs `body` in a child process; its result is the exit code.
pid_t Fork(const std::function<int()>& body) {
  const pid_t pid = fork();
  if (pid == 0) _exit(body());
  return pid;
}

int ExitCode(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int AttachOnce(const std::string& address, int rank, uint64_t generation) {
  std::shared_ptr<Segment> segment;
  if (!Segment::Open(address, rank, generation, TwoRanks(), seconds(20), &segment).ok()) return 1;
  if (!segment->Attach(rank, rank, seconds(20)).ok()) return 2;
  segment->slot(rank, 0)[0] = static_cast<char>('a' + rank);
  segment->line(rank).published.store(1);
  while (segment->line(1 - rank).published.load() != 1) std::this_thread::yield();
  const bool right = segment->slot(1 - rank, 0)[0] == static_cast<char>('a' + 1 - rank);
  segment->line(rank).state.store(kLeft);
  return right ? 0 : 3;
}

TEST(Segment, TwoProcessesShareItAndMayStartAgain) {
  Launcher launcher;
  const auto run = [&](int rank) {
    return Fork([&, rank] {
      for (uint64_t generation = 1; generation <= 20; ++generation) {
        const int result = AttachOnce(launcher.address(), rank, generation);
        if (result != 0) return result;
      }
      return 0;
    });
  };
  const pid_t zero = run(0), one = run(1);
  EXPECT_EQ(ExitCode(zero), 0);
  EXPECT_EQ(ExitCode(one), 0);
}

TEST(Segment, APosixSegmentIsGoneOnceAllAreAttached) {
  const std::string address = "shm:test-" + std::to_string(getpid());
  const pid_t one = Fork([&] { return AttachOnce(address, 1, 1); });
  const pid_t zero = Fork([&] { return AttachOnce(address, 0, 1); });
  EXPECT_EQ(ExitCode(zero), 0);
  EXPECT_EQ(ExitCode(one), 0);
  const std::string name = "/hvd-" + std::to_string(geteuid()) + "-" + address.substr(4);
  EXPECT_LT(shm_open(name.c_str(), O_RDWR, 0600), 0);
}

TEST(Segment, WhatACrashLeftIsReplaced) {
  const std::string address = "shm:stale-" + std::to_string(getpid());
  const pid_t crashed = Fork([&] {
    std::shared_ptr<Segment> segment;
    if (!Segment::Open(address, 0, 1, TwoRanks(), seconds(20), &segment).ok()) _exit(1);
    kill(getpid(), SIGKILL);
    return 0;
  });
  EXPECT_EQ(ExitCode(crashed), 128 + SIGKILL);
  const pid_t one = Fork([&] { return AttachOnce(address, 1, 1); });
  std::this_thread::sleep_for(milliseconds(50));  // rank 1 sees the old segment first
  const pid_t zero = Fork([&] { return AttachOnce(address, 0, 1); });
  EXPECT_EQ(ExitCode(zero), 0);
  EXPECT_EQ(ExitCode(one), 0);
}

TEST(Segment, AMissingRankIsNamed) {
  Launcher launcher;
  std::shared_ptr<Segment> segment;
  ASSERT_TRUE(Segment::Open(launcher.address(), 0, 1, TwoRanks(), seconds(5), &segment).ok());
  const Status status = segment->Attach(0, 0, milliseconds(50));
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_NE(status.message().find("rank(s) 1"), std::string::npos) << status.message();
}

TEST(Segment, TheSameRankTwiceIsRefused) {
  std::shared_ptr<Segment> segment;
  SegmentOptions options = TwoRanks();
  options.ranks = 1;
  ASSERT_TRUE(Segment::CreateAnonymous(options, &segment).ok());
  ASSERT_TRUE(segment->Attach(0, 0, seconds(1)).ok());
  EXPECT_EQ(segment->Attach(0, 0, seconds(1)).code(), Code::kInvalidArgument);
}

TEST(Segment, DifferentSettingsAreAnError) {
  Launcher launcher;
  std::shared_ptr<Segment> zero, one;
  ASSERT_TRUE(Segment::Open(launcher.address(), 0, 1, TwoRanks(), seconds(5), &zero).ok());
  SegmentOptions other = TwoRanks();
  other.chunk_bytes = 2048;
  const Status status = Segment::Open(launcher.address(), 1, 1, other, seconds(5), &one);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("4096"), std::string::npos) << status.message();
}

TEST(Segment, AnAddressThatLeadsNowhereIsAnErrorAtOnce) {
  std::shared_ptr<Segment> segment;
  for (int rank : {0, 1}) {
    const Status status =
        Segment::Open("/proc/self/fd/999", rank, 1, TwoRanks(), seconds(30), &segment);
    EXPECT_EQ(status.code(), Code::kUnavailable) << status.message();
  }
}

TEST(Segment, OptionsOutOfRangeAreErrors) {
  std::shared_ptr<Segment> segment;
  SegmentOptions options = TwoRanks();
  options.ranks = kMaxRanks + 1;
  EXPECT_EQ(Segment::CreateAnonymous(options, &segment).code(), Code::kInvalidArgument);
  options = TwoRanks();
  options.chunk_bytes = 100;
  EXPECT_EQ(Segment::CreateAnonymous(options, &segment).code(), Code::kInvalidArgument);
}

TEST(Waiter, NoticesAPeerThatDied) {
  Launcher launcher;
  const pid_t victim = Fork([&] {
    std::shared_ptr<Segment> segment;
    if (!Segment::Open(launcher.address(), 1, 1, TwoRanks(), seconds(20), &segment).ok()) return 1;
    if (!segment->Attach(1, 1, seconds(20)).ok()) return 2;
    while (true) pause();
  });
  std::shared_ptr<Segment> segment;
  ASSERT_TRUE(Segment::Open(launcher.address(), 0, 1, TwoRanks(), seconds(20), &segment).ok());
  ASSERT_TRUE(segment->Attach(0, 0, seconds(20)).ok());
  Waiter waiter(segment, 0, 10);
  ASSERT_TRUE(waiter.CheckPeers().ok());
  kill(victim, SIGKILL);
  // Before the victim is reaped: a zombie must count as dead.
  const Status status = waiter.WaitForProgress(segment->line(1).published, 1, 1);
  EXPECT_EQ(status.code(), Code::kAborted);
  EXPECT_NE(status.message().find("pid " + std::to_string(victim) + ") died"), std::string::npos)
      << status.message();
  ExitCode(victim);
}

TEST(Process, ExistsUntilItIsGone) {
  EXPECT_TRUE(ProcessExists(getpid()));
  EXPECT_EQ(ProcessState(getpid()), "running");
  const pid_t pid = Fork([] { return 0; });
  ExitCode(pid);
  EXPECT_FALSE(ProcessExists(pid));
  EXPECT_FALSE(ProcessExists(0));
}

}  // namespace
}  // namespace hvd::shm
