#include "ops/hosts/coordinator.h"

#include <algorithm>
#include <iterator>

#include "ops/core/ranks.h"

namespace hvd::hosts {
namespace {

using Kind = Message::Kind;

// A beat may have been under way when something happened; the next one was not.
constexpr int kQuietBeats = 2;
constexpr size_t kMaxListed = 6;

Message Failure(const MatchKey& key, Code code, const std::string& text) {
  Message message;
  message.kind = Kind::kFail;
  message.key = key;
  message.code = code;
  message.text = text;
  return message;
}

}  // namespace

Coordinator::Coordinator(HostMap map)
    : map_(std::move(map)),
      left_(map_.hosts(), false),
      quiet_beats_(map_.hosts(), 0),
      waiting_(map_.hosts()) {}

void Coordinator::Take(int host, const Message& message, int64_t now_ns,
                       std::vector<Outgoing>* out) {
  if (message.kind == Kind::kBeat) {
    quiet_beats_[host] = message.is_quiet ? quiet_beats_[host] + 1 : 0;
    waiting_[host] = message.text;
    return;
  }
  std::fill(quiet_beats_.begin(), quiet_beats_.end(), 0);
  if (message.kind == Kind::kReady) TakeReady(host, message, now_ns, out);
  if (message.kind == Kind::kFail) TakeFail(host, message, out);
  if (message.kind == Kind::kBye) TakeBye(host, out);
  if (message.kind == Kind::kDepart) {
    may_plan_ = false;
    out->push_back({host, message});
  }
}

void Coordinator::TakeReady(int host, const Message& message, int64_t now_ns,
                            std::vector<Outgoing>* out) {
  const shm::ReadySlot& ready = message.ready;
  // While a plan is followed, what a host said before it learned of the plan; it says so again.
  if (message.epoch < epoch_ || (message.epoch == epoch_ && is_planned_)) return;
  if (message.epoch > epoch_) {
    epoch_ = message.epoch;
    is_planned_ = false;
    learner_.PlanWasLeft(message.plan_position);
  }
  const Key key{ready.key.low, ready.key.high};
  Pending& pending = pending_[key];
  if (pending.ready.empty()) {
    pending.first = ready;
    pending.since_ns = now_ns;
    if (ready.set.empty()) {
      for (int h = 0; h < map_.hosts(); ++h) pending.hosts.push_back(h);
    } else {
      pending.hosts = map_.HostsOf(ready.set);
    }
    if (ready.is_join) joins_[ready.process_set] = key;
  }
  pending.ready[host] = ready;
  pending.first.last_rank = ready.last_rank;
  pending.mismatch |= ready.mismatch || ready.fingerprint != pending.first.fingerprint;
  if (left_count_ > 0) {
    for (int h : pending.hosts) {
      if (left_[h] && pending.ready.count(h) == 0) return FailForLeaver(key, h, out);
    }
  }
  if (IsComplete(pending)) return Execute(key, out);
  if (!ready.is_join) return;
  // Others may have waited for this host alone.
  std::vector<Key> complete;
  for (const auto& [other_key, other] : pending_) {
    if (other.first.process_set == ready.process_set && IsComplete(other)) {
      complete.push_back(other_key);
    }
  }
  for (const Key& other : complete) {
    if (pending_.count(other) > 0) Execute(other, out);
  }
}

std::vector<int> Coordinator::MissingHosts(const Pending& pending) const {
  const std::map<int, shm::ReadySlot>* joined = nullptr;
  const auto join = joins_.find(pending.first.process_set);
  if (join != joins_.end() && !pending.first.is_join) joined = &pending_.at(join->second).ready;
  std::vector<int> missing;
  for (int h : pending.hosts) {
    const bool is_there = pending.ready.count(h) > 0 || (joined && joined->count(h) > 0);
    if (!is_there) missing.push_back(h);
  }
  return missing;
}

bool Coordinator::IsComplete(const Pending& pending) const {
  // With a thousand hosts this is asked a thousand times: a count answers it, but for joins.
  if (pending.ready.size() == pending.hosts.size()) return true;
  return joins_.count(pending.first.process_set) > 0 && MissingHosts(pending).empty();
}

std::vector<int> Coordinator::Participants(const Pending& pending) const {
  std::vector<int> participants;
  for (const auto& [host, ready] : pending.ready) {
    participants.insert(participants.end(), ready.participants.begin(), ready.participants.end());
  }
  const size_t members =
      pending.first.set.empty() ? static_cast<size_t>(map_.size()) : pending.first.set.size();
  if (participants.size() == members) return {};
  std::sort(participants.begin(), participants.end());
  return participants;
}

void Coordinator::Execute(const Key& key, std::vector<Outgoing>* out) {
  const auto node = pending_.extract(key);
  const Pending& pending = node.mapped();
  Message message;
  message.kind = Kind::kExecute;
  message.agreement = {pending.first.key, pending.mismatch, pending.first.last_rank,
                       Participants(pending)};
  for (const auto& [host, ready] : pending.ready) out->push_back({host, message});
  if (pending.first.is_join) joins_.erase(pending.first.process_set);
  Learn(pending, message.agreement.participants.empty(), out);
}

void Coordinator::Learn(const Pending& pending, bool by_all, std::vector<Outgoing>* out) {
  bool plannable = by_all && !pending.mismatch;
  for (const auto& [host, ready] : pending.ready) plannable &= ready.plannable;
  if (!plannable || !may_plan_) return learner_.Forget();
  const shm::PlanEntry entry{pending.first.id.low, pending.first.id.high, pending.first.fingerprint,
                             static_cast<uint8_t>(pending.first.opening)};
  Message message;
  message.kind = Kind::kPlan;
  if (!learner_.Add(entry, &message.plan)) return;
  for (const auto& [key, other] : pending_) {
    if (!other.first.plannable) return;
  }
  // What some hosts are ready for is now a matter of the plan.
  pending_.clear();
  is_planned_ = true;
  ToAll(message, out);
}

void Coordinator::TakeFail(int host, const Message& message, std::vector<Outgoing>* out) {
  if (is_planned_) {
    // Others may be in the middle of it, where only the end of the job reaches them.
    Message abort;
    abort.kind = Kind::kAbort;
    abort.text = message.text;
    return ToAll(abort, out);
  }
  std::vector<int> hosts{host};
  const auto node = pending_.extract({message.key.low, message.key.high});
  if (!node.empty()) {
    for (const auto& [ready_host, ready] : node.mapped().ready) {
      if (ready_host != host) hosts.push_back(ready_host);
    }
    if (node.mapped().first.is_join) joins_.erase(node.mapped().first.process_set);
  }
  for (int h : hosts) out->push_back({h, Failure(message.key, message.code, message.text)});
}

void Coordinator::TakeBye(int host, std::vector<Outgoing>* out) {
  if (left_[host]) return;
  left_[host] = true;
  ++left_count_;
  Message message;
  message.kind = Kind::kLeft;
  message.host = host;
  ToAll(message, out);
  std::vector<Key> affected;
  for (const auto& [key, pending] : pending_) {
    const std::vector<int> missing = MissingHosts(pending);
    if (std::count(missing.begin(), missing.end(), host) > 0) affected.push_back(key);
  }
  for (const Key& key : affected) FailForLeaver(key, host, out);
}

void Coordinator::FailForLeaver(const Key& key, int host, std::vector<Outgoing>* out) {
  const auto node = pending_.extract(key);
  const Pending& pending = node.mapped();
  const std::string text =
      RanksOfHosts({host}) +
      " have left the job (hvd.shutdown(), or the end of the script) and will not take part in " +
      pending.first.name + "; all ranks must make the same number of collective calls";
  if (pending.first.is_join) joins_.erase(pending.first.process_set);
  for (const auto& [h, ready] : pending.ready) {
    out->push_back({h, Failure(pending.first.key, Code::kAborted, text)});
  }
}

void Coordinator::ToAll(const Message& message, std::vector<Outgoing>* out) const {
  for (int h = 0; h < map_.hosts(); ++h) {
    if (!left_[h]) out->push_back({h, message});
  }
}

std::string Coordinator::RanksOfHosts(const std::vector<int>& hosts) const {
  std::vector<int> ranks;
  for (int h : hosts) {
    ranks.insert(ranks.end(), map_.ranks_of(h).begin(), map_.ranks_of(h).end());
  }
  std::sort(ranks.begin(), ranks.end());
  return RankList(ranks);
}

bool Coordinator::AwaitsOthers(int me) const {
  return std::any_of(pending_.begin(), pending_.end(), [&](const auto& item) {
    const std::vector<int> missing = MissingHosts(item.second);
    return std::any_of(missing.begin(), missing.end(), [me](int h) { return h != me; });
  });
}

void Coordinator::CheckCircle(std::vector<Outgoing>* out) {
  bool any = false;
  for (int h = 0; h < map_.hosts(); ++h) {
    if (!left_[h] && quiet_beats_[h] < kQuietBeats) return;
    any |= !left_[h] && !waiting_[h].empty();
  }
  if (!any || is_planned_) return;
  Message message;
  message.kind = Kind::kFailAll;
  message.code = Code::kInvalidArgument;
  message.text = "the ranks wait for different collectives, so that none can complete:";
  for (int h = 0; h < map_.hosts(); ++h) message.text += waiting_[h];
  message.text += "\nEvery rank must call the same collectives, with the same names.";
  pending_.clear();
  joins_.clear();
  std::fill(quiet_beats_.begin(), quiet_beats_.end(), 0);
  ToAll(message, out);
}

std::string Coordinator::DescribeOverdue(int64_t now_ns, int64_t patience_ns, int64_t* oldest_ns) {
  *oldest_ns = 0;
  std::string text;
  size_t listed = 0;
  for (auto& [key, pending] : pending_) {
    const int64_t waited = now_ns - pending.since_ns;
    *oldest_ns = std::max(*oldest_ns, waited);
    if (pending.reported || waited < patience_ns) continue;
    pending.reported = true;
    if (++listed > kMaxListed) continue;
    std::vector<int> there;
    for (const auto& [host, ready] : pending.ready) there.push_back(host);
    text += "\n  " + pending.first.name + ": called by " + RanksOfHosts(there) +
            ", not by all of " + RanksOfHosts(MissingHosts(pending));
  }
  if (listed > kMaxListed) text += "\n  and " + std::to_string(listed - kMaxListed) + " more";
  return text;
}

}  // namespace hvd::hosts
