#include "ops/hosts/hosts_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace hvd::hosts {
namespace {

// The longest data of a planned collective that opens by doubling: partial results can be eight
// times as wide as their elements.
constexpr int64_t kMaxDoublingBytes = 8 * 32 * 1024;

}  // namespace

HostsCommunicator::HostsCommunicator(std::shared_ptr<Communicator> local,
                                     std::shared_ptr<Exchange> exchange, const HostMap& map,
                                     const std::vector<int>& ranks, int rank)
    : local_(std::move(local)),
      exchange_(std::move(exchange)),
      size_(static_cast<int>(ranks.size())),
      local_index_(local_->index()),
      ranks_(ranks) {
  index_ = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  const std::vector<int> hosts = map.HostsOf(ranks);
  members_.resize(hosts.size());
  indices_.resize(hosts.size());
  for (int i = 0; i < size_; ++i) {
    const auto h = std::find(hosts.begin(), hosts.end(), map.host_of(ranks[i])) - hosts.begin();
    members_[h].push_back(ranks[i]);
    indices_[h].push_back(i);
    if (ranks[i] == rank) host_ = static_cast<int>(h);
  }
  size_t fewest = members_[0].size();
  for (const auto& members : members_) fewest = std::min(fewest, members.size());
  slices_ = static_cast<int>(fewest);
}

HostsCommunicator::Range HostsCommunicator::PartOf(Range whole, int i, int n) {
  const int64_t begin = whole.count * i / n;
  const int64_t end = whole.count * (i + 1) / n;
  return {whole.begin + begin, end - begin};
}

Status HostsCommunicator::SendFlagged(int to, uint64_t flag, const void* partials, int64_t bytes,
                                      Exchange::Messages* messages) {
  return exchange_->Send(
      to, Channel::kFlags, flag != 0 ? 8 : 8 + bytes,
      [&](char* data) {
        std::memcpy(data, &flag, 8);
        if (flag == 0 && bytes > 0) std::memcpy(data + 8, partials, static_cast<size_t>(bytes));
      },
      messages);
}

Status HostsCommunicator::DoubleWith(int partner_host, bool mine_first, const Reduction& reduction,
                                     uint64_t* flag, char* partials, int64_t count) {
  const int64_t bytes = count * SizeOf(PartialType(reduction));
  const int peer = members_[partner_host][0];
  Exchange::Messages messages;
  const Exchange::Message* received = nullptr;
  HVD_RETURN_IF_ERROR(exchange_->Receive(peer, Channel::kFlags, 8 + bytes, &messages, &received));
  HVD_RETURN_IF_ERROR(SendFlagged(peer, *flag, partials, bytes, &messages));
  HVD_RETURN_IF_ERROR(exchange_->Wait(&messages));
  uint64_t theirs = 0;
  std::memcpy(&theirs, received->data.data(), 8);
  if (theirs == 0 && *flag == 0 && count > 0) {
    const void* inputs[2] = {partials, received->data.data() + 8};
    if (!mine_first) std::swap(inputs[0], inputs[1]);
    Reduce(OfPartials(reduction), inputs, 2, partials, count);
  }
  *flag |= theirs;
  exchange_->Recycle(&messages);
  return Status::Ok();
}

// `from` gives what it has to `to`, which takes it for its own.
Status HostsCommunicator::HandOver(int from_host, int to_host, uint64_t* flag, void* partials,
                                   int64_t bytes) {
  Exchange::Messages messages;
  if (host_ == from_host) {
    HVD_RETURN_IF_ERROR(SendFlagged(members_[to_host][0], *flag, partials, bytes, &messages));
    HVD_RETURN_IF_ERROR(exchange_->Wait(&messages));
  } else {
    const Exchange::Message* received = nullptr;
    HVD_RETURN_IF_ERROR(exchange_->Receive(members_[from_host][0], Channel::kFlags, 8 + bytes,
                                           &messages, &received));
    HVD_RETURN_IF_ERROR(exchange_->Wait(&messages));
    std::memcpy(flag, received->data.data(), 8);
    if (*flag == 0 && bytes > 0) {
      std::memcpy(partials, received->data.data() + 8, static_cast<size_t>(bytes));
    }
  }
  exchange_->Recycle(&messages);
  return Status::Ok();
}

Status HostsCommunicator::Double(const Reduction& reduction, uint64_t* flag, void* partials,
                                 int64_t count) {
  int paired = 1;  // hosts that take part in the rounds: a power of two
  while (2 * paired <= num_hosts()) paired *= 2;
  char* data = static_cast<char*>(partials);
  const int64_t bytes = count * SizeOf(PartialType(reduction));
  // The others have a partner who speaks for them.
  const int extra = num_hosts() - paired;
  if (host_ >= paired) {
    HVD_RETURN_IF_ERROR(DoubleWith(host_ - paired, false, reduction, flag, data, count));
    return HandOver(host_ - paired, host_, flag, data, bytes);
  }
  if (host_ < extra) {
    HVD_RETURN_IF_ERROR(DoubleWith(host_ + paired, true, reduction, flag, data, count));
  }
  for (int distance = 1; distance < paired; distance *= 2) {
    const int partner = host_ ^ distance;
    HVD_RETURN_IF_ERROR(DoubleWith(partner, host_ < partner, reduction, flag, data, count));
  }
  if (host_ < extra) return HandOver(host_, host_ + paired, flag, data, bytes);
  return Status::Ok();
}

Status HostsCommunicator::ShareFlag(Ticket ticket, uint64_t* flag) {
  if (local_size() > 1) HVD_RETURN_IF_ERROR(local_->Broadcast(ticket, 0, {{flag, flag, 8}}));
  return *flag == 0 ? Status::Ok() : Status(Code::kPlanLeft, "a host has left the plan");
}

Status HostsCommunicator::Meet(Ticket ticket) {
  if (!by_plan_) return Status::Ok();
  by_plan_ = false;
  uint64_t flag = 0;
  if (is_leader()) HVD_RETURN_IF_ERROR(Double(Reduction(), &flag, nullptr, 0));
  return ShareFlag(ticket, &flag);
}

Status HostsCommunicator::LeavePlan(Ticket, Opening opening) {
  uint64_t flag = 1;
  if (opening == Opening::kDirect) return owns_slice() ? ExchangeFlags(&flag) : Status::Ok();
  if (!is_leader()) return Status::Ok();
  Reduction bytes;
  bytes.dtype = DataType::kUint8;
  std::vector<char> unused(kMaxDoublingBytes);
  return Double(bytes, &flag, unused.data(), kMaxDoublingBytes);
}

Status HostsCommunicator::Alltoall(Ticket ticket, const void* input, void* output,
                                   const std::vector<AlltoallPart>& parts) {
  constexpr int64_t kMessageBytes = 256 * 1024;
  HVD_RETURN_IF_ERROR(Meet(ticket));
  const char* from = static_cast<const char*>(input);
  char* to = static_cast<char*>(output);
  const AlltoallPart& own = parts[index_];
  if (own.bytes > 0) std::memcpy(to + own.output_begin, from + own.send_begin, own.bytes);
  int64_t longest = 0;
  for (int m = 0; m < size_; ++m) {
    if (m != index_) longest = std::max({longest, parts[m].bytes, parts[m].send_bytes});
  }
  for (int64_t done = 0; done < longest; done += kMessageBytes) {
    Exchange::Messages messages;
    std::vector<const Exchange::Message*> received(size_, nullptr);
    for (int m = 0; m < size_; ++m) {
      const int64_t bytes = std::min(kMessageBytes, parts[m].bytes - done);
      if (m == index_ || bytes <= 0) continue;
      HVD_RETURN_IF_ERROR(
          exchange_->Receive(ranks_[m], Channel::kData, bytes, &messages, &received[m]));
    }
    for (int m = 0; m < size_; ++m) {
      const int64_t bytes = std::min(kMessageBytes, parts[m].send_bytes - done);
      if (m == index_ || bytes <= 0) continue;
      const char* source = from + parts[m].send_begin + done;
      HVD_RETURN_IF_ERROR(exchange_->Send(
          ranks_[m], Channel::kData, bytes,
          [&](char* data) { std::memcpy(data, source, static_cast<size_t>(bytes)); }, &messages));
    }
    HVD_RETURN_IF_ERROR(exchange_->Wait(&messages));
    for (int m = 0; m < size_; ++m) {
      if (received[m] == nullptr) continue;
      std::memcpy(to + parts[m].output_begin + done, received[m]->data.data(),
                  static_cast<size_t>(received[m]->bytes));
    }
    exchange_->Recycle(&messages);
  }
  return Status::Ok();
}

}  // namespace hvd::hosts
