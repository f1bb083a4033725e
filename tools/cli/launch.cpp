// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/launch.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <optional>

#include <fmt/format.h>

#include "hardware/find_value.hpp"
#include "hardware/quoting.hpp"
#include "hardware/units.hpp"
#include "models/checkpoints.hpp"
#include "sim/engines/serving_engine.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/table.hpp"
#include "traces/requests/arrivals.hpp"
#include "traces/requests/lengths.hpp"

namespace moesim {

namespace {

// ---- what the experiment says ----

// Slots of all GPUs beyond one for each expert.
int redundant_experts(const PoolSpec& pool) {
  const PlacementProblem& problem = pool.placement_problem;
  return pool.model.experts == 0 ? 0 : problem.gpus * problem.slots_per_gpu - problem.experts;
}

std::string decode_routing(const ChosenPolicies& pool) {
  return std::string(pool.phases[std::size_t(StepKind::decode)].routing.name());
}

// A dense model's experts are not placed.
std::filesystem::path placement_file(const ChosenPolicies& pool) {
  return pool.placed.placer == nullptr ? std::filesystem::path() : pool.placed.placer->file();
}

// Prompt and output of the longest request, where both are known.
std::optional<Request> longest_of(const OfferedLoad& pool) {
  const Request longest = pool.workload.lengths->longest();
  if (longest.prompt_tokens == 0 || longest.output_tokens == 0) return std::nullopt;
  return longest;
}

// A prompt, its output, and some room for what an engine adds to prompts.
std::int64_t max_model_len(const PoolSpec& pool) {
  constexpr std::int64_t room = 32;
  return longest_of(pool) ? pool.workload.longest() + room : 0;
}

std::string role_of(const ExperimentSpec& spec, const PoolSpec& pool) {
  return spec.pools.size() == 1 ? "" : pool.prefill_only ? "prefill" : "decode";
}

// The value of a key as the experiment has it, not its engine's preset; null where it has none.
Json as_written(const ExperimentSpec& spec, std::string_view role, const std::string& pointer) {
  const Json& json = spec.node.json();
  if (!role.empty())
    if (Json own = value_at(json, fmt::format("/pools/{}{}", role, pointer)); !own.is_null())
      return own;
  return value_at(json, pointer);
}

// Plan that a command can say: with AFD that of attention's GPUs, which then have the experts too.
ParallelPlan plan_of_command(ParallelPlan plan) {
  if (!plan.afd()) return plan;
  plan.ep = plan.attention_gpus();
  plan.ffn_gpus = 0;
  plan.micro_batches = 1;
  return plan;
}

bool has_windows(const PoolSpec& pool) {
  return kv_layout(pool.model, pool.parallel, pool.precision).has_windows();
}

Server server_of(const ExperimentSpec& spec, const PoolSpec& pool, const std::string& role) {
  const Json longest = as_written(spec, role, "/max_model_len");
  const bool graphs = !as_written(spec, role, "/cuda_graph").is_null() && !pool.graph_sizes.empty();
  const Json& node = pool.node.json();
  return {.role = role,
          .gpus_per_node = pool.cluster.gpus_per_node,
          .has_nvfp4 = pool.cluster.gpu.dense_peak.contains(Precision::nvfp4),
          .platform = pool.cluster.gpu.platform,
          .engine = pool.engine_name(),
          .parallel = plan_of_command(pool.parallel),
          .precision = pool.precision,
          .experts = pool.model.experts,
          .ffn_gpus = pool.parallel.ffn_gpus,
          .redundant_experts = redundant_experts(pool),
          .max_model_len = longest.is_null() ? max_model_len(pool) : longest.get<std::int64_t>(),
          .max_num_seqs = pool.scheduler->max_num_seqs(),
          .max_num_batched_tokens = pool.scheduler->max_num_batched_tokens(),
          .long_prefill_tokens =
              std::int64_t(number_at(node, "/scheduling/long_prefill_token_threshold", 0)),
          .reserves_prompts = value_at(node, "/scheduling/reserve_full_prompt") != Json(false),
          .largest_graph = graphs ? pool.graph_sizes.back() : 0,
          .evicts = pool.scheduler->capacity_policy() == CapacityPolicy::max_utilization,
          .drafts = pool.speculation.tokens,
          .drafts_itself = pool.speculation.has_module() && pool.model.draft_layers > 0,
          .two_batches = pool.overlap.two_batch.has_value(),
          .waterfill = pool.shared_expert.draws(),
          .prefix_caching = pool.prefix_caching || pool.kv_cache.paging.caches_states(),
          .has_windows = has_windows(pool),
          .keeps_all = pool.kv_cache.paging.keeps_all,
          .block_tokens = pool.kv_cache.paging.block_tokens,
          .gpu_memory_utilization = pool.kv_cache.gpu_memory_utilization,
          .free_gpu_memory_fraction = pool.kv_cache.free_gpu_memory_fraction,
          .prefill_alignment = pool.prefill_alignment.type,
          .alignment_options = pool.prefill_alignment.options,
          .scheduling = pool.names.scheduling,
          .prefill_dispatch = pool.names.prefill_dispatch,
          .decode_dispatch = pool.names.decode_dispatch,
          .decode_routing = decode_routing(pool),
          .rebalancing = std::string(pool.rebalancing.name()),
          .request_routing = std::string(pool.request_routing.name()),
          .placement_file = placement_file(pool)};
}

// More servers than these are not written out.
constexpr int most_servers = 16;

// Groups in a row, each within a node where a node holds it.
Fleet fleet_of(const ExperimentSpec& spec) {
  Fleet fleet;
  int node = 0, gpu = 0, number = 0;
  int groups = 0;
  for (const PoolSpec& pool : spec.pools) groups += pool.instances;
  for (const PoolSpec& pool : spec.pools) {
    Server server = server_of(spec, pool, role_of(spec, pool));
    server.alone = groups == 1;
    server.from_pipelines = spec.pools.front().parallel.pp > 1;
    for (int i = 0; i < pool.instances; ++i) {
      server.number = number++;
      const int gpus = server.gpus() + server.ffn_gpus;
      if (gpu > 0 && gpu + gpus > server.gpus_per_node) ++node, gpu = 0;
      server.node = node;
      server.first_gpu = gpu;
      gpu += gpus;
      node += gpu / server.gpus_per_node;
      gpu %= server.gpus_per_node;
      const int last = node + (gpu > 0 ? 1 : 0);
      // Of every pool the first is shown.
      if (std::ssize(fleet.servers) < most_servers || i == 0)
        fleet.servers.push_back(server), fleet.nodes = std::max(fleet.nodes, last);
      else
        ++fleet.left_out;
    }
  }
  return fleet;
}

struct Weights {
  std::string path;  // an id of HuggingFace, a folder, or the model's name where none is known
  std::string note;  // what is to be put in its place
};

Weights weights_of(const ServedModel& pool) {
  const auto in_place_of = [&](const std::string& name, const char* why) {
    return Weights{
        name, fmt::format("weights: {}; use a name or path of {} weights instead of {}", why,
                          precision_names[std::size_t(pool.precision.experts)], shell_word(name))};
  };
  const std::filesystem::path& file = pool.model_file;
  if (file.empty()) return in_place_of(pool.model.name, "the model is not a file");
  if (file.filename() == "config.json")
    return {file.has_parent_path() ? file.parent_path().string() : ".", ""};
  const Checkpoints ids = read_checkpoints(ConfigNode::from_file(file));
  if (const auto id = ids.find(pool.precision.experts); id != ids.end()) return {id->second, ""};
  if (ids.empty()) return in_place_of(file.stem().string(), "its file names no \"checkpoints\"");
  return in_place_of(ids.begin()->second, "none are known in the precision of the experiment");
}

// Keys that no command says, each with the value that asks for nothing.
constexpr std::pair<const char*, const char*> untold[] = {
    {"/expert_reselection", "null"},
    {"/expert_buffers", "null"},
    {"/failures", "null"},
    {"/api_server/tokenizer_workers", "1"},
    {"/precision/state", "\"fp32\""},
    {"/workload/timeout", "null"},
    {"/workload/ttft_timeout", "null"},
    {"/workload/cancellation", "null"},
    {"/workload/arrivals/staggered", "false"}};

void note_untold(const ExperimentSpec& spec, std::string_view role, Notes& notes) {
  for (const auto& [pointer, nothing] : untold) {
    const Json value = as_written(spec, role, pointer);
    if (!value.is_null() && !value.empty() && value != Json::parse(nothing))
      notes.push_back(fmt::format("{}: {}; no flag here says this", pointer, value.dump()));
  }
}

// Notes what no engine can be told.
void note_common(const PoolSpec& pool, Notes& notes) {
  const auto note = [&](const char* pointer, std::string_view name, std::string_view usual) {
    if (name != usual) notes.push_back(fmt::format("{}: {}", pointer, quoted_name(name)));
  };
  if (const std::int64_t most = max_model_len(pool);
      most > 0 && !pool.node.json().contains("max_model_len"))
    notes.push_back(
        fmt::format("requests of more than {} tokens; those of the load are shorter", most));
  if (pool.kv_cache.paging.caches_states()) {
    if (pool.workload.shares_prefixes())
      notes.push_back(
          "prompts that are computed whole; the server finds shared prefixes in its cache");
  } else if (!pool.prefix_caching) {
    notes.push_back(pool.workload.shares_prefixes()
                        ? "prefix caching; the experiment has none, though prompts share prefixes"
                        : "prefix caching; prompts of the load are taken to share no prefix");
  }
  note("/capacity", pool.names.capacity, "dropless");
  note("/expert_memory", pool.names.expert_memory, "resident");
  if (!pool.kv_cache.tiers.empty())
    notes.push_back("/kv_cache/tiers: give the engine its memory for KV blocks by its own flags");
  if (pool.kv_cache.retains())
    notes.push_back("/kv_cache/retention: no engine has a flag that holds blocks between turns");
  if (pool.kv_cache.prefetch_lead)
    notes.push_back("/kv_cache/prefetch_lead: no engine loads blocks before a request has come");
  if (pool.scheduler->needs_deadlines())
    notes.push_back(fmt::format("/scheduling: {}; no engine goes by deadlines",
                                quoted_name(pool.names.scheduling)));
  if (pool.names.scheduling == "priority")
    notes.push_back("/workload/classes: each request of a class says its priority to the engine");
  note("/rebalancing", pool.rebalancing.name(), "none");
  if (pool.parallel.dp > 1 && pool.instances == 1)
    note("/request_routing", pool.request_routing.name(), "round_robin");
  if (pool.precision.experts == Precision::bf16 && pool.precision.attention != Precision::bf16)
    note("/precision/attention", precision_names[std::size_t(pool.precision.attention)], "bf16");
  note("/token_routing/decode", decode_routing(pool), "even");
  const std::string& placement = pool.names.placement;
  if (placement != "eplb" && placement != "from_file") note("/placement", placement, "linear");
  const bool spreads = pool.model.experts > 0 && pool.parallel.ep > 1;
  if (placement == "eplb" && spreads && redundant_experts(pool) == 0)
    notes.push_back(
        "/placement: \"eplb\"; without copies of experts no balancer is turned on, and experts "
        "keep their order");
  if (pool.speculation.tokens > 0 && !pool.speculation.mtp)
    notes.push_back("/speculative/draft: the model that drafts; name it by the engine's own flag");
  if (pool.speculation.choice)
    notes.push_back(
        "/speculative/choice: servers verify every draft; no engine has a flag for this");
  if (pool.speculation.has_module() && pool.model.draft_layers == 0)
    notes.push_back(
        "/speculative: the model's files name no layer that drafts (MTP); the engine's own flag "
        "names a model that does");
}

// Which way of tokens to their experts the commands cannot ask for.
void note_dispatch(const PoolSpec& pool, const ServingEngine& engine, Notes& notes) {
  if (pool.model.experts == 0 || pool.parallel.ep == 1) return;
  const auto note = [&](std::string_view phase, const std::string& name) {
    if (std::ranges::find(engine.launch.dispatches, name) == engine.launch.dispatches.end())
      notes.push_back(fmt::format("/dispatch/{}: {}; {} has no flag for this dispatch", phase,
                                  quoted_name(name), engine.title));
  };
  note("prefill", pool.names.prefill_dispatch);
  if (!pool.prefill_only) note("decode", pool.names.decode_dispatch);
}

void note_kv_cache(const PoolSpec& pool, const ServingEngine& engine, Notes& notes) {
  const Precision own = pool.precision.kv_cache;
  if (own == Precision::bf16 || kv_cache_name(engine.launch.kv_caches, own)) return;
  notes.push_back(fmt::format("/precision/kv_cache: {}; {} has no flag for this precision",
                              quoted_name(precision_names[std::size_t(own)]), engine.title));
}

void note_decode_offload(const ExperimentSpec& spec, const ServingEngine& engine, Notes& notes) {
  if (!spec.kv_link || !spec.kv_link->decode_offload) return;
  const std::string_view how = engine.launch.decode_offload;
  notes.push_back(fmt::format(
      "/kv_transfer/decode_offload: {}",
      how.empty() ? fmt::format("{} has no flag for this", engine.title) : std::string(how)));
}

// How groups move between pools: no command here makes them.
void note_role_changes(const ExperimentSpec& spec, const ServingEngine& engine, Notes& notes) {
  if (!spec.roles) return;
  const std::string_view how = engine.launch.role_changes;
  notes.push_back(fmt::format(
      "/pool_roles: servers keep the roles of these commands; {}",
      how.empty() ? fmt::format("{} has no flag to change them", engine.title) : std::string(how)));
}

// Which roles no command here starts.
void note_afd(const ServedModel& pool, const ServingEngine& engine, Notes& notes) {
  if (pool.parallel.decode_ep > 0)
    notes.push_back(fmt::format("/parallel/decode_ep: {}; no engine cuts experts by phase",
                                pool.parallel.decode_ep));
  if (!pool.parallel.moe_sequence_parallel)
    notes.push_back(fmt::format("/parallel/moe_sequence_parallel: false; {} has no flag for this",
                                engine.title));
  if (!pool.parallel.afd()) return;
  const std::string_view how = engine.launch.afd;
  notes.push_back(fmt::format(
      "/parallel/ffn_gpus: {}; {}; these commands put experts on the GPUs for attention",
      pool.parallel.ffn_gpus,
      how.empty() ? fmt::format("{} has no attention-FFN disaggregation", engine.title)
                  : std::string(how)));
  if (pool.ffn_cluster)
    notes.push_back(fmt::format("/ffn_cluster: {}; these commands use GPUs of \"cluster\" alone",
                                pool.ffn_cluster->name));
}

// ---- what is written ----

// The experiment's load, as the engine's own benchmark makes it.
std::string benchmark(const BenchCommand& bench, const PoolSpec& pool, const std::string& weights,
                      Notes& notes) {
  // The program's last option takes the weights.
  const std::size_t last = bench.program.rfind(" --");
  Command command(std::string(bench.program.substr(0, last)));
  command.add(std::string(bench.program.substr(last + 1)) + weights);
  command.add("--host $NODE0 --port 8000");
  if (const auto request = longest_of(pool)) {
    command.add("--dataset-name random");
    if (!bench.random_ids.empty()) command.add(bench.random_ids);
    const double least = pool.workload.lengths->least();
    const bool around = bench.range == BenchCommand::around;
    const double named = around ? (1 + least) / 2 : 1;  // of the longest
    command.add("--random-input-len", std::llround(request->prompt_tokens * named));
    command.add("--random-output-len", std::llround(request->output_tokens * named));
    const double ratio = around ? (1 - least) / (1 + least) : least;
    command.add("--random-range-ratio", fmt::format("{:.4g}", ratio));
  } else if (pool.workload.sessions) {
    notes.push_back("/workload/sessions: give the benchmark a dataset of these sessions");
  } else {
    notes.push_back("/workload/lengths: give the benchmark a dataset of these lengths");
  }
  if (!bench.to_the_end.empty()) command.add(bench.to_the_end);
  const Arrivals& arrivals = *pool.workload.arrivals;
  const double rate = arrivals.rate();
  const std::int64_t many = arrivals.in_flight(pool.ranks());
  if (rate > 0) command.add("--request-rate", fmt::format("{:.4g}", rate));
  if (const double shape = arrivals.burstiness(); rate > 0 && shape != 1) {
    constexpr double equal_gaps = 1e6;
    if (bench.burstiness.empty())
      notes.push_back("/workload/arrivals: gaps of another shape; this benchmark's are Poisson");
    else
      command.add(bench.burstiness, fmt::format("{:.4g}", std::min(shape, equal_gaps)));
  }
  if (many > 0) command.add("--max-concurrency", many);
  if (rate == 0 && many == 0) notes.push_back("/workload/arrivals: give the benchmark a rate");
  command.add("--num-prompts", pool.workload.requests);
  return command.text();
}

// Addresses of the nodes: a name that is put into the commands, to be changed.
std::string addresses(const Fleet& fleet) {
  if (fleet.nodes == 1) return "NODE0=127.0.0.1\n";
  std::string text;
  for (int node = 0; node < fleet.nodes; ++node)
    text += fmt::format("{}NODE{}=node{}", node > 0 ? " " : "", node, node);
  return text + "  # put the addresses of your nodes here, in each terminal\n";
}

std::string heading(const Server& server, int nodes) {
  const std::string where = server.nodes() > 1 ? fmt::format(" on nodes {} to {}", server.node,
                                                             server.node + server.nodes() - 1)
                            : nodes > 1        ? fmt::format(" on node {}", server.node)
                                               : "";
  return fmt::format("# {}{}{} GPU{}{}\n", server.role, server.role.empty() ? "" : ": ",
                     server.gpus(), server.gpus() == 1 ? "" : "s", where);
}

std::string server_text(const LaunchForm& form, const Server& server, const std::string& weights) {
  Command command(form.program(server) + weights);
  command.add(form.flags, server);
  return server.nodes() > 1 && form.on_nodes != nullptr ? form.on_nodes(server, command.text())
                                                        : command.text() + "\n";
}

std::string options_text(const OptionsFile& file) {
  return fmt::format("cat >{} <<'YAML'\n{}YAML\n", file.name, file.text);
}

std::string servers_text(const LaunchForm& form, const Fleet& fleet, const std::string& weights,
                         Notes& notes) {
  std::string text, written;  // the options that stand in a file already
  for (const Server& server : fleet.servers) {
    text += heading(server, fleet.nodes);
    if (form.options != nullptr) {
      const OptionsFile file = form.options(server);
      if (file.name != written) text += options_text(file);
      written = file.name;
    }
    text += server_text(form, server, weights);
    const Notes own = form.notes(server);
    notes.insert(notes.end(), own.begin(), own.end());
  }
  if (fleet.left_out > 0)
    text += fmt::format(
        "# and {} more servers of this kind, each on the next GPUs and the next hundred of ports\n",
        fleet.left_out);
  return text;
}

// "decode-1", also the host of its Service.
std::string name_of(const Server& server) {
  return fmt::format("{}-{}", server.role.empty() ? "server" : server.role, server.number);
}

// Options and command of a server, without the shell's first lines.
std::string commands_of(const LaunchForm& form, const Server& server, const std::string& weights) {
  const std::string options = form.options == nullptr ? "" : options_text(form.options(server));
  return options + server_text(form, server, weights);
}

// Resource of Kubernetes' device plugins that a pod asks for.
std::string_view device_of(std::string_view platform) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 5> devices{
      {{"cuda", "nvidia.com/gpu"},
       {"rocm", "amd.com/gpu"},
       {"tpu", "google.com/tpu"},
       {"npu", "huawei.com/Ascend910"},
       {"neuron", "aws.amazon.com/neuron"}}};
  return std::ranges::find(devices, platform, &std::pair<std::string_view, std::string_view>::first)
      ->second;
}

// A pod, which has its GPUs alone, and a name for it. Others reach the pod before it is ready.
Json manifest_of(const LaunchForm& form, Server server, std::string_view version,
                 const std::string& weights, const std::string& addresses) {
  const std::string name = name_of(server);
  server.gpus_per_node = server.gpus();
  server.first_gpu = 0;
  server.node = server.number;
  const bool of_amd = server.platform == "rocm" && !form.rocm_image.empty();
  const std::string tag = version.empty() ? "" : fmt::format(":{}{}", form.tag_before, version);
  const Json labels{{"app", name}};
  const Json container{
      {"name", "server"},
      {"image", fmt::format("{}{}", of_amd ? form.rocm_image : form.image, tag)},
      {"command", {"bash", "-ec", addresses + commands_of(form, server, weights)}},
      {"ports", {{{"containerPort", server.port()}}}},
      {"resources", {{"limits", {{device_of(server.platform), std::to_string(server.gpus())}}}}},
      {"readinessProbe",
       {{"httpGet", {{"path", "/health"}, {"port", server.port()}}}, {"periodSeconds", 10}}},
      {"volumeMounts", {{{"name", "shm"}, {"mountPath", "/dev/shm"}}}}};
  const Json pod{{"containers", {container}},
                 {"volumes", {{{"name", "shm"}, {"emptyDir", {{"medium", "Memory"}}}}}}};
  const Json deployment{{"apiVersion", "apps/v1"},
                        {"kind", "Deployment"},
                        {"metadata", {{"name", name}, {"labels", labels}}},
                        {"spec",
                         {{"replicas", 1},
                          {"selector", {{"matchLabels", labels}}},
                          {"template", {{"metadata", {{"labels", labels}}}, {"spec", pod}}}}}};
  const Json service{{"apiVersion", "v1"},
                     {"kind", "Service"},
                     {"metadata", {{"name", name}}},
                     {"spec",
                      {{"clusterIP", "None"},
                       {"publishNotReadyAddresses", true},
                       {"selector", labels},
                       {"ports", {{{"name", "http"}, {"port", server.port()}}}}}}};
  return {{"apiVersion", "v1"}, {"kind", "List"}, {"items", {deployment, service}}};
}

// In lines of a shell's comment, all but the first indented.
std::string comment(const std::string& text) {
  std::string lines = "# ";
  for (const char c : wrapped(text, 98, 2)) {
    lines += c;
    if (c == '\n') lines += "# ";
  }
  return lines + "\n";
}

}  // namespace

std::string launch_text(const std::string& engine, const ExperimentSpec& spec) {
  const ServingEngine* row = find_engine(engine);
  check(row != nullptr, "no engine of this name");
  const LaunchForm& form = row->launch;
  const PoolSpec& decode = spec.pools.back();
  const Fleet fleet = fleet_of(spec);
  const Weights weights = weights_of(decode);
  const std::string path = shell_path(weights.path);
  Notes notes;
  if (!weights.note.empty()) notes.push_back(weights.note);
  std::string text = fleet.servers.size() > 1 || fleet.nodes > 1
                         ? "# each command in a terminal of its own, on its node\n"
                         : "";
  text += addresses(fleet) + servers_text(form, fleet, path, notes);
  if (fleet.servers.size() > 1) {
    const std::string router = form.router(fleet, notes);
    if (!router.empty()) text += "# the router of requests\n" + router;
  }
  text += "# the load\n" + benchmark(form.benchmark, decode, path, notes) + "\n";
  for (const PoolSpec& pool : spec.pools) {
    if (const std::string why = row->without_build(pool.cluster.gpu); !why.empty())
      notes.push_back("the GPUs: " + why);
    note_common(pool, notes);
    note_dispatch(pool, *row, notes);
    note_kv_cache(pool, *row, notes);
    note_untold(spec, role_of(spec, pool), notes);
    note_afd(pool, *row, notes);
  }
  note_decode_offload(spec, *row, notes);
  note_role_changes(spec, *row, notes);
  if (!decode.engine.empty() && fleet.servers.back().engine != engine)
    text += fmt::format("# predicted for {}, not for {}\n", shell_word(decode.engine), engine);
  std::ranges::sort(notes);
  notes.erase(std::unique(notes.begin(), notes.end()), notes.end());
  for (const std::string& note : notes) text += comment("not in these commands: " + note);
  return text;
}

std::vector<LaunchFile> launch_files(const std::string& engine, const ExperimentSpec& spec) {
  const ServingEngine* row = find_engine(engine);
  check(row != nullptr, "no engine of this name");
  const LaunchForm& form = row->launch;
  const PoolSpec& decode = spec.pools.back();
  const Fleet fleet = fleet_of(spec);
  const std::string path = shell_path(weights_of(decode).path);
  const std::size_t space = decode.engine.find(' ');
  const bool versioned = fleet.servers.back().engine == engine && space != std::string::npos;
  const std::string version = versioned ? decode.engine.substr(space + 1) : "";
  std::string script = "#!/usr/bin/env bash\nset -eu\n", pods;
  for (int node = 0; node < fleet.nodes; ++node) {
    const std::string usual = fleet.nodes == 1 ? "127.0.0.1" : fmt::format("node{}", node);
    script += fmt::format(": \"${{NODE{0}:={1}}}\"  # the address of node {0}\n", node, usual);
  }
  for (const Server& server : fleet.servers)
    pods += fmt::format("NODE{}={}\n", server.number, name_of(server));
  std::vector<LaunchFile> files{{"commands.txt", launch_text(engine, spec)}};
  Notes said;  // commands.txt has them
  for (const Server& server : fleet.servers) {
    if (server.nodes() > 1) continue;  // commands.txt has its commands, one for each node
    const std::string name = name_of(server);
    files.push_back({name + ".sh", script + commands_of(form, server, path)});
    files.push_back(
        {name + ".json", manifest_of(form, server, version, path, pods).dump(1) + "\n"});
  }
  if (fleet.servers.size() > 1) {
    if (const std::string router = form.router(fleet, said); !router.empty())
      files.push_back({"router.sh", script + router});
  }
  files.push_back({"benchmark.sh", script + benchmark(form.benchmark, decode, path, said) + "\n"});
  return files;
}

}  // namespace moesim
