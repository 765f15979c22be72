#include "ops/core/timeline.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "ops/core/timeline_format.h"

namespace hvd {
namespace {

class TimelineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/hvd-timeline-XXXXXX";
    folder_ = mkdtemp(name);
    path_ = folder_ + "/x.json";
  }
  void TearDown() override {
    unlink(path_.c_str());
    unlink((folder_ + "/.x.json.next").c_str());
    rmdir(folder_.c_str());
  }
  TimelineOptions Options() const {
    TimelineOptions options;
    options.path = path_;
    options.max_bytes = 64 << 20;
    options.rank = 3;
    options.size = 4;
    options.host = "node \"7\"";
    return options;
  }
  std::string Read() const {
    std::ifstream file(path_);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  static int Count(const std::string& text, const std::string& part) {
    int count = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
      ++count;
    }
    return count;
  }

  std::string folder_;
  std::string path_;
};

TimelineRecord Collective(const std::string& name, int64_t begin_ns) {
  TimelineRecord record;
  record.kind = TimelineRecord::Kind::kCollective;
  record.collective = CollectiveKind::kAllreduce;
  record.transport = "SHM";
  record.begin_ns = begin_ns;
  record.first_ns = begin_ns - 2500;
  record.agreed_ns = begin_ns + 1000;
  record.started_ns = begin_ns + 3000;
  record.end_ns = begin_ns + 9000;
  record.phases.pack = 1500;
  record.phases.wait = 0;
  record.phases.reduce = 2500;
  record.bytes = 4096;
  record.last_rank = 2;
  record.ranks = 4;
  record.SetName(name);
  return record;
}

TEST(TimelineFormat, MakesSlicesOfACollective) {
  TimelineFormat format(3);
  std::string text;
  format.Append(Collective("a\"b\\\n", 1'000'000), &text);
  const auto has = [&](const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  };
  has(R"({"name":"a\"b\\\u000a","ph":"X","pid":3,"tid":10,"ts":1000.000,"dur":9.000,)");
  has(R"("name":"NEGOTIATE_ALLREDUCE","ph":"X","pid":3,"tid":10,"ts":1000.000,"dur":1.000,)");
  has(R"("last_rank":2,"ranks":4,"late_us":2.500)");
  has(R"("name":"QUEUE","ph":"X","pid":3,"tid":10,"ts":1001.000,"dur":2.000)");
  has(R"("name":"SHM_ALLREDUCE","ph":"X","pid":3,"tid":10,"ts":1003.000,"dur":6.000)");
  has(R"("name":"MEMCPY_IN_FUSION_BUFFER","ph":"X","pid":3,"tid":10,"ts":1003.000,"dur":1.500)");
  has(R"("name":"REDUCE","ph":"X","pid":3,"tid":10,"ts":1004.500,"dur":2.500)");
  EXPECT_EQ(text.find("MEMCPY_OUT"), std::string::npos);  // took no time
}

TEST(TimelineFormat, PutsWhatOverlapsIntoLanesOfItsOwn) {
  TimelineFormat format(0);
  std::string text;
  format.Append(Collective("first", 1'000), &text);
  format.Append(Collective("overlaps", 5'000), &text);
  format.Append(Collective("after", 20'000), &text);
  EXPECT_NE(text.find(R"("name":"overlaps","ph":"X","pid":0,"tid":11)"), std::string::npos);
  EXPECT_NE(text.find(R"("name":"after","ph":"X","pid":0,"tid":10)"), std::string::npos);
}

TEST(TimelineFormat, StringsAreJsonWhateverIsInThem) {
  EXPECT_EQ(JsonString("plain"), "\"plain\"");
  EXPECT_EQ(JsonString("\x01\x7f"), "\"\\u0001\x7f\"");
  EXPECT_EQ(JsonString("schön €"), "\"schön €\"");
  EXPECT_EQ(JsonString("\xff\xc3"), "\"??\"");                 // no UTF-8, and cut off
  EXPECT_EQ(JsonString("\xc0\x80\xed\xa0\x80"), "\"?????\"");  // overlong, a surrogate
  TimelineRecord record;
  record.SetName(std::string(500, 'x') + "end");
  EXPECT_EQ(std::string(record.name).size(), static_cast<size_t>(kTimelineNameBytes - 1));
  EXPECT_EQ(std::string(record.name).substr(0, 4), "...x");
  EXPECT_EQ(std::string(record.name).substr(kTimelineNameBytes - 4), "end");
}

TEST_F(TimelineTest, WritesWhatWasRecordedBeforeItsEnd) {
  Timeline timeline;
  timeline.Add(Collective("too early", 1));
  ASSERT_TRUE(timeline.Start(Options()).ok());
  EXPECT_EQ(timeline.Start(Options()).code(), Code::kFailedPrecondition);
  for (int i = 0; i < 100; ++i) timeline.Add(Collective("c" + std::to_string(i), 100'000 * i));
  timeline.Stop();
  timeline.Add(Collective("too late", 1));
  const std::string text = Read();
  EXPECT_EQ(Count(text, "NEGOTIATE_ALLREDUCE"), 100);
  EXPECT_EQ(Count(text, "too "), 0);
  EXPECT_EQ(Count(text, R"("host":"node \"7\"")"), 1);
  EXPECT_EQ(Count(text, "hvd_keras_memcpy"), 1);
  EXPECT_EQ(text.substr(text.size() - 4), "}\n]\n");
  EXPECT_EQ(timeline.dropped(), 0);
  // Again, to the same place.
  ASSERT_TRUE(timeline.Start(Options()).ok());
  timeline.Add(Collective("again", 1));
  timeline.Stop();
  EXPECT_EQ(Count(Read(), "NEGOTIATE_ALLREDUCE"), 1);
}

TEST_F(TimelineTest, CanBeReadWhileItIsWritten) {
  Timeline timeline;
  ASSERT_TRUE(timeline.Start(Options()).ok());
  timeline.Add(Collective("now", 1));
  for (int i = 0; i < 1000 && Count(Read(), "\"now\"") == 0; ++i) usleep(10'000);
  EXPECT_EQ(Count(Read(), "\"now\""), 1);
}

// Every record is written or counted as dropped, from however many threads.
TEST_F(TimelineTest, LosesNothingUncounted) {
  constexpr int kThreads = 4, kRecords = 15'000;
  Timeline timeline;
  ASSERT_TRUE(timeline.Start(Options()).ok());
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      TimelineRecord record;
      record.kind = TimelineRecord::Kind::kSubmit;
      record.thread = t;
      record.SetName("s");
      for (int i = 0; i < kRecords; ++i) {
        record.number = i;
        timeline.Add(record);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  timeline.Stop();
  const std::string text = Read();
  EXPECT_EQ(Count(text, "\"SUBMIT\"") + timeline.dropped(), kThreads * kRecords);
  EXPECT_GE(Count(text, "\"SUBMIT\""), 16384);
  EXPECT_EQ(Count(text, "DROPPED ") > 0, timeline.dropped() > 0);
}

TEST_F(TimelineTest, SleepsWhereNothingHappens) {
  Timeline timeline;
  ASSERT_TRUE(timeline.Start(Options()).ok());
  timeline.Add(Collective("now", 1));
  while (!timeline.is_asleep()) usleep(10'000);
  EXPECT_EQ(Count(Read(), "\"now\""), 1);
  const int64_t before = timeline.rounds();
  usleep(1'000'000);
  EXPECT_EQ(timeline.rounds(), before);
  timeline.Add(Collective("later", 1));
  while (Count(Read(), "\"later\"") == 0) usleep(10'000);
}

// However much comes at once.
TEST_F(TimelineTest, KeepsToItsSize) {
  constexpr int64_t kMax = 1 << 20;
  TimelineOptions options = Options();
  options.max_bytes = kMax;
  Timeline timeline;
  ASSERT_TRUE(timeline.Start(std::move(options)).ok());
  for (int i = 0; i < 10'000; ++i) timeline.Add(Collective("c" + std::to_string(i), 10'000 * i));
  timeline.Stop();
  EXPECT_EQ(timeline.dropped(), 0);
  int64_t bytes = static_cast<int64_t>(Read().size());
  EXPECT_NE(Read().find("\"c9999\""), std::string::npos);
  int parts = 0;
  for (int part = 1; part < 100; ++part) {
    const std::string path = folder_ + "/x.part-" + std::to_string(part) + ".json";
    struct stat status = {};
    if (stat(path.c_str(), &status) != 0) continue;
    bytes += status.st_size;
    ++parts;
    unlink(path.c_str());
  }
  EXPECT_EQ(parts, 2);
  EXPECT_LE(bytes, kMax);
}

TEST_F(TimelineTest, SaysTheOffsetOfItsClock) {
  Timeline timeline;
  TimelineOptions options = Options();
  options.clock_offset = [] { return ClockOffset{-1234, 50}; };
  ASSERT_TRUE(timeline.Start(std::move(options)).ok());
  timeline.Add(Collective("x", 1));
  timeline.Stop();
  EXPECT_EQ(Count(Read(), R"("args":{"offset_ns":-1234,"error_ns":50})"), 1);
}

TEST_F(TimelineTest, CanBeStartedAfterItCouldNot) {
  Timeline timeline;
  TimelineOptions options = Options();
  options.path = "/proc/no-such-folder/x.json";
  EXPECT_EQ(timeline.Start(options).code(), Code::kUnavailable);
  EXPECT_FALSE(timeline.is_on());
  ASSERT_TRUE(timeline.Start(Options()).ok());
}

}  // namespace
}  // namespace hvd
