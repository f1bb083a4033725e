// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

#include "hardware/units.hpp"

namespace moesim {

/// Order of two loads on a GPU's link to the host. A step waits for offloaded experts, and requests
/// wait for blocks of the KV cache that come from a tier. Each direction of the link has its full
/// rate. To the host, KV caches that leave for a decode pool always go before copies to a tier, for
/// which no request waits.
enum class HostLink {
  kv_first,       ///< an expert waits for all blocks that are on their way
  experts_first,  ///< blocks stand still while an expert comes
  equal           ///< both have half the rate while both are on their way
};
inline constexpr std::array<std::string_view, 3> host_link_names{"kv_first", "experts_first",
                                                                 "equal"};

/// KV blocks on their way to a GPU, whose link offloaded experts use, too.
class SharedHostLink {
 public:
  SharedHostLink() = default;
  /// With nothing else on the link the blocks are there at `blocks_until`.
  SharedHostLink(HostLink first, Time blocks_until) : first_(first), blocks_until_(blocks_until) {}

  /// When the link has brought an expert that begins at `begin` and takes `alone` by itself. Calls
  /// are in the order in which experts come.
  Time bring_expert(Time begin, Duration alone) {
    const Duration blocks = std::max(Duration{}, blocks_until_ - begin);
    const Duration both = std::min(alone, blocks);
    switch (first_) {
      case HostLink::kv_first: return begin + blocks + alone;
      case HostLink::experts_first:
        if (blocks > Duration{}) blocks_until_ += alone;
        return begin + alone;
      case HostLink::equal: blocks_until_ += both; return begin + both + alone;
    }
    return begin + alone;
  }
  /// When the blocks are there, after experts that have delayed them.
  Time blocks_until() const { return blocks_until_; }

 private:
  HostLink first_ = HostLink::kv_first;
  Time blocks_until_{};
};

}  // namespace moesim
