// MpiMessenger: messages between hosts, by MPI.
//
// Of MPI it takes what MPI alone can do: the way to a process on another host, over whatever
// network there is. The collectives themselves are ours, since those of MPI can be neither left in
// an emergency nor given a word on the plan, and round float16 at every step.
#ifndef HVD_TRANSPORT_MPI_MPI_MESSENGER_H_
#define HVD_TRANSPORT_MPI_MPI_MESSENGER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "ops/core/messenger.h"

namespace hvd::mpi {

// `library_path`: see MpiLibrary. `communicator`: its handle, a pointer or a number, as mpi4py's
// `comm.handle` gives it; of this job alone, with MPI_ERRORS_RETURN, and alive as long as the
// messenger. MPI has to be initialised, with MPI_THREAD_MULTIPLE.
Status MakeMpiMessenger(const std::string& library_path, uint64_t communicator, int rank, int size,
                        std::shared_ptr<Messenger>* messenger);

}  // namespace hvd::mpi

#endif  // HVD_TRANSPORT_MPI_MPI_MESSENGER_H_
