// For tests: collectives chosen at random, the same ones on each rank, whose results are known.
#ifndef HVD_TRANSPORT_SHM_WORKLOAD_H_
#define HVD_TRANSPORT_SHM_WORKLOAD_H_

#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ops/core/request.h"

namespace hvd::shm {

// One collective. Rank r contributes Value(r, i) as element i; all sums are exact.
struct Operation {
  CollectiveKind kind = CollectiveKind::kBarrier;
  std::string name;
  int process_set = 0;
  std::vector<int> ranks;  // of the process set
  int64_t rows = 0;        // of rank r: rows + r where they may differ
  int root = 0;
};

inline int32_t Value(int rank, int64_t i) {
  return static_cast<int32_t>((rank + 1) * 1000 + i % 997);
}

// The `number`-th operation of a job. `sets[id]` are the ranks of the process set `id`.
inline Operation MakeOperation(uint64_t seed, int number, const std::vector<std::vector<int>>& sets,
                               int64_t max_rows) {
  std::mt19937_64 random(seed * 1'000'003 + static_cast<uint64_t>(number));
  constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllreduce, CollectiveKind::kAllreduce,
                                       CollectiveKind::kAllgather, CollectiveKind::kBroadcast,
                                       CollectiveKind::kBarrier,   CollectiveKind::kReducescatter,
                                       CollectiveKind::kAlltoall};
  Operation operation;
  operation.kind = kKinds[random() % std::size(kKinds)];
  operation.process_set = static_cast<int>(random() % sets.size());
  operation.ranks = sets[operation.process_set];
  // Few names, so that occurrences count.
  operation.name = "op." + std::to_string(random() % 7) + Name(operation.kind);
  operation.rows = static_cast<int64_t>(random() % static_cast<uint64_t>(max_rows));
  operation.root = operation.ranks[random() % operation.ranks.size()];
  return operation;
}

// An operation under way on one rank: its memory, and what must come out.
class Pending {
 public:
  Pending(const Operation& operation, int rank) : operation_(operation), rank_(rank) {
    const bool differs = operation.kind == CollectiveKind::kAllgather;
    const int64_t rows = operation.rows + (differs ? rank : 0);
    input_.resize(operation.kind == CollectiveKind::kAlltoall ? SentByAlltoall() : rows);
    for (size_t i = 0; i < input_.size(); ++i) input_[i] = Value(rank, static_cast<int64_t>(i));
    output_.assign(input_.size(), -1);
  }

  std::unique_ptr<Request> NewRequest() {
    auto request = std::make_unique<Request>();
    request->kind = operation_.kind;
    request->name = operation_.name;
    request->process_set = operation_.process_set;
    request->dtype = DataType::kInt32;
    request->root_rank = operation_.root;
    if (operation_.kind == CollectiveKind::kBarrier) return request;
    request->pieces.push_back(
        {input_.data(), output_.data(), {static_cast<int64_t>(input_.size())}});
    if (operation_.kind == CollectiveKind::kAlltoall) request->splits = Splits(rank_);
    request->allocate = [this](const std::vector<std::vector<int64_t>>& rows,
                               std::vector<Piece>* pieces) {
      output_.assign(std::accumulate(rows[0].begin(), rows[0].end(), int64_t{0}), -1);
      (*pieces)[0].output = output_.data();
      return Status::Ok();
    };
    return request;
  }

  // Whether the output is what it must be.
  bool IsRight() const {
    return operation_.kind == CollectiveKind::kBarrier || output_ == Expected();
  }

 private:
  // Rank r sends (rows + r + member) % 5 rows to each member.
  std::vector<int64_t> Splits(int rank) const {
    std::vector<int64_t> splits;
    for (size_t m = 0; m < operation_.ranks.size(); ++m) {
      splits.push_back((operation_.rows + rank + static_cast<int64_t>(m)) % 5);
    }
    return splits;
  }

  int64_t SentByAlltoall() const {
    const std::vector<int64_t> splits = Splits(rank_);
    return std::accumulate(splits.begin(), splits.end(), int64_t{0});
  }

  int32_t SumAt(int64_t i) const {
    int32_t sum = 0;
    for (int r : operation_.ranks) sum += Value(r, i);
    return sum;
  }

  std::vector<int32_t> Expected() const {
    std::vector<int32_t> expected;
    const int64_t n = static_cast<int64_t>(operation_.ranks.size());
    int64_t me = 0;
    while (operation_.ranks[me] != rank_) ++me;
    switch (operation_.kind) {
      case CollectiveKind::kAllreduce:
        for (int64_t i = 0; i < operation_.rows; ++i) expected.push_back(SumAt(i));
        break;
      case CollectiveKind::kBroadcast:
        for (int64_t i = 0; i < operation_.rows; ++i) expected.push_back(Value(operation_.root, i));
        break;
      case CollectiveKind::kAllgather:
        for (int r : operation_.ranks) {
          for (int64_t i = 0; i < operation_.rows + r; ++i) expected.push_back(Value(r, i));
        }
        break;
      case CollectiveKind::kReducescatter: {
        const int64_t rows = operation_.rows;
        const int64_t begin = me * (rows / n) + std::min(me, rows % n);
        const int64_t end = begin + rows / n + (me < rows % n ? 1 : 0);
        for (int64_t i = begin; i < end; ++i) expected.push_back(SumAt(i));
        break;
      }
      case CollectiveKind::kAlltoall:
        for (int r : operation_.ranks) {
          const std::vector<int64_t> splits = Splits(r);
          const int64_t begin = std::accumulate(splits.begin(), splits.begin() + me, int64_t{0});
          for (int64_t i = begin; i < begin + splits[me]; ++i) expected.push_back(Value(r, i));
        }
        break;
      default:
        break;
    }
    return expected;
  }

  const Operation operation_;
  const int rank_;
  std::vector<int32_t> input_;
  std::vector<int32_t> output_;
};

}  // namespace hvd::shm

#endif  // HVD_TRANSPORT_SHM_WORKLOAD_H_
