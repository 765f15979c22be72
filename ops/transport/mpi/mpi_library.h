// MpiLibrary: the MPI library that this process has loaded already, whichever it is.
//
// No MPI header is needed to build, and one build serves all: the few functions that are called are
// looked up at run time, and the three binary interfaces differ only in what a handle is. Open
// MPI's are pointers; those of MPICH, Intel MPI and their kin are 32-bit numbers (the MPICH ABI
// initiative); those of the standard ABI of MPI 5.0 are pointers again, with small numbers for the
// predefined ones.
#ifndef HVD_TRANSPORT_MPI_MPI_LIBRARY_H_
#define HVD_TRANSPORT_MPI_MPI_LIBRARY_H_

#include <cstdint>
#include <string>

#include "ops/core/status.h"

namespace hvd::mpi {

enum class Abi { kOpenMpi, kMpich, kStandard };

class MpiLibrary {
 public:
  // `path`: of the library, as the process has it loaded. A second copy would be a second MPI, so
  // this never loads one.
  static Status Find(const std::string& path, MpiLibrary* library);

  Abi abi() const { return abi_; }

  template <typename Function>
  Status Look(const char* name, Function* function) const {
    void* address = nullptr;
    HVD_RETURN_IF_ERROR(Symbol(name, &address));
    *function = reinterpret_cast<Function>(address);
    return Status::Ok();
  }

  // MPI_BYTE, as a pointer or a number.
  Status Byte(uint64_t* handle) const;

 private:
  Status Symbol(const char* name, void** address) const;

  void* library_ = nullptr;
  std::string path_;
  Abi abi_ = Abi::kOpenMpi;
};

}  // namespace hvd::mpi

#endif  // HVD_TRANSPORT_MPI_MPI_LIBRARY_H_
