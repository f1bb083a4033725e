// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "traces/gating/gating.hpp"
#include "traces/gating/presets.hpp"

namespace moesim {
namespace {

class Topical final : public SyntheticGating {
 public:
  explicit Topical(ConfigReader& options) : SyntheticGating(options) {
    preset_ = &gating_presets[options.choice("preset")];
    const GatingTerms& fitted = preset_->terms;
    const auto number = [&](std::string_view key, double preset_value) {
      return options.number_or(key, preset_value);
    };
    terms_.popularity_sigma = number("popularity_sigma", fitted.popularity_sigma);
    terms_.popularity_spread = number("popularity_spread", fitted.popularity_spread);
    terms_.spikes = static_cast<int>(options.integer_or("spikes", fitted.spikes));
    terms_.spike_height = number("spike_height", fitted.spike_height);
    terms_.coldness = number("coldness", fitted.coldness);
    terms_.workload_sigma = number("workload_sigma", fitted.workload_sigma);
    terms_.request_sigma = number("request_sigma", fitted.request_sigma);
    terms_.reuse = number("reuse", fitted.reuse);
    terms_.topics = static_cast<int>(options.integer_or("topics", fitted.topics));
    terms_.topics_per_request =
        static_cast<int>(options.integer_or("topics_per_request", fitted.topics_per_request));
    terms_.topic_skew = number("topic_skew", fitted.topic_skew);
    terms_.topic_sigma = number("topic_sigma", fitted.topic_sigma);
    terms_.topic_stay = number("topic_stay", fitted.topic_stay);
  }
  RoutingTrace trace(const MoeModel& model, std::uint64_t seed) const override {
    return generate_trace(model, rows(), terms_,
                          fmt::format("topical gating, preset {}", preset_->name), seed);
  }

 private:
  const GatingPreset* preset_ = nullptr;
  GatingTerms terms_;
};

}  // namespace

std::span<const Key> topical_gating_keys() {
  static constexpr auto names = [] {
    std::array<std::string_view, gating_presets.size()> all;
    std::ranges::transform(gating_presets, all.begin(), &GatingPreset::name);
    return all;
  }();
  static constexpr KeyDefault fitted = unset("the preset's");
  static constexpr Key keys[] = {
      row_keys[0],
      row_keys[1],
      row_keys[2],
      row_keys[3],
      {"preset", form::choice(names), "gpt_oss",
       "preset whose statistics the terms fit (moesim list presets)"},
      {"popularity_sigma", sigma, fitted,
       "spread of an expert's log-weight in a layer, median over layers"},
      {"popularity_spread", sigma, fitted, "log-normal spread of that sigma between layers"},
      {"spikes", form::integer(0, 1000), fitted, "experts of a layer that are raised"},
      {"spike_height", form::number(0, 10), fitted, "height of the spike, in log-weight"},
      {"coldness", form::number(0, 10), fitted, "mean by which log-weights are lowered"},
      {"workload_sigma", sigma, fitted, "spread of what requests of one workload share"},
      {"request_sigma", sigma, fitted, "spread of what tokens of one request share"},
      {"reuse", form::number(0, 1), fitted, "chance that an expert of the token before is kept"},
      {"topics", form::integer(0, 1000), fitted,
       "number of topics of tokens, each in all layers; 0: none"},
      {"topics_per_request", form::integer(1, 1000), fitted, "topics that a request's tokens have"},
      {"topic_skew", sigma, fitted,
       "spread of the log-chance of each topic in a workload's requests"},
      {"topic_sigma", sigma, fitted, "spread of what tokens of one topic share"},
      {"topic_stay", form::number(0, 1), fitted,
       "chance that a token has the topic of the one before"}};
  return keys;
}

std::unique_ptr<Gating> make_topical_gating(ConfigReader& options) {
  return std::make_unique<Topical>(options);
}

}  // namespace moesim
