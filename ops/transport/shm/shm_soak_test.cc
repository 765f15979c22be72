// Many collectives of all kinds, sizes and process sets, in another order on each rank.
//
// HVD_SOAK_COLLECTIVES and HVD_SOAK_SEED set their number and the seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ops/transport/shm/thread_world.h"
#include "ops/transport/shm/workload.h"

namespace hvd::shm {
namespace {

constexpr int kRanks = 4;
constexpr int kWindow = 8;  // collectives in flight
// Sanitizers make it slower by a factor of ten and more.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kCollectives = 5'000;
#else
constexpr int kCollectives = 50'000;
#endif

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoll(text) : otherwise;
}

const std::vector<std::vector<int>> kSets = {{0, 1, 2, 3}, {0, 1}, {2, 3}, {1, 2, 3}, {0, 3}};

void RunWindow(Rank* rank, uint64_t seed, int first, std::mt19937_64* random) {
  std::vector<std::unique_ptr<Pending>> window;
  for (int number = first; number < first + kWindow; ++number) {
    // One in fifty is longer than a chunk many times over.
    const int64_t max_rows = number % 50 == 0 ? 20'000 : 40;
    const Operation operation = MakeOperation(seed, number, kSets, max_rows);
    const std::vector<int>& ranks = operation.ranks;
    if (!std::binary_search(ranks.begin(), ranks.end(), rank->rank())) continue;
    window.push_back(std::make_unique<Pending>(operation, rank->rank()));
  }
  // Calls of one name keep their order; those of different names do not.
  std::vector<std::unique_ptr<Request>> requests;
  for (const auto& pending : window) requests.push_back(pending->NewRequest());
  std::stable_sort(requests.begin(), requests.end(), [](const auto& a, const auto& b) {
    return std::tie(a->process_set, a->name) < std::tie(b->process_set, b->name);
  });
  for (size_t i = 1; i < requests.size(); ++i) {
    const size_t other = (*random)() % i;
    const auto same = [&](size_t a, size_t b) {
      return requests[a]->name == requests[b]->name &&
             requests[a]->process_set == requests[b]->process_set;
    };
    bool safe = true;
    for (size_t k = other; k < i; ++k) safe &= !same(k, i) && !same(k, other == k ? i : other);
    if (safe) std::swap(requests[i], requests[other]);
  }
  Results results;
  for (auto& request : requests) {
    request->done = results.Expect();
    if ((*random)() % 200 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds((*random)() % 2000));
    }
    rank->engine().Submit(std::move(request));
  }
  if (window.empty()) return;
  for (const Status& status : results.Wait()) ASSERT_TRUE(status.ok()) << status.message();
  for (const auto& pending : window) ASSERT_TRUE(pending->IsRight());
}

TEST(Soak, EveryResultIsRight) {
  const auto seed = static_cast<uint64_t>(FromEnvironment("HVD_SOAK_SEED", std::random_device()()));
  const int collectives = static_cast<int>(FromEnvironment("HVD_SOAK_COLLECTIVES", kCollectives));
  std::printf("HVD_SOAK_SEED=%llu\n", static_cast<unsigned long long>(seed));
  SegmentOptions options;
  options.ranks = kRanks;
  options.chunk_bytes = 1024;
  RunRanks(options, [&](Rank* rank) {
    for (size_t id = 1; id < kSets.size(); ++id) {
      ASSERT_TRUE(rank->engine().AddProcessSet(static_cast<int>(id), kSets[id]).ok());
    }
    std::mt19937_64 random(seed + static_cast<uint64_t>(rank->rank()));
    for (int first = 0; first < collectives; first += kWindow) {
      RunWindow(rank, seed, first, &random);
      if (testing::Test::HasFatalFailure()) return;
    }
  });
}

}  // namespace
}  // namespace hvd::shm
