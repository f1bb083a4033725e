// SPDX-License-Identifier: Apache-2.0
#include "sim/kv_tiers/kv_tiers.hpp"

namespace moesim {

namespace {

// Writes as write_back, but blocks alone that `hits` requests have found above: the filter that
// [Dynamo]'s KVBM puts before a disk. KVBM starts at 1, doubles at each hit and copies from 2 on,
// which is one hit. It also forgets hits with time, which is left out here.
class Frequency final : public TierWrite {
 public:
  explicit Frequency(std::int64_t hits) : hits_(hits) {}
  bool when_taken(int hits, bool /*goes_on*/) const override { return hits >= hits_; }

 private:
  std::int64_t hits_;
};

}  // namespace

std::span<const Key> frequency_keys() {
  static constexpr Key keys[] = {
      {"hits", form::integer(1, 1 << 20), "1", "requests that must have found the block above"}};
  return keys;
}

std::unique_ptr<TierWrite> make_frequency(ConfigReader& options) {
  return std::make_unique<Frequency>(options.integer("hits"));
}

}  // namespace moesim
