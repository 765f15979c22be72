// Who reads why a collective has failed reads the reason of that failure.
#include <chrono>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "ops/transport/shm/board.h"
#include "ops/transport/shm/stuck_detector.h"
#include "ops/transport/shm/waiter.h"

namespace hvd::shm {
namespace {

class FailureText : public testing::Test {
 protected:
  void SetUp() override {
    SegmentOptions options;
    options.ranks = 1;
    options.chunk_bytes = 4096;
    ASSERT_TRUE(Segment::CreateAnonymous(options, &segment_).ok());
    ASSERT_TRUE(segment_->Attach(0, 0, std::chrono::seconds(30)).ok());
  }

  Board& board() { return segment_->board(); }
  std::string text() { return board().failure_text; }

  std::shared_ptr<Segment> segment_;
};

TEST_F(FailureText, StaysUntilAllHaveReadIt) {
  SetFailureText(&board(), "the first");
  BoardSlot& slot = board().slots[5];
  slot.in_use = slot.published = 1;
  slot.failed = static_cast<uint8_t>(Code::kAborted);
  slot.recipients = 2;
  slot.done = 1;
  SetFailureText(&board(), "the second");
  EXPECT_EQ(text(), "the second\nthe first");
  SetFailureText(&board(), "the first");
  EXPECT_EQ(text(), "the second\nthe first");
  slot.done = 2;
  SetFailureText(&board(), "the third");
  EXPECT_EQ(text(), "the third");
}

TEST_F(FailureText, StaysUntilTheAgentHasTakenIt) {
  SetFailureText(&board(), "for all hosts");
  board().crossing.failing = 3;
  SetFailureText(&board(), "here");
  EXPECT_EQ(text(), "here\nfor all hosts");
}

TEST_F(FailureText, TheNewestIsWholeWhereThereIsNotRoomForAll) {
  SetFailureText(&board(), std::string(2 * kTextBytes, 'x'));
  board().crossing.failing = 3;
  SetFailureText(&board(), "here");
  EXPECT_EQ(text().substr(0, 6), "here\nx");
  EXPECT_EQ(text().size(), static_cast<size_t>(kTextBytes) - 1);
}

// The agent of the host, say, has failed what this rank waited for, and this rank has not yet seen
// it.
TEST_F(FailureText, IsNotReplacedByThatOfNothing) {
  auto waiter = std::make_shared<Waiter>(segment_, 0, 100);
  StuckDetector detector(segment_.get(), waiter.get(), 0, 1, 2.0);
  SetFailureText(&board(), "the agent's");
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(detector.Check(true).ok());
  EXPECT_EQ(text(), "the agent's");
}

}  // namespace
}  // namespace hvd::shm
