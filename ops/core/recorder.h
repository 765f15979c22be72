// FlightRecorder: what this rank's last collectives were, and how far they came.
//
// A ring of records in memory that other processes may read at any time, also after this one has
// died. Writing one takes a few stores and two readings of the clock.
#ifndef HVD_CORE_RECORDER_H_
#define HVD_CORE_RECORDER_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "ops/core/request.h"
#include "ops/core/status.h"

namespace hvd {

inline constexpr int kFlightRecords = 1024;
inline constexpr int kRecordNameBytes = 112;
inline constexpr int kRecordDimensions = 4;

// What is known of a collective when it is called.
struct FlightCall {
  int64_t posted_ns;  // CLOCK_REALTIME, as all times here
  int64_t bytes;      // of all inputs
  uint64_t occurrence;
  uint64_t fingerprint;
  int64_t shape[kRecordDimensions];  // the beginning of the first tensor's
  int32_t process_set;
  int32_t pieces;
  uint8_t kind;
  uint8_t dtype;
  uint8_t reduce_op;
  uint8_t dimensions;  // of the first tensor, which may have more than `shape` holds
  uint8_t unused[4];
  char name[kRecordNameBytes];
};
static_assert(sizeof(FlightCall) % sizeof(uint64_t) == 0, "it is copied by words");

// Zero bytes are an empty record.
struct FlightRecord {
  std::atomic<uint64_t> number;     // 1 for the first of the job; 0 while it is being written
  std::atomic<int64_t> started_ns;  // all ranks had called it; 0 before
  std::atomic<int64_t> ended_ns;    // 0 before
  std::atomic<int64_t> code;        // how it ended, a hvd::Code
  // A FlightCall. Words, since it may be read while it is written.
  std::atomic<uint64_t> call[sizeof(FlightCall) / sizeof(uint64_t)];
};

struct FlightRing {
  std::atomic<uint64_t> written;  // records so far
  FlightRecord records[kFlightRecords];
};

// A copy of a record.
struct FlightEntry {
  uint64_t number = 0;
  int64_t posted_ns = 0;
  int64_t started_ns = 0;
  int64_t ended_ns = 0;
  Code code = Code::kOk;
  CollectiveKind kind = CollectiveKind::kBarrier;
  DataType dtype = DataType::kUint8;
  ReduceOp reduce_op = ReduceOp::kSum;
  int32_t process_set = 0;
  int32_t pieces = 0;
  int64_t bytes = 0;
  uint64_t occurrence = 0;
  uint64_t fingerprint = 0;
  std::vector<int64_t> shape;
  std::string name;
};

class FlightRecorder {
 public:
  // `ring` must outlive the recorder; null records nothing.
  explicit FlightRecorder(FlightRing* ring) : ring_(ring) {}

  // Callable from any thread; returns the record's number for the next two.
  uint64_t Posted(const Request& request, uint64_t occurrence, uint64_t fingerprint);
  void Started(uint64_t number);
  void Ended(uint64_t number, Code code);

 private:
  FlightRecord* Find(uint64_t number);

  FlightRing* const ring_;
};

// The records that can be read in full, oldest first. The ring may be another process's, and what
// it holds is not trusted.
std::vector<FlightEntry> ReadRecords(const FlightRing& ring);

// The last `count` of them.
std::vector<FlightEntry> ReadLastRecords(const FlightRing& ring, int count);

}  // namespace hvd

#endif  // HVD_CORE_RECORDER_H_
