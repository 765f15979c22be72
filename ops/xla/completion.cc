#include "ops/xla/completion.h"

#include <system_error>
#include <thread>
#include <utility>

namespace hvd::xla_ops {

CompletionThreads& CompletionThreads::Get() {
  static CompletionThreads* threads = new CompletionThreads();
  return *threads;
}

void CompletionThreads::Run(std::function<void()> task) {
  std::unique_lock<std::mutex> lock(mutex_);
  tasks_.push_back(std::move(task));
  if (idle_ > 0) {
    --idle_;
    changed_.notify_one();
    return;
  }
  try {
    std::thread([this] { Work(); }).detach();
  } catch (const std::system_error&) {
    // No more threads to be had. Late is better than never: here, as if there were no threads.
    task = std::move(tasks_.back());
    tasks_.pop_back();
    lock.unlock();
    task();
  }
}

void CompletionThreads::Work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return !tasks_.empty(); });
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
    ++idle_;
  }
}

}  // namespace hvd::xla_ops
