// Ranks in words.
#ifndef HVD_CORE_RANKS_H_
#define HVD_CORE_RANKS_H_

#include <string>
#include <vector>

namespace hvd {

// "rank 3", "ranks 0-2,5".
inline std::string RankList(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (i > 0) text += ",";
    text += std::to_string(ranks[i]);
    if (last > i) text += (last == i + 1 ? "," : "-") + std::to_string(ranks[last]);
    i = last;
  }
  return text;
}

}  // namespace hvd

#endif  // HVD_CORE_RANKS_H_
