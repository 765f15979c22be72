// What the kernel says about other processes, and how to name them.
#ifndef HVD_TRANSPORT_SHM_PROCESS_H_
#define HVD_TRANSPORT_SHM_PROCESS_H_

#include <sys/types.h>

#include <string>

namespace hvd::shm {

// False only if it certainly does not (a zombie counts as gone).
bool ProcessExists(pid_t pid);

// What it does: "running", "stopped by a signal", ...; empty if that cannot be read.
std::string ProcessState(pid_t pid);

// "rank 3 (host node7, pid 4711)"; all ranks of a segment are on this host.
std::string RankOnThisHost(int rank, pid_t pid);

// How a process ended: "exit code 3", "killed by SIGKILL (out of memory?)".
std::string DescribeReturncode(int returncode);

}  // namespace hvd::shm

#endif  // HVD_TRANSPORT_SHM_PROCESS_H_
