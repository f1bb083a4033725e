// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "sim/draft_choice/trials.hpp"

namespace moesim {

namespace {

// Verifies as many drafts of every sequence as the trials say.
class Utility final : public DraftChoice {
 public:
  explicit Utility(ConfigReader& options) : trials_(options) {}

  void choose(const GroupDrafts& group, std::span<std::int32_t> drafts) override {
    std::ranges::fill(drafts, trials_.drafts(group.most));
  }
  void decoded(const DecodedStep& step) override { trials_.decoded(step); }

 private:
  DraftTrials trials_;
};

}  // namespace

DraftChoiceFactory make_utility(ConfigReader& options) { return copies_of(Utility(options)); }

}  // namespace moesim
