#include "ops/hosts/exchange.h"

#include <time.h>

#include <iterator>
#include <utility>

#include "ops/core/backoff.h"
#include "ops/core/clock.h"

namespace hvd::hosts {
namespace {

constexpr int64_t kLongestLookNs = 200'000;  // while data may be on its way
constexpr int64_t kCheckNs = 100'000'000;
constexpr size_t kMaxSpare = 64;

}  // namespace

Exchange::Exchange(std::shared_ptr<Messenger> messenger, CheckPeer check_peer, int64_t spin_ns)
    : messenger_(std::move(messenger)), check_peer_(std::move(check_peer)), spin_ns_(spin_ns) {}

Exchange::Messages::~Messages() {
  for (const Message& message : list_) {
    if (!message.transfer.is_pending) continue;
    (void)new std::list<Message>(std::move(list_));
    return;
  }
}

Exchange::Message& Exchange::Add(int peer, bool sends, int64_t bytes, Messages* messages) {
  std::list<Message>& list = messages->list_;
  if (spare_.empty()) {
    list.emplace_back();
  } else {
    list.splice(list.end(), spare_, spare_.begin());
  }
  Message& message = list.back();
  message.peer = peer;
  message.sends = sends;
  message.bytes = bytes;
  if (static_cast<int64_t>(message.data.size()) < bytes) message.data.resize(bytes);
  return message;
}

Status Exchange::Start(Message* message, Channel channel) {
  const int64_t bytes = message->bytes;
  if (!message->sends) {
    return messenger_->Receive(message->peer, channel, message->data.data(), bytes,
                               &message->transfer);
  }
  stats_.messages.fetch_add(1, std::memory_order_relaxed);
  stats_.bytes.fetch_add(bytes, std::memory_order_relaxed);
  return messenger_->Send(message->peer, channel, message->data.data(), bytes, &message->transfer);
}

Status Exchange::Receive(int from, Channel channel, int64_t bytes, Messages* messages,
                         const Message** message) {
  Message& added = Add(from, false, bytes, messages);
  *message = &added;
  return Start(&added, channel);
}

Status Exchange::WaitFor(Message* message) {
  HVD_RETURN_IF_ERROR(messenger_->Test(&message->transfer));
  if (!message->transfer.is_pending) return Status::Ok();
  const int64_t begin = ClockNs(CLOCK_MONOTONIC);
  int64_t checked = 0;
  while (true) {
    HVD_RETURN_IF_ERROR(messenger_->Test(&message->transfer));
    if (!message->transfer.is_pending) return Status::Ok();
    const int64_t waited = ClockNs(CLOCK_MONOTONIC) - begin;
    if (waited < spin_ns_) continue;
    if (waited - checked >= kCheckNs) {
      checked = waited;
      HVD_RETURN_IF_ERROR(check_peer_(message->peer, waited));
    }
    const timespec pause{0, BackoffNs(waited, kLongestLookNs)};
    nanosleep(&pause, nullptr);
  }
}

Status Exchange::Wait(Messages* messages) {
  for (Message& message : messages->list_) HVD_RETURN_IF_ERROR(WaitFor(&message));
  return Status::Ok();
}

void Exchange::Recycle(Messages* messages) {
  spare_.splice(spare_.end(), messages->list_);
  while (spare_.size() > kMaxSpare) spare_.pop_front();
}

}  // namespace hvd::hosts
