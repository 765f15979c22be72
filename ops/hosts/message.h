// Message: what hosts tell the coordinator, and it tells them.
#ifndef HVD_HOSTS_MESSAGE_H_
#define HVD_HOSTS_MESSAGE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ops/core/status.h"
#include "ops/transport/shm/crossing.h"

namespace hvd::hosts {

struct Message {
  enum class Kind : uint8_t {
    // To the coordinator.
    kReady,  // epoch, plan_position, ready
    kFail,   // key, code, text: cannot complete; the same from the coordinator to all concerned
    // From the coordinator.
    kExecute,  // agreement
    kPlan,     // plan
    kFailAll,  // code, text
    kLeft,     // host: all its ranks have left the job
    // Both ways.
    kBeat,    // is_quiet, text: what waits there
    kAbort,   // text
    kDepart,  // a rank is about to leave; back: no plan will begin any more
    kBye,     // nothing will come any more
    kClock,   // clock_ns: when it was asked, and, in the answer, received and answered
  };

  Kind kind = Kind::kBeat;
  uint32_t epoch = 0;
  int64_t plan_position = 0;  // how far the plan of the epoch before got
  shm::ReadySlot ready;
  shm::Agreement agreement;
  std::vector<shm::PlanEntry> plan;
  MatchKey key;
  Code code = Code::kOk;
  std::string text;
  int32_t host = 0;
  bool is_quiet = false;
  int64_t clock_ns[3] = {};
};

// Appends a message to a batch; false, and nothing appended, if that would make it longer than
// `max_bytes`.
bool Append(const Message& message, size_t max_bytes, std::vector<char>* batch);

// The messages of a batch; kInternal if it is none.
Status Parse(const char* batch, size_t max_bytes, std::vector<Message>* messages);

}  // namespace hvd::hosts

#endif  // HVD_HOSTS_MESSAGE_H_
