#include "ops/core/recorder.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <thread>

namespace hvd {
namespace {

std::unique_ptr<FlightRing> NewRing() {
  auto ring = std::make_unique<FlightRing>();
  std::memset(static_cast<void*>(ring.get()), 0, sizeof(FlightRing));
  return ring;
}

Request NewRequest(const std::string& name, std::vector<int64_t> shape) {
  Request request;
  request.kind = CollectiveKind::kAllreduce;
  request.name = name;
  request.dtype = DataType::kFloat32;
  request.process_set = 3;
  request.pieces.push_back({nullptr, nullptr, std::move(shape)});
  return request;
}

TEST(FlightRecorder, KeepsWhatWasCalledAndHowItEnded) {
  auto ring = NewRing();
  FlightRecorder recorder(ring.get());
  const uint64_t first = recorder.Posted(NewRequest("a", {2, 3}), 7, 99);
  const uint64_t second = recorder.Posted(NewRequest("b", {}), 0, 0);
  recorder.Started(first);
  recorder.Ended(first, Code::kAborted);
  const std::vector<FlightEntry> entries = ReadRecords(*ring);
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].number, first);
  EXPECT_EQ(entries[0].name, "a");
  EXPECT_EQ(entries[0].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(entries[0].bytes, 24);
  EXPECT_EQ(entries[0].process_set, 3);
  EXPECT_EQ(entries[0].occurrence, 7u);
  EXPECT_EQ(entries[0].fingerprint, 99u);
  EXPECT_EQ(entries[0].code, Code::kAborted);
  EXPECT_LE(entries[0].posted_ns, entries[0].started_ns);
  EXPECT_LE(entries[0].started_ns, entries[0].ended_ns);
  EXPECT_EQ(entries[1].number, second);
  EXPECT_EQ(entries[1].ended_ns, 0);
}

TEST(FlightRecorder, KeepsTheLastOnesAndTheEndsOfLongNames) {
  auto ring = NewRing();
  FlightRecorder recorder(ring.get());
  for (int i = 0; i < kFlightRecords + 10; ++i) {
    const std::string name = std::string(300, 'x') + std::to_string(i);
    recorder.Ended(recorder.Posted(NewRequest(name, {1}), 0, 0), Code::kOk);
  }
  const std::vector<FlightEntry> entries = ReadRecords(*ring);
  ASSERT_EQ(entries.size(), static_cast<size_t>(kFlightRecords));
  EXPECT_EQ(entries.front().number, 11u);
  EXPECT_EQ(entries.back().name.size(), static_cast<size_t>(kRecordNameBytes - 1));
  EXPECT_EQ(entries.back().name.substr(0, 4), "...x");
  EXPECT_EQ(entries.back().name.substr(entries.back().name.size() - 5),
            "x" + std::to_string(kFlightRecords + 9));
  EXPECT_EQ(ReadLastRecords(*ring, 3).front().number, kFlightRecords + 8u);
  // Its place belongs to another one now.
  recorder.Ended(1, Code::kInternal);
  for (const FlightEntry& entry : ReadRecords(*ring)) EXPECT_EQ(entry.code, Code::kOk);
}

TEST(FlightRecorder, WithoutARingRecordsNothing) {
  FlightRecorder recorder(nullptr);
  const uint64_t number = recorder.Posted(NewRequest("a", {1}), 0, 0);
  recorder.Started(number);
  recorder.Ended(number, Code::kOk);
}

// What is read is whole, or left out.
TEST(FlightRecorder, IsReadWhileItIsWritten) {
  auto ring = NewRing();
  FlightRecorder recorder(ring.get());
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int i = 0; !stop.load(); ++i) {
      const std::string name(1 + i % 100, static_cast<char>('a' + i % 26));
      recorder.Ended(recorder.Posted(NewRequest(name, {i}), i, i), Code::kOk);
    }
  });
  int seen = 0;
  while (seen < 10000) {
    for (const FlightEntry& entry : ReadRecords(*ring)) {
      const uint64_t i = entry.occurrence;
      ASSERT_EQ(entry.number, i + 1);
      ASSERT_EQ(entry.fingerprint, i);
      ASSERT_EQ(entry.name, std::string(1 + i % 100, static_cast<char>('a' + i % 26)));
      ++seen;
    }
  }
  stop.store(true);
  writer.join();
}

// A peer may have died in the middle of a store, or have gone mad.
TEST(FlightRecorder, SurvivesARingOfNoise) {
  auto ring = NewRing();
  std::mt19937_64 random(1);
  for (int round = 0; round < 20; ++round) {
    auto* words = reinterpret_cast<uint64_t*>(ring.get());
    for (size_t i = 0; i < sizeof(FlightRing) / sizeof(uint64_t); ++i) words[i] = random();
    if (round % 2 == 0) ring->written.store(kFlightRecords);
    for (int i = 0; i < kFlightRecords; ++i) ring->records[i].number.store(i + 1);
    for (const FlightEntry& entry : ReadRecords(*ring)) {
      EXPECT_LT(entry.name.size(), static_cast<size_t>(kRecordNameBytes) + 1);
      EXPECT_LE(entry.shape.size(), static_cast<size_t>(kRecordDimensions));
      EXPECT_NE(Name(entry.kind), nullptr);
      EXPECT_NE(Name(entry.dtype), nullptr);
      EXPECT_NE(Name(entry.reduce_op), nullptr);
      EXPECT_NE(CodeName(entry.code), nullptr);
    }
  }
}

}  // namespace
}  // namespace hvd
