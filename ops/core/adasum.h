// Adasum: a sum that does not overshoot where the gradients of the ranks agree.
//
// Of two vectors: Adasum(a, b) = (1 - a.b / (2 |a|^2)) a + (1 - a.b / (2 |b|^2)) b, the sum where
// they are orthogonal and the mean where they are equal; of more, pairwise as in a binary tree.
// (Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021.)
#ifndef HVD_CORE_ADASUM_H_
#define HVD_CORE_ADASUM_H_

#include <cstdint>
#include <vector>

#include "ops/core/communicator.h"
#include "ops/core/reduce.h"
#include "ops/core/status.h"

namespace hvd {

// Each buffer is a vector of its own. Types: float32 and float64; the products are accumulated in
// float64. Every member gathers the vectors of all, and computes the same tree.
Status AdasumAllreduce(Ticket ticket, const Reduction& reduction,
                       const std::vector<Buffer>& buffers, Communicator* communicator);

}  // namespace hvd

#endif  // HVD_CORE_ADASUM_H_
