#include "ops/transport/mpi/mpi_messenger.h"

#include <climits>
#include <type_traits>
#include <utility>

#include "ops/transport/mpi/mpi_library.h"

namespace hvd::mpi {
namespace {

constexpr int kSuccess = 0;
constexpr int kThreadMultiple = 3;  // MPI_THREAD_MULTIPLE, in Open MPI and MPICH
constexpr int kStandardThreadMultiple = 4096;
constexpr int kMaxErrorString = 8192;  // more than MPI_MAX_ERROR_STRING of any

// Handle: what communicators, types and requests are, a pointer or an int.
template <typename Handle>
class MpiMessenger : public Messenger {
 public:
  MpiMessenger(int rank, int size) : rank_(rank), size_(size) {}

  Status Start(const MpiLibrary& library, uint64_t communicator) {
    HVD_RETURN_IF_ERROR(library.Look("MPI_Isend", &isend_));
    HVD_RETURN_IF_ERROR(library.Look("MPI_Irecv", &irecv_));
    HVD_RETURN_IF_ERROR(library.Look("MPI_Test", &test_));
    HVD_RETURN_IF_ERROR(library.Look("MPI_Error_string", &error_string_));
    HVD_RETURN_IF_ERROR(library.Look("MPI_Query_thread", &query_thread_));
    uint64_t byte = 0;
    HVD_RETURN_IF_ERROR(library.Byte(&byte));
    communicator_ = ToHandle(communicator);
    byte_ = ToHandle(byte);
    // MPI_STATUS_IGNORE.
    ignore_ = reinterpret_cast<void*>(static_cast<uintptr_t>(library.abi() == Abi::kMpich ? 1 : 0));
    return CheckThreads(library);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Status Send(int to, Channel channel, const void* data, int64_t bytes,
              Transfer* transfer) override {
    HVD_RETURN_IF_ERROR(CheckSize(bytes));
    Handle request{};
    const int error = isend_(data, static_cast<int>(bytes), byte_, to, static_cast<int>(channel),
                             communicator_, &request);
    return Started(error, "MPI_Isend to", to, request, transfer);
  }

  Status Receive(int from, Channel channel, void* data, int64_t max_bytes,
                 Transfer* transfer) override {
    HVD_RETURN_IF_ERROR(CheckSize(max_bytes));
    Handle request{};
    const int error = irecv_(data, static_cast<int>(max_bytes), byte_, from,
                             static_cast<int>(channel), communicator_, &request);
    return Started(error, "MPI_Irecv from", from, request, transfer);
  }

  Status Test(Transfer* transfer) override {
    if (!transfer->is_pending) return Status::Ok();
    Handle request = ToHandle(transfer->handle);
    int complete = 0;
    const int error = test_(&request, &complete, ignore_);
    transfer->handle = FromHandle(request);
    if (error != kSuccess) {
      transfer->is_pending = false;
      return Aborted("rank " + std::to_string(rank_) +
                     ": a message to or from another rank failed: " + Describe(error));
    }
    transfer->is_pending = complete == 0;
    return Status::Ok();
  }

 private:
  static Handle ToHandle(uint64_t value) {
    if constexpr (std::is_pointer_v<Handle>) {
      return reinterpret_cast<Handle>(static_cast<uintptr_t>(value));
    } else {
      return static_cast<Handle>(value);
    }
  }
  static uint64_t FromHandle(Handle handle) {
    if constexpr (std::is_pointer_v<Handle>) {
      return reinterpret_cast<uintptr_t>(handle);
    } else {
      return static_cast<uint32_t>(handle);
    }
  }

  // The engine's thread and the host's agent both send.
  Status CheckThreads(const MpiLibrary& library) const {
    int level = 0;
    const int error = query_thread_(&level);
    const int multiple =
        library.abi() == Abi::kStandard ? kStandardThreadMultiple : kThreadMultiple;
    if (error == kSuccess && level >= multiple) return Status::Ok();
    return Unavailable(
        "MPI was not initialised with MPI_THREAD_MULTIPLE; let mpi4py initialise it (its default), "
        "or set mpi4py.rc.thread_level = 'multiple' before 'from mpi4py import MPI'");
  }

  static Status CheckSize(int64_t bytes) {
    if (bytes <= INT_MAX) return Status::Ok();
    return Internal("a message of " + std::to_string(bytes) + " bytes in one piece");
  }

  Status Started(int error, const char* what, int peer, Handle request, Transfer* transfer) const {
    if (error != kSuccess) {
      return Aborted("rank " + std::to_string(rank_) + ": " + what + " rank " +
                     std::to_string(peer) + " failed: " + Describe(error));
    }
    transfer->handle = FromHandle(request);
    transfer->is_pending = true;
    return Status::Ok();
  }

  std::string Describe(int error) const {
    std::string text(kMaxErrorString, '\0');
    int length = 0;
    if (error_string_(error, text.data(), &length) != kSuccess) return "MPI error";
    text.resize(static_cast<size_t>(length));
    return text;
  }

  const int rank_;
  const int size_;
  Handle communicator_{};
  Handle byte_{};
  void* ignore_ = nullptr;
  int (*isend_)(const void*, int, Handle, int, int, Handle, Handle*) = nullptr;
  int (*irecv_)(void*, int, Handle, int, int, Handle, Handle*) = nullptr;
  int (*test_)(Handle*, int*, void*) = nullptr;
  int (*error_string_)(int, char*, int*) = nullptr;
  int (*query_thread_)(int*) = nullptr;
};

template <typename Handle>
Status Make(const MpiLibrary& library, uint64_t communicator, int rank, int size,
            std::shared_ptr<Messenger>* messenger) {
  auto made = std::make_shared<MpiMessenger<Handle>>(rank, size);
  HVD_RETURN_IF_ERROR(made->Start(library, communicator));
  *messenger = std::move(made);
  return Status::Ok();
}

}  // namespace

Status MakeMpiMessenger(const std::string& library_path, uint64_t communicator, int rank, int size,
                        std::shared_ptr<Messenger>* messenger) {
  MpiLibrary library;
  HVD_RETURN_IF_ERROR(MpiLibrary::Find(library_path, &library));
  return library.abi() == Abi::kMpich ? Make<int>(library, communicator, rank, size, messenger)
                                      : Make<void*>(library, communicator, rank, size, messenger);
}

}  // namespace hvd::mpi
