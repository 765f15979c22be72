// Ranks, as processes, that die, stop, sleep, leave or go another way at points chosen at random.
//
// HVD_FAULT_SCHEDULES and HVD_FAULT_SEED set the number of jobs and the seed of the first.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ops/core/clock.h"
#include "ops/transport/shm/thread_world.h"
#include "ops/transport/shm/workload.h"

namespace hvd::shm {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr int kSchedules = 30;
#else
constexpr int kSchedules = 200;
#endif
constexpr int kOperations = 30;
constexpr int kMaxFaultRanks = 4;
constexpr int64_t kJobLimitNs = 20'000'000'000;  // of a whole job: nothing may hang

enum Fault { kKill, kExit, kCrash, kStop, kSleep, kLeave, kSkip, kKillFromOutside, kFaults };
const char* const kFaultNames[] = {"kill",  "exit",  "crash", "stop",
                                   "sleep", "leave", "skip",  "kill from outside"};

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoll(text) : otherwise;
}

// What a rank tells the test, in memory that they share.
struct Outcome {
  std::atomic<int> code;       // of the first operation that failed, or 0
  std::atomic<int> wrong;      // results that were not right
  std::atomic<int> completed;  // operations
  std::atomic<int> finished;
  std::atomic<int64_t> failed_ns;
  char text[512];
};

struct Shared {
  std::atomic<int32_t> attached;
  std::atomic<int64_t> fault_ns;
  Outcome outcomes[kMaxFaultRanks];
};

struct Schedule {
  uint64_t seed = 0;
  int ranks = 2;
  Fault fault = kKill;
  int victim = 0;
  int at = 0;  // operation
  int delay_ms = 0;

  explicit Schedule(uint64_t number) : seed(number) {
    std::mt19937_64 random(number);
    ranks = 2 + static_cast<int>(random() % 3);
    fault = static_cast<Fault>(random() % kFaults);
    victim = static_cast<int>(random() % static_cast<uint64_t>(ranks));
    at = 1 + static_cast<int>(random() % (kOperations - 2));
    delay_ms = 1 + static_cast<int>(random() % 80);
  }

  std::string Text() const {
    return "seed " + std::to_string(seed) + ": " + kFaultNames[fault] + " rank " +
           std::to_string(victim) + " of " + std::to_string(ranks) + " at operation " +
           std::to_string(at);
  }
};

void Sleep(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// True if the victim goes on with the operation.
bool Commit(const Schedule& schedule, Shared* shared) {
  shared->fault_ns.store(ClockNs(CLOCK_MONOTONIC));
  switch (schedule.fault) {
    case kKill:
      kill(getpid(), SIGKILL);
      return false;
    case kExit:
      _exit(3);
    case kCrash:
      signal(SIGSEGV, SIG_DFL);  // sanitizers have a handler
      raise(SIGSEGV);
      return false;
    case kStop:
      raise(SIGSTOP);  // the test lets it go on
      return true;
    case kSleep:
      Sleep(schedule.delay_ms);
      return true;
    case kSkip:
      return false;
    default:
      return true;
  }
}

void RunRank(const std::string& address, const Schedule& schedule, int r, Shared* shared) {
  Outcome& outcome = shared->outcomes[r];
  SegmentOptions options;
  options.ranks = schedule.ranks;
  options.chunk_bytes = 1024;
  std::shared_ptr<Segment> segment;
  if (!Segment::Open(address, r, 1, options, std::chrono::seconds(10), &segment).ok()) _exit(91);
  if (!segment->Attach(r, r, std::chrono::seconds(10)).ok()) _exit(92);
  shared->attached.fetch_add(1);
  std::vector<std::vector<int>> sets(1);
  for (int i = 0; i < schedule.ranks; ++i) sets[0].push_back(i);
  {
    Rank rank(segment, r, Patience{/*deadlock_seconds=*/0.25, 0, 0});
    for (int number = 0; number < kOperations; ++number) {
      Operation operation = MakeOperation(schedule.seed, number, sets, 3000);
      // A skipped one must not be taken for the next one of its name.
      operation.name += "." + std::to_string(number);
      const bool is_here = r == schedule.victim && number == schedule.at;
      if (is_here && schedule.fault == kLeave) break;
      if (is_here && !Commit(schedule, shared)) continue;
      Pending pending(operation, r);
      Results results;
      auto request = pending.NewRequest();
      request->done = results.Expect();
      rank.engine().Submit(std::move(request));
      const Status status = results.Wait()[0];
      if (!status.ok()) {
        outcome.failed_ns.store(ClockNs(CLOCK_MONOTONIC));
        outcome.code.store(static_cast<int>(status.code()));
        std::snprintf(outcome.text, sizeof(outcome.text), "%s", status.message().c_str());
        break;
      }
      outcome.completed.fetch_add(1);
      if (!pending.IsRight()) outcome.wrong.fetch_add(1);
    }
    rank.engine().Shutdown();
  }
  segment->line(r).state.store(kLeft);
  outcome.finished.store(1);
  _exit(0);
}

class Job {
 public:
  explicit Job(const Schedule& schedule) : schedule_(schedule) {
    shared_ = static_cast<Shared*>(
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    fd_ = memfd_create("hvd-fault", MFD_CLOEXEC);
    const std::string address = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd_);
    for (int r = 0; r < schedule.ranks; ++r) {
      const pid_t pid = fork();
      if (pid == 0) RunRank(address, schedule, r, shared_);
      pids_[pid] = r;
    }
  }

  ~Job() {
    munmap(shared_, sizeof(Shared));
    close(fd_);
  }

  // Plays the launcher until all ranks are gone; false if one had to be killed for that.
  bool WaitForEnd() {
    const int64_t begin = ClockNs(CLOCK_MONOTONIC);
    const bool from_outside = schedule_.fault == kKillFromOutside;
    int64_t kill_at = INT64_MAX;
    bool is_armed = !from_outside;
    bool in_time = true;
    while (!pids_.empty()) {
      int status = 0;
      const pid_t pid = waitpid(-1, &status, WNOHANG | WUNTRACED);
      if (pid > 0 && WIFSTOPPED(status)) {
        Sleep(schedule_.delay_ms);
        kill(pid, SIGCONT);
      } else if (pid > 0) {
        WriteObituary(pids_[pid], WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status));
        pids_.erase(pid);
      } else {
        Sleep(1);
      }
      const int64_t now = ClockNs(CLOCK_MONOTONIC);
      if (!is_armed && shared_->attached.load() == schedule_.ranks) {
        is_armed = true;
        kill_at = now + schedule_.delay_ms * int64_t{1'000'000};
      }
      if (now > kill_at) {
        shared_->fault_ns.store(now);
        Signal(schedule_.victim, SIGKILL);
        kill_at = INT64_MAX;
      }
      if (now - begin > kJobLimitNs && in_time) {
        in_time = false;
        for (const auto& [left, r] : pids_) kill(left, SIGKILL);
      }
    }
    return in_time;
  }

  const Shared& shared() const { return *shared_; }

 private:
  void Signal(int rank, int signum) {
    for (const auto& [pid, r] : pids_) {
      if (r == rank) kill(pid, signum);
    }
  }

  void WriteObituary(int rank, int returncode) {
    const int32_t entry[2] = {1, returncode};
    const off_t place = offsetof(Header, obituaries) + rank * sizeof(Obituary);
    struct stat info;
    if (fstat(fd_, &info) != 0 || info.st_size < static_cast<off_t>(sizeof(Header))) return;
    (void)!pwrite(fd_, &entry[1], 4, place + 4);
    (void)!pwrite(fd_, &entry[0], 4, place);
  }

  const Schedule schedule_;
  Shared* shared_;
  int fd_;
  std::map<pid_t, int> pids_;
};

// What the survivors must have seen. Returns the time from the fault to the last of their errors.
int64_t CheckDeath(const Schedule& schedule, const Shared& shared) {
  const char* const how = schedule.fault == kExit    ? "exit code 3"
                          : schedule.fault == kCrash ? "SIGSEGV"
                                                     : "SIGKILL";
  int64_t slowest = 0;
  for (int r = 0; r < schedule.ranks; ++r) {
    const Outcome& outcome = shared.outcomes[r];
    if (r == schedule.victim) continue;
    EXPECT_EQ(outcome.finished.load(), 1);
    if (outcome.code.load() == 0) continue;  // killed from outside after its last operation
    EXPECT_EQ(outcome.code.load(), static_cast<int>(Code::kAborted)) << outcome.text;
    const std::string text = outcome.text;
    const bool told = text.find("rank " + std::to_string(schedule.victim) + " (host") == 0 &&
                      text.find(how) != std::string::npos;
    // Or that the board was locked when it died, or that another survivor has left since.
    EXPECT_TRUE(told || text.find("died while it announced") != std::string::npos ||
                text.find("has left the job") != std::string::npos ||
                text.find("left the job") != std::string::npos)
        << text;
    slowest = std::max(slowest, outcome.failed_ns.load() - shared.fault_ns.load());
  }
  return slowest;
}

void CheckAllDone(const Schedule& schedule, const Shared& shared) {
  for (int r = 0; r < schedule.ranks; ++r) {
    EXPECT_EQ(shared.outcomes[r].code.load(), 0) << shared.outcomes[r].text;
    EXPECT_EQ(shared.outcomes[r].completed.load(), kOperations);
  }
}

void CheckOthersFailed(const Schedule& schedule, const Shared& shared, Code code) {
  for (int r = 0; r < schedule.ranks; ++r) {
    if (r == schedule.victim && schedule.fault == kLeave) continue;
    const Outcome& outcome = shared.outcomes[r];
    const int seen = outcome.code.load();
    // The first to fail leaves, and may be gone before the others have looked.
    EXPECT_TRUE(seen == static_cast<int>(code) || seen == static_cast<int>(Code::kAborted))
        << "rank " << r << ": " << seen << " " << outcome.text;
  }
}

TEST(Faults, EndInAnErrorOnEverySurvivorAndNeverInAWaitOrAWrongResult) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP()
      << "The thread sanitizer does not see what another process stores, and takes what it "
         "orders for races. The tests with threads as ranks run under it.";
#endif
  const auto first =
      static_cast<uint64_t>(FromEnvironment("HVD_FAULT_SEED", std::random_device()()));
  const int schedules = static_cast<int>(FromEnvironment("HVD_FAULT_SCHEDULES", kSchedules));
  std::printf("HVD_FAULT_SEED=%llu\n", static_cast<unsigned long long>(first));
  int64_t slowest = 0;
  for (uint64_t seed = first; seed < first + static_cast<uint64_t>(schedules); ++seed) {
    const Schedule schedule(seed);
    SCOPED_TRACE(schedule.Text());
    Job job(schedule);
    ASSERT_TRUE(job.WaitForEnd()) << "ranks were still there after 20 s";
    for (int r = 0; r < schedule.ranks; ++r) EXPECT_EQ(job.shared().outcomes[r].wrong.load(), 0);
    switch (schedule.fault) {
      case kStop:
      case kSleep:
        CheckAllDone(schedule, job.shared());
        break;
      case kLeave:
        CheckOthersFailed(schedule, job.shared(), Code::kAborted);
        break;
      case kSkip:
        CheckOthersFailed(schedule, job.shared(), Code::kInvalidArgument);
        break;
      default:
        slowest = std::max(slowest, CheckDeath(schedule, job.shared()));
    }
    if (testing::Test::HasFailure()) break;
  }
  std::printf("schedules: %d; from a death to the last survivor's error: at most %.0f ms\n",
              schedules, static_cast<double>(slowest) / 1e6);
}

}  // namespace
}  // namespace hvd::shm
