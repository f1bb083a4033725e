// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "hardware/choice.hpp"
#include "hardware/registry.hpp"

namespace moesim {

/// The choices of one layer in one step, token by token, between the gate and token routing.
struct LayerChoices {
  std::vector<std::uint16_t> ids;         ///< experts, [tokens, k]
  std::vector<std::int32_t> source_rank;  ///< EP rank, [tokens]; never decreases
  std::vector<std::int32_t> source_gpu;   ///< [tokens]; never decreases
  /// Selections that do not run, [tokens, k]: they send and compute nothing.
  std::vector<std::uint8_t> dropped;
  std::vector<std::uint8_t> delayed;  ///< tokens that stand for one selection of the step before
  std::size_t tokens() const { return source_rank.size(); }
  std::size_t k() const { return tokens() == 0 ? 0 : ids.size() / tokens(); }
};

/// A selection that waits for the next step.
struct DelayedSelection {
  std::uint16_t expert;
  std::int32_t source_rank, source_gpu;
};

/// Fates of the selections of one layer in one step: those of its own tokens and those that
/// waited.
struct CapacityTally {
  std::int64_t selections = 0;  ///< of the step's own tokens
  std::int64_t dropped = 0;
  std::int64_t rerouted = 0;  ///< ran on another expert than the gate's
  std::int64_t delayed = 0;   ///< left for the next step
  std::int64_t waited = 0;    ///< came from the step before ...
  std::int64_t resumed = 0;   ///< ... and ran
  /// Selections whose fate is known: at least those dropped, in any steps that are looked at.
  std::int64_t decided() const { return selections + waited - delayed; }
  CapacityTally& operator+=(const CapacityTally&);
};

/// C = max(1, ceil(factor * k * tokens / experts)): selections that an expert takes.
/// [GShard]
std::int32_t expert_capacity(double factor, std::size_t k, std::size_t tokens, std::size_t experts);

/// How many more selections every expert takes.
class ExpertRoom {
 public:
  /// The same room for all sources, or for each source rank a room of its own from its own tokens.
  ExpertRoom(const LayerChoices&, std::size_t experts, double factor, bool per_source_rank);
  /// Takes a place if there is one.
  bool take(std::uint16_t expert, std::int32_t source_rank);

 private:
  std::size_t experts_;
  bool per_source_rank_;
  std::vector<std::int32_t> left_;  // [1 or ranks, experts]
};

/// Selections beyond capacity, first come first served, and where they may go.
struct Overflow {
  std::span<const std::size_t> selections;  ///< indices into [tokens, k]; marked as dropped
  std::span<const std::int32_t> demand;     ///< selections that wanted each expert, [experts]
  ExpertRoom& room;
  std::vector<DelayedSelection>& backlog;
};

/// Bounds what one expert computes in a step, as training does; engines are dropless.
class CapacityRule {
 public:
  virtual ~CapacityRule() = default;
  /// True if there is anything to bound; a rule that does not is never asked.
  virtual bool limits() const { return true; }
  /// Decides about selections that found no room after all others were served.
  virtual void overflow(const Overflow&, LayerChoices&, CapacityTally&) const = 0;

  double factor = 1;             ///< above the mean
  bool per_source_rank = false;  ///< every rank has its own capacity
};

/// The table: dropless, drop, reroute, delay.
const Registry<CapacityRule>& capacity_rules();

/// Applies a rule to one layer. Selections are served in the order (those of the step before,
/// token, place in top-k). `backlog` holds those of the step before, and afterwards those that wait
/// for the next one. `tokens` [experts] is overwritten with the selections that run.
void limit_choices(const CapacityRule&, LayerChoices&, std::vector<DelayedSelection>& backlog,
                   std::span<std::int32_t> tokens, CapacityTally&);

/// The rule of engines, under which every selection runs.
std::shared_ptr<const CapacityRule> dropless();

/// Tokens that share an expert's room.
enum class CapacityScope { global, per_source_rank };
inline constexpr std::array<std::string_view, 2> capacity_scope_names{"global", "per_source_rank"};

std::span<const Key> capacity_keys();
/// Reads them.
template <class Rule>
std::unique_ptr<CapacityRule> read_capacity_rule(ConfigReader& options) {
  auto rule = std::make_unique<Rule>();
  rule->factor = options.number("factor");
  rule->per_source_rank = choice<CapacityScope>(options, "scope", capacity_scope_names) ==
                          CapacityScope::per_source_rank;
  return rule;
}

}  // namespace moesim
