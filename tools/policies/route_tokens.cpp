// SPDX-License-Identifier: Apache-2.0
#include "tools/policies/route_tokens.hpp"

#include <algorithm>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "sim/placement/files/placement_file.hpp"
#include "sim/step/routed_layer.hpp"
#include "tools/cli/table.hpp"

namespace moesim {

namespace {

using Counts = std::vector<std::int32_t>;  // tokens per expert

constexpr Range token_count{0, 1e9};

Counts counts_of(const ConfigNode& layer, int experts) {
  Counts counts;
  for (const ConfigNode& tokens : layer.list())
    counts.push_back(static_cast<std::int32_t>(tokens.integer(token_count)));
  if (std::ssize(counts) > experts)
    layer.fail("{} experts, but the placement holds {}", counts.size(), experts);
  counts.resize(at(experts));
  return counts;
}

// Tokens of one layer: how many per expert and, where they came as "topk_ids", each one's choices.
struct LayerTokens {
  Counts counts;
  std::vector<std::uint16_t> ids;  // [tokens, k], by rank
};

struct Tokens {
  std::vector<LayerTokens> layers;
  std::vector<std::int32_t> source_rank;  // [tokens], ascending
  bool has_rows = false;                  // otherwise counts alone
};

// "source_rank", or everything on rank 0.
std::vector<std::int32_t> read_ranks(ConfigReader& reader, std::size_t tokens, int ranks) {
  std::vector<std::int32_t> source_rank;
  if (!reader.optional("source_rank")) {
    source_rank.resize(tokens);
    return source_rank;
  }
  const ConfigNode node = reader.child("source_rank");
  for (const ConfigNode& rank : node.list())
    source_rank.push_back(static_cast<std::int32_t>(rank.integer({0, ranks - 1.0})));
  if (source_rank.size() != tokens) node.fail("{} ranks for {} tokens", source_rank.size(), tokens);
  return source_rank;
}

// The choices of one layer's tokens, put in `order`.
LayerTokens tokens_of_ids(const ConfigNode& layer, int experts,
                          const std::vector<std::size_t>& order) {
  const std::vector<ConfigNode> rows = layer.list();
  if (rows.size() != order.size())
    layer.fail("{} tokens, but the first layer has {}", rows.size(), order.size());
  LayerTokens tokens{Counts(at(experts)), {}};
  for (const std::size_t token : order) {
    const std::vector<ConfigNode> ids = rows[token].list();
    if (ids.size() != rows[0].list().size())
      rows[token].fail("{} choices, but the first token has {}", ids.size(), rows[0].list().size());
    const auto first = std::ssize(tokens.ids);
    for (const ConfigNode& node : ids) {
      const auto id = static_cast<std::uint16_t>(node.integer({0, experts - 1.0}));
      if (std::find(tokens.ids.begin() + first, tokens.ids.end(), id) != tokens.ids.end())
        node.fail("expert {} twice; a token picks distinct experts", id);
      tokens.ids.push_back(id);
      ++tokens.counts[id];
    }
  }
  return tokens;
}

// {"tokens": [layers][experts]}, or {"topk_ids": [layers][tokens][k], "source_rank": [tokens]}.
Tokens read_tokens(const std::string& file, const ExpertPlacement& placement) {
  return read_object(ConfigNode::from_file(file), [&](ConfigReader& reader) {
    const bool has_ids = reader.has("topk_ids");
    const ConfigNode node = reader.child(has_ids ? "topk_ids" : "tokens");
    const std::vector<ConfigNode> layers = node.list();
    if (layers.size() != placement.size())
      node.fail("{} layers, but the placement has {}", layers.size(), placement.size());
    Tokens tokens;
    tokens.has_rows = has_ids;
    std::vector<std::size_t> order;
    if (has_ids && !layers.empty()) {
      const std::vector<std::int32_t> ranks =
          read_ranks(reader, layers[0].list().size(), placement[0].gpus());
      order.resize(ranks.size());
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::ranges::stable_sort(order,
                               [&](std::size_t a, std::size_t b) { return ranks[a] < ranks[b]; });
      for (const std::size_t token : order) tokens.source_rank.push_back(ranks[token]);
    }
    for (std::size_t l = 0; l < layers.size(); ++l) {
      const int experts = placement[l].experts();
      tokens.layers.push_back(has_ids ? tokens_of_ids(layers[l], experts, order)
                                      : LayerTokens{counts_of(layers[l], experts), {}});
    }
    return tokens;
  });
}

struct Routed {
  LayerPlacement placement;  // with the copies that the step brings
  Counts tokens_of_slot;
  LayerLoad load;
  std::vector<StepCopy> copies;
};

OrderedJson to_json(const std::vector<StepCopy>& copies) {
  OrderedJson list = OrderedJson::array();
  for (const StepCopy& copy : copies)
    list.push_back({{"expert", copy.expert}, {"gpu", copy.gpu}, {"tokens", copy.tokens}});
  return list;
}

// Tokens of every slot, GPU by GPU.
std::vector<Counts> by_gpu(const LayerPlacement& placement, const Counts& tokens_of_slot) {
  std::vector<Counts> gpus;
  for (int gpu = 0; gpu < placement.gpus(); ++gpu)
    gpus.emplace_back(tokens_of_slot.begin() + placement.first_slot(gpu),
                      tokens_of_slot.begin() + placement.first_slot(gpu + 1));
  return gpus;
}

OrderedJson to_json(const std::string& policy, const TokenRouter& router,
                    const std::vector<Routed>& layers) {
  const std::optional<RooflineTime> objective = router.objective();
  OrderedJson json{{"policy", policy}, {"layers", OrderedJson::array()}};
  for (std::size_t l = 0; l < layers.size(); ++l) {
    json["layers"].push_back(
        {{"max_activated", layers[l].load.max_activated},
         {"max_tokens", layers[l].load.max_tokens},
         {"activated", layers[l].load.activated},
         {"tokens", layers[l].load.tokens},
         {"tokens_per_slot", by_gpu(layers[l].placement, layers[l].tokens_of_slot)}});
    if (router.step_slots() > 0) json["layers"].back()["step_copies"] = to_json(layers[l].copies);
    if (objective)
      json["layers"].back()["objective"] =
          objective->busiest(layers[l].placement, layers[l].tokens_of_slot);
  }
  return json;
}

// Which experts go where: per GPU the experts it serves, "expert:tokens".
std::string to_text(const std::vector<Routed>& layers) {
  std::string text;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const LayerLoad& load = layers[l].load;
    const LayerPlacement& placement = layers[l].placement;
    text += fmt::format("layer {}: at most {} activated, at most {} tokens on a GPU\n", l,
                        load.max_activated, load.max_tokens);
    for (const StepCopy& copy : layers[l].copies)
      text += fmt::format("  brings expert {} to GPU {} for {} tokens\n", copy.expert, copy.gpu,
                          copy.tokens);
    Table table({"GPU", "activated", "tokens", "serves expert:tokens"});
    for (int gpu = 0; gpu < placement.gpus(); ++gpu) {
      const auto g = at(gpu);
      std::string serves;
      int left_out = 0;
      for (int slot = placement.first_slot(gpu); slot < placement.first_slot(gpu + 1); ++slot) {
        const std::int32_t tokens = layers[l].tokens_of_slot[at(slot)];
        if (tokens == 0) continue;
        if (serves.size() > 60) {
          ++left_out;
          continue;
        }
        serves += fmt::format("{}{}:{}", serves.empty() ? "" : " ", placement.expert_of_slot(slot),
                              tokens);
      }
      if (left_out > 0) serves += fmt::format(" and {} more", left_out);
      table.add({fmt::format("{}", gpu), fmt::format("{}", load.activated[g]),
                 fmt::format("{}", load.tokens[g]), serves});
    }
    text += table.text();
  }
  return text;
}

}  // namespace

std::string routed_tokens(const ConfigNode& policy, const std::string& placement_file, int gpus,
                          const std::string& tokens_file, bool json) {
  const ExpertPlacement placement =
      read_placement(std::filesystem::path(placement_file), {.gpus = gpus});
  const auto router = token_routers().make(policy)({placement});
  const Tokens tokens = read_tokens(tokens_file, placement);
  const auto name = policy.json().at("type").get<std::string>();
  if (router->needs_token_rows() && !tokens.has_rows) {
    throw ConfigError(
        "{}: \"{}\" decides token by token: give \"topk_ids\" [layers][tokens][k] (and "
        "\"source_rank\" [tokens]; rank 0 if absent) instead of \"tokens\"",
        tokens_file, name);
  }
  RoutedLayer one;
  std::vector<Routed> layers;
  for (std::size_t l = 0; l < placement.size(); ++l) {
    LayerLoad load;
    const LayerTokens& layer = tokens.layers[l];
    one.route(*router,
              {placement[l], layer.counts, static_cast<int>(l), 0, {layer.ids, tokens.source_rank}},
              load);
    layers.push_back({one.placement(),
                      one.tokens_of_slot(),
                      std::move(load),
                      {one.copies().begin(), one.copies().end()}});
  }
  return json ? to_json(name, *router, layers).dump() + "\n" : to_text(layers);
}

}  // namespace moesim
