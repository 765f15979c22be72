#include "ops/hosts/exchange.h"

#include <time.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "ops/core/backoff.h"
#include "ops/core/clock.h"
#include "ops/hosts/abandon.h"

namespace hvd::hosts {
namespace {

constexpr int64_t kLongestLookNs = 200'000;  // while data may be on its way
constexpr size_t kMaxSpare = 64;
// Below the 64 KiB from which Open MPI and MPICH over TCP wait for the receiver's word, their
// headers included: seen to carry 0.90 of a link of 1 Gbit/s in both directions, where 4 MiB
// carried 0.5.
constexpr int64_t kPieceBytes = 60 * 1024;

}  // namespace

Exchange::Exchange(std::shared_ptr<Messenger> messenger, CheckPeer check_peer, int64_t spin_ns)
    : messenger_(std::move(messenger)), check_peer_(std::move(check_peer)), spin_ns_(spin_ns) {}

Exchange::Messages::~Messages() {
  for (const Message& message : list_) {
    for (const Transfer& piece : message.pieces) {
      if (!piece.is_pending) continue;
      Abandon(std::move(list_));
      return;
    }
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
  const int64_t most = channel == Channel::kData ? kPieceBytes : message->bytes;
  const auto pieces = std::max<int64_t>(most > 0 ? (message->bytes + most - 1) / most : 1, 1);
  message->pieces.assign(static_cast<size_t>(pieces), Transfer());
  for (int64_t i = 0; i < pieces; ++i) {
    char* data = message->data.data() + i * most;
    const int64_t bytes = std::min(most, message->bytes - i * most);
    Transfer* piece = &message->pieces[static_cast<size_t>(i)];
    HVD_RETURN_IF_ERROR(message->sends
                            ? messenger_->Send(message->peer, channel, data, bytes, piece)
                            : messenger_->Receive(message->peer, channel, data, bytes, piece));
  }
  if (!message->sends) return Status::Ok();
  stats_.messages.fetch_add(pieces, std::memory_order_relaxed);
  stats_.bytes.fetch_add(message->bytes, std::memory_order_relaxed);
  return Status::Ok();
}

Status Exchange::Receive(int from, Channel channel, int64_t bytes, Messages* messages,
                         const Message** message) {
  Message& added = Add(from, false, bytes, messages);
  *message = &added;
  return Start(&added, channel);
}

Status Exchange::WaitFor(int peer, Transfer* piece) {
  HVD_RETURN_IF_ERROR(messenger_->Test(piece));
  if (!piece->is_pending) return Status::Ok();
  const int64_t begin = ClockNs(CLOCK_MONOTONIC);
  int64_t checked = 0;
  while (true) {
    HVD_RETURN_IF_ERROR(messenger_->Test(piece));
    if (!piece->is_pending) return Status::Ok();
    const int64_t waited = ClockNs(CLOCK_MONOTONIC) - begin;
    if (waited < spin_ns_) continue;
    if (waited - checked >= kCheckNs) {
      checked = waited;
      HVD_RETURN_IF_ERROR(check_peer_(peer, waited));
    }
    const timespec pause{0, BackoffNs(waited, kLongestLookNs)};
    nanosleep(&pause, nullptr);
  }
}

Status Exchange::Wait(Messages* messages) {
  PhaseLaps laps(phases_);
  for (Message& message : messages->list_) {
    for (Transfer& piece : message.pieces) HVD_RETURN_IF_ERROR(WaitFor(message.peer, &piece));
  }
  laps.End(&PhaseTimes::network);
  return Status::Ok();
}

void Exchange::Recycle(Messages* messages) {
  spare_.splice(spare_.end(), messages->list_);
  while (spare_.size() > kMaxSpare) spare_.pop_front();
}

}  // namespace hvd::hosts
