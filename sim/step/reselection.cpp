// SPDX-License-Identifier: Apache-2.0
#include "sim/step/reselection.hpp"

#include <algorithm>
#include <vector>

namespace moesim {

std::span<const Key> reselection_keys() {
  static constexpr Key keys[] = {{"keep", form::integer(1, 1 << 10), required,
                                  "experts of a token that stay whatever others choose"}};
  return keys;
}

int read_reselection(const ConfigNode& node, int experts_per_token) {
  return read_object(node, reselection_keys, [&](ConfigReader& reader) {
    const auto keep = static_cast<int>(reader.integer("keep"));
    if (keep > experts_per_token)
      reader.child("keep").fail("a token has {} experts; keep at most so many", experts_per_token);
    return keep < experts_per_token ? keep : 0;
  });
}

// Opportunistic expert activation (arXiv:2511.02237). S[t]: the experts of token t, best first.
//
//   A = union over tokens of the first k0 of S[t],   S'[t] = S[t] where it is in A
//
// There a token then takes experts of A that are next in its order, up to k of them. Recordings
// hold no scores, and no expert behind the k-th: what is dropped is not replaced. So the active
// experts are exact, and the selections that run are as few as they can be.
void keep_active(int keep, LayerChoices& choices, std::span<std::int32_t> tokens,
                 CapacityTally& tally) {
  const std::size_t k = choices.k(), kept = std::min(k, at(keep));
  std::vector<std::uint8_t> active(tokens.size());
  for (std::size_t i = 0; i < choices.ids.size(); ++i) {
    if (i % k < kept) active[choices.ids[i]] = 1;
  }
  choices.dropped.assign(choices.ids.size(), 0);
  std::ranges::fill(tokens, 0);
  for (std::size_t i = 0; i < choices.ids.size(); ++i) {
    const bool runs = active[choices.ids[i]] != 0;
    choices.dropped[i] = runs ? 0 : 1;
    tokens[choices.ids[i]] += runs ? 1 : 0;
    tally.dropped += runs ? 0 : 1;
  }
  tally.selections += std::ssize(choices.ids);
}

}  // namespace moesim
