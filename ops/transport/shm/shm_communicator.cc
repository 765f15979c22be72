#include "ops/transport/shm/shm_communicator.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "ops/core/clock.h"
#include "ops/core/stream.h"

namespace hvd::shm {
namespace {

// Up to this many ranks, adding everything on every rank costs less than a second exchange.
constexpr int kDirectRanks = 3;
// With more ranks: the size up to which latency counts more than additions.
constexpr int64_t kDirectBytes = 16 * 1024;

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

auto SizesOf(const std::vector<Buffer>& buffers) {
  return [&buffers](size_t i) { return buffers[i].bytes; };
}

const char* At(const void* base, int64_t offset) { return static_cast<const char*>(base) + offset; }
char* At(void* base, int64_t offset) { return static_cast<char*>(base) + offset; }

// The part of a chunk of `bytes` that one member reduces. Whole cache lines, so that no two members
// write to the same one; the last shares may be empty.
struct Share {
  int64_t begin;
  int64_t bytes;
};
Share ShareOf(int member, int members, int64_t bytes) {
  const int64_t per_member = CeilDivide(CeilDivide(bytes, members), kCacheLine) * kCacheLine;
  const int64_t begin = std::min(bytes, per_member * member);
  return {begin, std::min(bytes - begin, per_member)};
}

}  // namespace

ShmCommunicator::ShmCommunicator(std::shared_ptr<Segment> segment, std::shared_ptr<Waiter> waiter,
                                 std::shared_ptr<SlotLedger> ledger, std::vector<int> ranks,
                                 int rank)
    : segment_(std::move(segment)),
      waiter_(std::move(waiter)),
      ledger_(std::move(ledger)),
      ranks_(std::move(ranks)),
      rank_(rank) {
  index_ = static_cast<int>(std::find(ranks_.begin(), ranks_.end(), rank) - ranks_.begin());
}

Status ShmCommunicator::Begin(Ticket ticket, int64_t steps, Traffic traffic, int64_t bytes) {
  traffic_ = traffic;
  bytes_ = bytes;
  stores_ = ledger_->stores().Choose(traffic, bytes);
  began_ns_ = ClockNs(CLOCK_MONOTONIC);
  if (ticket != ticket_) next_base_step_ = 0;
  ticket_ = ticket;
  base_step_ = next_base_step_;
  next_base_step_ += steps;
  if (next_base_step_ < (int64_t{1} << kStepBits)) return Status::Ok();
  // All members come to the same conclusion, since they all count the same steps.
  return InvalidArgument("the collective is too large for chunks of " +
                         std::to_string(segment_->chunk_bytes()) +
                         " bytes; set HVD_CHUNK_BYTES to a larger value");
}

Status ShmCommunicator::End() {
  if (stores_.streams()) DrainStores();  // the output's, before somebody hears that it is ready
  const bool by_all_of_host = size() == segment_->ranks();
  if (by_all_of_host && rank_ == 0) {
    ledger_->stores().Record(traffic_, bytes_, ClockNs(CLOCK_MONOTONIC) - began_ns_);
  }
  return Status::Ok();
}

template <typename Cursor, typename Buffers>
void ShmCommunicator::Pack(Cursor* stream, const Buffers& buffers, int64_t chunk, int64_t bytes) {
  char* slot = SlotOf(index_, chunk);
  stream->Advance(bytes, [&](size_t b, int64_t offset, int64_t part) {
    Copy(slot, At(buffers[b].input, offset), part, stores_.slot);
    slot += part;
  });
}

char* ShmCommunicator::SlotOf(int member, int64_t chunk) {
  const int64_t slot = (ticket_ + base_step_ + chunk) % segment_->slots_per_rank();
  return segment_->slot(ranks_[member], static_cast<int>(slot));
}

Status ShmCommunicator::AcquireSlot(int64_t chunk, int64_t consumed_step) {
  const int64_t slot = (ticket_ + base_step_ + chunk) % segment_->slots_per_rank();
  SlotLedger::Use& use = ledger_->use(static_cast<int>(slot));
  for (int reader : use.readers) {
    if (reader == rank_) continue;
    HVD_RETURN_IF_ERROR(
        waiter_->WaitForProgress(segment_->line(reader).consumed, use.consumed_at, reader));
  }
  use.consumed_at = Progress(ticket_, base_step_ + consumed_step);
  if (use.readers != ranks_) use.readers = ranks_;
  return Status::Ok();
}

void ShmCommunicator::PublishStep(int64_t step) {
  if (stores_.slot == Stores::kStreaming) DrainStores();
  segment_->line(rank_).published.store(Progress(ticket_, base_step_ + step),
                                        std::memory_order_seq_cst);
  for (int reader : ranks_) {
    if (reader != rank_) waiter_->Wake(reader, static_cast<uint32_t>(rank_));
  }
}

void ShmCommunicator::ConsumeStep(int64_t step) {
  segment_->line(rank_).consumed.store(Progress(ticket_, base_step_ + step),
                                       std::memory_order_seq_cst);
  for (int writer : ranks_) {
    if (writer != rank_) waiter_->Wake(writer, static_cast<uint32_t>(rank_));
  }
}

Status ShmCommunicator::WaitPublished(int member, int64_t step) {
  const int rank = ranks_[member];
  return waiter_->WaitForProgress(segment_->line(rank).published,
                                  Progress(ticket_, base_step_ + step), rank);
}

Status ShmCommunicator::WaitAllPublished(int64_t step) {
  for (int member = 0; member < size(); ++member) {
    if (member != index_) HVD_RETURN_IF_ERROR(WaitPublished(member, step));
  }
  return Status::Ok();
}

Status ShmCommunicator::Allreduce(Ticket ticket, const Reduction& reduction,
                                  const std::vector<Buffer>& buffers) {
  int64_t total = 0;
  for (const Buffer& buffer : buffers) total += buffer.bytes;
  const int64_t chunks = CeilDivide(total, segment_->chunk_bytes());
  const bool direct = size() <= kDirectRanks || total <= kDirectBytes;
  HVD_RETURN_IF_ERROR(Begin(ticket, direct ? chunks : 2 * chunks,
                            direct ? Traffic::kReduceAll : Traffic::kReduceShare, total));
  return direct ? AllreduceDirect(reduction, buffers, total)
                : AllreduceShared(reduction, buffers, total);
}

Status ShmCommunicator::AllreduceDirect(const Reduction& reduction,
                                        const std::vector<Buffer>& buffers, int64_t total) {
  const int64_t chunk_bytes = segment_->chunk_bytes();
  const int64_t chunks = CeilDivide(total, chunk_bytes);
  const int64_t element = SizeOf(reduction.dtype);
  const int members = size();
  const auto bytes_of = [&](int64_t c) { return std::min(chunk_bytes, total - c * chunk_bytes); };
  StreamCursor packed(buffers.size(), SizesOf(buffers));
  StreamCursor reduced(buffers.size(), SizesOf(buffers));
  std::vector<const void*> inputs(members);

  PhaseLaps laps(phases());
  int64_t next = 0;  // chunk to be published
  for (int64_t c = 0; c < chunks; ++c) {
    // One chunk ahead, so that a peer has something to read while this rank reduces.
    for (; next < std::min(chunks, c + 2); ++next) {
      if (members == 1) continue;
      HVD_RETURN_IF_ERROR(AcquireSlot(next, next + 1));
      laps.End(&PhaseTimes::wait);
      Pack(&packed, buffers, next, bytes_of(next));
      PublishStep(next + 1);
      laps.End(&PhaseTimes::pack);
    }
    HVD_RETURN_IF_ERROR(WaitAllPublished(c + 1));
    laps.End(&PhaseTimes::wait);
    int64_t position = 0;
    reduced.Advance(bytes_of(c), [&](size_t b, int64_t offset, int64_t bytes) {
      for (int m = 0; m < members; ++m) inputs[m] = SlotOf(m, c) + position;
      // The own contribution straight from where it is: still in the cache, and one read less.
      inputs[index_] = At(buffers[b].input, offset);
      Reduce(reduction, inputs.data(), members, At(buffers[b].output, offset), bytes / element,
             stores_.output);
      position += bytes;
    });
    ConsumeStep(c + 1);
    laps.End(&PhaseTimes::reduce);
  }
  return End();
}

void ShmCommunicator::ReduceShare(const Reduction& reduction, int64_t chunk, int64_t bytes) {
  const Share share = ShareOf(index_, size(), bytes);
  if (share.bytes == 0) return;
  std::vector<const void*> inputs(size());
  for (int m = 0; m < size(); ++m) inputs[m] = SlotOf(m, chunk) + share.begin;
  // In place: nobody else reads this share of this rank's slot before it is published.
  Reduce(reduction, inputs.data(), size(), SlotOf(index_, chunk) + share.begin,
         share.bytes / SizeOf(reduction.dtype));
}

Status ShmCommunicator::AllreduceShared(const Reduction& reduction,
                                        const std::vector<Buffer>& buffers, int64_t total) {
  const int64_t chunk_bytes = segment_->chunk_bytes();
  const int64_t chunks = CeilDivide(total, chunk_bytes);
  const auto bytes_of = [&](int64_t c) { return std::min(chunk_bytes, total - c * chunk_bytes); };
  // Chunks are packed one ahead of the reduction: P0 P1 R0 P2 R1 P3 R2 ... R(last).
  const auto pack_step = [](int64_t c) { return c == 0 ? int64_t{1} : 2 * c; };
  const auto reduce_step = [&](int64_t c) { return std::min(2 * c + 3, 2 * chunks); };
  StreamCursor packed(buffers.size(), SizesOf(buffers));
  StreamCursor copied(buffers.size(), SizesOf(buffers));

  PhaseLaps laps(phases());
  const auto pack = [&](int64_t c) -> Status {
    HVD_RETURN_IF_ERROR(AcquireSlot(c, reduce_step(c)));
    laps.End(&PhaseTimes::wait);
    Pack(&packed, buffers, c, bytes_of(c));
    PublishStep(pack_step(c));
    laps.End(&PhaseTimes::pack);
    return Status::Ok();
  };

  HVD_RETURN_IF_ERROR(pack(0));
  for (int64_t c = 0; c < chunks; ++c) {
    if (c + 1 < chunks) HVD_RETURN_IF_ERROR(pack(c + 1));
    HVD_RETURN_IF_ERROR(WaitAllPublished(pack_step(c)));
    laps.End(&PhaseTimes::wait);
    ReduceShare(reduction, c, bytes_of(c));
    PublishStep(reduce_step(c));
    laps.End(&PhaseTimes::reduce);
    // Start with the own share and go round, so that the members do not all wait for the same one.
    HVD_RETURN_IF_ERROR(WaitAllPublished(reduce_step(c)));
    laps.End(&PhaseTimes::wait);
    for (int m = 0; m < size(); ++m) {
      const Share share = ShareOf(m, size(), bytes_of(c));
      const char* source = SlotOf(m, c) + share.begin;
      copied.Advance(share.bytes, [&](size_t b, int64_t offset, int64_t bytes) {
        Copy(At(buffers[b].output, offset), source, bytes, stores_.output);
        source += bytes;
      });
    }
    ConsumeStep(reduce_step(c));
    laps.End(&PhaseTimes::unpack);
  }
  return End();
}

Status ShmCommunicator::Allgather(Ticket ticket, const std::vector<GatherBuffer>& buffers) {
  const int64_t chunk_bytes = segment_->chunk_bytes();
  const int members = size();
  std::vector<int64_t> totals(members, 0);
  // starts[b * members + m]: where member m's part of buffer b begins in the output.
  std::vector<int64_t> starts(buffers.size() * members);
  for (size_t b = 0; b < buffers.size(); ++b) {
    int64_t start = 0;
    for (int m = 0; m < members; ++m) {
      starts[b * members + m] = start;
      start += buffers[b].bytes[m];
      totals[m] += buffers[b].bytes[m];
    }
  }
  const int64_t longest = *std::max_element(totals.begin(), totals.end());
  const int64_t chunks = CeilDivide(longest, chunk_bytes);
  HVD_RETURN_IF_ERROR(Begin(ticket, chunks, Traffic::kCopy, longest));

  const auto bytes_of = [&](int m, int64_t c) {
    return std::clamp<int64_t>(totals[m] - c * chunk_bytes, 0, chunk_bytes);
  };
  const auto sizes_of = [&](int m) {
    return [&buffers, m](size_t b) { return buffers[b].bytes[m]; };
  };
  std::vector<StreamCursor<decltype(sizes_of(0))>> received;
  for (int m = 0; m < members; ++m) received.emplace_back(buffers.size(), sizes_of(m));
  StreamCursor packed(buffers.size(), sizes_of(index_));

  PhaseLaps laps(phases());
  int64_t next = 0;
  for (int64_t c = 0; c < chunks; ++c) {
    for (; next < std::min(chunks, c + 2); ++next) {
      HVD_RETURN_IF_ERROR(AcquireSlot(next, next + 1));
      laps.End(&PhaseTimes::wait);
      Pack(&packed, buffers, next, bytes_of(index_, next));
      PublishStep(next + 1);
      laps.End(&PhaseTimes::pack);
    }
    for (int m = 0; m < members; ++m) {
      const char* slot = SlotOf(m, c);
      if (m != index_) HVD_RETURN_IF_ERROR(WaitPublished(m, c + 1));
      laps.End(&PhaseTimes::wait);
      received[m].Advance(bytes_of(m, c), [&](size_t b, int64_t offset, int64_t bytes) {
        const void* source = m == index_ ? At(buffers[b].input, offset) : slot;
        Copy(At(buffers[b].output, starts[b * members + m] + offset), source, bytes,
             stores_.output);
        slot += bytes;
      });
      laps.End(&PhaseTimes::unpack);
    }
    ConsumeStep(c + 1);
  }
  return End();
}

Status ShmCommunicator::Reducescatter(Ticket ticket, const Reduction& reduction,
                                      const std::vector<ScatterBuffer>& buffers) {
  const int64_t chunk_bytes = segment_->chunk_bytes();
  int64_t total = 0;
  for (const ScatterBuffer& buffer : buffers) total += buffer.total_bytes;
  const int64_t chunks = CeilDivide(total, chunk_bytes);
  HVD_RETURN_IF_ERROR(Begin(ticket, chunks, Traffic::kReduceAll, total));
  const int64_t element = SizeOf(reduction.dtype);
  const auto size_of = [&buffers](size_t b) { return buffers[b].total_bytes; };
  const auto bytes_of = [&](int64_t c) { return std::min(chunk_bytes, total - c * chunk_bytes); };
  StreamCursor packed(buffers.size(), size_of);
  StreamCursor reduced(buffers.size(), size_of);
  std::vector<const void*> inputs(size());

  PhaseLaps laps(phases());
  int64_t next = 0;
  for (int64_t c = 0; c < chunks; ++c) {
    for (; next < std::min(chunks, c + 2); ++next) {
      HVD_RETURN_IF_ERROR(AcquireSlot(next, next + 1));
      laps.End(&PhaseTimes::wait);
      Pack(&packed, buffers, next, bytes_of(next));
      PublishStep(next + 1);
      laps.End(&PhaseTimes::pack);
    }
    HVD_RETURN_IF_ERROR(WaitAllPublished(c + 1));
    laps.End(&PhaseTimes::wait);
    int64_t position = 0;
    reduced.Advance(bytes_of(c), [&](size_t b, int64_t offset, int64_t bytes) {
      const ScatterBuffer& buffer = buffers[b];
      const int64_t begin = std::max(offset, buffer.share_begin);
      const int64_t end = std::min(offset + bytes, buffer.share_begin + buffer.share_bytes);
      if (begin < end) {
        for (int m = 0; m < size(); ++m) inputs[m] = SlotOf(m, c) + position + (begin - offset);
        inputs[index_] = At(buffer.input, begin);
        Reduce(reduction, inputs.data(), size(), At(buffer.output, begin - buffer.share_begin),
               (end - begin) / element, stores_.output);
      }
      position += bytes;
    });
    ConsumeStep(c + 1);
    laps.End(&PhaseTimes::reduce);
  }
  return End();
}

Status ShmCommunicator::Alltoall(Ticket ticket, const void* input, void* output,
                                 const std::vector<AlltoallPart>& parts) {
  const int64_t chunk_bytes = segment_->chunk_bytes();
  int64_t longest = 0;
  for (const AlltoallPart& part : parts) longest = std::max(longest, part.total);
  const int64_t chunks = CeilDivide(longest, chunk_bytes);
  HVD_RETURN_IF_ERROR(Begin(ticket, chunks, Traffic::kCopy, longest));
  const auto bytes_of = [&](int m, int64_t c) {
    return std::clamp<int64_t>(parts[m].total - c * chunk_bytes, 0, chunk_bytes);
  };

  PhaseLaps laps(phases());
  int64_t next = 0;
  for (int64_t c = 0; c < chunks; ++c) {
    for (; next < std::min(chunks, c + 2); ++next) {
      HVD_RETURN_IF_ERROR(AcquireSlot(next, next + 1));
      laps.End(&PhaseTimes::wait);
      const int64_t bytes = bytes_of(index_, next);
      if (bytes > 0) {
        Copy(SlotOf(index_, next), At(input, next * chunk_bytes), bytes, stores_.slot);
      }
      PublishStep(next + 1);
      laps.End(&PhaseTimes::pack);
    }
    for (int m = 0; m < size(); ++m) {
      const AlltoallPart& part = parts[m];
      const int64_t begin = std::max(part.begin, c * chunk_bytes);
      const int64_t end = std::min(part.begin + part.bytes, c * chunk_bytes + bytes_of(m, c));
      if (begin >= end) continue;
      if (m != index_) HVD_RETURN_IF_ERROR(WaitPublished(m, c + 1));
      laps.End(&PhaseTimes::wait);
      Copy(At(output, part.output_begin + begin - part.begin),
           SlotOf(m, c) + (begin - c * chunk_bytes), end - begin, stores_.output);
      laps.End(&PhaseTimes::unpack);
    }
    ConsumeStep(c + 1);
  }
  return End();
}

Status ShmCommunicator::Broadcast(Ticket ticket, int root, const std::vector<Buffer>& buffers) {
  const int64_t chunk_bytes = segment_->chunk_bytes();
  int64_t total = 0;
  for (const Buffer& buffer : buffers) total += buffer.bytes;
  const int64_t chunks = CeilDivide(total, chunk_bytes);
  HVD_RETURN_IF_ERROR(Begin(ticket, chunks, Traffic::kCopy, total));
  StreamCursor cursor(buffers.size(), SizesOf(buffers));
  PhaseLaps laps(phases());
  for (int64_t c = 0; c < chunks; ++c) {
    const int64_t chunk = std::min(chunk_bytes, total - c * chunk_bytes);
    char* slot = SlotOf(root, c);
    if (index_ == root) {
      HVD_RETURN_IF_ERROR(AcquireSlot(c, c + 1));
      laps.End(&PhaseTimes::wait);
      cursor.Advance(chunk, [&](size_t b, int64_t offset, int64_t bytes) {
        const char* source = At(buffers[b].input, offset);
        Copy(slot, source, bytes, stores_.slot);
        char* output = At(buffers[b].output, offset);
        if (output != source) Copy(output, source, bytes, stores_.output);
        slot += bytes;
      });
      PublishStep(c + 1);
      laps.End(&PhaseTimes::pack);
    } else {
      HVD_RETURN_IF_ERROR(WaitPublished(root, c + 1));
      laps.End(&PhaseTimes::wait);
      cursor.Advance(chunk, [&](size_t b, int64_t offset, int64_t bytes) {
        Copy(At(buffers[b].output, offset), slot, bytes, stores_.output);
        slot += bytes;
      });
      ConsumeStep(c + 1);
      laps.End(&PhaseTimes::unpack);
    }
  }
  return End();
}

}  // namespace hvd::shm
