// What the kernel says about other processes.
#ifndef HVD_TRANSPORT_SHM_PROCESS_H_
#define HVD_TRANSPORT_SHM_PROCESS_H_

#include <sys/types.h>

#include <cstdint>

namespace hvd::shm {

// False only if it certainly does not (a zombie counts as gone).
bool ProcessExists(pid_t pid);

// When the process was started, in clock ticks since boot; 0 if that cannot be read. Together with
// the pid it names a process for good.
uint64_t ProcessStartTicks(pid_t pid);

}  // namespace hvd::shm

#endif  // HVD_TRANSPORT_SHM_PROCESS_H_
