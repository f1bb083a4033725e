// SPDX-License-Identifier: Apache-2.0
#include "models/deployment.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "hardware/choice.hpp"
#include "models/context_parallel.hpp"
#include "models/moe_model.hpp"

namespace moesim {

namespace {

enum class StatePrecision { fp32, bf16 };
constexpr std::array<std::string_view, 2> state_precisions{"fp32", "bf16"};

constexpr int most_micro_batches = 16;

constexpr std::array<std::string_view, 2> decode_weights_names{"twice", "moved"};
constexpr std::array<std::string_view, 2> dcp_merge_names{"reduce_scatter", "all_to_all"};

}  // namespace

namespace {

std::span<const Key> share_keys() {
  static constexpr Key keys[] = {{"*", form::number(0, 1), unset("0"),
                                  "share of the part's weights in that precision",
                                  precision_names}};
  return keys;
}

bool is_mixed(const PrecisionShares& shares) {
  return std::ranges::any_of(shares, [](double share) { return share > 0; });
}

// A name, or the share of each precision: the largest names the part.
Precision read_part(const ConfigNode& node, PrecisionShares& shares) {
  shares = {};
  if (!node.json().is_object()) return static_cast<Precision>(node.choice());
  return read_object(node, share_keys, [&](ConfigReader& r) {
    double all = 0;
    for (std::size_t i = 0; i < precision_names.size(); ++i) {
      if (r.optional(precision_names[i])) shares[i] = r.number(precision_names[i]);
      all += shares[i];
    }
    if (std::abs(all - 1) > 1e-6) node.fail("the shares add up to {}; 1 is expected", all);
    return most_of(shares);
  });
}

}  // namespace

double bytes_per_weight(Precision precision, const PrecisionShares& shares) {
  if (!is_mixed(shares)) return bytes_per_element(precision);
  double bytes = 0;
  for (std::size_t i = 0; i < shares.size(); ++i)
    bytes += shares[i] * bytes_per_element(static_cast<Precision>(i));
  return bytes;
}

Precision most_of(const PrecisionShares& shares) {
  std::size_t most = 0;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const double bytes = bytes_per_element(static_cast<Precision>(i));
    if (shares[i] > shares[most] ||
        (shares[i] == shares[most] && bytes > bytes_per_element(static_cast<Precision>(most))))
      most = i;
  }
  return static_cast<Precision>(most);
}

Json precision_json(Precision precision, const PrecisionShares& shares) {
  if (!is_mixed(shares)) return std::string(precision_names[at(precision)]);
  Json parts = Json::object();
  for (std::size_t i = 0; i < shares.size(); ++i)
    if (shares[i] > 0) parts[std::string(precision_names[i])] = shares[i];
  return parts;
}

std::span<const Key> precision_keys() {
  static constexpr Form shares = form::object(share_keys);
  static constexpr Form one = form::choice(precision_names);
  static constexpr Form part = one.or_a(shares);
  static constexpr Form multiple = form::integer(1, 4096);
  static constexpr KeyDefault stored = unset("as the model's files say");
  static constexpr KeyDefault stored_or_bf16 = unset("as the model's files say, or bf16");
  static constexpr Key keys[] = {
      {"experts", part, stored, "weights of routed experts"},
      {"attention", part, stored, "weights of attention"},
      {"ffn", part, unset("as the model's files say; attention's where they say another"),
       "weights of dense FFNs and shared experts"},
      {"kv_cache", one, stored_or_bf16, "the KV cache"},
      {"activations", one, stored_or_bf16, "what weights are multiplied with"},
      {"state", form::choice(state_precisions), unset("as the model's files say, or fp32"),
       "the state of linear attention"},
      {"mxfp4_hidden_multiple", multiple, "1",
       "HBM: hidden sizes of MXFP4 experts are padded to it"},
      {"mxfp4_width_multiple", multiple, "32", "HBM: widths of their slices are padded to it"},
      {"scaled_latent", form::flag, "true",
       "sparse MLA in fp8 keeps rotary parts in bf16 and scales (fp8_ds_mla)"}};
  return keys;
}

PrecisionPlan read_precision(const ConfigNode& node, const PrecisionPlan* stored) {
  return read_object(node, precision_keys, [&](ConfigReader& r) {
    const PrecisionPlan from = stored != nullptr ? *stored : PrecisionPlan{};
    const auto text = [](Precision precision) { return precision_json(precision, {}); };
    for (const char* key : {"experts", "attention"}) {
      if (stored == nullptr && !r.has(key)) r.node().fail("\"{}\" is missing", key);
    }
    PrecisionPlan plan;
    plan.experts =
        read_part(r.child_or("experts", precision_json(from.experts, from.expert_shares)),
                  plan.expert_shares);
    plan.attention =
        read_part(r.child_or("attention", precision_json(from.attention, from.attention_shares)),
                  plan.attention_shares);
    // Whoever gives attention another precision than the files do means all other weights.
    const bool as_stored = stored != nullptr && plan.attention == stored->attention &&
                           plan.attention_shares == stored->attention_shares;
    plan.ffn = read_part(
        r.child_or("ffn", as_stored ? precision_json(from.ffn, from.ffn_shares)
                                    : precision_json(plan.attention, plan.attention_shares)),
        plan.ffn_shares);
    plan.kv_cache = static_cast<Precision>(r.child_or("kv_cache", text(from.kv_cache)).choice());
    const bool whole = plan.experts == Precision::bf16 && plan.attention == Precision::bf16 &&
                       plan.ffn == Precision::bf16 && !is_mixed(plan.expert_shares) &&
                       !is_mixed(plan.attention_shares);
    plan.activations = static_cast<Precision>(
        r.child_or("activations", text(whole ? Precision::bf16 : from.activations)).choice());
    plan.state_bytes = from.state_bytes;
    if (r.optional("state")) {
      const auto state = choice<StatePrecision>(r, "state", state_precisions);
      plan.state_bytes = state == StatePrecision::fp32 ? 4.0 : 2.0;
    }
    plan.mxfp4_hidden_multiple = static_cast<int>(r.integer("mxfp4_hidden_multiple"));
    plan.mxfp4_width_multiple = static_cast<int>(r.integer("mxfp4_width_multiple"));
    plan.scaled_latent = r.flag("scaled_latent");
    return plan;
  });
}

std::span<const Key> parallel_keys() {
  static constexpr Form size = form::integer(1, 65'536);
  static constexpr Key keys[] = {
      {"dp", size, "1", "attention ranks, each with requests of its own"},
      {"tp", size, "1", "GPUs that share an attention rank"},
      {"ep", size, unset("dp * tp, or ffn_gpus; 1 if dense"), "GPUs that experts are spread over"},
      {"pp", size, "1", "pipeline stages, each of dp * tp GPUs"},
      {"ffn_gpus", form::integer(0, 65'536), unset("0: experts are on attention's GPUs"),
       "GPUs that hold experts alone (AFD), in addition to dp * tp"},
      {"micro_batches", form::integer(1, most_micro_batches), unset("2 with ffn_gpus"),
       "AFD: parts of a step that alternate between both sides"},
      {"dcp", size, unset("1: nothing is shared by tokens"),
       "GPUs of tp that share a KV cache by tokens (DCP)"},
      {"dcp_merge", form::choice(dcp_merge_names), unset("reduce_scatter, with dcp"),
       "DCP: how the partial outputs of attention find together"},
      {"pcp", size, unset("1: all GPUs of a rank have all tokens"),
       "groups of tp's GPUs that compute different tokens of a prompt (PCP)"},
      {"moe_sequence_parallel", form::flag, unset("true"),
       "false: each GPU of a rank sends the experts all tokens, not a share"},
      {"decode_ep", size, unset("ep"), "ep of decode steps, if experts are cut otherwise in them"},
      {"decode_weights", form::choice(decode_weights_names), unset("twice, with decode_ep"),
       "decode_ep: both cuts are in HBM, or weights move between steps"}};
  return keys;
}

namespace {

// Reads whether experts have GPUs of their own.
void read_afd(ConfigReader& r, const MoeModel& model, ParallelPlan& plan) {
  if (r.optional("ffn_gpus")) plan.ffn_gpus = static_cast<int>(r.integer("ffn_gpus"));
  const bool given = r.optional("micro_batches");
  if (!plan.afd()) {
    if (given)
      r.child("micro_batches").fail("is of AFD alone; give \"ffn_gpus\", or leave this out");
    return;
  }
  if (model.experts == 0) r.child("ffn_gpus").fail("{} has no experts; leave this out", model.name);
  if (plan.pp > 1)
    r.child("ffn_gpus").fail("AFD is not modelled with pp {}; leave out \"pp\" or this", plan.pp);
  plan.micro_batches = given ? static_cast<int>(r.integer("micro_batches")) : 2;
}

// Reads whether GPUs of a rank compute different tokens of a prompt.
void read_pcp(ConfigReader& r, const MoeModel& model, ParallelPlan& plan) {
  if (!r.optional("pcp")) return;
  plan.pcp = static_cast<int>(r.integer("pcp"));
  if (plan.pcp == 1) return;
  const ConfigNode node = r.child("pcp");
  if (plan.tp % plan.pcp != 0)
    node.fail("{} does not divide tp {}, the GPUs of a rank; use a divisor", plan.pcp, plan.tp);
  if (plan.afd() || plan.pp > 1)
    node.fail("PCP is modelled neither with AFD nor with pipelines; leave one out");
  if (!divides_prompts(model))
    node.fail(
        "PCP is not modelled for {}, whose layers pass a state from token to token; leave this out",
        model.name);
}

// Reads whether every GPU of a rank sends all of its tokens.
void read_sequence_parallel(ConfigReader& r, ParallelPlan& plan) {
  if (!r.optional("moe_sequence_parallel")) return;
  plan.moe_sequence_parallel = r.flag("moe_sequence_parallel");
  if (plan.moe_sequence_parallel) return;
  const ConfigNode node = r.child("moe_sequence_parallel");
  if (plan.tp == 1) node.fail("a rank has one GPU, which sends each token once; leave this out");
  if (!plan.exchanges())
    node.fail("tokens of one attention rank are not sent; give \"dp\" or leave this out");
  if (plan.pcp > 1)
    node.fail("with PCP a rank's GPUs have different tokens; leave out \"pcp\" or this");
}

// Reads whether GPUs of a rank share its KV cache by tokens.
void read_dcp(ConfigReader& r, const MoeModel& model, ParallelPlan& plan) {
  if (r.optional("dcp")) plan.dcp = static_cast<int>(r.integer("dcp"));
  const bool given = r.optional("dcp_merge");
  if (plan.dcp == 1) {
    if (given) r.child("dcp_merge").fail("is of DCP alone; give \"dcp\", or leave this out");
    return;
  }
  if (plan.pcp > 1) r.child("dcp").fail("DCP is not modelled with PCP; leave out \"pcp\" or this");
  if (plan.afd())
    r.child("dcp").fail("DCP is not modelled with AFD; leave out \"ffn_gpus\" or this");
  if (const std::string fault = stripe_fault(model, plan.tp, plan.dcp); !fault.empty())
    r.child("dcp").fail(fault);
  if (given) plan.dcp_merge = choice<DcpMerge>(r, "dcp_merge", dcp_merge_names);
}

}  // namespace

namespace {

// Checks that so many EP ranks can hold the experts.
void check_ep(const ConfigNode& node, const MoeModel& model, const ParallelPlan& plan,
              std::string_view key) {
  const auto require = [&](bool holds, const std::string& message) {
    if (!holds) node.fail(message);
  };
  const std::string_view experts_on = plan.afd() ? "ffn_gpus" : "dp * tp";
  require(plan.expert_gpus() % plan.ep == 0, fmt::format("{} {} does not divide {} = {}", key,
                                                         plan.ep, experts_on, plan.expert_gpus()));
  require(plan.ep == 1 || model.experts > 0,
          fmt::format("{} {} is of experts, and the model has none; leave this out", key, plan.ep));
  require(model.expert_width % plan.moe_tp() == 0,
          fmt::format("{} / {} = {} does not divide an expert's width of {}", experts_on, key,
                      plan.moe_tp(), model.expert_width));
}

// Reads whether decode steps have experts cut otherwise.
void read_decode_ep(ConfigReader& r, const MoeModel& model, ParallelPlan& plan) {
  const bool says_how = r.optional("decode_weights");
  if (!r.optional("decode_ep")) {
    if (says_how)
      r.child("decode_weights")
          .fail("is of decode_ep alone; give \"decode_ep\", or leave this out");
    return;
  }
  plan.decode_ep = static_cast<int>(r.integer("decode_ep"));
  const ConfigNode node = r.child("decode_ep");
  if (plan.afd() || plan.pp > 1)
    node.fail("experts are cut by phase neither with AFD nor with pipelines; leave one out");
  if (plan.decode_ep == plan.ep)
    node.fail("{} is ep, so that all steps are cut alike; leave this out", plan.ep);
  check_ep(node, model, in_decode(plan), "decode_ep");
  // The placement checks ep, since copies may fill more GPUs than there are experts.
  if (plan.decode_ep > model.experts)
    node.fail("decode_ep {} is more than the model's {} experts", plan.decode_ep, model.experts);
  if (says_how)
    plan.decode_weights = choice<DecodeWeights>(r, "decode_weights", decode_weights_names);
}

}  // namespace

bool divides_prompts(const MoeModel& model) {
  return std::ranges::none_of(model.layers,
                              [](const LayerSpec& layer) { return layer.mixer->recurrent(); });
}

ParallelPlan of_slices(const ParallelPlan& plan) {
  ParallelPlan slices = plan;
  slices.tp = plan.slices();
  slices.pcp = 1;
  return slices;
}

ParallelPlan in_decode(const ParallelPlan& plan) {
  ParallelPlan decode = plan;
  if (plan.decode_ep > 0) decode.ep = plan.decode_ep;
  decode.decode_ep = 0;
  return decode;
}

ParallelPlan read_parallel(const ConfigNode& node, const MoeModel& model) {
  const auto require = [&](bool holds, std::string_view message) {
    if (!holds) node.fail(message);
  };
  return read_object(node, parallel_keys, [&](ConfigReader& r) {
    ParallelPlan plan;
    plan.dp = static_cast<int>(r.integer("dp"));
    plan.tp = static_cast<int>(r.integer("tp"));
    plan.pp = static_cast<int>(r.integer("pp"));
    constexpr std::int64_t most_gpus = 1'000'000;               // of a cluster
    const std::int64_t gpus = std::int64_t{plan.dp} * plan.tp;  // of two numbers below 2^17
    require(gpus <= most_gpus && gpus * plan.pp <= most_gpus,
            fmt::format("dp {} x tp {} x pp {} are more than {} GPUs, the most of a cluster",
                        plan.dp, plan.tp, plan.pp, most_gpus));
    read_afd(r, model, plan);
    plan.ep = static_cast<int>(r.integer_or("ep", model.experts > 0 ? plan.expert_gpus() : 1));
    require(plan.pp <= std::ssize(model.layers),
            fmt::format("pp {} is more than the model's {} layers", plan.pp, model.layers.size()));
    check_ep(node, model, plan, "ep");
    read_pcp(r, model, plan);
    read_sequence_parallel(r, plan);
    const std::string cut_fault = model.cut_fault(plan.slices());
    require(cut_fault.empty(), cut_fault);
    read_dcp(r, model, plan);
    read_decode_ep(r, model, plan);
    return plan;
  });
}

namespace {

constexpr int block = 128;  // of fp8 in blocks

bool in_blocks(int width, int parts) { return width % (parts * block) == 0; }

// Warning on slices of shared experts and dense FFNs, which tensor parallelism cuts.
std::string ffn_slice_warning(const MoeModel& model, const ParallelPlan& plan) {
  struct Ffn {
    std::string_view name;
    int width;
  };
  const int parts = plan.slices();
  for (const auto& [name, width] :
       {Ffn{"shared experts", model.shared_width}, Ffn{"dense FFNs", model.dense_width}}) {
    if (parts == 1 || in_blocks(width, parts)) continue;
    std::vector<int> takes;
    for (int tp = 1; tp <= parts; ++tp)
      if (parts % tp == 0 && (tp == 1 || in_blocks(width, tp))) takes.push_back(tp);
    return fmt::format(
        "\"parallel\": tp {} cuts {} into slices of {:.4g}; some versions of engines take whole "
        "blocks of {} alone; tp {} would leave such slices",
        parts, name, double(width) / parts, block, fmt::join(takes, " or "));
  }
  return {};
}

}  // namespace

std::string slice_warning(const MoeModel& model, const ParallelPlan& plan,
                          const PrecisionPlan& precision) {
  const auto goes = [&](int parts) { return in_blocks(model.expert_width, parts); };
  if (model.experts == 0 || precision.experts != Precision::fp8_block || goes(plan.moe_tp()))
    return precision.ffn == Precision::fp8_block ? ffn_slice_warning(model, plan) : "";
  if (!goes(1))
    return fmt::format(
        "\"precision\": experts of {} numbers are no whole blocks of {}, which some versions of "
        "engines take alone",
        model.expert_width, block);
  std::vector<std::string> widths;
  for (int parts = 1; parts <= plan.expert_gpus(); ++parts) {
    if (plan.expert_gpus() % parts == 0 && goes(parts)) {
      widths.push_back(
          fmt::format("{} (ep {})", model.expert_width / parts, plan.expert_gpus() / parts));
    }
  }
  return fmt::format(
      "\"parallel\": {} / ep = {} cuts experts into slices of {}; some versions of engines "
      "take "
      "whole blocks of {} alone; such slices: {}",
      plan.afd() ? "ffn_gpus" : "dp * tp", plan.moe_tp(), model.expert_width / plan.moe_tp(), block,
      fmt::join(widths, ", "));
}

}  // namespace moesim
