// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/report/metric_catalogue.hpp"
#include "tools/sweep/store.hpp"

namespace moesim {

/// A metric that comparisons give the ratio of, by the name that `--fail-if` and JSON know it by.
struct ComparedMetric {
  std::string_view name;
  const Metric* metric;

  bool more_is_better() const { return metric->key().better == Better::more; }
};

inline constexpr std::array<ComparedMetric, 9> compared_metrics{{
    {"total_token_throughput", &metric("total_token_throughput")},
    {"output_throughput", &metric("output_throughput")},
    {"median_tpot_ms", &metric("median_tpot_ms")},
    {"median_ttft_ms", &metric("median_ttft_ms")},
    {"p99_ttft_ms", &metric("p99_ttft_ms")},
    {"decode_step_ms", &metric("decode_step_ms")},
    {"max_activated_mean", &metric("decode_max_activated_mean")},
    {"max_tokens_mean", &metric("decode_max_tokens_mean")},
    {"joules_per_output_token", &metric("joules_per_output_token")},
}};

/// A condition on a config: "/token_routing/decode=metro".
struct Setting {
  std::string pointer;  ///< into the config
  Json value;
};

/// Reads "/ptr=value" or "/context/config/ptr=value"; the value is JSON, or a text where it is not.
/// Throws ConfigError.
Setting parse_setting(std::string_view text);
std::vector<Setting> parse_settings(const std::vector<std::string>& texts);

/// The finished points of a sweep that match all settings, as compare() understands them. Throws
/// ConfigError if there is none.
StoredSweep points_with(const StoredSweep&, std::span<const Setting> settings);

/// A baseline point and a candidate point that are equal in everything else.
struct PointPair {
  std::string baseline, candidate;  ///< config hashes
  std::vector<Json> settings;       ///< what tells the pair from others, null where it has none
  std::size_t point = 0;  ///< the same for pairs that differ in the seed or the recording alone
  std::pair<std::string, std::string> sample;  ///< recording and seed, as JSON
  /// Candidate over baseline; nothing where either lacks the metric or the baseline is 0.
  std::array<std::optional<double>, compared_metrics.size()> ratios;
};

struct RatioSummary {
  std::optional<double> ratio;                  ///< geometric mean; nothing without pairs
  std::size_t pairs = 0, wins = 0, losses = 0;  ///< of the candidate
  /// The 90 % interval of the mean over all seeds. Each seed that every point has is one sample:
  /// its mean over the points. With several recordings each is a deal, with as many seeds. Nothing
  /// of fewer than two seeds or recordings.
  std::optional<std::pair<double, double>> interval;
  double p_better = 0.5;  ///< P(the candidate is better), by the same; .5 without an interval
};

/// Summary of the seeds and recordings of one point.
struct PointSummary {
  std::vector<Json> settings;  ///< as a pair's, without seed and recording
  std::array<RatioSummary, compared_metrics.size()> ratios;
};

/// A key that the sweep couples to what is compared, so that pairs differ in it too.
struct CoupledDifference {
  std::string pointer;
  Json baseline, candidate;
};

struct Comparison {
  std::vector<Axis> axes;                  ///< of the pairs' settings
  std::vector<CoupledDifference> coupled;  ///< each once
  std::vector<PointPair> pairs;
  std::array<RatioSummary, compared_metrics.size()> summary;
  std::vector<Axis> point_axes;      ///< of the points' settings
  std::vector<PointSummary> points;  ///< in order of their first pair; none: no point has two seeds
  std::size_t unpaired = 0;          ///< done points of either side without one on the other
  std::size_t not_done = 0;          ///< points of either side that have no report
};

/// Pairs the done points that match all settings of one side with those that match all of the other
/// and are equal in everything else. Texts match a policy by its type ("metro" matches "metro" and
/// {"type": "metro", ...}), and then its other options must be equal, too; an object on either side
/// compares whole policies. What the sweep couples to a compared key may differ with it. A value
/// that a config leaves out is the default of the resolved config. Throws ConfigError if there is
/// no pair, or if a point has several partners.
Comparison compare(const StoredSweep&, std::span<const Setting> baseline,
                   std::span<const Setting> candidate);

/// Pairs and summary, for a terminal.
std::string comparison_text(const Comparison&);
/// {"pairs": [{"baseline", "candidate", "settings": {pointer: value}, "ratios": {metric: ratio}}],
///  "summary": {metric: {"ratio", "pairs", "wins", "losses", "interval": [low, high] or null,
///  "p_better" or null}}, "points": [{"settings", "ratios": {metric: {"ratio", "interval",
///  "p_better"}}}], "coupled": [{"pointer", "baseline", "candidate"}], "unpaired", "not_done"}
OrderedJson comparison_json(const Comparison&);

/// Limit to keep: "total_token_throughput < 0.98", on the geometric mean of the ratios.
struct Limit {
  std::size_t metric = 0;  ///< of compared_metrics
  bool below = true;       ///< '<', else '>'
  double bound = 0;
};

/// Throws ConfigError if the text is not METRIC < NUMBER or METRIC > NUMBER.
Limit parse_limit(std::string_view text);
/// A line that says why, if the limit's condition holds. Throws ConfigError if no pair has the
/// metric.
std::optional<std::string> violation(const Comparison&, const Limit&);

}  // namespace moesim
