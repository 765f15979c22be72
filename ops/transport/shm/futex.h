// Futex: sleeping on a word of shared memory, and waking who sleeps there.
#ifndef HVD_TRANSPORT_SHM_FUTEX_H_
#define HVD_TRANSPORT_SHM_FUTEX_H_

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace hvd::shm {

// Sleeps until woken, for `ns` at most, if the word still is `expected`.
inline void FutexWait(std::atomic<uint32_t>* word, uint32_t expected, int64_t ns) {
  const timespec timeout{ns / 1'000'000'000, ns % 1'000'000'000};
  // Not the private variant: the word is shared between processes.
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT, expected, &timeout, nullptr, 0);
}

// Wakes one who sleeps on it.
inline void FutexWake(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

}  // namespace hvd::shm

#endif  // HVD_TRANSPORT_SHM_FUTEX_H_
