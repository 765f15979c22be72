// What agreeing costs with many hosts: the real coordinator and messages, on a network that is
// simulated. Built and called by scale_sim.py; prints a line of numbers for each size.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "ops/hosts/coordinator.h"
#include "ops/hosts/message.h"

namespace hvd::hosts {
namespace {

constexpr size_t kBatchBytes = 256 * 1024;

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A job of one rank per host whose ranks all announce the same collectives at the same time.
class Job {
 public:
  Job(int hosts, int collectives, double latency, double per_message)
      : coordinator_(HostMap(Hosts(hosts))),
        hosts_(hosts),
        collectives_(collectives),
        latency_(latency),
        per_message_(per_message) {}

  // The time from the announcement to the last host's knowing that it may execute the last
  // collective: the coordinator takes one message after the other, as fast as this machine does.
  double StepSeconds() {
    double coordinator_is_free = latency_;  // when the first messages come
    std::vector<Outgoing> out;
    for (int host = 0; host < hosts_; ++host) {
      const std::vector<char> batch = Announcements(host);
      const double begin = Seconds();
      std::vector<Message> messages;
      if (!Parse(batch.data(), kBatchBytes, &messages).ok()) std::exit(1);
      for (const Message& message : messages) coordinator_.Take(host, message, 0, &out);
      coordinator_is_free += Seconds() - begin + (host == 0 ? 0 : per_message_);
    }
    ++step_;
    return coordinator_is_free + SendSeconds(out) + latency_;
  }

 private:
  static std::vector<int> Hosts(int hosts) {
    std::vector<int> map(hosts);
    for (int h = 0; h < hosts; ++h) map[h] = h;
    return map;
  }

  std::vector<char> Announcements(int host) const {
    std::vector<char> batch;
    for (int i = 0; i < collectives_; ++i) {
      Message message;
      message.kind = Message::Kind::kReady;
      message.epoch = 1;
      message.ready.id = {static_cast<uint64_t>(i + 1), 1};
      message.ready.key = {static_cast<uint64_t>(i + 1), step_};
      message.ready.participants = {host};
      message.ready.plannable = false;  // what is measured is the agreement
      message.ready.name = "allreduce 'bucket." + std::to_string(i) + "'";
      if (!Append(message, kBatchBytes, &batch)) std::exit(1);
    }
    return batch;
  }

  // One batch to each host.
  double SendSeconds(const std::vector<Outgoing>& out) const {
    std::vector<std::vector<char>> batches(hosts_);
    const double begin = Seconds();
    for (const Outgoing& one : out) {
      if (!Append(one.message, kBatchBytes, &batches[one.host])) std::exit(1);
    }
    return Seconds() - begin + per_message_ * (hosts_ - 1);
  }

  Coordinator coordinator_;
  const int hosts_;
  const int collectives_;
  const double latency_;
  const double per_message_;
  uint64_t step_ = 1;
};

// With a plan: the opening of one collective, by doubling.
double PlannedSeconds(int hosts, double latency, double per_message) {
  int rounds = 0;
  for (int reached = 1; reached < hosts; reached *= 2) ++rounds;
  return rounds * (latency + 2 * per_message);
}

int Run(int argc, char** argv) {
  const double latency = std::atof(argv[1]);
  const double per_message = std::atof(argv[2]);
  const int collectives = std::atoi(argv[3]);
  for (int i = 4; i < argc; ++i) {
    const int hosts = std::atoi(argv[i]);
    Job job(hosts, collectives, latency, per_message);
    std::vector<double> seconds;
    for (int step = 0; step < 21; ++step) seconds.push_back(job.StepSeconds());
    std::sort(seconds.begin(), seconds.end());
    std::printf("%d %.9f %.9f %.9f %.9f\n", hosts, seconds[10], seconds[5], seconds[15],
                PlannedSeconds(hosts, latency, per_message));
  }
  return 0;
}

}  // namespace
}  // namespace hvd::hosts

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  return hvd::hosts::Run(argc, argv);
}
