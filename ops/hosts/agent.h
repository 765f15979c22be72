// Agent: speaks for one host with the coordinator, in a thread of the host's first rank.
//
// It tells which collectives its host is ready for, publishes on the board what was agreed, and
// passes on aborts. On host 0 it carries the coordinator as well. While a plan is followed it has
// nothing to do but to say, twice a second, that the host is alive.
#ifndef HVD_HOSTS_AGENT_H_
#define HVD_HOSTS_AGENT_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ops/core/host_map.h"
#include "ops/core/messenger.h"
#include "ops/hosts/coordinator.h"
#include "ops/hosts/message.h"
#include "ops/transport/shm/segment.h"
#include "ops/transport/shm/waiter.h"

namespace hvd::hosts {

struct AgentOptions {
  int64_t clock_skew_ns = 0;  // of this host's clock; for tests
  double lost_seconds = 6;    // without a word from a host: it, or its link, is down
  double stall_warning_seconds = 0;
  double stall_shutdown_seconds = 0;
  int quiet_checks = 0;  // see StuckDetector; 0 for no such check
};

struct AgentStats {
  std::atomic<int64_t> control_messages{0};  // sent to other hosts, without the signs of life
  std::atomic<int64_t> beats{0};
};

class Agent {
 public:
  // `rank` is the first of its host. The waiter wakes the ranks of this host.
  Agent(std::shared_ptr<shm::Segment> segment, std::shared_ptr<shm::Waiter> waiter,
        std::shared_ptr<Messenger> messenger, const HostMap& map, int rank,
        const AgentOptions& options);
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // Waits until all ranks of all hosts have left, or the job was aborted. The ranks of this host
  // have to mark themselves as having left.
  void Shutdown();

  const AgentStats& stats() const { return stats_; }

 private:
  // The way to the agent of another host.
  struct Line {
    int host = 0;
    std::deque<Message> queue;
    std::vector<char> sending;
    Transfer send;
    std::vector<char> receiving;
    Transfer receive;
    bool is_open = true;  // until the other one's kBye
    int64_t heard_ns = 0;
  };

  void Run();
  Status Step(bool* progressed);
  Status TellReady(bool* progressed);
  Status ReceiveAll(bool* progressed);
  Status SendAll(bool* progressed);
  Status CheckLines(int64_t now_ns);
  Status Beat(int64_t now_ns);
  Status CheckStalls(int64_t now_ns);
  // Compares this host's clock with that of host 0, now and then.
  void AskClock(int64_t now_ns);
  void AnswerClock(int from_host, Message message);
  void TakeClock(const Message& message);
  void StartReceive(Line* line);
  // To the coordinator: over the line, or directly.
  void Tell(Message message);
  void Deliver(std::vector<Outgoing> out);
  void Handle(int from_host, const Message& message);
  void FromCoordinator(const Message& message);
  void Wake(const std::vector<int>& ranks);
  bool IsQuiet();
  bool AllHereLeft();
  bool AwaitsAnswer();
  void SayGoodbye();
  void SpreadAbort();
  void WaitForSends(int64_t longest_ns);
  int64_t SleepNs(int64_t now_ns) const;
  std::string Describe(int host) const;

  const std::shared_ptr<shm::Segment> segment_;
  const std::shared_ptr<shm::Waiter> waiter_;
  const std::shared_ptr<Messenger> messenger_;
  const HostMap map_;
  const int host_;
  const AgentOptions options_;
  std::unique_ptr<Coordinator> coordinator_;  // on host 0
  std::vector<std::unique_ptr<Line>> lines_;  // host 0: to all others; others: to host 0
  std::atomic<bool> stopping_{false};
  bool said_depart_ = false;
  bool said_bye_ = false;
  bool abort_received_ = false;
  uint32_t seen_calls_ = 0;
  int64_t last_step_ns_ = 0;
  int64_t last_beat_ns_ = 0;
  int64_t last_progress_ns_ = 0;
  int64_t out_of_step_wait_ns_ = 0;
  int64_t foreign_until_ns_ =
      0;  // collectives without host 0 were seen: look more often until then
  bool awaits_answer_ = false;
  // Of the comparison of clocks under way.
  bool awaits_clock_ = false;
  int clock_rounds_ = 0;
  int64_t clock_due_ns_ = 0;
  int64_t best_round_trip_ns_ = 0;
  int64_t best_offset_ns_ = 0;
  AgentStats stats_;
  std::thread thread_;
};

}  // namespace hvd::hosts

#endif  // HVD_HOSTS_AGENT_H_
