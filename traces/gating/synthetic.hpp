// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hardware/config.hpp"
#include "hardware/rng.hpp"
#include "models/moe_model.hpp"
#include "traces/gating/gating.hpp"
#include "traces/routing_trace.hpp"

namespace moesim {

/// Terms of a token's choice of experts. The log-weight of an expert in a layer is a sum of
/// independent normals: of the layer, the request's workload, the request and the token's topic. A
/// token picks by ExpertSampler. A token has one topic in all layers, which makes one layer predict
/// the next. A request holds a few topics of the trace and stays with one for some tokens (a
/// mixture of topics per document, Blei, Ng and Jordan 2003, with a memory).
struct GatingTerms {
  double popularity_sigma = 0;   ///< of the layer's own term, median over layers
  double popularity_spread = 0;  ///< log-normal spread of that sigma between layers
  int spikes = 0;                ///< experts per layer that are raised ...
  double spike_height = 0;       ///< ... by this much, in log-weight
  double coldness =
      0;  ///< every expert is lowered by an exponential of this mean: a tail of idle ones
  double workload_sigma = 0;   ///< what requests of one workload share
  double request_sigma = 0;    ///< what tokens of one request share
  double reuse = 0;            ///< probability that a token keeps an expert of the token before
  int topics = 0;              ///< of the trace; 0: tokens have none
  int topics_per_request = 1;  ///< drawn with replacement, by weights of the request's workload ...
  double topic_skew = 0;       ///< ... that are log-normal with this sigma
  double topic_sigma = 0;      ///< what tokens of one topic share
  double topic_stay = 0;       ///< probability that a token has the topic of the token before
};

inline constexpr Form sigma = form::number(0, 5);

/// How much is generated.
struct SyntheticRows {
  int requests = 0;
  int prompt_rows = 0;                 ///< per request
  int decode_rows = 0;                 ///< per request
  std::vector<std::string> workloads;  ///< requests take them in turn
};
/// Reads "requests", "prompt_rows", "decode_rows" and "workloads", which every table of a synthetic
/// gating has.
SyntheticRows read_rows(ConfigReader& options);
/// The same but for "workloads", which are these.
SyntheticRows read_rows(ConfigReader& options, std::vector<std::string> workloads);
inline constexpr std::array<Key, 4> row_keys{
    {{"requests", form::integer(1, 1e6), "256", "recordings to make"},
     {"prompt_rows", form::integer(0, 1e6), "64", "tokens of the prompt in each"},
     {"decode_rows", form::integer(0, 1e6), "192", "tokens decoded in each"},
     {"workloads", form::list(form::text), R"(["chat", "code", "math", "law"])",
      "tags, which recordings take in turn"}}};

/// A gating that a seeded generator makes.
class SyntheticGating : public Gating {
 public:
  explicit SyntheticGating(ConfigReader& options) : rows_(read_rows(options)) {}
  explicit SyntheticGating(SyntheticRows rows) : rows_(std::move(rows)) {}
  /// Experts come in turn, in two requests of each workload.
  RoutingTrace outline(const MoeModel& model, std::uint64_t seed) const override;

 protected:
  const SyntheticRows& rows() const { return rows_; }

 private:
  SyntheticRows rows_;
};

/// Generates a trace shaped for the model. `recipe` names the generator in meta(). Same arguments,
/// same rows. Throws ConfigError if the model has no experts.
RoutingTrace generate_trace(const MoeModel& model, const SyntheticRows& rows,
                            const GatingTerms& terms, std::string_view recipe, std::uint64_t seed);

/// A trace shaped for the model whose rows `fill` makes: those of request i, flat [tokens, layers,
/// k]. Requests are filled in any order, at once. Throws ConfigError as generate_trace() does.
RoutingTrace fill_trace(const MoeModel& model, const SyntheticRows& rows, std::string_view recipe,
                        std::uint64_t seed, const RoutingTrace::Fill& fill);

/// Draws the experts of `ids`, [rows, layers, k]; layer l by counts[l % counts.size()], [experts].
/// A token picks expert e with probability k counts[e] / sum(counts), exactly, and none twice. No
/// count is above a k-th of its layer's sum.
void draw_rows(std::span<const std::vector<std::int64_t>> counts, std::size_t layers, std::size_t k,
               std::span<std::uint16_t> ids, Rng& rng);

/// The model layers that have experts. Throws ConfigError if there are none.
std::vector<int> moe_layer_ids(const MoeModel& model);

}  // namespace moesim
