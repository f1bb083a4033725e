// SPDX-License-Identifier: Apache-2.0
#include "sim/pool_roles/pool_roles.hpp"

namespace moesim {

namespace {

// Dynamo's load planner (docs/planner, load_planner.md) with as many GPUs as there are: a pool
// grows where the other one shrinks in the same interval.
//   prefill grows: its queue > 5 requests a group, and not below that in three more intervals by
//                  the trend of this one;  shrinks: queue < 0.2
//   decode grows:  its KV blocks held > 0.9;  shrinks: < 0.5
class ThresholdRoles final : public PoolRoles {
 public:
  explicit ThresholdRoles(ConfigReader& options)
      : queue_up_(options.number("prefill_queue_scale_up_threshold")),
        queue_down_(options.number("prefill_queue_scale_down_threshold")),
        kv_up_(options.number("decode_kv_scale_up_threshold")),
        kv_down_(options.number("decode_kv_scale_down_threshold")) {
    const auto ordered = [&](double down, double up, const char* key) {
      if (down > up)
        options.child(key).fail("is above the threshold to scale up; give a lower one");
    };
    ordered(queue_down_, queue_up_, "prefill_queue_scale_down_threshold");
    ordered(kv_down_, kv_up_, "decode_kv_scale_down_threshold");
  }

  std::optional<PoolRole> wants(const RolesSeen& seen) override {
    const double queue = seen.prefill.waiting, kv = seen.decode.kv_utilization;
    if (queue > queue_up_ && queue_in_three(seen.prefill) > queue_up_ && kv < kv_down_)
      return PoolRole::prefill;
    if (kv > kv_up_ && queue < queue_down_) return PoolRole::decode;
    return std::nullopt;
  }

 private:
  static double queue_in_three(const RoleLoad& prefill) {
    constexpr double intervals = 3;
    return prefill.waiting_last + intervals * (prefill.waiting_last - prefill.waiting_first);
  }

  double queue_up_, queue_down_, kv_up_, kv_down_;
};

}  // namespace

std::span<const Key> threshold_roles_keys() {
  static constexpr Form queue = form::number(0, 1e9);
  static constexpr Form share = form::number(0, 1);
  static constexpr Key keys[] = {
      {"prefill_queue_scale_up_threshold", queue, "5",
       "requests that wait for each prefill group: more groups above it"},
      {"prefill_queue_scale_down_threshold", queue, "0.2", "the same: fewer groups below it"},
      {"decode_kv_scale_up_threshold", share, "0.9",
       "share of the decode pool's KV blocks held: more groups above it"},
      {"decode_kv_scale_down_threshold", share, "0.5", "the same: fewer groups below it"}};
  return keys;
}

PoolRolesFactory make_threshold_roles(ConfigReader& options) {
  return copies_of(ThresholdRoles(options));
}

}  // namespace moesim
