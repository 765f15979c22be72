// Exchange: messages with other hosts in the middle of a collective, and waiting for them.
#ifndef HVD_HOSTS_EXCHANGE_H_
#define HVD_HOSTS_EXCHANGE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <vector>

#include "ops/core/messenger.h"
#include "ops/core/phases.h"
#include "ops/core/status.h"

namespace hvd::hosts {

struct ExchangeStats {
  std::atomic<int64_t> messages{0};  // sent to other hosts
  std::atomic<int64_t> bytes{0};
};

// Of the engine's thread of one rank. Data travels in pieces that are short enough for the library
// between the hosts to send them without asking the receiver first; both sides cut it alike, so a
// message of channel kData is as long as its receiver expects. One of kFlags may be shorter. The
// memory of messages is the exchange's own: a collective can end early, with an error, while the
// library between the hosts still reads and writes it.
class Exchange {
 public:
  // How often `check_peer` is called; see below.
  static constexpr int64_t kCheckNs = 100'000'000;

  // `check_peer` is called now and then while the caller waits for a rank, with the time so far; an
  // error ends the wait.
  using CheckPeer = std::function<Status(int rank, int64_t waited_ns)>;
  Exchange(std::shared_ptr<Messenger> messenger, CheckPeer check_peer, int64_t spin_ns);

  struct Message {
    int peer = 0;
    bool sends = false;
    std::vector<char> data;  // at least
    int64_t bytes = 0;
    std::vector<Transfer> pieces;
  };

  // Messages that are waited for together. Their addresses stay. Those that are under way when it
  // is destroyed, after an error, are never freed: they may be written to as long as the process
  // lives.
  class Messages {
   public:
    Messages() = default;
    ~Messages();
    Messages(const Messages&) = delete;
    Messages& operator=(const Messages&) = delete;

   private:
    friend class Exchange;
    std::list<Message> list_;
  };

  // Starts to send what `messages` gets appended, with room for `bytes` to be filled by `fill`.
  template <typename Fill>
  Status Send(int to, Channel channel, int64_t bytes, const Fill& fill, Messages* messages) {
    Message& message = Add(to, true, bytes, messages);
    fill(message.data.data());
    return Start(&message, channel);
  }
  // Starts to receive; *message is where it will be.
  Status Receive(int from, Channel channel, int64_t bytes, Messages* messages,
                 const Message** message);

  // Waits until all are complete.
  Status Wait(Messages* messages);

  // Where the time spent in Wait() is added up; null for nowhere.
  void set_phases(PhaseTimes* phases) { phases_ = phases; }

  // Gives their memory to later messages.
  void Recycle(Messages* messages);

  const ExchangeStats& stats() const { return stats_; }

 private:
  Message& Add(int peer, bool sends, int64_t bytes, Messages* messages);
  Status Start(Message* message, Channel channel);
  Status WaitFor(int peer, Transfer* piece);

  const std::shared_ptr<Messenger> messenger_;
  const CheckPeer check_peer_;
  const int64_t spin_ns_;
  PhaseTimes* phases_ = nullptr;
  std::list<Message> spare_;
  ExchangeStats stats_;
};

}  // namespace hvd::hosts

#endif  // HVD_HOSTS_EXCHANGE_H_
