// Timeline: what this rank's collectives spent their time on, as a file of Chrome trace events.
//
// Whoever has something to record puts it into a ring in memory, without a lock, and goes on. A
// thread of the timeline's own makes JSON of it and writes it, a few times a second; where nothing
// has happened for a while it sleeps until the next record, which wakes it. Records for which there
// is no room are counted, and the file says how many.
//
// Times are of CLOCK_MONOTONIC, which the processes of a host share.
#ifndef HVD_CORE_TIMELINE_H_
#define HVD_CORE_TIMELINE_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ops/core/phases.h"
#include "ops/core/request.h"
#include "ops/core/status.h"
#include "ops/core/trace_file.h"

namespace hvd {

inline constexpr int kTimelineNameBytes = 120;

// How far this host's clock is behind that of rank 0's host.
struct ClockOffset {
  int64_t offset_ns = 0;
  int64_t error_ns = 0;  // at most; -1 where nothing is known
};

struct TimelineOptions {
  std::string path;
  int64_t max_bytes = 0;
  bool mark_cycles = false;
  // Who writes it.
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int cross_rank = 0;
  std::string host;
  std::function<ClockOffset()> clock_offset;  // may be null
};

struct TimelineRecord {
  enum class Kind : uint8_t {
    kSubmit,      // begin to end: the call of a collective, which goes on by itself after that
    kCollective,  // begin: the call; end: its end
    kCallback,    // begin to end: telling the program that it has ended
    kExposed,     // begin to end: the program waited, see ExposureMeter
    kCycle,       // begin: work after idleness
    kStep,        // begin to end, `number`
    kEpoch,
    kNote,  // begin: something worth a mark
  };
  Kind kind = Kind::kNote;
  // Of a collective.
  CollectiveKind collective = CollectiveKind::kBarrier;
  DataType dtype = DataType::kUint8;
  Code code = Code::kOk;
  bool by_plan = false;
  int32_t process_set = 0;
  int32_t pieces = 0;
  int32_t last_rank = 0;  // who called it last
  int32_t ranks = 0;      // that took part
  int32_t thread = 0;     // that called it
  int64_t number = 0;     // of a step or epoch; the occurrence of a collective
  int64_t bytes = 0;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t first_ns = 0;    // the first rank of this host called it
  int64_t agreed_ns = 0;   // all ranks had called it
  int64_t started_ns = 0;  // this rank's engine had time for it
  PhaseTimes phases;
  const char* transport = "";
  char name[kTimelineNameBytes] = {};

  // Of a long name the end tells more.
  void SetName(const std::string& text);
};

class Timeline {
 public:
  Timeline();
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Begins to write. kFailedPrecondition if it does already; kUnavailable if it cannot.
  Status Start(TimelineOptions options);
  // Writes what was recorded before, and ends. Does nothing if it was not started.
  void Stop();

  bool is_on() const { return is_on_.load(std::memory_order_relaxed); }
  bool marks_cycles() const { return marks_cycles_.load(std::memory_order_relaxed); }

  // Callable from any thread, at any time; does nothing where the timeline is off.
  void Add(const TimelineRecord& record);

  // For tests: whether its thread sleeps until the next record, and how often it has looked.
  bool is_asleep() const { return asleep_.load(); }
  int64_t rounds() const { return rounds_.load(); }

  // Records that found no room since the start, or could not be written.
  int64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  struct Cell {
    std::atomic<uint64_t> turn{0};
    TimelineRecord record;
  };

  bool Take(TimelineRecord* record);
  bool HasRecords() const;
  void Wake();
  void Run();
  // Returns whether there was anything to write.
  bool WriteRound();
  void Write(const std::string& text, int64_t records);
  std::string Preamble(int part);

  TimelineOptions options_;
  TraceFile file_;
  std::atomic<bool> is_on_{false};
  std::atomic<bool> marks_cycles_{false};
  std::atomic<int64_t> dropped_{0};

  // The ring. A cell's turn says who may use it next: who puts in record number `turn`, or who
  // takes out number `turn` - 1. Never freed while there is a timeline: somebody may be late.
  std::unique_ptr<Cell[]> cells_;
  std::atomic<uint64_t> next_in_{0};
  uint64_t next_out_ = 0;  // writer's thread only

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  bool stopping_ = false;
  std::atomic<bool> asleep_{false};
  std::atomic<int64_t> rounds_{0};
  std::thread thread_;
  std::mutex life_mutex_;  // one Start() or Stop() at a time

  // Of the writer's thread.
  std::unique_ptr<class TimelineFormat> format_;
  int64_t said_dropped_ = 0;
  bool has_complained_ = false;
  ClockOffset said_offset_;
  double memcpy_bytes_per_second_ = 0;
};

}  // namespace hvd

#endif  // HVD_CORE_TIMELINE_H_
