// The handlers of this package, as the custom calls and the registration spell them.
#ifndef HVD_XLA_CUSTOM_CALLS_H_
#define HVD_XLA_CUSTOM_CALLS_H_

namespace hvd::xla_ops {

inline constexpr char kCollectiveCall[] = "hvd_keras.collective";
inline constexpr char kFenceCall[] = "hvd_keras.fence";  // does nothing
inline constexpr char kTopologyCall[] = "hvd_keras.topology";

}  // namespace hvd::xla_ops

#endif  // HVD_XLA_CUSTOM_CALLS_H_
