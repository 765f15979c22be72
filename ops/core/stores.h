// Stores: how large results are written, through the cache or past it.
//
// A streaming store does not read the line that it overwrites and leaves no copy in the cache. That
// is faster for data which this processor does not read again soon, and which another one would
// otherwise have to take out of this one's cache; it is slower where the caches are shared. Which
// is the case can only be measured (see ops/transport/shm/store_choice.h).
#ifndef HVD_CORE_STORES_H_
#define HVD_CORE_STORES_H_

#include <cstdint>

namespace hvd {

enum class Stores : uint8_t { kCached, kStreaming };

// memcpy; where the processor has no streaming stores, always the cached one. Streaming stores are
// not ordered with others before the next DrainStores().
void Copy(void* to, const void* from, int64_t bytes, Stores stores);

// Whoever sees a store that follows sees all streaming stores before this call.
void DrainStores();

}  // namespace hvd

#endif  // HVD_CORE_STORES_H_
