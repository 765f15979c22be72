// Allreduce over hosts: reduced in shared memory, exchanged in slices, spread in shared memory.
#include <algorithm>
#include <array>
#include <cstring>

#include "ops/hosts/hosts_communicator.h"

namespace hvd::hosts {
namespace {

// What one rank sends to another in one round: enough to keep the network busy while the hosts
// reduce the next one.
constexpr int64_t kSegmentBytes = 1024 * 1024;

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Calls visit(buffer, offset in it, bytes, offset in the range) for each part of a range of bytes.
template <typename Visit>
void VisitBytes(const std::vector<Buffer>& buffers, int64_t begin, int64_t bytes,
                const Visit& visit) {
  int64_t start = 0;  // of the buffer
  for (const Buffer& buffer : buffers) {
    const int64_t from = std::max(begin, start);
    const int64_t to = std::min(begin + bytes, start + buffer.bytes);
    if (from < to) visit(buffer, from - start, to - from, from - begin);
    start += buffer.bytes;
    if (start >= begin + bytes) return;
  }
}

Reduction Scaled(const Reduction& reduction) {
  Reduction scaled = OfPartials(reduction);
  scaled.prescale = reduction.prescale;
  return scaled;
}

bool IsWidened(const Reduction& reduction) { return PartialType(reduction) != reduction.dtype; }

}  // namespace

// Grows and shrinks without clearing what is overwritten anyway.
class Staging {
 public:
  char* Get(int64_t bytes) {
    if (static_cast<int64_t>(data_.size()) < bytes) data_.resize(static_cast<size_t>(bytes));
    return data_.data();
  }
  char* at(int64_t offset) { return data_.data() + offset; }

 private:
  std::vector<char> data_;
};

struct HostsCommunicator::Round {
  Range elements;   // of the stream
  Range slice;      // of them, this rank's
  Staging wide;     // partial results of this rank alone, where they are wider than the elements
  Staging partial;  // of the slice, of this host
  Staging result;   // of the slice
  Exchange::Messages messages;
  std::vector<const Exchange::Message*> received;  // by host
};

Status HostsCommunicator::Allreduce(Ticket ticket, const Reduction& reduction,
                                    const std::vector<Buffer>& buffers) {
  int64_t bytes = 0;
  for (const Buffer& buffer : buffers) bytes += buffer.bytes;
  const int64_t count = bytes / SizeOf(reduction.dtype);
  return OpeningOf(bytes) == Opening::kDoubling ? AllreduceSmall(ticket, reduction, buffers, count)
                                                : AllreduceLarge(ticket, reduction, buffers, count);
}

Status HostsCommunicator::AllreduceSmall(Ticket ticket, const Reduction& reduction,
                                         const std::vector<Buffer>& buffers, int64_t count) {
  by_plan_ = false;  // the flag always travels with the data
  const int64_t element = SizeOf(reduction.dtype);
  const int64_t wide = SizeOf(PartialType(reduction));
  std::vector<char> partials(static_cast<size_t>(count * wide));
  const auto visit_all = [&](const auto& visit) {
    VisitBytes(buffers, 0, count * element,
               [&](const Buffer& buffer, int64_t, int64_t bytes, int64_t offset) {
                 visit(buffer, partials.data() + offset / element * wide, bytes / element);
               });
  };
  if (local_size() > 1 && !IsWidened(reduction)) {
    std::vector<Buffer> local;
    visit_all([&](const Buffer& buffer, char* at, int64_t) {
      local.push_back({buffer.input, at, buffer.bytes});
    });
    HVD_RETURN_IF_ERROR(local_->Allreduce(ticket, Scaled(reduction), local));
  } else {
    visit_all([&](const Buffer& buffer, char* at, int64_t n) {
      ToPartial(reduction, buffer.input, at, n);
    });
    if (local_size() > 1) {
      HVD_RETURN_IF_ERROR(local_->Allreduce(ticket, OfPartials(reduction),
                                            {{partials.data(), partials.data(), count * wide}}));
    }
  }
  uint64_t flag = 0;
  if (is_leader()) HVD_RETURN_IF_ERROR(Double(reduction, &flag, partials.data(), count));
  if (local_size() > 1) {
    HVD_RETURN_IF_ERROR(local_->Broadcast(
        ticket, 0, {{&flag, &flag, 8}, {partials.data(), partials.data(), count * wide}}));
  }
  if (flag != 0) return Status(Code::kPlanLeft, "a host has left the plan");
  visit_all([&](const Buffer& buffer, const void* at, int64_t n) {
    FinishPartials(reduction, &at, 1, buffer.output, n);
  });
  return Status::Ok();
}

Status HostsCommunicator::AllreduceLarge(Ticket ticket, const Reduction& reduction,
                                         const std::vector<Buffer>& buffers, int64_t count) {
  const bool by_plan = by_plan_;
  by_plan_ = false;
  const int64_t per_round = kSegmentBytes / SizeOf(PartialType(reduction)) * slices_ * num_hosts();
  const auto rounds = static_cast<int>(CeilDivide(count, per_round));
  // While one round is reduced on the hosts, the one before is combined, and the one before that
  // collected.
  std::array<Round, 3> pipeline;
  for (int r = 0; r < rounds + 2; ++r) {
    if (r < rounds) {
      Round* round = &pipeline[r % 3];
      round->elements = PartOf({0, count}, r, rounds);
      HVD_RETURN_IF_ERROR(ReduceOnHost(ticket, reduction, buffers, round));
      if (r == 0 && by_plan) HVD_RETURN_IF_ERROR(OpenDirectly(ticket));
      HVD_RETURN_IF_ERROR(StartScatter(reduction, round));
    }
    if (r >= 1 && r - 1 < rounds) {
      HVD_RETURN_IF_ERROR(FinishScatter(reduction, &pipeline[(r - 1) % 3]));
    }
    if (r >= 2) {
      Round* round = &pipeline[(r - 2) % 3];
      HVD_RETURN_IF_ERROR(FinishGather(reduction, round));
      HVD_RETURN_IF_ERROR(SpreadOnHost(ticket, reduction, buffers, round));
    }
  }
  return Status::Ok();
}

Status HostsCommunicator::ReduceOnHost(Ticket ticket, const Reduction& reduction,
                                       const std::vector<Buffer>& buffers, Round* round) {
  const int64_t element = SizeOf(reduction.dtype);
  const int64_t wide = SizeOf(PartialType(reduction));
  const Range all = round->elements;
  round->slice = owns_slice() ? PartOf(all, local_index_, slices_) : Range{all.begin, 0};
  char* partial = round->partial.Get(round->slice.count * wide);
  const auto to_partials = [&](char* to) {
    VisitBytes(buffers, all.begin * element, all.count * element,
               [&](const Buffer& buffer, int64_t offset, int64_t bytes, int64_t at) {
                 ToPartial(reduction, static_cast<const char*>(buffer.input) + offset,
                           to + at / element * wide, bytes / element);
               });
  };
  if (local_size() == 1) {
    to_partials(partial);
    return Status::Ok();
  }
  const int64_t slice_begin = (round->slice.begin - all.begin) * wide;
  const int64_t slice_bytes = round->slice.count * wide;
  if (IsWidened(reduction)) {
    char* own = round->wide.Get(all.count * wide);
    to_partials(own);
    return local_->Reducescatter(ticket, OfPartials(reduction),
                                 {{own, partial, slice_begin, slice_bytes, all.count * wide}});
  }
  std::vector<ScatterBuffer> shares;
  VisitBytes(buffers, all.begin * element, all.count * element,
             [&](const Buffer& buffer, int64_t offset, int64_t bytes, int64_t at) {
               const int64_t begin = std::max(at, slice_begin);
               const int64_t end = std::min(at + bytes, slice_begin + slice_bytes);
               const int64_t share = std::max<int64_t>(end - begin, 0);
               shares.push_back({static_cast<const char*>(buffer.input) + offset,
                                 partial + (share > 0 ? begin - slice_begin : 0),
                                 share > 0 ? begin - at : 0, share, bytes});
             });
  return local_->Reducescatter(ticket, Scaled(reduction), shares);
}

Status HostsCommunicator::StartScatter(const Reduction& reduction, Round* round) {
  if (!owns_slice()) return Status::Ok();
  const int64_t wide = SizeOf(PartialType(reduction));
  const int64_t mine = PartOf(round->slice, host_, num_hosts()).count * wide;
  round->received.assign(num_hosts(), nullptr);
  for (int h = 0; h < num_hosts(); ++h) {
    if (h == host_) continue;
    HVD_RETURN_IF_ERROR(
        exchange_->Receive(PeerOn(h), Channel::kData, mine, &round->messages, &round->received[h]));
  }
  // Each begins with the next host, so that they do not all send to the same one.
  for (int i = 1; i < num_hosts(); ++i) {
    const int h = (host_ + i) % num_hosts();
    const Range theirs = PartOf(round->slice, h, num_hosts());
    HVD_RETURN_IF_ERROR(exchange_->Send(
        PeerOn(h), Channel::kData, theirs.count * wide,
        [&](char* data) {
          std::memcpy(data, round->partial.at((theirs.begin - round->slice.begin) * wide),
                      static_cast<size_t>(theirs.count * wide));
        },
        &round->messages));
  }
  return Status::Ok();
}

Status HostsCommunicator::FinishScatter(const Reduction& reduction, Round* round) {
  if (!owns_slice()) return Status::Ok();
  const int64_t element = SizeOf(reduction.dtype);
  const int64_t wide = SizeOf(PartialType(reduction));
  HVD_RETURN_IF_ERROR(exchange_->Wait(&round->messages));
  round->result.Get(round->slice.count * element);
  const Range mine = PartOf(round->slice, host_, num_hosts());
  const int64_t begin = mine.begin - round->slice.begin;
  char* finished = round->result.at(begin * element);
  std::vector<const void*> partials(num_hosts());
  for (int h = 0; h < num_hosts(); ++h) {
    partials[h] = h == host_ ? round->partial.at(begin * wide) : round->received[h]->data.data();
  }
  PhaseLaps laps(phases());
  if (mine.count > 0) {
    FinishPartials(reduction, partials.data(), num_hosts(), finished, mine.count);
  }
  laps.End(&PhaseTimes::reduce);
  exchange_->Recycle(&round->messages);

  for (int h = 0; h < num_hosts(); ++h) {
    if (h == host_) continue;
    const int64_t theirs = PartOf(round->slice, h, num_hosts()).count * element;
    HVD_RETURN_IF_ERROR(exchange_->Receive(PeerOn(h), Channel::kData, theirs, &round->messages,
                                           &round->received[h]));
  }
  for (int i = 1; i < num_hosts(); ++i) {
    HVD_RETURN_IF_ERROR(exchange_->Send(
        PeerOn((host_ + i) % num_hosts()), Channel::kData, mine.count * element,
        [&](char* data) { std::memcpy(data, finished, static_cast<size_t>(mine.count * element)); },
        &round->messages));
  }
  return Status::Ok();
}

Status HostsCommunicator::FinishGather(const Reduction& reduction, Round* round) {
  if (!owns_slice()) return Status::Ok();
  const int64_t element = SizeOf(reduction.dtype);
  HVD_RETURN_IF_ERROR(exchange_->Wait(&round->messages));
  for (int h = 0; h < num_hosts(); ++h) {
    if (h == host_) continue;
    const Range theirs = PartOf(round->slice, h, num_hosts());
    std::memcpy(round->result.at((theirs.begin - round->slice.begin) * element),
                round->received[h]->data.data(), static_cast<size_t>(theirs.count * element));
  }
  exchange_->Recycle(&round->messages);
  return Status::Ok();
}

Status HostsCommunicator::SpreadOnHost(Ticket ticket, const Reduction& reduction,
                                       const std::vector<Buffer>& buffers, Round* round) {
  const int64_t element = SizeOf(reduction.dtype);
  const Range all = round->elements;
  if (local_size() == 1) {
    VisitBytes(buffers, all.begin * element, all.count * element,
               [&](const Buffer& buffer, int64_t offset, int64_t bytes, int64_t at) {
                 std::memcpy(static_cast<char*>(buffer.output) + offset, round->result.at(at),
                             static_cast<size_t>(bytes));
               });
    return Status::Ok();
  }
  std::vector<GatherBuffer> gathers;
  VisitBytes(buffers, all.begin * element, all.count * element,
             [&](const Buffer& buffer, int64_t offset, int64_t bytes, int64_t at) {
               GatherBuffer gather{nullptr, static_cast<char*>(buffer.output) + offset,
                                   std::vector<int64_t>(local_size(), 0)};
               for (int s = 0; s < slices_; ++s) {
                 const Range slice = PartOf({0, all.count}, s, slices_);
                 const int64_t begin = std::max(at, slice.begin * element);
                 const int64_t end = std::min(at + bytes, (slice.begin + slice.count) * element);
                 gather.bytes[s] = std::max<int64_t>(end - begin, 0);
                 if (s == local_index_ && gather.bytes[s] > 0) {
                   gather.input = round->result.at(begin - slice.begin * element);
                 }
               }
               gathers.push_back(std::move(gather));
             });
  return local_->Allgather(ticket, gathers);
}

Status HostsCommunicator::OpenDirectly(Ticket ticket) {
  uint64_t flag = 0;
  if (owns_slice()) HVD_RETURN_IF_ERROR(ExchangeFlags(&flag));
  return ShareFlag(ticket, &flag);
}

Status HostsCommunicator::ExchangeFlags(uint64_t* flag) {
  Exchange::Messages messages;
  std::vector<const Exchange::Message*> received(num_hosts(), nullptr);
  for (int h = 0; h < num_hosts(); ++h) {
    if (h == host_) continue;
    HVD_RETURN_IF_ERROR(exchange_->Receive(PeerOn(h), Channel::kFlags, 8, &messages, &received[h]));
    HVD_RETURN_IF_ERROR(exchange_->Send(
        PeerOn(h), Channel::kFlags, 8, [&](char* data) { std::memcpy(data, flag, 8); }, &messages));
  }
  HVD_RETURN_IF_ERROR(exchange_->Wait(&messages));
  for (const Exchange::Message* message : received) {
    uint64_t theirs = 0;
    if (message != nullptr) std::memcpy(&theirs, message->data.data(), 8);
    *flag |= theirs;
  }
  exchange_->Recycle(&messages);
  return Status::Ok();
}

}  // namespace hvd::hosts
