// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/launch.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "hardware/fabric.hpp"
#include "hardware/find_value.hpp"
#include "hardware/shipped.hpp"
#include "models/moe_model.hpp"
#include "tools/cli/table.hpp"

// Flags as the engines' parsers have them: vllm/engine/arg_utils.py and vllm/config/parallel.py,
// python/sglang/srt/server_args.py, tensorrt_llm/commands/serve.py and llmapi/llm_args.py. A test
// holds what is printed to the list of these flags, and says where each was seen.

namespace moesim {

namespace {

template <class T>
T value_at(const Json& config, const std::string& pointer, T otherwise) {
  const Json* value = find_value(config, pointer);
  return value == nullptr || value->is_null() ? otherwise : value->get<T>();
}

// A policy's type, written bare or as an object.
std::string type_at(const Json& config, const std::string& pointer, const char* otherwise) {
  const Json* value = find_value(config, pointer);
  if (value == nullptr) return otherwise;
  return value->is_string() ? value->get<std::string>() : value->value("type", otherwise);
}

// One group of GPUs that is started by one command.
struct Group {
  std::string name;  // of its pool, or empty
  Json config;
  int dp, tp, ep, pp, instances;
  int per_node = 0;             // GPUs of a node; 0: not known
  bool from_pipelines = false;  // KV caches come from prefill workers with pipeline stages
  int stage() const { return dp * tp; }
  int gpus() const { return stage() * pp; }
  int nodes() const { return per_node == 0 ? 1 : (gpus() + per_node - 1) / per_node; }
};

// GPUs that one command can start.
int gpus_of_node(const Json& config, const std::filesystem::path& file) {
  if (!config.contains("cluster")) return 0;
  try {
    return read_cluster(named_or_inline(ConfigNode(config.at("cluster"), file), Shipped::cluster))
        .gpus_per_node;
  } catch (const ConfigError&) {
    return 0;
  }
}

std::vector<Group> groups_in(const Json& config, int per_node = 0) {
  std::vector<Group> groups;
  const auto add = [&](const std::string& name, const Json& whole) {
    Group group{name, whole, 1, 1, 1, 1, value_at(whole, "/instances", 1), per_node};
    group.dp = value_at(whole, "/parallel/dp", 1);
    group.tp = value_at(whole, "/parallel/tp", 1);
    group.pp = value_at(whole, "/parallel/pp", 1);
    group.ep = value_at(whole, "/parallel/ep", group.stage());
    groups.push_back(std::move(group));
  };
  if (!config.contains("pools")) {
    add("", config);
    return groups;
  }
  for (const char* pool : {"prefill", "decode"}) {
    Json whole = config;
    whole.erase("pools");
    for (const auto& [key, value] : config.at("pools").at(pool).items()) whole[key] = value;
    add(pool, whole);
  }
  for (Group& group : groups) group.from_pipelines = groups.front().pp > 1;
  return groups;
}

// What the model's weights are loaded from.
std::string weights_of(const Json& config) {
  const Json& model = config.at("model");
  if (model.is_object()) return model.value("name", "MODEL");
  const std::filesystem::path path = model.get<std::string>();
  if (path.filename() == "config.json") return path.parent_path().string();
  return path.extension() == ".json" ? path.stem().string() : path.string();
}

// Nothing where the model's file is not found.
std::optional<int> experts_of(const Json& config, const std::filesystem::path& file) {
  try {
    return read_model(named_or_inline(ConfigNode(config.at("model"), file), Shipped::model))
        .experts;
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

// Slots of all GPUs beyond one for each expert.
int redundant_experts(const Group& group, int experts) {
  if (experts == 0) return 0;
  const double replication = value_at(group.config, "/placement/replication", 1.0);
  const int per_gpu = static_cast<int>(std::ceil(replication * experts / group.ep - 1e-9));
  return per_gpu * group.ep - experts;
}

struct Length {
  int prompt = 0, output = 0;  // 0: not one number
};
Length lengths_of(const Json& config) {
  const auto number = [&](const char* pointer) {
    const Json* value = find_value(config, pointer);
    return value != nullptr && value->is_number() ? value->get<int>() : 0;
  };
  return {number("/workload/lengths/prompt"), number("/workload/lengths/output")};
}

// A command, broken into lines behind its program.
class Command {
 public:
  explicit Command(std::string program) : text_(std::move(program)), column_(text_.size()) {}
  void add(const std::string& argument) {
    constexpr std::size_t columns = 96;
    if (column_ + 1 + argument.size() > columns) {
      text_ += " \\\n   ";
      column_ = 3;
    }
    text_ += " " + argument;
    column_ += 1 + argument.size();
  }
  template <class T>
  void add(const char* flag, const T& value) {
    add(fmt::format("{} {}", flag, value));
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::size_t column_;
};

using Notes = std::vector<std::string>;

// What no engine can be told.
void note_common(const Group& group, Notes& notes) {
  struct Key {
    const char* pointer;
    const char* usual;
  };
  constexpr Key keys[] = {
      {"/capacity", "dropless"}, {"/expert_memory", "resident"}, {"/rebalancing", "none"}};
  for (const Key& key : keys) {
    const std::string type = type_at(group.config, key.pointer, key.usual);
    if (type != key.usual) notes.push_back(fmt::format("{}: \"{}\"", key.pointer, type));
  }
  const std::string decode = type_at(group.config, "/token_routing/decode", "even");
  if (decode != "even") notes.push_back(fmt::format("/token_routing/decode: \"{}\"", decode));
  const std::string placement = type_at(group.config, "/placement", "linear");
  if (placement != "linear" && placement != "eplb" && placement != "from_file")
    notes.push_back(fmt::format("/placement: \"{}\"", placement));
}

bool places_experts(const Group& group) {
  return group.ep > 1 && type_at(group.config, "/placement", "linear") != "linear";
}
std::string placement_file(const Group& group) {
  return value_at<std::string>(group.config, "/placement/file", "");
}

// How a placement file is written in an engine's own form.
std::string other_form(const std::string& file, const std::string& engine) {
  return fmt::format(
      "/placement/file: \"{0}\"; what it reads is written by moesim place --placement {0} "
      "--format {1}",
      file, engine);
}

// Whether two batches overlap. Both engines refuse to start so without DeepEP.
bool two_batches(const Group& group, bool deep_ep, Notes& notes) {
  const bool wanted = type_at(group.config, "/overlap", "none") == "two_batch";
  if (wanted && !deep_ep)
    notes.push_back("/overlap: \"two_batch\" without an all-to-all; theirs needs DeepEP");
  return wanted && deep_ep;
}

// Whether each node has attention ranks of its own, which vLLM then counts by node.
bool ranks_by_node(const Group& group) {
  return group.nodes() > 1 && group.dp > 1 && group.pp == 1 && group.per_node % group.tp == 0;
}

std::string vllm(const Group& group, int experts, Notes& notes) {
  const Json& config = group.config;
  Command command("vllm serve " + weights_of(config));
  if (group.tp > 1) command.add("--tensor-parallel-size", group.tp);
  if (group.dp > 1) command.add("--data-parallel-size", group.dp);
  if (group.pp > 1) command.add("--pipeline-parallel-size", group.pp);
  if (ranks_by_node(group)) {
    command.add("--data-parallel-size-local", group.per_node / group.tp);
    command.add("--data-parallel-address $HEAD --data-parallel-rpc-port 13345");
  } else if (group.nodes() > 1) {
    command.add(fmt::format("--nnodes {} --node-rank $RANK --master-addr $HEAD", group.nodes()));
  }
  if (group.ep > 1) command.add("--enable-expert-parallel");
  if (group.ep > 1 && group.ep < group.stage())
    notes.push_back(
        fmt::format("/parallel/ep: {} of {} GPUs; vLLM spreads experts over all of them", group.ep,
                    group.stage()));
  bool deep = false;
  if (group.dp > 1 && group.ep > 1) {
    const std::string prefill = type_at(config, "/dispatch/prefill", "all_gather");
    const std::string decode = type_at(config, "/dispatch/decode", "all_gather");
    const std::string chosen = group.name == "prefill" ? prefill : decode;
    deep = chosen == "low_latency" || chosen == "all_to_all";
    if (chosen == "low_latency") command.add("--all2all-backend", "deepep_low_latency");
    if (chosen == "all_to_all") command.add("--all2all-backend", "deepep_high_throughput");
    if (group.name.empty() && prefill != decode)
      notes.push_back(
          fmt::format("/dispatch/prefill: \"{}\"; vLLM has one backend for both phases, "
                      "that of decode is taken",
                      prefill));
  }
  if (places_experts(group)) {
    command.add("--enable-eplb");
    const int redundant = redundant_experts(group, experts);
    if (redundant > 0)
      command.add("--eplb-config", fmt::format("'{{\"num_redundant_experts\":{}}}'", redundant));
    if (!placement_file(group).empty())
      notes.push_back("/placement/file: vLLM makes its own placement from the load it sees");
  }
  if (config.contains("scheduling")) {
    const Json& limits = config.at("scheduling");
    if (limits.contains("max_num_seqs"))
      command.add("--max-num-seqs", limits["max_num_seqs"].dump());
    if (limits.contains("max_num_batched_tokens"))
      command.add("--max-num-batched-tokens", limits["max_num_batched_tokens"].dump());
    if (limits.value("type", "") == "prefill_first")
      notes.push_back("/scheduling: \"prefill_first\"; vLLM mixes prompt chunks with decodes");
  }
  const Length length = lengths_of(config);
  if (length.prompt > 0 && length.output > 0)
    command.add("--max-model-len", length.prompt + length.output + 32);
  if (const Json* share = find_value(config, "/kv_cache/gpu_memory_utilization"))
    command.add("--gpu-memory-utilization", share->dump());
  if (value_at<std::string>(config, "/precision/kv_cache", "") == "fp8")
    command.add("--kv-cache-dtype", "fp8");
  if (!value_at(config, "/kv_cache/prefix_caching", false))
    command.add("--no-enable-prefix-caching");
  if (const int drafts = value_at(config, "/speculative/num_speculative_tokens", 0); drafts > 0)
    command.add("--speculative-config",
                fmt::format("'{{\"method\":\"mtp\",\"num_speculative_tokens\":{}}}'", drafts));
  if (two_batches(group, deep, notes)) command.add("--enable-dbo");
  if (!group.name.empty()) {
    // NixlConnector knows no pipeline stages; the one that pushes takes them from prefill workers
    // (vLLM's pull request 45880, merged in June 2026; issue 52913).
    command.add("--kv-transfer-config",
                fmt::format("'{{\"kv_connector\":\"{}\",\"kv_role\":\"kv_both\"}}'",
                            group.from_pipelines ? "NixlPushConnector" : "NixlConnector"));
    if (group.from_pipelines)
      notes.push_back("/pools/prefill/parallel/pp before NixlPushConnector (after June 2026)");
    if (group.name == "decode" && group.pp > 1)
      notes.push_back("/pools/decode/parallel/pp: no NIXL connector hands KV caches to stages");
  }
  return command.text();
}

std::string sglang(const Group& group, int experts, Notes& notes) {
  const Json& config = group.config;
  Command command("python3 -m sglang.launch_server --model-path " + weights_of(config));
  // Its tensor-parallel size is that of the experts; attention ranks divide it.
  command.add("--tp-size", group.stage());
  if (group.dp > 1) command.add(fmt::format("--dp-size {} --enable-dp-attention", group.dp));
  if (group.pp > 1) command.add("--pp-size", group.pp);
  if (group.ep > 1) command.add("--ep-size", group.ep);
  if (group.nodes() > 1)
    command.add(
        fmt::format("--nnodes {} --node-rank $RANK --dist-init-addr $HEAD:5000", group.nodes()));
  const std::string prefill = type_at(config, "/dispatch/prefill", "all_gather");
  const std::string decode = type_at(config, "/dispatch/decode", "all_gather");
  const bool deep =
      group.dp > 1 && group.ep > 1 && (decode == "low_latency" || prefill == "all_to_all");
  if (deep) {
    const bool direct = decode == "low_latency", whole = prefill == "all_to_all";
    const char* const mode = group.name == "prefill"  ? "normal"
                             : group.name == "decode" ? "low_latency"
                             : direct && whole        ? "auto"
                             : direct                 ? "low_latency"
                                                      : "normal";
    command.add(fmt::format("--moe-a2a-backend deepep --deepep-mode {}", mode));
  }
  if (places_experts(group)) {
    const int redundant = redundant_experts(group, experts);
    if (redundant > 0)
      command.add(
          fmt::format("--ep-num-redundant-experts {} --ep-dispatch-algorithm dynamic", redundant));
    const std::string file = placement_file(group);
    if (file.empty()) {
      command.add("--enable-eplb");
    } else {
      command.add("--init-expert-location", file);
      if (std::filesystem::path(file).extension() != ".json")
        notes.push_back(other_form(file, "sglang"));
    }
  }
  if (config.contains("scheduling")) {
    const Json& limits = config.at("scheduling");
    // Both are of all attention ranks together.
    if (limits.contains("max_num_seqs"))
      command.add("--max-running-requests", limits["max_num_seqs"].get<int>() * group.dp);
    if (limits.contains("max_num_batched_tokens"))
      command.add("--chunked-prefill-size", limits["max_num_batched_tokens"].get<int>() * group.dp);
    if (limits.value("type", "") == "chunked_prefill") command.add("--enable-mixed-chunk");
  }
  const Length length = lengths_of(config);
  if (length.prompt > 0 && length.output > 0)
    command.add("--context-length", length.prompt + length.output + 32);
  if (const Json* share = find_value(config, "/kv_cache/gpu_memory_utilization"))
    command.add("--mem-fraction-static", share->dump());
  if (value_at<std::string>(config, "/precision/kv_cache", "") == "fp8")
    command.add("--kv-cache-dtype", "fp8_e4m3");
  if (!value_at(config, "/kv_cache/prefix_caching", false)) command.add("--disable-radix-cache");
  if (const int drafts = value_at(config, "/speculative/num_speculative_tokens", 0); drafts > 0)
    command.add(
        fmt::format("--speculative-algorithm EAGLE --speculative-num-steps {} "
                    "--speculative-eagle-topk 1 --speculative-num-draft-tokens {}",
                    drafts, drafts + 1));
  if (two_batches(group, deep, notes)) command.add("--enable-two-batch-overlap");
  if (!group.name.empty()) command.add("--disaggregation-mode", group.name);
  return command.text();
}

// TensorRT-LLM has a process for each GPU, started by MPI.
std::string of_nodes(const Group& group) {
  return fmt::format(
      "srun --nodes {} --ntasks {} --ntasks-per-node {} --mpi=pmix \\\n    "
      "trtllm-llmapi-launch ",
      group.nodes(), group.gpus(), group.per_node);
}

std::string trtllm(const Group& group, int experts, Notes& notes) {
  const Json& config = group.config;
  const bool attention_dp = group.dp > 1;
  if (attention_dp && group.tp > 1)
    notes.push_back(
        fmt::format("/parallel: dp {} x tp {}; TensorRT-LLM's attention is either data or "
                    "tensor parallel: data parallel over all is taken",
                    group.dp, group.tp));
  std::string options = "cat >options.yaml <<'YAML'\n";
  options += fmt::format("enable_attention_dp: {}\n", attention_dp);
  const bool chunked = type_at(config, "/scheduling", "chunked_prefill") == "chunked_prefill";
  options += fmt::format("enable_chunked_prefill: {}\n", chunked);
  options += fmt::format(
      "kv_cache_config: {{enable_block_reuse: {}{}}}\n",
      value_at(config, "/kv_cache/prefix_caching", false),
      value_at<std::string>(config, "/precision/kv_cache", "") == "fp8" ? ", dtype: fp8" : "");
  if (places_experts(group)) {
    const std::filesystem::path file = placement_file(group);
    if (!file.empty())
      options += fmt::format("moe_config: {{load_balancer: {}}}\n", file.string());
    else if (experts > 0)
      options += fmt::format(
          "moe_config: {{load_balancer: {{num_slots: {}, layer_updates_per_iter: 1}}}}\n",
          experts + redundant_experts(group, experts));
    if (!file.empty() && file.extension() != ".yaml" && file.extension() != ".yml")
      notes.push_back(other_form(file.string(), "trtllm"));
  }
  if (const int drafts = value_at(config, "/speculative/num_speculative_tokens", 0); drafts > 0)
    options += fmt::format(
        "speculative_config: {{decoding_type: MTP, num_nextn_predict_layers: "
        "{}}}\n",
        drafts);
  options += "YAML\n";
  Command command((group.nodes() > 1 ? of_nodes(group) + "trtllm-serve " : "trtllm-serve ") +
                  weights_of(config));
  command.add("--backend", "pytorch");
  command.add("--tp_size", group.stage());
  if (group.ep > 1) command.add("--ep_size", group.ep);
  if (group.pp > 1) command.add("--pp_size", group.pp);
  if (config.contains("scheduling")) {
    const Json& limits = config.at("scheduling");
    if (limits.contains("max_num_seqs"))
      command.add("--max_batch_size", limits["max_num_seqs"].dump());
    if (limits.contains("max_num_batched_tokens"))
      command.add("--max_num_tokens", limits["max_num_batched_tokens"].dump());
  }
  const Length length = lengths_of(config);
  if (length.prompt > 0 && length.output > 0)
    command.add("--max_seq_len", length.prompt + length.output + 32);
  if (const Json* share = find_value(config, "/kv_cache/free_gpu_memory_fraction"))
    command.add("--kv_cache_free_gpu_memory_fraction", share->dump());
  command.add("--extra_llm_api_options", "options.yaml");
  if (!group.name.empty())
    notes.push_back(
        "/pools: TensorRT-LLM joins context and generation servers by `trtllm-serve "
        "disaggregated -c CONFIG`, which lists both");
  return options + command.text();
}

// The experiment's load, as the engine's own benchmark makes it.
std::string benchmark(const std::string& engine, const Json& config, Notes& notes) {
  const std::string weights = weights_of(config);
  Command command(engine == "vllm" ? "vllm bench serve --model " + weights
                  : engine == "sglang"
                      ? "python3 -m sglang.bench_serving --backend sglang --model " + weights
                      : "python3 -m tensorrt_llm.serve.scripts.benchmark_serving "
                        "--backend openai --model " +
                            weights);
  const Length length = lengths_of(config);
  if (length.prompt > 0 && length.output > 0) {
    command.add("--dataset-name random");
    if (engine == "trtllm") command.add("--random-ids");
    command.add("--random-input-len", length.prompt);
    command.add("--random-output-len", length.output);
    // Fixed lengths: SGLang draws from ratio x length on, the others within length x (1 +- ratio).
    command.add("--random-range-ratio", engine == "sglang" ? 1 : 0);
  } else {
    notes.push_back("/workload/lengths: give the benchmark a dataset of these lengths");
  }
  if (engine != "sglang") command.add("--ignore-eos");
  const Json* rate = find_value(config, "/workload/arrivals/rate");
  if (rate != nullptr && rate->is_string()) {
    const double per_second = parse_quantity<PerSecond>(rate->get<std::string>()).value();
    command.add("--request-rate", number_text(per_second));
  } else if (const int many = value_at(config, "/workload/arrivals/concurrency", 0); many > 0) {
    command.add("--max-concurrency", many);
  } else if (const int of_rank = value_at(config, "/workload/arrivals/concurrency_per_rank", 0);
             of_rank > 0) {
    int ranks = 0;
    for (const Group& group : groups_in(config))
      if (group.name != "prefill") ranks += group.dp * group.instances;
    command.add("--max-concurrency", of_rank * ranks);
  } else {
    notes.push_back("/workload/arrivals: give the benchmark a rate");
  }
  command.add("--num-prompts", value_at<std::int64_t>(config, "/workload/requests", 1000));
  return command.text();
}

// Where the command is run if one node does not hold the group.
std::string nodes_text(const std::string& engine, const Group& group) {
  if (group.nodes() == 1 || engine == "trtllm") return "";
  std::string text =
      fmt::format("# on each of {} nodes: RANK is 0 to {}, HEAD the address of node 0",
                  group.nodes(), group.nodes() - 1);
  if (engine == "vllm") {
    text += "; where RANK > 0 add\n#   --headless";
    if (ranks_by_node(group))
      text += fmt::format(" --data-parallel-start-rank $((RANK * {}))", group.per_node / group.tp);
  }
  return text + "\n";
}

}  // namespace

std::string launch_text(const std::string& engine, const Json& config,
                        const std::filesystem::path& file) {
  const auto serve = engine == "vllm" ? vllm : engine == "sglang" ? sglang : trtllm;
  const std::optional<int> experts = experts_of(config, file);
  Notes notes;
  std::string text;
  for (const Group& group : groups_in(config, gpus_of_node(config, file))) {
    const int gpus = group.gpus();
    text += fmt::format("# {}{} of {} GPU{}{}\n{}{}\n", group.name.empty() ? "" : group.name + ": ",
                        group.instances, gpus, gpus == 1 ? "" : "s",
                        group.instances > 1 ? " each, behind one router of requests" : "",
                        nodes_text(engine, group), serve(group, experts.value_or(0), notes));
    note_common(group, notes);
    if (!experts && places_experts(group))
      notes.push_back(fmt::format("/placement/replication: the model {} is not found from here",
                                  config.at("model").dump()));
  }
  const std::string timed = value_at<std::string>(config, "/engine/name", engine);
  if (timed != engine)
    text += fmt::format("# the times of the experiment are those of {}, by \"engine\"\n", timed);
  text += "# the load\n" + benchmark(engine, config, notes) + "\n";
  std::ranges::sort(notes);
  notes.erase(std::unique(notes.begin(), notes.end()), notes.end());
  for (const std::string& note : notes)
    text += fmt::format("# {} cannot be told {}\n", engine, note);
  return text;
}

}  // namespace moesim
