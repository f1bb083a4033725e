// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moesim {

/// Adds these members of one to those of the other, which is returned.
template <auto... member, class T>
T& add_members(T& sum, const T& more) {
  ((sum.*member += more.*member), ...);
  return sum;
}

}  // namespace moesim
