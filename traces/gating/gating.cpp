// SPDX-License-Identifier: Apache-2.0
#include "traces/gating/gating.hpp"

namespace moesim {

// The constructor of each row and its options, from policies/.
Registry<Gating>::Maker make_uniform_gating, make_popularity_gating, make_counts_gating,
    make_observed_gating, make_topical_gating, make_recorded_gating;
Keys uniform_gating_keys, popularity_gating_keys, counts_gating_keys, observed_gating_keys,
    topical_gating_keys, recorded_gating_keys;

const Registry<Gating>& gatings() {
  static const Registry<Gating> table(
      "gating",
      {{"uniform", "every expert equally likely: what no trained model does", make_uniform_gating,
        uniform_gating_keys},
       {"popularity", "tokens drawn independently, experts log-normally popular per layer",
        make_popularity_gating, popularity_gating_keys},
       {"counts", "tokens drawn independently, experts as often as a file counted them",
        make_counts_gating, counts_gating_keys},
       {"observed", "tokens drawn independently, as unevenly as an engine logged them",
        make_observed_gating, observed_gating_keys},
       {"topical",
        "popularity, plus what requests and workloads have in common; presets fitted to models",
        make_topical_gating, topical_gating_keys},
       {"recorded", "a routing trace from a directory", make_recorded_gating,
        recorded_gating_keys}});
  return table;
}

}  // namespace moesim
