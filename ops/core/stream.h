// Stream: several buffers seen as one run of bytes, walked from its start.
#ifndef HVD_CORE_STREAM_H_
#define HVD_CORE_STREAM_H_

#include <algorithm>
#include <cstdint>
#include <vector>

namespace hvd {

// Calls visit(buffer index, offset in that buffer, bytes) for each contiguous part of the next
// bytes.
template <typename SizeOfBuffer>
class StreamCursor {
 public:
  StreamCursor(size_t num_buffers, SizeOfBuffer size_of)
      : num_buffers_(num_buffers), size_of_(size_of) {}

  template <typename Visit>
  void Advance(int64_t bytes, const Visit& visit) {
    while (bytes > 0 && index_ < num_buffers_) {
      const int64_t part = std::min(bytes, size_of_(index_) - offset_);
      if (part > 0) visit(index_, offset_, part);
      offset_ += part;
      bytes -= part;
      if (offset_ == size_of_(index_)) {
        ++index_;
        offset_ = 0;
      }
    }
  }

 private:
  const size_t num_buffers_;
  const SizeOfBuffer size_of_;
  size_t index_ = 0;
  int64_t offset_ = 0;
};

}  // namespace hvd

#endif  // HVD_CORE_STREAM_H_
