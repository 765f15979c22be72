#include "ops/core/recorder.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "ops/core/clock.h"

namespace hvd {
namespace {

constexpr char kCut[] = "...";
constexpr size_t kCallWords = sizeof(FlightCall) / sizeof(uint64_t);

// Of a long name the end tells more: scopes come first.
void CopyName(const std::string& name, char* target) {
  const size_t room = kRecordNameBytes - 1;
  if (name.size() <= room) {
    std::memcpy(target, name.data(), name.size());
    target[name.size()] = '\0';
    return;
  }
  const size_t cut = sizeof(kCut) - 1;
  std::memcpy(target, kCut, cut);
  std::memcpy(target + cut, name.data() + name.size() - (room - cut), room - cut);
  target[room] = '\0';
}

void Store(const FlightCall& call, FlightRecord* record) {
  uint64_t words[kCallWords];
  std::memcpy(words, &call, sizeof(call));
  for (size_t i = 0; i < std::size(words); ++i) {
    record->call[i].store(words[i], std::memory_order_relaxed);
  }
}

FlightCall Load(const FlightRecord& record) {
  uint64_t words[kCallWords];
  for (size_t i = 0; i < std::size(words); ++i) {
    words[i] = record.call[i].load(std::memory_order_acquire);  // before `number` is read again
  }
  FlightCall call;
  std::memcpy(&call, words, sizeof(call));
  return call;
}

bool IsSane(const FlightCall& call, int64_t code) {
  return call.kind <= static_cast<uint8_t>(CollectiveKind::kJoin) &&
         call.dtype <= static_cast<uint8_t>(DataType::kFloat64) &&
         call.reduce_op <= static_cast<uint8_t>(ReduceOp::kAdasum) && code >= 0 &&
         code <= static_cast<int64_t>(Code::kInternal);
}

bool ReadRecord(const FlightRecord& record, FlightEntry* entry) {
  entry->number = record.number.load(std::memory_order_acquire);
  if (entry->number == 0) return false;
  const FlightCall call = Load(record);
  entry->started_ns = record.started_ns.load(std::memory_order_relaxed);
  entry->ended_ns = record.ended_ns.load(std::memory_order_relaxed);
  const int64_t code = record.code.load(std::memory_order_relaxed);
  // The writer may have begun to use the place for another one.
  if (record.number.load(std::memory_order_relaxed) != entry->number) return false;
  if (!IsSane(call, code)) return false;
  entry->code = static_cast<Code>(code);
  entry->kind = static_cast<CollectiveKind>(call.kind);
  entry->dtype = static_cast<DataType>(call.dtype);
  entry->reduce_op = static_cast<ReduceOp>(call.reduce_op);
  entry->process_set = call.process_set;
  entry->pieces = call.pieces;
  entry->posted_ns = call.posted_ns;
  entry->bytes = call.bytes;
  entry->occurrence = call.occurrence;
  entry->fingerprint = call.fingerprint;
  const int dimensions = std::min<int>(call.dimensions, kRecordDimensions);
  entry->shape.assign(call.shape, call.shape + dimensions);
  entry->name.assign(call.name, strnlen(call.name, sizeof(call.name)));
  return true;
}

FlightCall Describe(const Request& request, uint64_t occurrence, uint64_t fingerprint) {
  FlightCall call = {};
  call.posted_ns = ClockNs(CLOCK_REALTIME);
  call.process_set = request.process_set;
  call.occurrence = occurrence;
  call.fingerprint = fingerprint;
  call.kind = static_cast<uint8_t>(request.kind);
  call.dtype = static_cast<uint8_t>(request.dtype);
  call.reduce_op = static_cast<uint8_t>(request.reduce_op);
  call.pieces = static_cast<int32_t>(request.pieces.size());
  for (const Piece& piece : request.pieces) {
    call.bytes += piece.NumElements() * SizeOf(request.dtype);
  }
  if (!request.pieces.empty()) {
    const std::vector<int64_t>& shape = request.pieces[0].shape;
    call.dimensions = static_cast<uint8_t>(std::min<size_t>(shape.size(), 255));
    std::copy_n(shape.begin(), std::min<size_t>(shape.size(), kRecordDimensions), call.shape);
  }
  CopyName(request.name, call.name);
  return call;
}

}  // namespace

FlightRecord* FlightRecorder::Find(uint64_t number) {
  if (ring_ == nullptr || number == 0) return nullptr;
  FlightRecord* record = &ring_->records[(number - 1) % kFlightRecords];
  // Others may have come in between, if this one took long.
  return record->number.load(std::memory_order_relaxed) == number ? record : nullptr;
}

uint64_t FlightRecorder::Posted(const Request& request, uint64_t occurrence, uint64_t fingerprint) {
  if (ring_ == nullptr) return 0;
  const uint64_t number = ring_->written.fetch_add(1, std::memory_order_relaxed) + 1;
  FlightRecord& record = ring_->records[(number - 1) % kFlightRecords];
  record.number.exchange(0, std::memory_order_acq_rel);  // before what follows is written
  record.started_ns.store(0, std::memory_order_relaxed);
  record.ended_ns.store(0, std::memory_order_relaxed);
  record.code.store(0, std::memory_order_relaxed);
  Store(Describe(request, occurrence, fingerprint), &record);
  record.number.store(number, std::memory_order_release);
  return number;
}

void FlightRecorder::Started(uint64_t number) {
  FlightRecord* record = Find(number);
  if (record != nullptr)
    record->started_ns.store(ClockNs(CLOCK_REALTIME), std::memory_order_relaxed);
}

void FlightRecorder::Ended(uint64_t number, Code code) {
  FlightRecord* record = Find(number);
  if (record == nullptr) return;
  record->code.store(static_cast<int64_t>(code), std::memory_order_relaxed);
  record->ended_ns.store(ClockNs(CLOCK_REALTIME), std::memory_order_relaxed);
}

std::vector<FlightEntry> ReadLastRecords(const FlightRing& ring, int count) {
  const uint64_t written = ring.written.load(std::memory_order_acquire);
  const uint64_t wanted = std::min<uint64_t>(written, std::min(count, kFlightRecords));
  std::vector<FlightEntry> entries;
  for (uint64_t number = written - wanted + 1; number <= written; ++number) {
    FlightEntry entry;
    const FlightRecord& record = ring.records[(number - 1) % kFlightRecords];
    if (ReadRecord(record, &entry) && entry.number == number) entries.push_back(std::move(entry));
  }
  return entries;
}

std::vector<FlightEntry> ReadRecords(const FlightRing& ring) {
  return ReadLastRecords(ring, kFlightRecords);
}

}  // namespace hvd
