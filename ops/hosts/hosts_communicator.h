// HostsCommunicator: collectives among ranks of several hosts.
//
// Inside a host data goes through shared memory, by a communicator of the members there. Between
// hosts it is cut into slices, one for each member of the host that has the fewest: the members of
// that number on all hosts, the *owners* of the slice, exchange it among themselves, so that all
// ranks of a host move data at once, and each byte crosses as few times as it can: 2 (n - 1) / n
// times out of a host and into it, for an allreduce over n hosts.
//
// Partial results travel in a type that loses nothing (PartialType), and are combined in the order
// of hosts, on one rank for each element: all ranks, and all runs, get the same bits.
#ifndef HVD_HOSTS_HOSTS_COMMUNICATOR_H_
#define HVD_HOSTS_HOSTS_COMMUNICATOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "ops/core/communicator.h"
#include "ops/core/host_map.h"
#include "ops/hosts/exchange.h"

namespace hvd::hosts {

class HostsCommunicator : public Communicator {
 public:
  // `local`: of the members on this host. `ranks`: all members, ascending, on at least two hosts.
  HostsCommunicator(std::shared_ptr<Communicator> local, std::shared_ptr<Exchange> exchange,
                    const HostMap& map, const std::vector<int>& ranks, int rank);

  int index() const override { return index_; }
  int size() const override { return size_; }
  const char* transport() const override { return "MPI"; }
  void set_phases(PhaseTimes* phases) override {
    Communicator::set_phases(phases);
    local_->set_phases(phases);
    exchange_->set_phases(phases);
  }

  Status Allreduce(Ticket ticket, const Reduction& reduction,
                   const std::vector<Buffer>& buffers) override;
  Status Allgather(Ticket ticket, const std::vector<GatherBuffer>& buffers) override;
  Status Reducescatter(Ticket ticket, const Reduction& reduction,
                       const std::vector<ScatterBuffer>& buffers) override;
  Status Alltoall(Ticket ticket, const void* input, void* output,
                  const std::vector<AlltoallPart>& parts) override;
  Status Broadcast(Ticket ticket, int root, const std::vector<Buffer>& buffers) override;
  void FollowPlan() override { by_plan_ = true; }
  Status LeavePlan(Ticket ticket, Opening opening) override;

 private:
  // A part of the elements of a stream.
  struct Range {
    int64_t begin = 0;
    int64_t count = 0;
  };
  // The i-th of n parts, as equal as can be.
  static Range PartOf(Range whole, int i, int n);

  // One piece of an allreduce on its way; see allreduce.cc.
  struct Round;

  int num_hosts() const { return static_cast<int>(members_.size()); }
  bool owns_slice() const { return local_index_ < slices_; }
  // The owner of this rank's slice on another host.
  int PeerOn(int host) const { return members_[host][local_index_]; }
  bool is_leader() const { return local_index_ == 0; }
  int local_size() const { return local_->size(); }

  // All hosts combine a flag and `count` partial results, in place: each round with one partner.
  // The first member of each host calls it. Without data where a flag is set.
  Status Double(const Reduction& reduction, uint64_t* flag, void* partials, int64_t count);
  // A flag, and partial results where it is not set.
  Status SendFlagged(int to, uint64_t flag, const void* partials, int64_t bytes,
                     Exchange::Messages* messages);
  Status DoubleWith(int partner_host, bool mine_first, const Reduction& reduction, uint64_t* flag,
                    char* partials, int64_t count);
  Status HandOver(int from_host, int to_host, uint64_t* flag, void* partials, int64_t bytes);

  // Whether all hosts take part in a planned collective whose data cannot carry the flag: kPlanLeft
  // if not.
  Status Meet(Ticket ticket);
  // The first member of this host knows whether the plan was left: the others learn it.
  Status ShareFlag(Ticket ticket, uint64_t* flag);
  // The same, among the owners of each slice, who all exchange data next.
  Status OpenDirectly(Ticket ticket);
  Status ExchangeFlags(uint64_t* flag);

  Status AllreduceSmall(Ticket ticket, const Reduction& reduction,
                        const std::vector<Buffer>& buffers, int64_t count);
  Status AllreduceLarge(Ticket ticket, const Reduction& reduction,
                        const std::vector<Buffer>& buffers, int64_t count);
  Status ReduceOnHost(Ticket ticket, const Reduction& reduction, const std::vector<Buffer>& buffers,
                      Round* round);
  Status StartScatter(const Reduction& reduction, Round* round);
  Status FinishScatter(const Reduction& reduction, Round* round);
  Status FinishGather(const Reduction& reduction, Round* round);
  Status SpreadOnHost(Ticket ticket, const Reduction& reduction, const std::vector<Buffer>& buffers,
                      Round* round);

  // Other hosts' parts of a stream, moved in slices; see gather.cc. `bytes[h]` is the length of
  // host h's part, `read` copies from this host's part, `write` takes in what came of another
  // one's.
  using Read = std::function<void(int64_t begin, int64_t bytes, char* to)>;
  using Write = std::function<void(int host, int64_t begin, int64_t bytes, const char* from)>;
  Status GatherHosts(Ticket ticket, const std::vector<int64_t>& bytes, const Read& read,
                     const Write& write);
  // The root's host gives each other host a part of what it has.
  Status ScatterParts(Ticket ticket, int root_host, const std::vector<Range>& parts,
                      const Read& read, const Write& write);
  // Gives all members of this host what its owners have received: bytes[s] of owner s.
  Status SpreadSlices(Ticket ticket, const std::vector<int64_t>& bytes, const char* mine,
                      std::vector<char>* all);

  const std::shared_ptr<Communicator> local_;
  const std::shared_ptr<Exchange> exchange_;
  int index_ = 0;
  int size_ = 0;
  int host_ = 0;                           // this one, among those of the members
  int local_index_ = 0;                    // among the members of this host
  int slices_ = 0;                         // members of the host that has the fewest
  std::vector<std::vector<int>> members_;  // of each host: ranks
  std::vector<std::vector<int>> indices_;  // of each host: the same, as members
  std::vector<int> ranks_;
  bool by_plan_ = false;  // the next call
};

}  // namespace hvd::hosts

#endif  // HVD_HOSTS_HOSTS_COMMUNICATOR_H_
