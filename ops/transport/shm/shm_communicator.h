// ShmCommunicator: collectives among ranks of one host, through their slots in the shared segment.
//
// Data travels in chunks. A rank packs a chunk into one of its slots and publishes it by raising
// its progress counter; the others read the slot and raise their counter of what they have
// consumed. A slot is packed again only after all who read it have said so. Both counters hold a
// place in the agreed schedule, Progress(ticket, step), so that they serve all process sets at
// once.
#ifndef HVD_TRANSPORT_SHM_SHM_COMMUNICATOR_H_
#define HVD_TRANSPORT_SHM_SHM_COMMUNICATOR_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/core/communicator.h"
#include "ops/transport/shm/segment.h"
#include "ops/transport/shm/store_choice.h"
#include "ops/transport/shm/waiter.h"

namespace hvd::shm {

inline constexpr int kStepBits = 24;

inline constexpr uint64_t Progress(Ticket ticket, int64_t step) {
  return (static_cast<uint64_t>(ticket) << kStepBits) | static_cast<uint64_t>(step);
}

// What the communicators of a rank's process sets share: who may still be reading its slots, and
// how they are best written.
class SlotLedger {
 public:
  explicit SlotLedger(std::shared_ptr<Segment> segment)
      : uses_(segment->slots_per_rank()), stores_(std::move(segment)) {}

  struct Use {
    uint64_t consumed_at = 0;  // free once each reader's `consumed` has reached this
    std::vector<int> readers;  // ranks
  };
  Use& use(int slot) { return uses_[slot]; }
  StoreChooser& stores() { return stores_; }

 private:
  std::vector<Use> uses_;
  StoreChooser stores_;
};

class ShmCommunicator : public Communicator {
 public:
  // `ranks`: the members, ascending; `rank`, one of them, is the caller's.
  ShmCommunicator(std::shared_ptr<Segment> segment, std::shared_ptr<Waiter> waiter,
                  std::shared_ptr<SlotLedger> ledger, std::vector<int> ranks, int rank);

  int index() const override { return index_; }
  int size() const override { return static_cast<int>(ranks_.size()); }
  const char* transport() const override { return "SHM"; }

  Status Allreduce(Ticket ticket, const Reduction& reduction,
                   const std::vector<Buffer>& buffers) override;
  Status Allgather(Ticket ticket, const std::vector<GatherBuffer>& buffers) override;
  Status Reducescatter(Ticket ticket, const Reduction& reduction,
                       const std::vector<ScatterBuffer>& buffers) override;
  Status Alltoall(Ticket ticket, const void* input, void* output,
                  const std::vector<AlltoallPart>& parts) override;
  Status Broadcast(Ticket ticket, int root, const std::vector<Buffer>& buffers) override;

 private:
  // Each rank reduces everything: one exchange per chunk. Best for few ranks or few bytes.
  Status AllreduceDirect(const Reduction& reduction, const std::vector<Buffer>& buffers,
                         int64_t total);
  // Each rank reduces its share of a chunk and copies the others': two exchanges per chunk, but
  // each byte is added once on the host instead of once on every rank.
  Status AllreduceShared(const Reduction& reduction, const std::vector<Buffer>& buffers,
                         int64_t total);
  void ReduceShare(const Reduction& reduction, int64_t chunk, int64_t bytes);

  // Starts or goes on with a ticket that will take `steps` more steps, for a transfer of `bytes`.
  Status Begin(Ticket ticket, int64_t steps, Traffic traffic, int64_t bytes);
  // To be called when it is complete.
  Status End();
  // Copies the next bytes of a stream into this rank's slot for the chunk.
  template <typename Cursor, typename Buffers>
  void Pack(Cursor* stream, const Buffers& buffers, int64_t chunk, int64_t bytes);
  char* SlotOf(int member, int64_t chunk);
  // Waits until this rank's slot for the chunk may be written, and books its next use.
  Status AcquireSlot(int64_t chunk, int64_t consumed_step);
  void PublishStep(int64_t step);
  void ConsumeStep(int64_t step);
  Status WaitPublished(int member, int64_t step);
  Status WaitAllPublished(int64_t step);

  const std::shared_ptr<Segment> segment_;
  const std::shared_ptr<Waiter> waiter_;
  const std::shared_ptr<SlotLedger> ledger_;
  const std::vector<int> ranks_;
  const int rank_;
  int index_ = 0;

  // Of the ticket in progress: steps taken by earlier calls with the same ticket, and by this one.
  Ticket ticket_ = 0;
  int64_t base_step_ = 0;
  int64_t next_base_step_ = 0;

  // Of the transfer in progress.
  Traffic traffic_ = Traffic::kCopy;
  int64_t bytes_ = 0;
  int64_t began_ns_ = 0;
  StoreChoice stores_;
};

}  // namespace hvd::shm

#endif  // HVD_TRANSPORT_SHM_SHM_COMMUNICATOR_H_
