// SPDX-License-Identifier: Apache-2.0
#include "sim/draft_choice/draft_choice.hpp"

namespace moesim {

// The constructor of each row and its options, from policies/.
Registry<DraftChoiceFactory>::Maker make_utility, make_by_experts;
Keys draft_trials_keys;

const Registry<DraftChoiceFactory>& draft_choices() {
  static const Registry<DraftChoiceFactory> table(
      "draft_choice",
      {{"all", "every draft is verified", [](ConfigReader&) { return DraftChoiceFactory(); }},
       {"utility", "as many drafts as gained most tokens for their time when tried (Cascade)",
        make_utility, draft_trials_keys},
       {"by_experts", "of so many drafts those that are worth their experts, which it knows",
        make_by_experts, draft_trials_keys}});
  return table;
}

}  // namespace moesim
