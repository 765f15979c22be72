#include "ops/core/adasum.h"

#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <string>

namespace hvd {
namespace {

template <typename T>
void CombinePair(T* a, const T* b, int64_t count) {
  double dot = 0, a_norm = 0, b_norm = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double x = a[i], y = b[i];
    dot += x * y;
    a_norm += x * x;
    b_norm += y * y;
  }
  // A zero vector is neutral.
  const double a_factor = a_norm > 0 ? 1 - dot / (2 * a_norm) : 1;
  const double b_factor = b_norm > 0 ? 1 - dot / (2 * b_norm) : 1;
  for (int64_t i = 0; i < count; ++i) {
    a[i] =
        static_cast<T>(a_factor * static_cast<double>(a[i]) + b_factor * static_cast<double>(b[i]));
  }
}

template <typename T>
void CombineAll(char* vectors, int members, const Reduction& reduction, Buffer buffer) {
  const auto count = buffer.bytes / static_cast<int64_t>(sizeof(T));
  T* base = reinterpret_cast<T*>(vectors);
  for (int64_t i = 0; i < count * members; ++i) base[i] *= static_cast<T>(reduction.prescale);
  for (int distance = 1; distance < members; distance *= 2) {
    for (int m = 0; m + distance < members; m += 2 * distance) {
      CombinePair(base + m * count, base + (m + distance) * count, count);
    }
  }
  T* output = static_cast<T*>(buffer.output);
  for (int64_t i = 0; i < count; ++i) output[i] = base[i] * static_cast<T>(reduction.postscale);
}

}  // namespace

Status AdasumAllreduce(Ticket ticket, const Reduction& reduction,
                       const std::vector<Buffer>& buffers, Communicator* communicator) {
  const int members = communicator->size();
  int64_t total = 0;
  for (const Buffer& buffer : buffers) total += buffer.bytes;
  // Not initialised: every byte is written by the gather.
  const std::unique_ptr<char[]> gathered(new (std::nothrow) char[total * members]);
  // All members ask for the same, but each may be refused alone: the others must learn of it.
  const uint8_t refused = gathered ? 0 : 1;
  std::vector<uint8_t> refusals(members);
  HVD_RETURN_IF_ERROR(communicator->Allgather(
      ticket, {{&refused, refusals.data(), std::vector<int64_t>(members, 1)}}));
  if (std::accumulate(refusals.begin(), refusals.end(), 0) > 0) {
    return ResourceExhausted("Adasum needs " + std::to_string(total * members) +
                             " bytes on each rank, which at least one could not get");
  }
  std::vector<GatherBuffer> gather;
  char* next = gathered.get();
  for (const Buffer& buffer : buffers) {
    gather.push_back({buffer.input, next, std::vector<int64_t>(members, buffer.bytes)});
    next += buffer.bytes * members;
  }
  HVD_RETURN_IF_ERROR(communicator->Allgather(ticket, gather));
  for (size_t i = 0; i < buffers.size(); ++i) {
    char* vectors = static_cast<char*>(gather[i].output);
    if (reduction.dtype == DataType::kFloat32) {
      CombineAll<float>(vectors, members, reduction, buffers[i]);
    } else {
      CombineAll<double>(vectors, members, reduction, buffers[i]);
    }
  }
  return Status::Ok();
}

}  // namespace hvd
