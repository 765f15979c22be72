// Threads that tell XLA of the end of a collective.
//
// XLA runs what comes next on the thread that completes a promise: all of the step that was waiting
// for this collective, up to the next one. On the engine's thread the following collectives would
// wait for it, and on one thread for all completions a second collective that has ended meanwhile.
// So each completion gets a thread that is idle, and if there is none, a new one, which is kept.
#ifndef HVD_XLA_COMPLETION_H_
#define HVD_XLA_COMPLETION_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

namespace hvd::xla_ops {

class CompletionThreads {
 public:
  // Those of this process. Never destroyed: they may be in XLA's code when the process ends.
  static CompletionThreads& Get();

  // Returns at once.
  void Run(std::function<void()> task);

 private:
  void Work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  size_t idle_ = 0;  // threads that no task is meant for yet
};

}  // namespace hvd::xla_ops

#endif  // HVD_XLA_COMPLETION_H_
