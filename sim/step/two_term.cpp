// SPDX-License-Identifier: Apache-2.0
#include "sim/step/two_term.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

namespace moesim {

double two_term_step(double a, double b, std::span<const double> loads) {
  const double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
  return a * *std::ranges::max_element(loads) + b * sum / static_cast<double>(loads.size());
}

Seconds TwoTermStep::of(const StepBatch& batch, std::ptrdiff_t up) const {
  std::vector<double> loads;
  for (const RankStep& rank : batch.ranks) {
    double load = 0;
    for (const SequenceWork& sequence : rank.sequences)
      load += rank.dummy ? 0 : double(sequence.context_tokens) + double(sequence.new_tokens);
    loads.push_back(load);
  }
  // Ranks that are down are the emptiest.
  std::ranges::sort(loads, std::greater{});
  loads.resize(at(up));
  return Seconds(two_term_step(a.count(), b.count(), loads)) + c;
}

std::span<const Key> two_term_step_keys() {
  static constexpr Key keys[] = {
      {"a", form::time, required, "time for each KV token of the fullest rank"},
      {"b", form::time, "0 s", "time for each KV token of the mean rank"},
      {"c", form::time, "0 s", "time of any step"}};
  return keys;
}

TwoTermStep read_two_term_step(const ConfigNode& node) {
  return read_object(node, two_term_step_keys, [](ConfigReader& reader) {
    return TwoTermStep{reader.quantity<Seconds>("a"), reader.quantity<Seconds>("b"),
                       reader.quantity<Seconds>("c")};
  });
}

}  // namespace moesim
