// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <set>

#include "hardware/at.hpp"
#include "sim/expert_memory/expert_memory.hpp"

namespace moesim {

/// A cache that gives up the held key of least worth. That is the key of fewest counted uses, then
/// the one whose last use is longest ago, then the lowest key.
class RankedCache : public ExpertCache {
 public:
  RankedCache(int keys, int capacity) : capacity_(at(capacity)), worth_(at(keys)) {
    for (int key = 0; key < keys; ++key) worth_[at(key)].key = key;
  }

  bool holds(int key) const final { return held_.contains(worth(key)); }
  Admission admit(int key, std::span<const std::uint8_t> pinned) final;

 protected:
  struct Worth {
    std::int64_t uses = 0;
    std::int64_t last = 0;
    int key = 0;
    auto operator<=>(const Worth&) const = default;
  };

  /// The worth of a key changes: uses as given, last used now.
  void used(int key, std::int64_t uses);
  std::int64_t uses(int key) const { return worth(key).uses; }
  /// Halves the uses of every key, rounding down.
  void halve();

 private:
  const Worth& worth(int key) const { return worth_[at(key)]; }

  std::size_t capacity_;
  std::int64_t clock_ = 0;
  std::vector<Worth> worth_;  // [keys]
  std::set<Worth> held_;
};

/// A cache that keeps what it was given first, for good.
class StaticCache final : public ExpertCache {
 public:
  StaticCache(int keys, int capacity) : held_(at(keys)), room_(capacity) {}
  bool holds(int key) const override { return held_[at(key)]; }
  void use(int) override {}
  Admission admit(int key, std::span<const std::uint8_t>) override {
    if (room_ == 0) return {};
    --room_;
    held_[at(key)] = true;
    return {true, -1};
  }

 private:
  std::vector<bool> held_;
  int room_;
};

}  // namespace moesim
