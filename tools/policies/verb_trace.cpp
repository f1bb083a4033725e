// SPDX-License-Identifier: Apache-2.0
#include <array>

#include <fmt/format.h>

#include "hardware/parse_json.hpp"
#include "models/moe_model.hpp"
#include "tools/cli/named_files.hpp"
#include "tools/cli/option_checks.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/table.hpp"
#include "tools/cli/verbs.hpp"
#include "tools/policies/new_trace.hpp"
#include "tools/policies/request_info.hpp"
#include "tools/policies/verb_trace_import.hpp"
#include "traces/gating/gating.hpp"
#include "traces/trace_statistics.hpp"

namespace moesim {

namespace {

constexpr std::array batches{1, 4, 8, 16, 32, 64, 128, 256};
constexpr std::array imbalance_batches{8, 64, 256, 1024};
constexpr std::array expert_ranks{2, 4, 8, 16};
constexpr std::array lags{1, 2, 8, 32, 128};

struct Info {
  RoutingTrace trace;
  std::string remark;
  PopularitySkew skew;
  std::vector<DistinctExperts> distinct;
  std::vector<RankImbalance> imbalance;
  TokenOverlap overlap;
  std::optional<LayerPredictability> layers;
};

Info look_at(const std::string& directory, std::uint64_t seed) {
  const RoutingTrace recorded = RoutingTrace::open(directory);
  recorded.check_ids();
  const RoutingTrace trace = recorded.without_loops();
  if (trace.requests().empty())
    throw ConfigError("{}: every request fell into a loop (has_repetition)", directory);
  Info info{trace,
            recorded.loops_remark("left out"),
            popularity_skew(trace.expert_counts(), trace.num_experts()),
            distinct_experts(trace, batches, seed),
            rank_imbalance(trace, expert_ranks, imbalance_batches, seed),
            token_overlap(trace, lags, seed),
            layer_predictability(trace, seed)};
  return info;
}

OrderedJson to_json(const LayerSpread& spread) {
  return {{"mean", spread.mean}, {"min", spread.min}, {"max", spread.max}};
}

template <class T>
OrderedJson or_null(const std::optional<T>& value) {
  if (!value) return nullptr;
  if constexpr (std::is_same_v<T, LayerSpread>) {
    return to_json(*value);
  } else {
    return *value;
  }
}

OrderedJson to_json(const Info& info) {
  const TraceMeta& meta = info.trace.meta();
  OrderedJson json{{"model", meta.model},
                   {"source", meta.source},
                   {"synthetic", meta.synthetic},
                   {"tokens", info.trace.tokens()},
                   {"layers", info.trace.layers()},
                   {"num_experts", meta.num_experts},
                   {"experts_per_token", meta.experts_per_token},
                   {"phases", meta.phases},
                   {"requests", info.trace.requests().size()},
                   {"workloads", std::vector<std::string>(info.trace.workloads().begin(),
                                                          info.trace.workloads().end())}};
  if (!info.remark.empty()) json["remark"] = info.remark;
  json["skew"] = {{"max_over_mean", to_json(info.skew.max_over_mean)},
                  {"min_over_mean", to_json(info.skew.min_over_mean)},
                  {"cv", to_json(info.skew.variation)},
                  {"top_12.5_percent_share", to_json(info.skew.top_eighth_share)},
                  {"gini", to_json(info.skew.gini)}};
  for (const DistinctExperts& d : info.distinct) {
    json["distinct_experts"].push_back({{"batch", d.batch},
                                        {"decode", d.decode},
                                        {"independent", d.independent},
                                        {"uniform", d.uniform},
                                        {"chunk", or_null(d.chunk)},
                                        {"variance_ratio", d.variance_ratio}});
  }
  for (const RankImbalance& i : info.imbalance)
    json["rank_imbalance"].push_back(
        {{"ranks", i.ranks}, {"batch", i.batch}, {"max_over_mean", i.max_over_mean}});
  OrderedJson& overlap = json["token_overlap"];
  for (const TokenOverlap::Lag& lag : info.overlap.lags)
    overlap["lags"].push_back({{"lag", lag.tokens}, {"share", or_null(lag.share)}});
  overlap["same_request"] = or_null(info.overlap.same_request);
  overlap["different_requests"] = or_null(info.overlap.different_requests);
  overlap["independent"] = info.overlap.independent;
  overlap["uniform"] = info.overlap.uniform;
  if (info.layers)
    json["next_layer"] = {{"recall_k", to_json(info.layers->recall_k)},
                          {"recall_2k", to_json(info.layers->recall_2k)},
                          {"popularity_recall_k", info.layers->popularity_recall_k}};
  return json;
}

std::string skew_text(const Info& info) {
  Table skew({"skew over experts", "mean over layers", "min", "max"});
  const auto add_skew = [&](const std::string& name, const LayerSpread& spread) {
    skew.add({name, fmt::format("{:.3f}", spread.mean), fmt::format("{:.3f}", spread.min),
              fmt::format("{:.3f}", spread.max)});
  };
  add_skew("hottest/mean", info.skew.max_over_mean);
  add_skew("coldest/mean", info.skew.min_over_mean);
  add_skew("coefficient of variation", info.skew.variation);
  add_skew("share of top 12.5 %", info.skew.top_eighth_share);
  add_skew("Gini", info.skew.gini);
  return skew.text();
}

std::string distinct_text(const Info& info) {
  Table distinct({"batch", "distinct experts: decode", "independent", "uniform",
                  "chunk of one request", "spread*"});
  for (const DistinctExperts& d : info.distinct)
    distinct.add({fmt::format("{}", d.batch), fmt::format("{:.1f}", d.decode),
                  fmt::format("{:.1f}", d.independent), fmt::format("{:.1f}", d.uniform),
                  d.chunk ? fmt::format("{:.1f}", *d.chunk) : "-",
                  fmt::format("{:.2f}", d.variance_ratio)});
  return distinct.text() +
         "*: variance of a decode batch's sum over layers, over the sum of the layers' variances: "
         "1 if\nlayers are independent\n";
}

std::string imbalance_text(const Info& info) {
  std::vector<std::string> head{"busiest/mean rank, decode batch"};
  for (const int batch : imbalance_batches) head.push_back(fmt::format("{}", batch));
  Table imbalance(head);
  for (const int ranks : expert_ranks) {
    std::vector<std::string> row{fmt::format("EP{}", ranks)};
    for (const RankImbalance& i : info.imbalance) {
      if (i.ranks == ranks) row.push_back(fmt::format("{:.2f}", i.max_over_mean));
    }
    if (row.size() == head.size()) imbalance.add(row);
  }
  return imbalance.text();
}

std::string overlap_text(const Info& info) {
  Table overlap({"experts two tokens share", "share of k"});
  for (const TokenOverlap::Lag& lag : info.overlap.lags)
    overlap.add({fmt::format("one request, {} apart", lag.tokens),
                 lag.share ? fmt::format("{:.3f}", lag.share->mean) : "-"});
  const auto add_overlap = [&](const std::string& name, const std::optional<double>& share) {
    overlap.add({name, share ? fmt::format("{:.3f}", *share) : "-"});
  };
  add_overlap("one request, random", info.overlap.same_request);
  add_overlap("different requests", info.overlap.different_requests);
  add_overlap("independent draws by popularity", info.overlap.independent);
  add_overlap("uniform", info.overlap.uniform);
  return overlap.text();
}

std::string to_text(const Info& info) {
  const TraceMeta& meta = info.trace.meta();
  std::string phases;
  for (const std::string& phase : meta.phases) phases += (phases.empty() ? "" : " + ") + phase;
  std::string text = fmt::format(
      "{}{}: {} tokens of {} requests ({}), {} workloads\n{} MoE layers, top-{} of {} "
      "experts\n{}\n\n",
      meta.model, meta.synthetic ? " (synthetic)" : "", info.trace.tokens(),
      info.trace.requests().size(), phases, info.trace.workloads().size(), info.trace.layers(),
      meta.experts_per_token, meta.num_experts, wrapped("source: " + meta.source, 100, 8));
  if (!info.remark.empty()) text += info.remark + "\n\n";
  text += fmt::format("{}\n{}\n{}\n{}", skew_text(info), distinct_text(info), imbalance_text(info),
                      overlap_text(info));
  if (info.layers) {
    text +=
        "\n" + paragraph(
                   "the next layer's experts, guessed from this one's: recall@k {:.2f} "
                   "[{:.2f}..{:.2f}], recall@2k {:.2f} (by popularity alone {:.2f})",
                   info.layers->recall_k.mean, info.layers->recall_k.min, info.layers->recall_k.max,
                   info.layers->recall_2k.mean, info.layers->popularity_recall_k);
  }
  return text;
}

struct InfoOptions {
  std::string path;
  std::uint64_t seed = 1;
  std::int32_t id_block = 512;
  bool json = false;
};

struct GenerateOptions {
  std::string model, gating, output;
  std::uint64_t seed = 1;
};

void generate(const GenerateOptions& options) {
  const MoeModel model = read_model(named_model(options.model));
  check_new_directory(options.output);
  const ConfigNode node(json_or_text(options.gating), std::filesystem::path("--gating"));
  const RoutingTrace trace = gatings().make(node)->trace(model, options.seed);
  write_new_trace(trace, options.output);
  print(fmt::format("{}: {} tokens of {} requests, {} layers, top-{} of {} experts\n",
                    options.output, trace.tokens(), trace.requests().size(), trace.layers(),
                    trace.experts_per_token(), trace.num_experts()));
}

}  // namespace

Action setup_trace(CLI::App& command) {
  command.require_subcommand(1);
  const auto chosen = std::make_shared<Action>();

  const auto info = std::make_shared<InfoOptions>();
  CLI::App* look = command.add_subcommand(
      "info", "a routing trace's skew, distinct experts, overlaps, lengths and reuse");
  option(*look, "PATH", info->path, "routing trace, a directory; or a file of requests or sessions",
         mandatory);
  option(*look, "--id-block", info->id_block,
         "tokens of a block of sessions, and of one of their hash_ids (default: 512)",
         CLI::Range(1, 1 << 20));
  option(*look, "--seed", info->seed, "seed of the sampled batches (default: 1)", a_seed());
  look->add_flag("--json", info->json, "print JSON instead of tables");
  look->callback([info, chosen] {
    *chosen = [info] {
      std::error_code none;
      if (std::filesystem::is_regular_file(info->path, none)) {
        const OrderedJson seen = request_info(info->path, info->id_block);
        print(info->json ? seen.dump(1) + "\n" : request_info_text(seen));
        return 0;
      }
      const Info seen = look_at(info->path, info->seed);
      print(info->json ? to_json(seen).dump(1) + "\n" : to_text(seen));
      return 0;
    };
  });

  const auto made = std::make_shared<GenerateOptions>();
  CLI::App* make = command.add_subcommand("generate", "make a synthetic trace for a model");
  option(*make, "--model", made->model, model_option, mandatory);
  option(*make, "--gating", made->gating,
         "name or JSON, e.g. '{\"type\": \"topical\", \"requests\": 64}'", mandatory);
  option(*make, "--seed", made->seed, "(default: 1)", a_seed());
  option(*make, "-o,--output", made->output, "directory to write", mandatory);
  make->callback([made, chosen] {
    *chosen = [made] {
      generate(*made);
      return 0;
    };
  });
  add_trace_import(command, chosen);
  return [chosen] { return (*chosen)(); };
}

}  // namespace moesim
