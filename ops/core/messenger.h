// Messenger: messages between processes of different hosts.
//
// The whole contract of a transport between hosts: it moves bytes, in order, between two ranks on a
// channel. What is reduced, in which order, and when somebody is late is not its business. All
// functions return at once and may be called from any thread.
#ifndef HVD_CORE_MESSENGER_H_
#define HVD_CORE_MESSENGER_H_

#include <cstdint>

#include "ops/core/status.h"

namespace hvd {

// Messages of different channels do not wait for one another.
enum class Channel : int { kControl = 1, kData = 2, kFlags = 3 };

// A message on its way.
struct Transfer {
  uint64_t handle = 0;  // the transport's
  bool is_pending = false;
};

class Messenger {
 public:
  virtual ~Messenger() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Begin to send `bytes`, and to receive a message of at most `max_bytes`. The memory belongs to
  // the transfer until it is complete.
  virtual Status Send(int to, Channel channel, const void* data, int64_t bytes,
                      Transfer* transfer) = 0;
  virtual Status Receive(int from, Channel channel, void* data, int64_t max_bytes,
                         Transfer* transfer) = 0;

  // Sees whether a transfer is complete, and moves all others on as well.
  virtual Status Test(Transfer* transfer) = 0;
};

}  // namespace hvd

#endif  // HVD_CORE_MESSENGER_H_
