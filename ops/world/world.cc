#include "ops/world/world.h"

#include <sched.h>
#include <signal.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <utility>
#include <vector>

#include "ops/hosts/hosts_communicator.h"
#include "ops/transport/mpi/mpi_messenger.h"
#include "ops/transport/shm/shm_communicator.h"
#include "ops/transport/shm/shm_scheduler.h"

namespace hvd {
namespace {

constexpr int kSlotsPerRank = 4;

// About 30 microseconds: longer than a running peer takes to answer, shorter than a wake-up.
constexpr int kSpins = 2000;

// About as long as a message takes over a fast network.
constexpr int64_t kSpinBetweenHostsNs = 20'000;
constexpr int64_t kLeftPatienceNs = 2'000'000'000;  // for messages that were under way

struct Process {
  std::mutex mutex;
  std::shared_ptr<World> world;
  pid_t pid = 0;            // that called Init
  uint64_t generation = 0;  // calls of Init that got as far as the segment
};

// Never destroyed: at exit, or in a forked child, its engine must not be touched.
Process& ThisProcess() {
  static Process* process = new Process();
  return *process;
}

// What the signal handler uses. A segment is unmapped only after it was taken out of here.
std::atomic<shm::Segment*> g_signal_segment{nullptr};
std::atomic<int> g_signal_rank{0};

void OnDumpSignal(int) {
  const int error = errno;
  shm::Segment* segment = g_signal_segment.load();
  if (segment != nullptr) segment->CallWatcher(g_signal_rank.load(), shm::kCallDump);
  errno = error;
}

int UsableProcessors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return CPU_COUNT(&set);
}

// Spinning is for ranks that have a processor each; otherwise it takes the peer's.
int SpinsFor(int local_size) { return local_size <= UsableProcessors() ? kSpins : 0; }

Status CheckConfig(const WorldConfig& c) {
  const auto within = [](int index, int size) { return index >= 0 && index < size; };
  if (!within(c.rank, c.size) || !within(c.local_rank, c.local_size) ||
      !within(c.cross_rank, c.cross_size)) {
    return InvalidArgument("rank " + std::to_string(c.rank) + " of " + std::to_string(c.size) +
                           ", local rank " + std::to_string(c.local_rank) + " of " +
                           std::to_string(c.local_size) + ", host " + std::to_string(c.cross_rank) +
                           " of " + std::to_string(c.cross_size) +
                           ": each must be at least 0 and less than its size");
  }
  if (c.size != c.local_size && c.host_of_rank.size() != static_cast<size_t>(c.size)) {
    return Unavailable(
        "this job has " + std::to_string(c.size) + " ranks, " + std::to_string(c.local_size) +
        " of them on this host, but no way to the others: start it with 'hvdrun -H', "
        "or with mpirun");
  }
  if (c.size > shm::kMaxWorldRanks) {
    return InvalidArgument("a job can have " + std::to_string(shm::kMaxWorldRanks) +
                           " ranks, not " + std::to_string(c.size));
  }
  if (c.local_size > 1 && c.segment.empty()) {
    return InvalidArgument(
        "a job of " + std::to_string(c.size) +
        " ranks needs the address of its shared segment in HVD_SEGMENT; hvdrun "
        "sets it, and processes started by hand can agree on HVD_SEGMENT=shm:NAME");
  }
  return Status::Ok();
}

// What a rank does while it waits for one of another host in the middle of a collective.
Status CheckOtherHost(shm::Segment* segment, shm::Waiter* waiter, const HostMap& map, int me,
                      double stall_warning_seconds, int peer, int64_t waited_ns) {
  HVD_RETURN_IF_ERROR(waiter->CheckPeers());
  const int host = map.host_of(peer);
  const bool has_left = segment->board().crossing.hosts_left[host / 64].load() >> (host % 64) & 1;
  if (has_left && waited_ns > kLeftPatienceNs) {
    segment->Abort("rank " + std::to_string(peer) + " on host " + map.name(host) +
                   " left the job (hvd.shutdown() or the end of its script) in the middle of a "
                   "collective");
  }
  const auto warning_ns = static_cast<int64_t>(stall_warning_seconds * 1e9);
  if (warning_ns > 0 && waited_ns >= warning_ns &&
      waited_ns < warning_ns + hosts::Exchange::kCheckNs) {
    std::fprintf(stderr,
                 "hvd_keras: stall: rank %d has waited for %.0f s for rank %d on host %s, in the "
                 "middle of a collective or for it to begin\n",
                 me, stall_warning_seconds, peer, map.name(host).c_str());
  }
  return segment->AbortStatus();
}

}  // namespace

Status World::OpenSegment(uint64_t generation) {
  shm::SegmentOptions options;
  options.ranks = config_.local_size;
  options.chunk_bytes = config_.chunk_bytes;
  options.slots_per_rank = kSlotsPerRank;
  const auto timeout =
      std::chrono::nanoseconds(static_cast<int64_t>(config_.start_timeout_seconds * 1e9));
  if (config_.local_size == 1) {
    HVD_RETURN_IF_ERROR(shm::Segment::CreateAnonymous(options, &segment_));
  } else {
    HVD_RETURN_IF_ERROR(shm::Segment::Open(config_.segment, config_.local_rank, generation, options,
                                           timeout, &segment_));
  }
  return segment_->Attach(config_.local_rank, config_.rank, timeout);
}

Status World::StartBetweenHosts() {
  std::shared_ptr<Messenger> messenger;
  HVD_RETURN_IF_ERROR(mpi::MakeMpiMessenger(config_.mpi_library, config_.mpi_communicator,
                                            config_.rank, config_.size, &messenger));
  const auto check = [segment = segment_, waiter = waiter_, map = map_, me = config_.rank,
                      warning = config_.stall_warning_seconds](int peer, int64_t waited_ns) {
    return CheckOtherHost(segment.get(), waiter.get(), map, me, warning, peer, waited_ns);
  };
  const int64_t spin_ns = SpinsFor(config_.local_size) > 0 ? kSpinBetweenHostsNs : 0;
  exchange_ = std::make_shared<hosts::Exchange>(messenger, check, spin_ns);
  if (config_.local_rank != 0) return Status::Ok();
  hosts::AgentOptions options;
  options.lost_seconds = config_.host_timeout_seconds;
  options.stall_warning_seconds = config_.stall_warning_seconds;
  options.stall_shutdown_seconds = config_.stall_shutdown_seconds;
  options.quiet_checks = shm::QuietChecks(config_.deadlock_seconds);
  agent_ =
      std::make_unique<hosts::Agent>(segment_, waiter_, messenger, map_, config_.rank, options);
  return Status::Ok();
}

CommunicatorFactory World::MakeFactory() {
  auto ledger = std::make_shared<shm::SlotLedger>(segment_);
  return [segment = segment_, waiter = waiter_, exchange = exchange_, map = map_, ledger,
          rank = config_.rank](const std::vector<int>& ranks) -> std::shared_ptr<Communicator> {
    std::vector<int> here;
    for (int member : ranks) {
      if (map.host_of(member) == map.host_of(rank)) here.push_back(map.local(member));
    }
    auto inside =
        std::make_shared<shm::ShmCommunicator>(segment, waiter, ledger, here, map.local(rank));
    if (here.size() == ranks.size()) return inside;
    return std::make_shared<hosts::HostsCommunicator>(inside, exchange, map, ranks, rank);
  };
}

Status World::Start(uint64_t generation) {
  HVD_RETURN_IF_ERROR(OpenSegment(generation));
  map_ = config_.host_of_rank.empty() ? HostMap::OneHost(config_.size)
                                      : HostMap(config_.host_of_rank, config_.host_names);
  waiter_ =
      std::make_shared<shm::Waiter>(segment_, config_.local_rank, SpinsFor(config_.local_size));
  if (map_.hosts() > 1) HVD_RETURN_IF_ERROR(StartBetweenHosts());
  const shm::Patience patience{config_.deadlock_seconds, config_.stall_warning_seconds,
                               config_.stall_shutdown_seconds};
  engine_ = std::make_unique<Engine>(
      config_.rank, config_.size, MakeFactory(),
      std::make_unique<shm::ShmScheduler>(segment_, waiter_, map_, config_.rank, patience),
      &segment_->report(config_.local_rank).flight_ring, &timeline_);
  return Status::Ok();
}

Status World::StartTimeline(const std::string& path, bool mark_cycles, int64_t max_bytes) {
  TimelineOptions options;
  options.path = path;
  options.max_bytes = max_bytes;
  options.mark_cycles = mark_cycles;
  options.rank = config_.rank;
  options.size = config_.size;
  options.local_rank = config_.local_rank;
  options.cross_rank = map_.host_of(config_.rank);
  if (map_.hosts() > 1) {
    options.clock_offset = [segment = segment_, is_first = options.cross_rank == 0] {
      const shm::Crossing& crossing = segment->board().crossing;
      if (is_first) return ClockOffset();
      if (crossing.clock_measurements.load() == 0) return ClockOffset{0, -1};
      return ClockOffset{crossing.clock_offset_ns.load(), crossing.clock_error_ns.load()};
    };
  }
  utsname names;
  if (uname(&names) == 0) options.host = names.nodename;
  return timeline_.Start(std::move(options));
}

void World::StopTimeline() {
  engine_->ExposedNs();  // records a wait that has just ended
  timeline_.Stop();
}

World::~World() {
  if (g_signal_segment.load() == segment_.get()) g_signal_segment.store(nullptr);
  if (engine_) engine_->Shutdown();
  // Only now: a rank that has left is not waited for by others.
  if (segment_) segment_->line(config_.local_rank).state.store(shm::kLeft);
  if (agent_) agent_->Shutdown();  // which waits for the others
}

Status World::Init(const WorldConfig& config) {
  Process& process = ThisProcess();
  std::lock_guard<std::mutex> lock(process.mutex);
  if (process.pid != 0 && process.pid != getpid()) {
    return FailedPrecondition(
        "this process was forked from one that had called hvd.init(); start it with the 'spawn' "
        "method instead, or call hvd.init() after the fork only");
  }
  if (process.world) return FailedPrecondition("hvd.init() has been called already");
  HVD_RETURN_IF_ERROR(CheckConfig(config));
  std::shared_ptr<World> world(new World(config));
  HVD_RETURN_IF_ERROR(world->Start(++process.generation));
  process.world = std::move(world);
  process.pid = getpid();
  return Status::Ok();
}

void World::Shutdown() {
  Process& process = ThisProcess();
  std::shared_ptr<World> world;
  {
    std::lock_guard<std::mutex> lock(process.mutex);
    if (!process.world || process.pid != getpid()) return;
    world = std::move(process.world);
    process.world.reset();
  }
  world->engine().Shutdown();
  world->StopTimeline();
}

bool World::CallWatcherOnSignal(int signum) {
  std::shared_ptr<World> world;
  if (!World::Current(&world).ok()) return false;
  struct sigaction current = {};
  if (sigaction(signum, nullptr, &current) != 0) return false;
  const bool is_ours = current.sa_handler == &OnDumpSignal;
  if (!is_ours && current.sa_handler != SIG_DFL) return false;
  g_signal_rank.store(world->config_.local_rank);
  g_signal_segment.store(world->segment_.get());
  struct sigaction action = {};
  action.sa_handler = &OnDumpSignal;
  action.sa_flags = SA_RESTART;
  return is_ours || sigaction(signum, &action, nullptr) == 0;
}

Status World::Current(std::shared_ptr<World>* world) {
  Process& process = ThisProcess();
  std::lock_guard<std::mutex> lock(process.mutex);
  if (!process.world) {
    return FailedPrecondition(
        process.generation == 0 ? "hvd.init() has not been called; call it before anything else "
                                  "of hvd_keras"
                                : "hvd.shutdown() has been called; call hvd.init() to start again");
  }
  if (process.pid != getpid()) {
    return FailedPrecondition(
        "this process was forked from one that had called hvd.init(), and cannot take part in its "
        "collectives; start it with the 'spawn' method instead");
  }
  *world = process.world;
  return Status::Ok();
}

}  // namespace hvd
