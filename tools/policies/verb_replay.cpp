// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/replay/replay.hpp"
#include "tools/cli/named_files.hpp"
#include "tools/cli/option_checks.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/policy_options.hpp"
#include "tools/cli/progress.hpp"
#include "tools/cli/remarks.hpp"
#include "tools/cli/table.hpp"
#include "tools/cli/verbs.hpp"
#include "tools/policies/route_tokens.hpp"

namespace moesim {

namespace {

struct ReplayOptions {
  std::string trace, tokens;
  std::vector<std::string> placements{"eplb"};
  std::vector<std::string> routings{"even", "metro", "optimal"};
  std::string sample = "distinct", fit = "self", capacity = "dropless", copies = "uniform",
              expert_memory, shared_expert, csv;
  ReplayConfig config;
  bool json = false, each_batch = false;
};

std::vector<ConfigNode> policies(const std::vector<std::string>& names, const char* flag) {
  std::vector<ConfigNode> nodes;
  for (const std::string& name : names) nodes.push_back(policy_node(name, flag));
  return nodes;
}

// The columns that some tables have: rows are alike in what they have.
struct ExtraColumns {
  explicit ExtraColumns(const std::vector<ReplayRow>& rows) {
    if (rows.empty()) return;
    const ReplayRow& first = rows.front();
    const auto any = [&](auto&& has) { return std::ranges::any_of(rows, has); };
    drops = any([](const ReplayRow& row) { return row.dropped > 0; });
    brings = any([](const ReplayRow& row) { return row.step_copies_mean.has_value(); });
    misses = first.hit_rate.has_value();
    shared = first.max_tokens_with_shared_mean.has_value();
    near = first.own_gpu_share.has_value();
    resampled = !first.activated_of_resample.empty();
  }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    if (drops) names.push_back("dropped");
    if (misses) names.push_back("in HBM");
    if (brings) names.push_back("copies");
    if (shared) names.push_back("with shared");
    if (near) names.insert(names.end(), {"own GPU", "own node"});
    if (resampled) names.insert(names.end(), {"% of first", "90 % interval", "P(less)"});
    return names;
  }

  std::vector<std::string> cells(const ReplayRow& row) const {
    std::vector<std::string> cells;
    if (drops) cells.push_back(percent(row.dropped, 2));
    if (misses) cells.push_back(percent(row.hit_rate.value_or(1), 2));
    if (brings) cells.push_back(fmt::format("{:.2f}", row.step_copies_mean.value_or(0)));
    if (shared) cells.push_back(fmt::format("{:.2f}", *row.max_tokens_with_shared_mean));
    for (const auto& share : {row.own_gpu_share, row.own_node_share})
      if (near) cells.push_back(percent(share.value_or(0), 2));
    if (resampled) {
      const auto& gain = row.against_first;
      cells.push_back(gain ? fmt::format("{:+.2f}", gain->change) : "-");
      cells.push_back(gain ? fmt::format("{:+.2f} to {:+.2f}", gain->low, gain->high) : "-");
      cells.push_back(gain ? fmt::format("{:.2f}", gain->p_less) : "-");
    }
    return cells;
  }

  std::string explained() const {
    std::string text;
    if (brings)
      text +=
          "copies: copies of experts that a layer of a batch brings; their bytes are not in the "
          "time.\n";
    if (shared) text += "with shared: tokens on the busiest GPU, those of the shared expert too.\n";
    if (near)
      text += "own GPU, own node: selections that the GPU or the node of their token serves.\n";
    if (resampled)
      text +=
          "% of first: slots against the first placement's with the same routing; of the first "
          "placement's against\nits first routing. Interval and P: over recordings that could as "
          "well "
          "have been made, with other halves\nto fit on and to score.\n";
    return text;
  }

  bool drops = false, misses = false, brings = false, shared = false, near = false,
       resampled = false;
};

constexpr std::string_view explained_columns =
    R"(slots: number of slots with tokens on the busiest GPU, mean over layers and batches. +-: 95 %
interval over batches. tokens: tokens on the busiest GPU. prefill: tokens of the fullest GPU over the
mean GPU when copies share evenly. bound: ceil(active experts / GPUs), a limit for any placement and
routing. Columns with / are slots over those of the bound, of the best routing, of the even split.
)";

// Rows of routings that differ in no cell become one, with the names of all.
void add_row(std::vector<std::vector<std::string>>& rows, std::vector<std::string> cells,
             std::size_t routing) {
  for (std::vector<std::string>& row : rows) {
    std::string names = row[routing];
    std::swap(names, cells[routing]);
    const bool same = row == cells;
    std::swap(names, cells[routing]);
    if (!same) continue;
    row[routing] += ", " + cells[routing];
    return;
  }
  rows.push_back(std::move(cells));
}

std::string to_text(const std::vector<ReplayRow>& rows) {
  const ExtraColumns extra(rows);
  const bool inversions =
      std::ranges::any_of(rows, [](const ReplayRow& row) { return row.above_even > 0; });
  const bool several =
      std::ranges::any_of(rows, [](const ReplayRow& row) { return row.tokens_per_request > 1; });
  // Else the time is the slots.
  const auto decimals = [](double number) { return fmt::format("{:.3f}", number); };
  const bool timed = std::ranges::any_of(rows, [&](const ReplayRow& row) {
    return decimals(row.time_mean) != decimals(row.max_activated_mean);
  });
  std::vector<std::string> columns({"placement", "replicas", "prefill", "batch", "routing", "slots",
                                    "+-", "/bound", "tokens", "/best", "/even"});
  const std::size_t routing = 4, last_of_slots = 9;
  if (timed) columns.insert(columns.begin() + last_of_slots, "time");
  if (inversions) columns.emplace_back("worse");
  std::ranges::move(extra.names(), std::back_inserter(columns));
  std::vector<std::vector<std::string>> all;
  for (const ReplayRow& row : rows) {
    std::vector<std::string> cells(
        {row.placement, fmt::format("{:.4g}x", row.replication_effective),
         decimals(row.token_imbalance),
         row.tokens_per_request > 1
             ? fmt::format("{} ({:.1f} each)", row.batch, row.tokens_per_request)
             : fmt::format("{}", row.batch),
         row.routing, decimals(row.max_activated_mean), decimals(row.max_activated_margin),
         decimals(row.activated_vs_bound), fmt::format("{:.2f}", row.max_tokens_mean),
         decimals(row.activated_vs_optimal), decimals(row.activated_vs_even)});
    if (timed) cells.insert(cells.begin() + last_of_slots, decimals(row.time_mean));
    if (inversions)
      cells.push_back(fmt::format("{:.2f} %", 100.0 * double(row.above_even) / double(row.cases)));
    std::ranges::move(extra.cells(row), std::back_inserter(cells));
    add_row(all, std::move(cells), routing);
  }
  std::vector<std::string> routings;
  for (const ReplayRow& row : rows) {
    if (std::ranges::find(routings, row.routing) == routings.end()) routings.push_back(row.routing);
  }
  const std::string every = fmt::format("{}", fmt::join(routings, ", "));
  Table table(columns);
  for (std::vector<std::string>& row : all) {
    if (routings.size() > 2 && row[routing] == every) row[routing] = "all";
    table.add(std::move(row));
  }
  std::string text = table.text() + extra.explained() + std::string(explained_columns);
  if (timed) {
    text +=
        "time: max(weight time * slots, token time * tokens) of the slowest GPU; in units of "
        "--weight-time.\n";
  }
  if (inversions)
    text += "worse: layers of batches where a routing activates more slots than the even split.\n";
  return several ? text + "each: tokens per request.\n" : text;
}

int replay_trace(const ReplayOptions& options) {
  ReplayConfig asked = options.config;
  asked.placements = policies(options.placements, "--placement");
  asked.routings = policies(options.routings, "--routing");
  asked.capacity = policy_node(options.capacity, "--capacity");
  if (!options.expert_memory.empty())
    asked.expert_memory = policy_node(options.expert_memory, "--expert-memory");
  if (!options.shared_expert.empty())
    asked.shared_expert = read_shared_expert(policy_node(options.shared_expert, "--shared-expert"));
  const auto sample = std::ranges::find(replay_sample_names, options.sample);
  asked.sample = static_cast<ReplaySample>(sample - replay_sample_names.begin());
  asked.by_gain = options.copies == "by_gain";
  asked.fit = options.fit == "self" ? ReplayFit::self : ReplayFit::half;
  require_writable(options.csv);
  const RoutingTrace trace = RoutingTrace::open(here_or_shipped(options.trace));
  Remarks said;
  said.say(leave_out_large_batches(trace, asked));
  for (const std::string& remark : remarks_of(trace, asked)) said.say(remark);
  ProgressBar bar("scores");
  asked.progress = bar.hook();
  const std::vector<ReplayRow> rows = replay(trace, asked);
  bar.finish();
  if (!options.csv.empty()) write_file(options.csv, csv_of(to_json(rows).at("rows")));
  print(options.json ? to_json(rows, options.each_batch).dump(1) + "\n" : to_text(rows));
  return 0;
}

// Routes one batch of known counts, without a trace.
int route_tokens(const ReplayOptions& options, const CLI::App& command) {
  constexpr std::array allowed{"tokens", "placement", "routing", "gpus", "json"};
  for (const CLI::Option* given : command.get_options()) {
    const std::string& name = given->get_lnames().empty() ? "" : given->get_lnames().front();
    if (given->count() > 0 && std::ranges::find(allowed, name) == allowed.end())
      throw ConfigError("replay --tokens: --{} has no effect; leave it out", name);
  }
  if (command.count("--placement") == 0 || command.count("--routing") == 0 ||
      options.placements.size() != 1 || options.routings.size() != 1)
    throw ConfigError("replay --tokens: give one placement file (--placement) and one --routing");
  print(routed_tokens(
      policy_node(options.routings.front(), "--routing"), options.placements.front(),
      command.count("--gpus") > 0 ? options.config.gpus : 0, options.tokens, options.json));
  return 0;
}

// How batches are drawn and what of them is counted.
void add_scoring(CLI::App& command, ReplayOptions& options) {
  ReplayConfig& config = options.config;
  option(command, "--batches", config.sampled_batches, "sampled batches (200)",
         CLI::Range(1, 1 << 20));
  option(command, "--nodes", config.nodes, "nodes that hold the GPUs (1)", CLI::Range(1, 1 << 16));
  option(command, "--groups", config.groups, "expert groups (1)", CLI::Range(1, 1 << 16));
  option(command, "--weight-time", config.time.weight_time,
         "time to read one slot's weights, in any unit (1)", a_number(0, 1e9));
  option(command, "--token-time", config.time.token_time,
         "time to compute one token, in the same unit (1/206: bf16 on an H200)", a_number(0, 1e9));
  command.add_option("--capacity", options.capacity,
                     "capacity of an expert, e.g. drop:factor=1.25 (dropless)");
  command.add_option(
      "--expert-memory", options.expert_memory,
      "which experts HBM holds, e.g. lru:slots_per_layer=4; batches follow each other as drawn");
  command.add_option("--shared-expert", options.shared_expert,
                     "count tokens of the shared expert too: local, fused or waterfill, e.g. "
                     "waterfill:min_tokens=1");
  command.add_flag("--locality", config.locality,
                   "count selections that the GPU or the node of their token serves");
  option(command, "--copies", options.copies,
         "by_gain: more copies in layers where these gain more (uniform)",
         CLI::IsMember({"uniform", "by_gain"}));
  option(command, "--cut", config.cuts,
         "rows of experts cut over so many GPUs too; slots in whole experts", comma_separated);
  option(command, "--bootstrap", config.bootstrap,
         "recordings drawn again from the requests: P(less slots than the first row), and the "
         "interval (0)",
         CLI::Range(0, 1000));
}

}  // namespace

Action setup_replay(CLI::App& command) {
  const auto options = std::make_shared<ReplayOptions>();
  ReplayConfig& config = options->config;
  config.replications = {1.0};
  config.batches = {32};
  config.seed = 1;
  command.add_option("--trace", options->trace, "routing trace, a directory");
  command.add_option("--tokens", options->tokens,
                     "instead of a trace: one batch, {\"tokens\": [layers][experts]} or "
                     "{\"topk_ids\": [layers][tokens][k], \"source_rank\": [tokens]}; prints what "
                     "one --routing decides under the placement in the file --placement");
  option(command, "--gpus", config.gpus, "expert-parallel ranks", CLI::Range(1, 1 << 16));
  option(command, "--placement", options->placements,
         "policies, comma-separated, with options as name:key=value (eplb)", comma_separated);
  option(command, "--replication", config.replications, "slots per expert (1.0)", comma_separated);
  option(command, "--routing", options->routings,
         "routing policies, written likewise (even,metro,optimal)", comma_separated);
  option(command, "--batch", config.batches, "tokens per batch (32)", comma_separated,
         CLI::Range(1, 1 << 20));
  option(command, "--sample", options->sample,
         "distinct: one decode token of each of B requests; consecutive: B tokens of one; several: "
         "distinct, but more tokens of each where B is larger",
         CLI::IsMember(
             std::vector<std::string>(replay_sample_names.begin(), replay_sample_names.end())));
  option(command, "--fit", options->fit,
         "placement fitted on the whole trace (self) or on half of the requests of every workload, "
         "scored on the others (half)",
         CLI::IsMember(std::vector<std::string>(replay_fit_names.begin(), replay_fit_names.end())));
  option(command, "--fit-workloads", config.fit_workloads,
         "placement fitted on requests of these tags, scored on those of all others",
         comma_separated);
  option(command, "--score-workloads", config.score_workloads,
         "with --fit-workloads: batches from requests of these tags alone (all others)",
         comma_separated);
  add_scoring(command, *options);
  option(command, "--seed", config.seed, "seed of the sampled batches (1)", a_seed());
  command.add_option("--csv", options->csv, "write every row, named as in JSON, to this file");
  auto* json = command.add_flag("--json", options->json, "print JSON instead of a table");
  command
      .add_flag("--each-batch", options->each_batch,
                "print the slots of every batch too, to compare rows batch by batch")
      ->needs(json);
  return [options, &command] {
    if (!options->tokens.empty()) return route_tokens(*options, command);
    if (options->trace.empty() || options->config.gpus == 0)
      throw ConfigError("replay: give --trace DIR and --gpus N, or --tokens FILE");
    return replay_trace(*options);
  };
}

}  // namespace moesim
