// SPDX-License-Identifier: Apache-2.0
#include "sim/kv_tiers/kv_tiers.hpp"

namespace moesim {

namespace {

// Writes as the n-th request finds the block in HBM: a block asked for once is not worth a copy.
// SGLang's write_through_selective with a threshold of 2 counts the request that computed the
// block, too, which is `hits` 1 here.
class Selective final : public TierWrite {
 public:
  explicit Selective(std::int64_t hits) : hits_(hits) {}
  bool when_hit(int hits) const override { return hits >= hits_; }

 private:
  std::int64_t hits_;
};

}  // namespace

std::span<const Key> selective_keys() {
  static constexpr Key keys[] = {
      {"hits", form::integer(1, 1 << 20), "2", "requests that must have found the block in HBM"}};
  return keys;
}

std::unique_ptr<TierWrite> make_selective(ConfigReader& options) {
  return std::make_unique<Selective>(options.integer("hits"));
}

}  // namespace moesim
