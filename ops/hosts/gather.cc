// Allgather, broadcast and reducescatter over hosts.
#include <algorithm>
#include <cstring>

#include "ops/hosts/hosts_communicator.h"

namespace hvd::hosts {
namespace {

constexpr int64_t kMessageBytes = 512 * 1024;

// Places in memory, seen as one run of bytes.
class Places {
 public:
  void Add(void* at, int64_t bytes) {
    if (bytes == 0) return;
    at_.push_back(static_cast<char*>(at));
    begins_.push_back(total_);
    total_ += bytes;
  }
  int64_t total() const { return total_; }

  // Calls visit(address, bytes, offset in the range) for each part of a range.
  template <typename Visit>
  void ForEach(int64_t begin, int64_t bytes, const Visit& visit) const {
    auto next = std::upper_bound(begins_.begin(), begins_.end(), begin) - begins_.begin() - 1;
    for (int64_t done = 0; done < bytes; ++next) {
      const auto i = static_cast<size_t>(next);
      const int64_t end = i + 1 < begins_.size() ? begins_[i + 1] : total_;
      const int64_t offset = begin + done - begins_[i];
      const int64_t part = std::min(bytes - done, end - begins_[i] - offset);
      visit(at_[i] + offset, part, done);
      done += part;
    }
  }
  void CopyOut(int64_t begin, int64_t bytes, char* to) const {
    ForEach(begin, bytes, [&](const char* at, int64_t part, int64_t offset) {
      std::memcpy(to + offset, at, static_cast<size_t>(part));
    });
  }
  void CopyIn(int64_t begin, int64_t bytes, const char* from) const {
    ForEach(begin, bytes, [&](char* at, int64_t part, int64_t offset) {
      std::memcpy(at, from + offset, static_cast<size_t>(part));
    });
  }

 private:
  std::vector<char*> at_;
  std::vector<int64_t> begins_;
  int64_t total_ = 0;
};

}  // namespace

Status HostsCommunicator::GatherHosts(Ticket ticket, const std::vector<int64_t>& bytes,
                                      const Read& read, const Write& write) {
  const int64_t per_round = kMessageBytes * slices_;
  const int64_t longest = *std::max_element(bytes.begin(), bytes.end());
  for (int64_t begin = 0; begin < longest; begin += per_round) {
    // The part of host h's data that the owner of slice s moves in this round.
    const auto part = [&](int h, int s) {
      const int64_t count = std::clamp<int64_t>(bytes[h] - begin, 0, per_round);
      return PartOf({begin, count}, s, slices_);
    };
    Exchange::Messages messages;
    std::vector<char> mine;  // of all other hosts, one after another
    if (owns_slice()) {
      std::vector<const Exchange::Message*> received(num_hosts(), nullptr);
      for (int h = 0; h < num_hosts(); ++h) {
        const int64_t count = part(h, local_index_).count;
        if (h == host_ || count == 0) continue;
        HVD_RETURN_IF_ERROR(
            exchange_->Receive(PeerOn(h), Channel::kData, count, &messages, &received[h]));
      }
      const Range own = part(host_, local_index_);
      for (int i = 1; i < num_hosts() && own.count > 0; ++i) {
        HVD_RETURN_IF_ERROR(exchange_->Send(
            PeerOn((host_ + i) % num_hosts()), Channel::kData, own.count,
            [&](char* data) { read(own.begin, own.count, data); }, &messages));
      }
      HVD_RETURN_IF_ERROR(exchange_->Wait(&messages));
      for (const Exchange::Message* message : received) {
        if (message == nullptr) continue;
        mine.insert(mine.end(), message->data.data(), message->data.data() + message->bytes);
      }
      exchange_->Recycle(&messages);
    }
    std::vector<int64_t> lengths(slices_, 0);
    for (int s = 0; s < slices_; ++s) {
      for (int h = 0; h < num_hosts(); ++h) lengths[s] += h == host_ ? 0 : part(h, s).count;
    }
    std::vector<char> all;
    HVD_RETURN_IF_ERROR(SpreadSlices(ticket, lengths, mine.data(), &all));
    const char* next = all.data();
    for (int s = 0; s < slices_; ++s) {
      for (int h = 0; h < num_hosts(); ++h) {
        const Range range = part(h, s);
        if (h == host_ || range.count == 0) continue;
        write(h, range.begin, range.count, next);
        next += range.count;
      }
    }
  }
  return Status::Ok();
}

Status HostsCommunicator::SpreadSlices(Ticket ticket, const std::vector<int64_t>& bytes,
                                       const char* mine, std::vector<char>* all) {
  GatherBuffer gather{mine, nullptr, std::vector<int64_t>(local_size(), 0)};
  int64_t total = 0;
  for (int s = 0; s < slices_; ++s) total += gather.bytes[s] = bytes[s];
  all->resize(static_cast<size_t>(total));
  gather.output = all->data();
  return local_->Allgather(ticket, {gather});
}

Status HostsCommunicator::Allgather(Ticket ticket, const std::vector<GatherBuffer>& buffers) {
  HVD_RETURN_IF_ERROR(Meet(ticket));
  // Where each host's members have their parts in the outputs.
  std::vector<Places> places(num_hosts());
  std::vector<GatherBuffer> local;
  std::vector<char> gathered;
  int64_t here = 0;
  for (const GatherBuffer& buffer : buffers) {
    std::vector<int64_t> starts(size_ + 1, 0);
    for (int m = 0; m < size_; ++m) starts[m + 1] = starts[m] + buffer.bytes[m];
    for (int h = 0; h < num_hosts(); ++h) {
      for (int m : indices_[h]) {
        places[h].Add(static_cast<char*>(buffer.output) + starts[m], buffer.bytes[m]);
      }
    }
    GatherBuffer part{buffer.input, nullptr, {}};
    for (int m : indices_[host_]) part.bytes.push_back(buffer.bytes[m]);
    local.push_back(std::move(part));
  }
  // The members of a host need not be neighbours in the outputs.
  gathered.resize(static_cast<size_t>(places[host_].total()));
  for (GatherBuffer& buffer : local) {
    buffer.output = gathered.data() + here;
    for (int64_t bytes : buffer.bytes) here += bytes;
  }
  HVD_RETURN_IF_ERROR(local_->Allgather(ticket, local));
  places[host_].CopyIn(0, here, gathered.data());
  std::vector<int64_t> bytes;
  for (const Places& host : places) bytes.push_back(host.total());
  return GatherHosts(
      ticket, bytes,
      [&](int64_t begin, int64_t count, char* to) { places[host_].CopyOut(begin, count, to); },
      [&](int host, int64_t begin, int64_t count, const char* from) {
        places[host].CopyIn(begin, count, from);
      });
}

// The root's host gives each host a part, and the hosts gather the parts: a link carries the data
// twice, however many hosts there are.
Status HostsCommunicator::Broadcast(Ticket ticket, int root, const std::vector<Buffer>& buffers) {
  HVD_RETURN_IF_ERROR(Meet(ticket));
  Places places;
  for (const Buffer& buffer : buffers) places.Add(buffer.output, buffer.bytes);
  int root_host = 0;
  while (std::count(indices_[root_host].begin(), indices_[root_host].end(), root) == 0) ++root_host;
  if (host_ == root_host) {
    const auto& here = indices_[host_];
    const auto local_root = std::find(here.begin(), here.end(), root) - here.begin();
    HVD_RETURN_IF_ERROR(local_->Broadcast(ticket, static_cast<int>(local_root), buffers));
  }
  const Range all{0, places.total()};
  const auto part = [&](int h) { return PartOf(all, h, num_hosts()); };
  const Read read_of_all = [&](int64_t begin, int64_t bytes, char* to) {
    places.CopyOut(begin, bytes, to);
  };
  std::vector<Range> parts;
  std::vector<int64_t> lengths;
  for (int h = 0; h < num_hosts(); ++h) {
    parts.push_back(part(h));
    lengths.push_back(part(h).count);
  }
  HVD_RETURN_IF_ERROR(ScatterParts(ticket, root_host, parts, read_of_all,
                                   [&](int, int64_t begin, int64_t bytes, const char* from) {
                                     places.CopyIn(begin, bytes, from);
                                   }));
  return GatherHosts(
      ticket, lengths,
      [&](int64_t begin, int64_t bytes, char* to) {
        places.CopyOut(parts[host_].begin + begin, bytes, to);
      },
      [&](int host, int64_t begin, int64_t bytes, const char* from) {
        // The root's own host has it, and the root may be reading it.
        if (host_ != root_host) places.CopyIn(parts[host].begin + begin, bytes, from);
      });
}

Status HostsCommunicator::ScatterParts(Ticket ticket, int root_host,
                                       const std::vector<Range>& parts, const Read& read,
                                       const Write& write) {
  const int64_t per_round = kMessageBytes * slices_;
  int64_t longest = 0;
  for (const Range& part : parts) longest = std::max(longest, part.count);
  for (int64_t begin = 0; begin < longest; begin += per_round) {
    const auto slice = [&](int h, int s) {
      const int64_t count = std::clamp<int64_t>(parts[h].count - begin, 0, per_round);
      return PartOf({parts[h].begin + begin, count}, s, slices_);
    };
    Exchange::Messages messages;
    if (host_ == root_host) {
      for (int i = 1; i < num_hosts() && owns_slice(); ++i) {
        const int h = (host_ + i) % num_hosts();
        const Range theirs = slice(h, local_index_);
        if (theirs.count == 0) continue;
        HVD_RETURN_IF_ERROR(exchange_->Send(
            PeerOn(h), Channel::kData, theirs.count,
            [&](char* data) { read(theirs.begin, theirs.count, data); }, &messages));
      }
      HVD_RETURN_IF_ERROR(exchange_->Wait(&messages));
      exchange_->Recycle(&messages);
      continue;
    }
    std::vector<int64_t> lengths;
    for (int s = 0; s < slices_; ++s) lengths.push_back(slice(host_, s).count);
    const Exchange::Message* received = nullptr;
    if (owns_slice() && lengths[local_index_] > 0) {
      HVD_RETURN_IF_ERROR(exchange_->Receive(PeerOn(root_host), Channel::kData,
                                             lengths[local_index_], &messages, &received));
      HVD_RETURN_IF_ERROR(exchange_->Wait(&messages));
    }
    std::vector<char> all;
    HVD_RETURN_IF_ERROR(
        SpreadSlices(ticket, lengths, received != nullptr ? received->data.data() : nullptr, &all));
    write(host_, slice(host_, 0).begin, static_cast<int64_t>(all.size()), all.data());
    exchange_->Recycle(&messages);
  }
  return Status::Ok();
}

Status HostsCommunicator::Reducescatter(Ticket ticket, const Reduction& reduction,
                                        const std::vector<ScatterBuffer>& buffers) {
  HVD_RETURN_IF_ERROR(Meet(ticket));
  // As an allreduce whose other shares are dropped: twice the bytes of the best there is.
  int64_t total = 0;
  for (const ScatterBuffer& buffer : buffers) total += buffer.total_bytes;
  std::vector<char> reduced(static_cast<size_t>(total));
  std::vector<Buffer> whole;
  char* next = reduced.data();
  for (const ScatterBuffer& buffer : buffers) {
    whole.push_back({buffer.input, next, buffer.total_bytes});
    next += buffer.total_bytes;
  }
  HVD_RETURN_IF_ERROR(Allreduce(ticket, reduction, whole));
  for (size_t b = 0; b < buffers.size(); ++b) {
    if (buffers[b].share_bytes == 0) continue;
    std::memcpy(buffers[b].output,
                static_cast<const char*>(whole[b].output) + buffers[b].share_begin,
                static_cast<size_t>(buffers[b].share_bytes));
  }
  return Status::Ok();
}

}  // namespace hvd::hosts
