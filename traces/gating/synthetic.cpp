// SPDX-License-Identifier: Apache-2.0
#include "traces/gating/synthetic.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

#include <fmt/format.h>
#include <tbb/parallel_for.h>

#include "hardware/at.hpp"
#include "hardware/rng.hpp"
#include "traces/gating/expert_sampler.hpp"
#include "traces/gating/noise.hpp"

namespace moesim {
namespace {

// In one trace in memory: 20 GB.
constexpr double most_ids = 1e10;

/// Log-weights [layers, experts].
using Logits = std::vector<double>;

Logits popularity(std::size_t layers, std::size_t experts, const GatingTerms& terms, Rng rng) {
  Logits logits(layers * experts);
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const std::span row(logits.data() + layer * experts, experts);
    const double sigma = terms.popularity_sigma * std::exp(terms.popularity_spread * rng.normal());
    for (double& logit : row) logit = sigma * rng.normal() - terms.coldness * rng.exponential();
    for (int spike = 0; spike < terms.spikes; ++spike)
      row[rng.below(experts)] += terms.spike_height;
  }
  return logits;
}

void add_noise(Logits& logits, double sigma, Rng rng) {
  if (sigma > 0) add_normals(logits, sigma, rng);
}

/// Weights [topics, layers, experts] by which topics multiply those of their tokens' requests.
std::vector<float> topic_weights(std::size_t layers, std::size_t experts, const GatingTerms& terms,
                                 std::uint64_t seed) {
  const std::size_t width = layers * experts;
  std::vector<float> weights(at(terms.topics) * width);
  tbb::parallel_for(0, terms.topics, [&](int topic) {
    Rng rng(seed, fmt::format("gating topic {}", topic));
    const std::span own = std::span(weights).subspan(at(topic) * width, width);
    for (float& weight : own)
      weight = static_cast<float>(std::exp(terms.topic_sigma * rng.normal()));
  });
  return weights;
}

/// The topics of one request, and the topic of each of its rows.
struct RequestTopics {
  std::vector<std::size_t> held;    ///< of the trace's topics, each once
  std::vector<std::size_t> of_row;  ///< index into `held`
};

/// How likely a workload's requests hold each topic.
WeightedDraw topic_draw(const GatingTerms& terms, Rng rng) {
  std::vector<double> weights(at(terms.topics));
  for (double& weight : weights) weight = std::exp(terms.topic_skew * rng.normal());
  WeightedDraw draw;
  draw.set_weights(weights);
  return draw;
}

RequestTopics request_topics(std::size_t rows, const GatingTerms& terms, const WeightedDraw& draw,
                             Rng rng) {
  if (terms.topics == 0) return {{0}, std::vector<std::size_t>(rows, 0)};
  RequestTopics topics;
  std::vector<std::size_t> places;  // in `held`, of each draw
  for (int i = 0; i < terms.topics_per_request; ++i) {
    const std::size_t topic = draw.draw(rng);
    const auto place = std::ranges::find(topics.held, topic) - topics.held.begin();
    if (at(place) == topics.held.size()) topics.held.push_back(topic);
    places.push_back(at(place));
  }
  std::size_t now = 0;
  for (std::size_t row = 0; row < rows; ++row) {
    if (row == 0 || rng.uniform() >= terms.topic_stay) now = places[rng.below(places.size())];
    topics.of_row.push_back(now);
  }
  return topics;
}

/// Facts that the rows of all requests have in common.
struct RowShape {
  std::size_t layers, k;
  double reuse;
  std::span<const float> topic_weights;  ///< empty where tokens have no topic
  ExpertSampler sampler;
};

/// Fills the rows of one request: `ids` is [rows, layers, k].
void generate_request(const RowShape& shape, const Logits& logits, const RequestTopics& topics,
                      Rng rng, std::span<std::uint16_t> ids) {
  const auto& [layers, k, reuse, topic_weights, sampler] = shape;
  const std::size_t experts = logits.size() / layers;
  std::vector<double> own(experts), weights(experts);
  std::vector<std::uint16_t> picks(k);
  std::vector<ExpertSampler> samplers(topics.held.size(), sampler);
  for (std::size_t layer = 0; layer < layers; ++layer) {
    for (std::size_t i = 0; i < experts; ++i) own[i] = std::exp(logits[layer * experts + i]);
    for (std::size_t topic = 0; topic < samplers.size(); ++topic) {
      weights = own;
      if (!topic_weights.empty()) {
        const auto of_topic =
            topic_weights.subspan((topics.held[topic] * layers + layer) * experts, experts);
        std::transform(own.begin(), own.end(), of_topic.begin(), weights.begin(),
                       std::multiplies<>());
      }
      samplers[topic].set_weights(weights);
    }
    samplers[topics.of_row.front()].first(picks, rng);
    for (std::size_t row = 0; row < topics.of_row.size(); ++row) {
      std::copy(picks.begin(), picks.end(),
                ids.begin() + static_cast<std::ptrdiff_t>((row * layers + layer) * k));
      const std::size_t next = std::min(row + 1, topics.of_row.size() - 1);
      samplers[topics.of_row[next]].next(picks, reuse, rng);
    }
  }
}

TraceMeta describe(const MoeModel& model, const SyntheticRows& rows, std::string_view recipe,
                   std::uint64_t seed) {
  TraceMeta meta;
  meta.model = model.name;
  meta.source = fmt::format("generated, not recorded: {}, seed {}", recipe, seed);
  meta.license = "generated; holds no recorded data";
  meta.engine = "moesim";
  meta.num_experts = model.experts;
  meta.experts_per_token = model.experts_per_token;
  meta.layer_ids = moe_layer_ids(model);
  if (rows.prompt_rows > 0) meta.phases.push_back("prefill");
  if (rows.decode_rows > 0) meta.phases.push_back("decode");
  meta.synthetic = true;
  return meta;
}

std::vector<TraceRequest> requests_of(const SyntheticRows& rows) {
  const std::int64_t tokens = rows.prompt_rows + rows.decode_rows;
  std::vector<TraceRequest> requests;
  for (int i = 0; i < rows.requests; ++i)
    requests.push_back(
        {i * tokens, tokens, rows.prompt_rows, static_cast<int>(at(i) % rows.workloads.size())});
  return requests;
}

// [requests, rows, layers, k].
std::size_t count_ids(const MoeModel& model, const SyntheticRows& rows, std::size_t layers) {
  const std::size_t tokens = at(rows.prompt_rows + rows.decode_rows);
  const std::size_t request_ids = tokens * layers * at(model.experts_per_token);
  const double ids_of_all = double(rows.requests) * double(request_ids);
  if (ids_of_all > most_ids)
    throw ConfigError(
        "gating of {} requests with {} rows each makes {:.2g} expert ids of {}, more "
        "than {:.0g}; ask for fewer requests or rows",
        rows.requests, tokens, ids_of_all, model.name, most_ids);
  return at(rows.requests) * request_ids;
}

}  // namespace

std::vector<int> moe_layer_ids(const MoeModel& model) {
  std::vector<int> ids = model.moe_layer_numbers();
  if (ids.empty() || model.experts == 0)
    throw ConfigError("model {} has no experts; gating needs a Mixture-of-Experts model",
                      model.name);
  return ids;
}

SyntheticRows read_rows(ConfigReader& options, std::vector<std::string> workloads) {
  SyntheticRows rows;
  rows.requests = static_cast<int>(options.integer("requests"));
  rows.prompt_rows = static_cast<int>(options.integer("prompt_rows"));
  rows.decode_rows = static_cast<int>(options.integer("decode_rows"));
  if (rows.prompt_rows + rows.decode_rows == 0)
    options.node().fail("prompt_rows and decode_rows are both 0; a request needs rows");
  rows.workloads = std::move(workloads);
  return rows;
}

SyntheticRows read_rows(ConfigReader& options) {
  SyntheticRows rows = read_rows(options, {});
  for (const ConfigNode& tag : options.child("workloads").list())
    rows.workloads.push_back(tag.text());
  if (rows.workloads.empty()) options.child("workloads").fail("names no workload");
  return rows;
}

RoutingTrace SyntheticGating::outline(const MoeModel& model, std::uint64_t seed) const {
  TraceMeta meta = describe(model, rows_, "experts in turn", seed);
  count_ids(model, rows_, meta.layer_ids.size());
  // Two of each workload: one for either half.
  SyntheticRows few = rows_;
  few.requests = std::min(few.requests, 2 * static_cast<int>(few.workloads.size()));
  std::vector<std::uint16_t> ids(count_ids(model, few, meta.layer_ids.size()));
  int next = 0;
  for (std::uint16_t& id : ids) {
    id = static_cast<std::uint16_t>(next);
    next = next + 1 == model.experts ? 0 : next + 1;
  }
  return RoutingTrace(std::move(meta), few.workloads, requests_of(few), std::move(ids));
}

RoutingTrace generate_trace(const MoeModel& model, const SyntheticRows& rows,
                            const GatingTerms& terms, std::string_view recipe, std::uint64_t seed) {
  const std::size_t layers = moe_layer_ids(model).size();
  const auto experts = at(model.experts);
  const auto k = at(model.experts_per_token);

  const Logits own = popularity(layers, experts, terms, Rng(seed, "gating popularity"));
  std::vector<Logits> of_workload;
  std::vector<WeightedDraw> topics_of_workload;
  for (const std::string& workload : rows.workloads) {
    of_workload.push_back(own);
    add_noise(of_workload.back(), terms.workload_sigma,
              Rng(seed, fmt::format("gating workload {}", workload)));
    topics_of_workload.push_back(
        topic_draw(terms, Rng(seed, fmt::format("gating topics of {}", workload))));
  }

  const std::vector<float> of_topics = topic_weights(layers, experts, terms, seed);

  const auto tokens = at(rows.prompt_rows + rows.decode_rows);
  const RowShape shape{layers, k, terms.reuse, of_topics,
                       ExpertSampler(model.experts, model.experts_per_token, model.expert_groups,
                                     model.groups_per_token)};
  const auto fill = [&](std::size_t i, std::span<std::uint16_t> ids) {
    const std::size_t workload = i % of_workload.size();
    Logits logits = of_workload[workload];
    add_noise(logits, terms.request_sigma, Rng(seed, fmt::format("gating request {}", i)));
    generate_request(shape, logits,
                     request_topics(tokens, terms, topics_of_workload[workload],
                                    Rng(seed, fmt::format("gating topics {}", i))),
                     Rng(seed, fmt::format("gating tokens {}", i)), ids);
  };
  return fill_trace(model, rows, recipe, seed, fill);
}

RoutingTrace fill_trace(const MoeModel& model, const SyntheticRows& rows, std::string_view recipe,
                        std::uint64_t seed, const RoutingTrace::Fill& fill) {
  TraceMeta meta = describe(model, rows, recipe, seed);
  count_ids(model, rows, meta.layer_ids.size());
  // Requests have random streams of their own, so the order in which they are made is free.
  return RoutingTrace(std::move(meta), rows.workloads, requests_of(rows), fill);
}

}  // namespace moesim
