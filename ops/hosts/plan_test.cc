// Plans: what costs nothing once it repeats itself, and how hosts leave it. Threads as ranks.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ops/hosts/plan_learner.h"
#include "ops/hosts/thread_hosts.h"

namespace hvd::hosts {
namespace {

Reduction Sum() { return Reduction(); }

// Several collectives at once, as a backward pass submits them. `order` is this rank's.
class Step {
 public:
  explicit Step(const HostRank& me) : me_(me) {}

  void Allreduce(const std::string& name, int64_t count) {
    data_.emplace_back(count, static_cast<float>(me_.rank->rank() + 1));
    auto request = std::make_unique<Request>();
    request->kind = CollectiveKind::kAllreduce;
    request->name = name;
    request->dtype = DataType::kFloat32;
    request->pieces.push_back({data_.back().data(), data_.back().data(), {count}});
    request->done = results_.Expect();
    me_.rank->engine().Submit(std::move(request));
  }

  // Whether all succeeded, with the right sums.
  testing::AssertionResult Wait() {
    for (const Status& status : results_.Wait()) {
      if (!status.ok()) return testing::AssertionFailure() << status.message();
    }
    const int size = me_.rank->size();
    const auto sum = static_cast<float>(size * (size + 1) / 2);
    for (const auto& tensor : data_) {
      for (float value : tensor) {
        if (value != sum) return testing::AssertionFailure() << value << " instead of " << sum;
      }
    }
    return testing::AssertionSuccess();
  }

 private:
  const HostRank& me_;
  std::deque<std::vector<float>> data_;
  shm::Results results_;
};

ThreadHostsOptions Hosts(std::vector<int> ranks_per_host) {
  ThreadHostsOptions options;
  options.ranks_per_host = std::move(ranks_per_host);
  return options;
}

testing::AssertionResult TrainingStep(const HostRank& me, std::mt19937* random) {
  std::vector<int> order = {0, 1, 2, 3, 4};
  if (random != nullptr) std::shuffle(order.begin(), order.end(), *random);
  Step step(me);
  for (int i : order) step.Allreduce("bucket" + std::to_string(i), i % 2 == 0 ? 10 : 20'000);
  return step.Wait();
}

TEST(PlanTest, RepeatedStepsSendNoControlMessages) {
  std::atomic<int64_t> control_messages{0}, planned{0};
  const int64_t unreceived = RunHosts(Hosts({2, 2, 1}), [&](const HostRank& me) {
    // The ranks submit in different orders, differently in each step.
    std::mt19937 random(me.rank->rank());
    for (int step = 0; step < 10; ++step) ASSERT_TRUE(TrainingStep(me, &random));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // for the agents to be done
    const int64_t before = me.control ? me.control->control_messages.load() : 0;
    const int64_t planned_before = me.rank->engine().stats().planned.load();
    for (int step = 0; step < 100; ++step) ASSERT_TRUE(TrainingStep(me, &random));
    if (me.control) control_messages += me.control->control_messages.load() - before;
    planned += me.rank->engine().stats().planned.load() - planned_before;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // before anybody says goodbye
  });
  EXPECT_EQ(unreceived, 0);
  EXPECT_EQ(control_messages.load(), 0);
  EXPECT_EQ(planned.load(), 5 * 100 * 5);
}

TEST(PlanTest, SomethingElseThanPlanned) {
  const int64_t unreceived = RunHosts(Hosts({2, 1}), [&](const HostRank& me) {
    for (int round = 0; round < 5; ++round) {
      for (int step = 0; step < 20; ++step) ASSERT_TRUE(TrainingStep(me, nullptr));
      // The end of an epoch: one that no plan holds.
      Step metrics(me);
      metrics.Allreduce("metrics", round % 2 == 0 ? 3 : 30'000);
      ASSERT_TRUE(metrics.Wait());
      std::vector<int32_t> mine(me.rank->rank() + 1, me.rank->rank()), all;
      ASSERT_TRUE(me.rank->Allgather("gather", mine, &all).ok());
      ASSERT_EQ(all.size(), 6u);
    }
  });
  EXPECT_EQ(unreceived, 0);
}

TEST(PlanTest, PartOfThePlanAlone) {
  // Nothing new is called, but the plan's next collective never comes: only time can tell.
  const int64_t unreceived = RunHosts(Hosts({1, 2}), [&](const HostRank& me) {
    for (int step = 0; step < 20; ++step) ASSERT_TRUE(TrainingStep(me, nullptr));
    for (int i = 0; i < 4; ++i) {
      Step step(me);
      step.Allreduce("bucket3", 20'000);
      ASSERT_TRUE(step.Wait());
    }
  });
  EXPECT_EQ(unreceived, 0);
}

TEST(PlanTest, OneHostGoesItsOwnWay) {
  // A process set of one host alone does not disturb the plan; one that spans hosts ends it.
  const int64_t unreceived = RunHosts(Hosts({2, 2}), [&](const HostRank& me) {
    ASSERT_TRUE(me.rank->engine().AddProcessSet(1, {0, 1}).ok());
    ASSERT_TRUE(me.rank->engine().AddProcessSet(2, {1, 2}).ok());
    for (int step = 0; step < 60; ++step) {
      std::vector<float> data(5, static_cast<float>(me.rank->rank() + 1));
      if (me.host == 0) {
        ASSERT_TRUE(me.rank->Allreduce("here", DataType::kFloat32, Sum(), &data, 1).ok());
        ASSERT_EQ(data[0], 3.0f);
      }
      ASSERT_TRUE(TrainingStep(me, nullptr));
      if (step % 20 == 19 && (me.rank->rank() == 1 || me.rank->rank() == 2)) {
        std::vector<float> pair(5, static_cast<float>(me.rank->rank()));
        ASSERT_TRUE(me.rank->Allreduce("pair", DataType::kFloat32, Sum(), &pair, 2).ok());
        ASSERT_EQ(pair[0], 3.0f);
      }
    }
  });
  EXPECT_EQ(unreceived, 0);
}

TEST(PlanTest, MismatchUnderAPlan) {
  const int64_t unreceived = RunHosts(Hosts({1, 2}), [&](const HostRank& me) {
    for (int step = 0; step < 20; ++step) ASSERT_TRUE(TrainingStep(me, nullptr));
    std::vector<float> data(me.host == 0 ? 10 : 11, 1.0f);
    const Status status = me.rank->Allreduce("bucket0", DataType::kFloat32, Sum(), &data);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.message();
    EXPECT_NE(status.message().find("[11]"), std::string::npos) << status.message();
    for (int step = 0; step < 20; ++step) ASSERT_TRUE(TrainingStep(me, nullptr));
  });
  EXPECT_EQ(unreceived, 0);
}

TEST(PlanTest, JoinUnderAPlan) {
  const int64_t unreceived = RunHosts(Hosts({2, 2}), [&](const HostRank& me) {
    const int steps = 20 + 3 * me.rank->rank();
    for (int step = 0; step < steps; ++step) {
      std::vector<float> data(30'000, static_cast<float>(me.rank->rank()));
      Reduction average;
      average.op = ReduceOp::kAverage;
      ASSERT_TRUE(me.rank->Allreduce("g", DataType::kFloat32, average, &data).ok());
      const int first = step < 20 ? 0 : (step - 20) / 3 + 1;  // who still takes part
      ASSERT_EQ(data[0], static_cast<float>(first + 3) / 2) << step;
    }
    int last = -1;
    ASSERT_TRUE(me.rank->Join(&last).ok());
    EXPECT_EQ(last, 3);
  });
  EXPECT_EQ(unreceived, 0);
}

// Programs that change at random, the same on all ranks, submitted in a different order by each.
TEST(PlanTest, RandomPrograms) {
  const char* given = std::getenv("HVD_TEST_SEED");
  const unsigned seed = given ? std::atoi(given) : std::random_device()();
  SCOPED_TRACE("HVD_TEST_SEED=" + std::to_string(seed));
  const int64_t unreceived = RunHosts(Hosts({2, 1, 2}), [&](const HostRank& me) {
    std::mt19937 program(seed), order(seed + 1 + me.rank->rank());
    for (int phase = 0; phase < 25; ++phase) {
      std::vector<std::pair<std::string, int64_t>> names;
      for (size_t i = 0, n = 1 + program() % 6; i < n; ++i) {
        names.emplace_back("t" + std::to_string(program() % 8), 0);
        names.back().second = names.back().first < "t4" ? 5 : 9000;
      }
      for (size_t step = 0, steps = program() % 8; step < steps; ++step) {
        auto mine = names;
        std::shuffle(mine.begin(), mine.end(), order);
        Step running(me);
        for (const auto& [name, count] : mine) running.Allreduce(name, count);
        ASSERT_TRUE(running.Wait());
      }
      if (program() % 3 == 0) {
        std::vector<int32_t> data(3, me.rank->rank());
        ASSERT_TRUE(me.rank->Broadcast("b", 1, &data).ok());
        ASSERT_EQ(data[0], 1);
      }
    }
  });
  EXPECT_EQ(unreceived, 0);
}

shm::PlanEntry Entry(uint64_t id) { return {id, id, 7, 0}; }

TEST(PlanLearnerTest, SeesASequenceThatCameTwice) {
  PlanLearner learner;
  std::vector<shm::PlanEntry> plan;
  EXPECT_FALSE(learner.Add(Entry(9), &plan));  // the broadcast before the first step
  for (uint64_t id : {1, 2, 3, 1, 3}) EXPECT_FALSE(learner.Add(Entry(id), &plan));
  EXPECT_TRUE(learner.Add(Entry(2), &plan));
  ASSERT_EQ(plan.size(), 3u);
  EXPECT_EQ(plan[1].id_low, 3u);  // the order of the last time
}

TEST(PlanLearnerTest, IsMoreCarefulAfterAPlanThatDidNotLast) {
  PlanLearner learner;
  std::vector<shm::PlanEntry> plan;
  EXPECT_FALSE(learner.Add(Entry(1), &plan));
  EXPECT_TRUE(learner.Add(Entry(1), &plan));  // 1 1 2, in truth
  learner.PlanWasLeft(0);
  for (int step = 0; step < 2; ++step) {
    for (uint64_t id : {2, 1, 1}) EXPECT_FALSE(learner.Add(Entry(id), &plan));
  }
  EXPECT_FALSE(learner.Add(Entry(2), &plan));
  EXPECT_FALSE(learner.Add(Entry(1), &plan));
  EXPECT_TRUE(learner.Add(Entry(1), &plan));
  EXPECT_EQ(plan.size(), 3u);
}

}  // namespace
}  // namespace hvd::hosts
