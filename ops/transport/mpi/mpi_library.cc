#include "ops/transport/mpi/mpi_library.h"

#include <dlfcn.h>

namespace hvd::mpi {
namespace {

constexpr char kOpenMpiByte[] = "ompi_mpi_byte";
// From the headers of the two: what they never change, since it is compiled into programs.
constexpr uint64_t kMpichByte = 0x4c00010d;
constexpr uint64_t kStandardByte = 0x247;

}  // namespace

Status MpiLibrary::Find(const std::string& path, MpiLibrary* library) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) {
    return Unavailable("the MPI library " + path + " is not loaded in this process");
  }
  library->library_ = handle;
  library->path_ = path;
  if (dlsym(handle, kOpenMpiByte) != nullptr) {
    library->abi_ = Abi::kOpenMpi;
  } else if (path.find("libmpi_abi") != std::string::npos) {
    library->abi_ = Abi::kStandard;
  } else {
    library->abi_ = Abi::kMpich;
  }
  return Status::Ok();
}

Status MpiLibrary::Symbol(const char* name, void** address) const {
  *address = dlsym(library_, name);
  if (*address != nullptr) return Status::Ok();
  return Unavailable("the MPI library " + path_ + " has no " + name);
}

Status MpiLibrary::Byte(uint64_t* handle) const {
  if (abi_ != Abi::kOpenMpi) {
    *handle = abi_ == Abi::kMpich ? kMpichByte : kStandardByte;
    return Status::Ok();
  }
  void* address = nullptr;
  HVD_RETURN_IF_ERROR(Symbol(kOpenMpiByte, &address));
  *handle = reinterpret_cast<uint64_t>(address);
  return Status::Ok();
}

}  // namespace hvd::mpi
