// A small non-cryptographic hash, the same on all ranks (std::hash promises nothing of the kind).
#ifndef HVD_CORE_HASH_H_
#define HVD_CORE_HASH_H_

#include <cstdint>
#include <cstring>
#include <string_view>

namespace hvd {

// Mixes one 64-bit word into a state: the finaliser of MurmurHash3 (Austin Appleby, public domain)
// after a multiplication that makes the order of words matter.
inline uint64_t HashMix(uint64_t state, uint64_t word) {
  uint64_t h = state * 0x9e3779b97f4a7c15ull + word + 0x632be59bd9b4e019ull;
  h ^= h >> 33;
  h *= 0xff51afd7ed558ccdull;
  h ^= h >> 33;
  h *= 0xc4ceb9fe1a85ec53ull;
  h ^= h >> 33;
  return h;
}

inline uint64_t HashDouble(uint64_t state, double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return HashMix(state, bits);
}

inline uint64_t HashString(uint64_t state, std::string_view text) {
  uint64_t h = HashMix(state, text.size());
  while (text.size() >= 8) {
    uint64_t word;
    std::memcpy(&word, text.data(), 8);
    h = HashMix(h, word);
    text.remove_prefix(8);
  }
  if (text.empty()) return h;
  uint64_t word = 0;
  std::memcpy(&word, text.data(), text.size());
  return HashMix(h, word);
}

}  // namespace hvd

#endif  // HVD_CORE_HASH_H_
