// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tbb/enumerable_thread_specific.h>

namespace moesim {

/// Memory that a policy keeps from call to call, one T for every thread that calls it: a pure
/// function that allocates nothing once it has grown. What it holds must not change an answer.
template <class T>
class PerThread {
 public:
  T& local() const { return memory_.local(); }

 private:
  mutable tbb::enumerable_thread_specific<T> memory_;
};

}  // namespace moesim
