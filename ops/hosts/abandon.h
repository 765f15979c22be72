// Abandon: memory that must outlive whoever made it.
#ifndef HVD_HOSTS_ABANDON_H_
#define HVD_HOSTS_ABANDON_H_

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace hvd::hosts {

// Keeps something until the process ends: the library between the hosts still has its address, and
// will not be asked to stop, since with a host gone it might never answer.
template <typename T>
void Abandon(T&& value) {
  static std::mutex mutex;
  static auto* kept = new std::vector<std::unique_ptr<T>>();  // never destroyed
  std::lock_guard<std::mutex> lock(mutex);
  kept->push_back(std::make_unique<T>(std::forward<T>(value)));
}

}  // namespace hvd::hosts

#endif  // HVD_HOSTS_ABANDON_H_
