// SPDX-License-Identifier: Apache-2.0
#include "sim/token_routing/token_routing.hpp"

#include <algorithm>

#include "sim/token_routing/routers.hpp"

namespace moesim {

// The constructor of each row and its options, from policies/.
Registry<TokenRouterFactory>::Maker make_even, make_random_routing, make_vllm, make_vllm_legacy,
    make_trtllm, make_sglang_static, make_static_primary, make_metro, make_optimal,
    make_token_balanced, make_lplb, make_hybrid, make_tempo, make_llep, make_quota, make_probe;
Keys random_routing_keys, sglang_static_routing_keys, static_primary_routing_keys,
    metro_routing_keys, lplb_routing_keys, hybrid_routing_keys, tempo_routing_keys,
    llep_routing_keys, quota_routing_keys, probe_routing_keys;

namespace {

using namespace std::chrono_literals;
using Table = Registry<TokenRouterFactory>;

// Time that a decision takes, as published and at least, and the source of its measurement.
struct Decision {
  std::optional<RoutingCharge> charge, fast;
  std::string_view source;
};
constexpr Decision in_gate{std::nullopt, std::nullopt, "part of the gate's kernel, as in engines"};
// METRO (paper, section VI-B, Fig. 11) on 8 A100s, Qwen3-30B with 128 experts: its routing kernel
// takes up to 26 us a layer at 1.5x, scaled by active experts, because Algorithm 1 does one step
// per active expert. Other GPUs are charged the same. Fast: kernels of our own on one SM of H100
// and H200, in a CUDA graph, less the hash of the row that engines run anyway
// (hardware/measured/routers.cu). METRO by id, 8 to 64 GPUs, 32 to 256 active experts, up to 1,024
// tokens of the group: 1.9 us + 5.8 us per 128 active experts, off by 4 % at most; the hash 1.3 us.
constexpr Decision by_metro{RoutingCharge{0us, 26us}, RoutingCharge{600ns, 5800ns},
                            "METRO paper Fig. 11 (8 A100, 128 experts)"};
// Published semi-matching kernels do not exist. Fast: ours takes 3.8 to 7.0 us, hash included, at
// most, but for 64 GPUs with twice the slots (15 to 21 us). Experts with one replica are counted at
// once, and only the others are decided one by one.
constexpr Decision by_matching{RoutingCharge{10us, 26us}, RoutingCharge{5700ns, 0us},
                               "optimal, hybrid, tempo: +10 us, an estimate"};
// The hybrid choice begins with the matching, and has no kernel: 10 us more in both. No time of
// TEMPO is known here; it is taken as long.
constexpr Decision by_hybrid{RoutingCharge{10us, 26us}, RoutingCharge{15700ns, 0us},
                             by_matching.source};
// Balancing takes what DeepSeek gives for LPLB, whose interior-point solver runs on one SM: about
// 100 us inside a node (github.com/deepseek-ai/LPLB, README). No faster one has a published time.
constexpr Decision by_balancing{RoutingCharge{100us, 0us}, RoutingCharge{100us, 0us},
                                "token_balanced, lplb: DeepSeek LPLB, about 100 us in a node"};

// UltraEP's planning kernel takes 67 to 78 us a layer for 64 ranks (arXiv:2606.04101): 73 us.
// LLEP's authors publish no time; their code plans on the host.
constexpr Decision by_planning{RoutingCharge{73us, 0us}, RoutingCharge{73us, 0us},
                               "quota: UltraEP's plan, 64 ranks; llep: taken as long"};

// PROBE predicts and plans beside what computes (arXiv:2602.00509).
constexpr Decision beside_computing{std::nullopt, std::nullopt,
                                    "probe: predictor and plan run during the layer before"};

struct Row {
  Table::Entry entry;
  Decision decision;
};

const std::vector<Row>& rows() {
  static const std::vector<Row> rows{
      {{"even", "every replica an equal share of its expert's tokens (what METRO calls EPLB)",
        make_even},
       in_gate},
      {{"random", "every selection a random replica (SGLang's dynamic)", make_random_routing,
        random_routing_keys},
       in_gate},
      {{"vllm", "replica by a hash of the token's row on its rank", make_vllm}, in_gate},
      {{"vllm_legacy", "replica by the selection's position: (row * k + place in top-k) mod r",
        make_vllm_legacy},
       in_gate},
      {{"trtllm", "every rank goes round the replicas, in blocks of 1,024 selections", make_trtllm},
       in_gate},
      {{"sglang_static", "every rank one replica per expert for good: its own, or a fair share",
        make_sglang_static, sglang_static_routing_keys},
       in_gate},
      {{"static_primary",
        "one replica per expert for good, as many on every GPU, by how often active",
        make_static_primary, static_primary_routing_keys},
       in_gate},
      {{"metro", "METRO's greedy: each active expert on its GPU with the fewest active so far",
        make_metro, metro_routing_keys},
       by_metro},
      {{"optimal", "the fewest activated experts on the busiest GPU, exactly", make_optimal},
       by_matching},
      {{"token_balanced", "the fewest tokens on the busiest GPU, exactly, then few activations",
        make_token_balanced},
       by_balancing},
      {{"lplb", "every token draws a replica by the shares that balance tokens best (LPLB)",
        make_lplb, lplb_routing_keys},
       by_balancing},
      {{"hybrid", "the busiest GPU's time over weight reads and tokens", make_hybrid,
        hybrid_routing_keys},
       by_hybrid},
      {{"tempo", "the busiest GPU's max(a + b active, c + beta tokens), by chains of moves (TEMPO)",
        make_tempo, tempo_routing_keys},
       by_hybrid},
      {{"llep", "too many tokens move to the least loaded GPUs, with copies for one step (LLEP)",
        make_llep, llep_routing_keys},
       by_planning},
      {{"quota", "tokens over the least quota move to NVLink neighbours, with copies (UltraEP)",
        make_quota, quota_routing_keys},
       by_planning},
      {{"probe", "foreseen hot experts are copied while the layer before computes (PROBE)",
        make_probe, probe_routing_keys},
       beside_computing}};
  return rows;
}

}  // namespace

const Table& token_routers() {
  static const Table table("token_routing", [] {
    std::vector<Table::Entry> entries;
    for (const Row& row : rows()) entries.push_back(row.entry);
    return entries;
  }());
  return table;
}

std::span<const MeasuredCharge> measured_charges() {
  static const std::vector<MeasuredCharge> charges = [] {
    std::vector<MeasuredCharge> all;
    for (const auto& [entry, decision] : rows()) {
      all.push_back({entry.name, decision.charge, decision.fast, decision.source});
    }
    return all;
  }();
  return charges;
}

namespace {

struct SlotSums {
  std::int32_t activated = 0, tokens = 0;
};

// Adds up slots from `first` to before `end`.
SlotSums sums_of(std::span<const std::int32_t> tokens_of_slot, int first, int end) {
  SlotSums sums;
  for (int slot = first; slot < end; ++slot) {
    const std::int32_t tokens = tokens_of_slot[at(slot)];
    sums.activated += tokens > 0 ? 1 : 0;
    sums.tokens += tokens;
  }
  return sums;
}

SlotSums whole_of(const LayerPlacement& placement, std::span<const std::int32_t> tokens_of_slot,
                  std::size_t gpu) {
  const auto g = static_cast<int>(gpu);
  return sums_of(tokens_of_slot, placement.first_slot(g), placement.first_slice(g));
}

// Sums of any GPU: all have as many.
SlotSums slices_of(const LayerPlacement& placement, std::span<const std::int32_t> tokens_of_slot) {
  return sums_of(tokens_of_slot, placement.first_slice(0), placement.first_slot(1));
}

}  // namespace

double RooflineTime::busiest(const LayerPlacement& placement,
                             std::span<const std::int32_t> tokens_of_slot) const {
  const SlotSums slices = slices_of(placement, tokens_of_slot);
  const double part = 1.0 / placement.gpus();
  double longest = 0;
  for (std::size_t gpu = 0; gpu < at(placement.gpus()); ++gpu) {
    const SlotSums whole = whole_of(placement, tokens_of_slot, gpu);
    longest = std::max(longest, of(whole.activated + slices.activated * part,
                                   whole.tokens + slices.tokens * part));
  }
  return longest;
}

void layer_load(const LayerPlacement& placement, std::span<const std::int32_t> tokens_of_slot,
                LayerLoad& load) {
  const auto gpus = at(placement.gpus());
  load.activated.resize(gpus);
  load.tokens.resize(gpus);
  for (std::size_t gpu = 0; gpu < gpus; ++gpu) {
    const SlotSums whole = whole_of(placement, tokens_of_slot, gpu);
    load.activated[gpu] = whole.activated;
    load.tokens[gpu] = whole.tokens;
  }
  load.max_activated = *std::max_element(load.activated.begin(), load.activated.end());
  load.max_tokens = *std::max_element(load.tokens.begin(), load.tokens.end());
  const SlotSums slices = slices_of(placement, tokens_of_slot);
  load.sliced = static_cast<double>(slices.activated) / placement.gpus();
  load.sliced_tokens = static_cast<double>(slices.tokens) / placement.gpus();
}

LayerLoad layer_load(const LayerPlacement& placement,
                     std::span<const std::int32_t> tokens_of_slot) {
  LayerLoad load;
  layer_load(placement, tokens_of_slot, load);
  return load;
}

}  // namespace moesim
