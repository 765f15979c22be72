#include "ops/transport/shm/segment.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "ops/transport/shm/crossing.h"
#include "ops/transport/shm/futex.h"
#include "ops/transport/shm/process.h"

namespace hvd::shm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

constexpr char kPosixPrefix[] = "shm:";
constexpr auto kPoll = std::chrono::microseconds(500);

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

int64_t LinesOffset() { return RoundUp(sizeof(Header), 4096); }
int64_t QueuesOffset(int ranks) {
  return RoundUp(LinesOffset() + ranks * static_cast<int64_t>(sizeof(RankLine)), 4096);
}
int64_t ReportsOffset(int ranks) {
  return RoundUp(QueuesOffset(ranks) + ranks * int64_t{kQueueEntries} * 8, 4096);
}
int64_t DataOffset(int ranks) {
  return RoundUp(ReportsOffset(ranks) + ranks * static_cast<int64_t>(sizeof(RankReport)), 4096);
}
int64_t TotalBytes(const SegmentOptions& o) {
  return DataOffset(o.ranks) + o.ranks * o.slots_per_rank * o.chunk_bytes;
}

Status CheckOptions(const SegmentOptions& o) {
  if (o.ranks < 1 || o.ranks > kMaxRanks) {
    return InvalidArgument("one host can hold 1 to " + std::to_string(kMaxRanks) + " ranks, not " +
                           std::to_string(o.ranks));
  }
  if (o.chunk_bytes < 64 || o.chunk_bytes % 64 != 0 || o.slots_per_rank < 2) {
    return InvalidArgument(
        "the chunk size must be a positive multiple of 64 bytes, with at least 2 "
        "slots per rank; it is " +
        std::to_string(o.chunk_bytes) + " bytes in " + std::to_string(o.slots_per_rank) + " slots");
  }
  return Status::Ok();
}

bool IsPosix(const std::string& address) { return address.rfind(kPosixPrefix, 0) == 0; }

std::string PosixName(const std::string& address) {
  return "/hvd-" + std::to_string(geteuid()) + "-" + address.substr(sizeof(kPosixPrefix) - 1);
}

// Closes a descriptor when it goes out of scope; a mapping outlives it.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// A segment of another user could be a trap: its owner may change what we read at any time.
Status CheckOwner(int fd, const std::string& address) {
  struct stat info;
  if (fstat(fd, &info) != 0) return Unavailable(ErrnoMessage("fstat of " + address, errno));
  if (info.st_uid != geteuid()) {
    return Unavailable("the shared segment " + address + " belongs to user " +
                       std::to_string(info.st_uid) + ", not to this process's user " +
                       std::to_string(geteuid()));
  }
  return Status::Ok();
}

int64_t FileSize(int fd) {
  struct stat info;
  return fstat(fd, &info) == 0 ? info.st_size : -1;
}

Status Reserve(int fd, int64_t bytes) {
  if (ftruncate(fd, bytes) != 0) {
    return ResourceExhausted(ErrnoMessage("cannot size the shared segment", errno));
  }
  // Reserve the pages now: an error here is better than SIGBUS at the first store.
  const int error = posix_fallocate(fd, 0, bytes);
  if (error == 0) return Status::Ok();
  return ResourceExhausted(ErrnoMessage("cannot reserve " + std::to_string(bytes) +
                                            " bytes of shared memory (is /dev/shm or the "
                                            "container's memory limit too small?)",
                                        error));
}

std::string MissingRanks(Segment* segment) {
  std::string text;
  for (int r = 0; r < segment->ranks(); ++r) {
    if (segment->line(r).state.load() != kAbsent) continue;
    text += (text.empty() ? "" : ", ") + std::to_string(r);
  }
  return text;
}

}  // namespace

Segment::~Segment() {
  if (!unlink_name_.empty()) shm_unlink(unlink_name_.c_str());
  if (base_ != nullptr) munmap(base_, static_cast<size_t>(mapped_bytes_));
}

Status Segment::Map(int fd, int64_t bytes) {
  const int flags = MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0);
  void* base = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, flags, fd, 0);
  if (base == MAP_FAILED) {
    return ResourceExhausted(
        ErrnoMessage("cannot map " + std::to_string(bytes) + " bytes of shared memory", errno));
  }
  base_ = base;
  mapped_bytes_ = bytes;
  header_ = static_cast<Header*>(base);
  return Status::Ok();
}

void Segment::SetPointers() {
  char* bytes = static_cast<char*>(base_);
  lines_ = reinterpret_cast<RankLine*>(bytes + LinesOffset());
  queues_ = reinterpret_cast<std::atomic<uint64_t>*>(bytes + QueuesOffset(header_->ranks));
  reports_ = reinterpret_cast<RankReport*>(bytes + ReportsOffset(header_->ranks));
  data_ = bytes + DataOffset(header_->ranks);
}

Status Segment::Initialize(const SegmentOptions& options, uint64_t generation) {
  header_->magic.store(0);
  // All fields start as zero; the atomics are trivially constructible from that.
  std::memset(base_, 0, static_cast<size_t>(DataOffset(options.ranks)));
  header_->ranks = options.ranks;
  header_->slots_per_rank = options.slots_per_rank;
  header_->chunk_bytes = options.chunk_bytes;
  header_->creator_pid.store(getpid());
  Board& board = header_->board;
  board.next_ticket = 1;
  board.free_slots.store(kMaxBoardSlots);
  for (int32_t& bucket : board.buckets) bucket = -1;
  for (int32_t& join : board.join_slots) join = -1;
  board.crossing.epoch = 1;
  board.crossing.ready_head = board.crossing.ready_tail = board.crossing.failing = -1;
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  const int error = pthread_mutex_init(&board.mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
  if (error != 0) return Internal(ErrnoMessage("cannot make the board's mutex", error));
  SetPointers();
  header_->generation.store(generation);
  header_->magic.store(kMagic);
  return Status::Ok();
}

Status Segment::CreateAnonymous(const SegmentOptions& options, std::shared_ptr<Segment>* segment) {
  HVD_RETURN_IF_ERROR(CheckOptions(options));
  std::shared_ptr<Segment> result(new Segment());
  HVD_RETURN_IF_ERROR(result->Map(-1, TotalBytes(options)));
  HVD_RETURN_IF_ERROR(result->Initialize(options, 1));
  *segment = std::move(result);
  return Status::Ok();
}

Status Segment::OpenAsCreator(const std::string& address, uint64_t generation,
                              const SegmentOptions& options, nanoseconds timeout,
                              Segment* segment) {
  const bool posix = IsPosix(address);
  int fd = -1;
  if (posix) {
    const std::string name = PosixName(address);
    fd = shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
    if (fd < 0 && errno == EEXIST) {
      // Left behind by a job that was killed while it started: replace it unless that job lives.
      Segment old;
      Descriptor stale(shm_open(name.c_str(), O_RDWR, 0600));
      if (stale.get() >= 0 && FileSize(stale.get()) >= static_cast<int64_t>(sizeof(Header)) &&
          old.Map(stale.get(), sizeof(Header)).ok() && ProcessExists(old.header().creator_pid)) {
        return Unavailable("the shared segment " + address + " is in use by process " +
                           std::to_string(old.header().creator_pid.load()) +
                           "; give each job a name of its own in HVD_SEGMENT");
      }
      shm_unlink(name.c_str());
      fd = shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
    }
    if (fd >= 0) segment->unlink_name_ = name;
  } else {
    fd = open(address.c_str(), O_RDWR | O_CLOEXEC);
  }
  if (fd < 0) {
    return Unavailable(ErrnoMessage("cannot open the shared segment " + address +
                                        " (is the launcher that made it still running?)",
                                    errno));
  }
  Descriptor descriptor(fd);
  HVD_RETURN_IF_ERROR(CheckOwner(fd, address));
  const int64_t total = TotalBytes(options);
  if (generation == 1 || FileSize(fd) < total) HVD_RETURN_IF_ERROR(Reserve(fd, total));
  HVD_RETURN_IF_ERROR(segment->Map(fd, total));
  if (generation > 1) {
    // Ranks of the generation before may still read; wait until they have left.
    segment->SetPointers();
    const auto deadline = Clock::now() + timeout;
    for (int r = 0; r < segment->ranks(); ++r) {
      while (segment->line(r).state.load() != kLeft) {
        if (Clock::now() > deadline) {
          return DeadlineExceeded(
              "rank " + std::to_string(r) +
              " has not called hvd.shutdown(), so hvd.init() cannot start again");
        }
        std::this_thread::sleep_for(kPoll);
      }
    }
  }
  HVD_RETURN_IF_ERROR(segment->Initialize(options, generation));
  segment->header().has_launcher = posix ? 0 : 1;
  return Status::Ok();
}

Status Segment::OpenAsMember(const std::string& address, uint64_t generation,
                             const SegmentOptions& options, nanoseconds timeout, Segment* segment) {
  const auto deadline = Clock::now() + timeout;
  const bool posix = IsPosix(address);
  const int64_t total = TotalBytes(options);
  int error = 0;
  for (; Clock::now() < deadline; std::this_thread::sleep_for(kPoll)) {
    Descriptor descriptor(posix ? shm_open(PosixName(address).c_str(), O_RDWR, 0600)
                                : open(address.c_str(), O_RDWR | O_CLOEXEC));
    error = descriptor.get() < 0 ? errno : 0;
    if (descriptor.get() < 0 && !posix) break;  // an inherited file does not appear later
    if (descriptor.get() < 0) continue;
    HVD_RETURN_IF_ERROR(CheckOwner(descriptor.get(), address));
    if (FileSize(descriptor.get()) < total) continue;
    Segment candidate;
    HVD_RETURN_IF_ERROR(candidate.Map(descriptor.get(), total));
    const Header& header = candidate.header();
    if (header.magic.load() != kMagic || header.generation.load() != generation) continue;
    if (posix && !ProcessExists(header.creator_pid)) continue;  // left by a job that crashed
    if (header.ranks != options.ranks || header.chunk_bytes != options.chunk_bytes ||
        header.slots_per_rank != options.slots_per_rank) {
      return InvalidArgument("rank 0 made the shared segment for " + std::to_string(header.ranks) +
                             " ranks and chunks of " + std::to_string(header.chunk_bytes) +
                             " bytes, but this rank expects " + std::to_string(options.ranks) +
                             " and " + std::to_string(options.chunk_bytes) +
                             "; HVD_* variables must be the same on all ranks");
    }
    std::swap(segment->base_, candidate.base_);
    std::swap(segment->mapped_bytes_, candidate.mapped_bytes_);
    segment->header_ = static_cast<Header*>(segment->base_);
    segment->SetPointers();
    return Status::Ok();
  }
  if (error != 0 && !(posix && error == ENOENT)) {
    return Unavailable(ErrnoMessage("cannot open the shared segment " + address +
                                        " (is the launcher that made it still running?)",
                                    error));
  }
  return DeadlineExceeded(
      "local rank 0 did not set up the shared segment in time; is it running, and "
      "has it called hvd.init()? (HVD_START_TIMEOUT sets the wait)");
}

Status Segment::Open(const std::string& address, int rank, uint64_t generation,
                     const SegmentOptions& options, nanoseconds timeout,
                     std::shared_ptr<Segment>* segment) {
  HVD_RETURN_IF_ERROR(CheckOptions(options));
  std::shared_ptr<Segment> result(new Segment());
  // A POSIX segment is made anew each time, since its name is gone once all were attached.
  const uint64_t expected = IsPosix(address) ? 1 : generation;
  auto* open = rank == 0 ? &Segment::OpenAsCreator : &Segment::OpenAsMember;
  HVD_RETURN_IF_ERROR(open(address, expected, options, timeout, result.get()));
  *segment = std::move(result);
  return Status::Ok();
}

Status Segment::Attach(int rank, int global_rank, nanoseconds timeout) {
  RankLine& mine = line(rank);
  mine.pid.store(getpid());
  mine.global_rank.store(global_rank);
  uint32_t expected = kAbsent;
  if (!mine.state.compare_exchange_strong(expected, kAttached)) {
    return InvalidArgument("two processes claim to be local rank " + std::to_string(rank) +
                           ": each needs its own HVD_LOCAL_RANK");
  }
  const auto deadline = Clock::now() + timeout;
  for (int r = 0; r < ranks(); ++r) {
    while (line(r).state.load() == kAbsent) {
      HVD_RETURN_IF_ERROR(AbortStatus());
      if (Clock::now() > deadline) {
        const std::string text =
            "hvd.init() waited " +
            std::to_string(std::chrono::duration_cast<std::chrono::seconds>(timeout).count()) +
            " s for rank(s) " + MissingRanks(this) +
            ", which did not call it (HVD_START_TIMEOUT sets the wait)";
        Abort(text);
        return DeadlineExceeded(text);
      }
      std::this_thread::sleep_for(kPoll);
    }
  }
  if (!unlink_name_.empty()) {
    shm_unlink(unlink_name_.c_str());
    unlink_name_.clear();
  }
  return Status::Ok();
}

void Segment::Abort(const std::string& text) {
  uint32_t expected = 0;
  if (!header_->abort_state.compare_exchange_strong(expected, 1)) return;
  const size_t bytes = std::min(text.size(), sizeof(header_->abort_text) - 1);
  std::memcpy(header_->abort_text, text.data(), bytes);
  header_->abort_text[bytes] = '\0';
  header_->abort_state.store(2, std::memory_order_release);
  for (int r = 0; r < ranks(); ++r) CallWatcher(r, kCallAbort);
  CallAgent(this);
}

void Segment::AbortForException(int rank, const std::string& traceback) {
  std::string text =
      RankOnThisHost(global_rank(rank), line(rank).pid.load()) + " failed with an exception:\n  ";
  // Indented, so that nobody takes it for a traceback of the rank that prints this.
  for (char c : traceback) {
    text += c;
    if (c == '\n') text += "  ";
  }
  Abort(text.substr(0, text.find_last_not_of(" \n") + 1));
}

void Segment::CallWatcher(int rank, uint32_t calls) {
  std::atomic<uint32_t>& word = report(rank).calls;
  word.fetch_or(calls, std::memory_order_seq_cst);
  FutexWake(&word);
}

uint32_t Segment::WaitForCalls(int rank, std::chrono::nanoseconds timeout) {
  std::atomic<uint32_t>& word = report(rank).calls;
  if (word.load(std::memory_order_seq_cst) == 0) FutexWait(&word, 0, timeout.count());
  return word.exchange(0, std::memory_order_seq_cst);
}

bool Segment::aborted() const { return header_->abort_state.load(std::memory_order_acquire) == 2; }

Status Segment::AbortStatus() const {
  if (!aborted()) return Status::Ok();
  return Aborted(std::string(header_->abort_text, strnlen(header_->abort_text, kTextBytes)));
}

}  // namespace hvd::shm
