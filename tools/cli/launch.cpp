// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/launch.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "hardware/find_value.hpp"
#include "hardware/shipped.hpp"
#include "models/checkpoints.hpp"
#include "tools/cli/quoting.hpp"
#include "tools/cli/table.hpp"

// Flags as the engines' parsers have them: vllm/engine/arg_utils.py and vllm/config/parallel.py,
// python/sglang/srt/server_args.py, tensorrt_llm/commands/serve.py and llmapi/llm_args.py; routers'
// as vllm-project/router and sglang_router have them. A test holds what is printed to the list of
// these flags, and says where each was seen.

namespace moesim {

namespace {

// A policy's type, written bare or as an object: the policies themselves do not know their names.
std::string type_at(const PoolSpec& pool, const std::string& pointer, const char* otherwise) {
  const Json* value = find_value(pool.node.json(), pointer);
  if (value == nullptr || value->is_null()) return otherwise;
  return value->is_string() ? value->get<std::string>() : value->value("type", otherwise);
}

std::string dispatch_of(const PoolSpec& pool, const char* phase) {
  return type_at(pool, fmt::format("/dispatch/{}", phase), "all_gather");
}

// One EP group as one command starts it, or one command on each of its nodes.
struct Server {
  const PoolSpec& pool;
  std::string role;  // "prefill" or "decode" of pools, or empty
  int number = 0;    // among all servers
  int node = 0;      // its first
  int first_gpu = 0;
  bool alone = true;            // no other server
  bool from_pipelines = false;  // KV caches come from prefill workers with pipeline stages

  int per_node() const { return pool.cluster.gpus_per_node; }
  int gpus() const { return pool.parallel.gpus(); }
  int nodes() const { return (gpus() + per_node() - 1) / per_node(); }
  bool whole_nodes() const { return gpus() % per_node() == 0; }
  // Engines take further ports above their own: a hundred for each.
  int port() const { return alone ? 8000 : 8100 + 100 * number; }
  std::string host() const { return fmt::format("$NODE{}", node); }
  std::string url() const { return fmt::format("http://{}:{}", host(), port()); }
};

// More servers than these are not written out.
constexpr int most_servers = 16;

struct Layout {
  std::vector<Server> servers;
  int left_out = 0;
  int nodes = 1;
};

// Groups in a row, each within a node where a node holds it.
Layout layout_of(const ExperimentSpec& spec) {
  Layout layout;
  const bool apart = spec.pools.size() > 1;
  int node = 0, gpu = 0, number = 0;
  int groups = 0;
  for (const PoolSpec& pool : spec.pools) groups += pool.instances;
  for (const PoolSpec& pool : spec.pools) {
    const std::string role = !apart ? "" : pool.prefill_only ? "prefill" : "decode";
    for (int i = 0; i < pool.instances; ++i) {
      Server server{pool, role, number++};
      if (gpu > 0 && gpu + server.gpus() > server.per_node()) ++node, gpu = 0;
      server.node = node;
      server.first_gpu = gpu;
      server.alone = groups == 1;
      server.from_pipelines = spec.pools.front().parallel.pp > 1;
      gpu += server.gpus();
      node += gpu / server.per_node();
      gpu %= server.per_node();
      const int last = node + (gpu > 0 ? 1 : 0);
      // Of every pool the first is shown.
      if (std::ssize(layout.servers) < most_servers || i == 0)
        layout.servers.push_back(server), layout.nodes = std::max(layout.nodes, last);
      else
        ++layout.left_out;
    }
  }
  return layout;
}

// ---- words of commands ----

// A command, broken into lines behind its program.
class Command {
 public:
  explicit Command(std::string program) : text_(std::move(program)), column_(text_.size()) {}
  void add(const std::string& words) {
    constexpr std::size_t columns = 96;
    if (column_ + 1 + words.size() > columns) {
      text_ += " \\\n   ";
      column_ = 3;
    }
    text_ += " " + words;
    column_ += 1 + words.size();
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

// What the commands do not say, a line each.
using Notes = std::vector<std::string>;

// ---- what the experiment says ----

struct Weights {
  std::string path;  // an id of HuggingFace, a folder, or the model's name where none is known
  std::string note;  // what is to be put in its place
};

Weights weights_of(const PoolSpec& pool) {
  const ConfigNode model = pool.node.child("model");
  const auto in_place_of = [&](const std::string& name, const char* why) {
    return Weights{
        name, fmt::format("weights: {}; use a name or path of {} weights instead of {}", why,
                          precision_names[std::size_t(pool.precision.experts)], shell_word(name))};
  };
  if (!model.json().is_string()) return in_place_of(pool.model.name, "the model is not a file");
  const std::filesystem::path file = named_file(model, Shipped::model);
  if (file.filename() == "config.json")
    return {file.has_parent_path() ? file.parent_path().string() : ".", ""};
  const Checkpoints ids = read_checkpoints(ConfigNode::from_file(file));
  if (const auto id = ids.find(pool.precision.experts); id != ids.end()) return {id->second, ""};
  if (ids.empty()) return in_place_of(file.stem().string(), "its file names no \"checkpoints\"");
  return in_place_of(ids.begin()->second, "none are known in the precision of the experiment");
}

// Slots of all GPUs beyond one for each expert.
int redundant_experts(const PoolSpec& pool) {
  const PlacementProblem& problem = pool.placement_problem;
  return pool.model.experts == 0 ? 0 : problem.gpus * problem.slots_per_gpu - problem.experts;
}

bool spreads_experts(const PoolSpec& pool) {
  return pool.model.experts > 0 && pool.parallel.ep > 1;
}

std::filesystem::path placement_file(const PoolSpec& pool) {
  const std::string file = text_at(pool.node.json(), "/placement/file");
  return file.empty() ? std::filesystem::path() : pool.node.relative(file);
}

struct Length {
  int prompt = 0, output = 0;  // 0: not one number
  int total() const { return prompt + output + 32; }
  bool known() const { return prompt > 0 && output > 0; }
};
Length lengths_of(const PoolSpec& pool) {
  const Json& config = pool.node.json();
  return {static_cast<int>(number_at(config, "/workload/lengths/prompt", 0)),
          static_cast<int>(number_at(config, "/workload/lengths/output", 0))};
}

// Whose meaning the experiment's share of memory has: an engine's, or nobody's where none is named.
bool timed_as(const PoolSpec& pool, std::string_view engine) {
  return std::string_view(pool.engine).substr(0, pool.engine.find(' ')) == engine;
}

std::string quoted_name(const std::string& name) { return fmt::format("\"{}\"", name); }

// What no engine can be told.
void note_common(const PoolSpec& pool, Notes& notes) {
  const auto note = [&](const char* pointer, const std::string& name, std::string_view usual) {
    if (name != usual) notes.push_back(fmt::format("{}: {}", pointer, quoted_name(name)));
  };
  note("/capacity", type_at(pool, "/capacity", "dropless"), "dropless");
  note("/expert_memory", type_at(pool, "/expert_memory", "resident"), "resident");
  note("/rebalancing", std::string(pool.rebalancing.name()), "none");
  note("/token_routing/decode", type_at(pool, "/token_routing/decode", "even"), "even");
  const std::string placement = type_at(pool, "/placement", "linear");
  if (placement != "eplb" && placement != "from_file") note("/placement", placement, "linear");
  if (placement == "eplb" && spreads_experts(pool) && redundant_experts(pool) == 0)
    notes.push_back(
        "/placement: \"eplb\"; without copies of experts no balancer is turned on, and "
        "experts keep their order");
  if (pool.speculation.tokens > 0 && !pool.speculation.mtp)
    notes.push_back("/speculative/draft: the model that drafts; name it by the engine's own flag");
}

// How a placement file is written in an engine's own form.
std::string other_form(const std::filesystem::path& file, const char* engine) {
  return fmt::format(
      "/placement/file: {0} has no form that it reads; this writes one: "
      "moesim place --placement {0} --format {1}",
      shell_path(file.string()), engine);
}

// That an engine moves experts by what it sees, while the experiment's placement stands still.
void note_balancer(const PoolSpec& pool, const char* how_often, Notes& notes) {
  if (pool.rebalancing.name() == "none")
    notes.push_back(fmt::format(
        "/placement: fixed in the experiment; the engine moves experts {}, by the load it sees",
        how_often));
}

// Whether two batches overlap. Both engines refuse to start so without DeepEP.
bool two_batches(const PoolSpec& pool, bool deep_ep, Notes& notes) {
  const bool wanted = pool.overlap.two_batch.has_value();
  if (wanted && !deep_ep)
    notes.push_back("/overlap: \"two_batch\" without an all-to-all; theirs needs DeepEP");
  return wanted && deep_ep;
}

// ---- how each engine starts a server ----

// The GPUs of a node that a server has, where it has not all.
std::string devices_of(const Server& server) {
  if (server.gpus() >= server.per_node()) return "";
  std::vector<int> gpus(static_cast<std::size_t>(server.gpus()));
  for (std::size_t i = 0; i < gpus.size(); ++i) gpus[i] = server.first_gpu + static_cast<int>(i);
  return fmt::format("CUDA_VISIBLE_DEVICES={} ", fmt::join(gpus, ","));
}

// Rows that a decode step of a rank brings to its experts at most, drafts too.
std::int64_t most_decode_rows(const PoolSpec& pool) {
  return std::int64_t{pool.scheduler->max_num_seqs()} * (1 + pool.speculation.tokens);
}
// DeepEP's low-latency kernels count to 1,024 rows of a rank (csrc/kernels/internode_ll.cu).
constexpr std::int64_t low_latency_rows = 1023;

// Whether each node has attention ranks of its own, which vLLM then counts by node.
bool ranks_by_node(const Server& s) {
  const ParallelPlan& plan = s.pool.parallel;
  return s.nodes() > 1 && plan.dp > 1 && plan.pp == 1 && s.per_node() % plan.tp == 0;
}

// `most_tokens` of a step: those that the chosen exchange takes.
void vllm_experts(const PoolSpec& pool, const std::string& role, bool& deep,
                  std::int64_t& most_tokens, Command& command, Notes& notes) {
  if (!spreads_experts(pool)) return;
  command.add("--enable-expert-parallel");
  const ParallelPlan& plan = pool.parallel;
  if (plan.ep < plan.stage_gpus())
    notes.push_back(
        fmt::format("/parallel/ep: {} of {} GPUs; vLLM spreads experts over all of "
                    "them",
                    plan.ep, plan.stage_gpus()));
  if (plan.dp > 1) {
    const std::string prefill = dispatch_of(pool, "prefill"), decode = dispatch_of(pool, "decode");
    const std::string& chosen = role == "prefill" ? prefill : decode;
    const bool direct = chosen == "low_latency" && most_decode_rows(pool) <= low_latency_rows;
    deep = chosen == "low_latency" || chosen == "all_to_all";
    if (deep)
      command.add("--all2all-backend", direct ? "deepep_low_latency" : "deepep_high_throughput");
    if (direct) most_tokens = std::clamp<std::int64_t>(most_decode_rows(pool), 256, most_tokens);
    if (chosen == "low_latency" && !direct)
      notes.push_back(
          fmt::format("/dispatch/{}: \"low_latency\"; DeepEP's kernels take at most {} rows of a "
                      "rank, {} sequences bring {}",
                      role == "prefill" ? role : "decode", low_latency_rows,
                      pool.scheduler->max_num_seqs(), most_decode_rows(pool)));
    if (role.empty() && prefill != decode)
      notes.push_back(
          fmt::format("/dispatch/prefill: {}; vLLM has one backend for both phases, "
                      "that of decode is taken",
                      quoted_name(prefill)));
  }
  if (!placement_file(pool).empty())
    notes.push_back("/placement/file: vLLM makes its own placement from the load it sees");
  const int redundant = redundant_experts(pool);
  if (redundant == 0) return;
  if (pool.precision.experts == Precision::mxfp4) {
    notes.push_back("/placement/replication: vLLM has no EPLB for experts in MXFP4");
    return;
  }
  command.add(
      fmt::format("--enable-eplb --eplb-config '{{\"num_redundant_experts\":{}}}'", redundant));
  note_balancer(pool, "every 3,000 steps", notes);
}

std::string vllm(const Server& server, const std::string& weights, Notes& notes) {
  const PoolSpec& pool = server.pool;
  const ParallelPlan& plan = pool.parallel;
  std::string variables = devices_of(server);
  if (!server.role.empty())
    variables +=
        fmt::format("VLLM_NIXL_SIDE_CHANNEL_HOST={} VLLM_NIXL_SIDE_CHANNEL_PORT={} ",
                    server.nodes() > 1 ? "$(hostname -i)" : server.host(), server.port() + 1000);
  Command command(variables + "vllm serve " + weights);
  command.add("--port", server.port());
  if (plan.tp > 1) command.add("--tensor-parallel-size", plan.tp);
  if (plan.dp > 1) command.add("--data-parallel-size", plan.dp);
  if (plan.pp > 1) command.add("--pipeline-parallel-size", plan.pp);
  if (ranks_by_node(server)) {
    command.add("--data-parallel-size-local", server.per_node() / plan.tp);
    command.add(fmt::format("--data-parallel-address {} --data-parallel-rpc-port {}", server.host(),
                            server.port() + 50));
  } else if (server.nodes() > 1) {
    command.add(fmt::format("--nnodes {} --node-rank $RANK --master-addr {}", server.nodes(),
                            server.host()));
  }
  bool deep = false;
  const std::int64_t asked_tokens = pool.scheduler->max_num_batched_tokens();
  std::int64_t most_tokens = asked_tokens;
  vllm_experts(pool, server.role, deep, most_tokens, command, notes);
  command.add("--max-num-seqs", pool.scheduler->max_num_seqs());
  command.add("--max-num-batched-tokens", most_tokens);
  // vLLM allocates DeepEP's low-latency buffers for as many tokens (all2all_utils.py).
  if (most_tokens < asked_tokens)
    notes.push_back(fmt::format(
        "/scheduling/max_num_batched_tokens: {}; DeepEP's low-latency buffers hold {} here",
        asked_tokens, most_tokens));
  if (type_at(pool, "/scheduling", "") == "prefill_first")
    notes.push_back("/scheduling: \"prefill_first\"; vLLM mixes prompt chunks with decodes");
  if (const Length length = lengths_of(pool); length.known())
    command.add("--max-model-len", length.total());
  if (pool.engine.empty() || timed_as(pool, "vllm"))
    command.add("--gpu-memory-utilization", pool.kv_cache.gpu_memory_utilization);
  else
    notes.push_back("/kv_cache: the share of memory is another engine's; vLLM takes its default");
  if (pool.precision.kv_cache == Precision::fp8) command.add("--kv-cache-dtype", "fp8");
  if (!pool.prefix_caching) command.add("--no-enable-prefix-caching");
  if (pool.speculation.has_module())
    command.add("--speculative-config",
                fmt::format("'{{\"method\":\"mtp\",\"num_speculative_tokens\":{}}}'",
                            pool.speculation.tokens));
  if (two_batches(pool, deep, notes)) command.add("--enable-dbo");
  if (!server.role.empty()) {
    // NixlConnector knows no pipeline stages; the one that pushes takes them from prefill workers
    // (vLLM's pull request 45880, merged in July 2026; issue 52913).
    command.add("--kv-transfer-config",
                fmt::format("'{{\"kv_connector\":\"{}\",\"kv_role\":\"kv_both\"}}'",
                            server.from_pipelines ? "NixlPushConnector" : "NixlConnector"));
    if (server.from_pipelines)
      notes.push_back("/pools/prefill/parallel/pp before NixlPushConnector (after July 2026)");
    if (server.role == "decode" && plan.pp > 1)
      notes.push_back("/pools/decode/parallel/pp: no NIXL connector hands KV caches to stages");
  }
  return command.text();
}

// DeepEP's mode, empty without DeepEP. Where one server does both, its prefill steps bring more
// rows than the low-latency kernels take.
std::string_view deepep_mode(const PoolSpec& pool, std::string_view role) {
  const bool direct = dispatch_of(pool, "decode") == "low_latency";
  const bool whole = dispatch_of(pool, "prefill") == "all_to_all";
  if (!spreads_experts(pool) || pool.parallel.dp == 1 || !(direct || whole)) return "";
  if (role == "prefill" || (role.empty() && !direct)) return "normal";
  return role == "decode" ? "low_latency" : "auto";
}

// What SGLang allocates for the low-latency kernels where its 128 rows of a rank are not enough.
std::string deepep_variables(const PoolSpec& pool, std::string_view mode, Notes& notes) {
  constexpr std::int64_t usual_rows = 128, usual_depth = 1024;
  if (mode.empty() || mode == "normal" || most_decode_rows(pool) <= usual_rows) return "";
  const std::int64_t rows = std::min(most_decode_rows(pool), low_latency_rows + 1);
  if (rows < most_decode_rows(pool))
    notes.push_back(
        fmt::format("/scheduling/max_num_seqs: {}; DeepEP's low-latency kernels take "
                    "at most {} rows of a rank",
                    pool.scheduler->max_num_seqs(), rows));
  // DeepEP keeps two requests of a row in flight (deep_ep/buffer.py).
  const std::int64_t depth = 2 * (rows + 1);
  return fmt::format("SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK={} {}", rows,
                     depth > usual_depth ? fmt::format("NVSHMEM_QP_DEPTH={} ", depth) : "");
}

void sglang_experts(const PoolSpec& pool, std::string_view mode, Command& command, Notes& notes) {
  if (!spreads_experts(pool)) return;
  command.add("--ep-size", pool.parallel.ep);
  if (!mode.empty()) command.add(fmt::format("--moe-a2a-backend deepep --deepep-mode {}", mode));
  const int redundant = redundant_experts(pool);
  if (redundant > 0)
    command.add(fmt::format(
        "--ep-num-redundant-experts {} --ep-dispatch-algorithm {}", redundant,
        type_at(pool, "/token_routing/decode", "even") == "sglang_static" ? "static" : "dynamic"));
  if (const std::filesystem::path file = placement_file(pool); !file.empty()) {
    command.add("--init-expert-location", shell_path(file.string()));
    if (file.extension() != ".json") notes.push_back(other_form(file, "sglang"));
  } else if (redundant > 0 && mode == "auto") {
    // Its recorder knows one mode alone (srt/eplb/expert_distribution.py).
    notes.push_back(
        "/placement: SGLang's EPLB does not go with DeepEP's mode auto; experts keep "
        "their order");
  } else if (redundant > 0) {
    command.add("--enable-eplb");
    note_balancer(pool, "every 1,000 steps", notes);
  }
}

std::string sglang(const Server& server, const std::string& weights, Notes& notes) {
  const PoolSpec& pool = server.pool;
  const ParallelPlan& plan = pool.parallel;
  const std::string_view mode = deepep_mode(pool, server.role);
  Command command(devices_of(server) + deepep_variables(pool, mode, notes) +
                  "python3 -m sglang.launch_server --model-path " + weights);
  command.add(fmt::format("--host 0.0.0.0 --port {}", server.port()));
  // Its tensor-parallel size is that of the experts; attention ranks divide it.
  command.add("--tp-size", plan.stage_gpus());
  if (plan.dp > 1) command.add(fmt::format("--dp-size {} --enable-dp-attention", plan.dp));
  if (plan.pp > 1) command.add("--pp-size", plan.pp);
  if (server.nodes() > 1)
    command.add(fmt::format("--nnodes {} --node-rank $RANK --dist-init-addr {}:{}", server.nodes(),
                            server.host(), server.port() + 50));
  sglang_experts(pool, mode, command, notes);
  // Both are of all attention ranks together.
  command.add("--max-running-requests", std::int64_t{pool.scheduler->max_num_seqs()} * plan.dp);
  command.add("--chunked-prefill-size",
              std::int64_t{pool.scheduler->max_num_batched_tokens()} * plan.dp);
  if (type_at(pool, "/scheduling", "") == "chunked_prefill") command.add("--enable-mixed-chunk");
  if (const Length length = lengths_of(pool); length.known())
    command.add("--context-length", length.total());
  // Its share is that of weights and KV cache alone; vLLM's is of all that the GPU holds.
  if (timed_as(pool, "sglang"))
    command.add("--mem-fraction-static", pool.kv_cache.gpu_memory_utilization);
  else
    notes.push_back(
        "/kv_cache/gpu_memory_utilization: SGLang's --mem-fraction-static counts "
        "weights and KV cache alone; SGLang chooses it");
  if (pool.precision.kv_cache == Precision::fp8) command.add("--kv-cache-dtype", "fp8_e4m3");
  if (!pool.prefix_caching) command.add("--disable-radix-cache");
  if (const int drafts = pool.speculation.tokens; pool.speculation.has_module())
    command.add(
        fmt::format("--speculative-algorithm EAGLE --speculative-num-steps {} "
                    "--speculative-eagle-topk 1 --speculative-num-draft-tokens {}",
                    drafts, drafts + 1));
  if (two_batches(pool, !mode.empty(), notes)) command.add("--enable-two-batch-overlap");
  if (!server.role.empty()) {
    command.add(fmt::format("--disaggregation-mode {} --disaggregation-transfer-backend nixl",
                            server.role));
    if (server.role == "prefill")
      command.add("--disaggregation-bootstrap-port", server.port() + 90);
  }
  return command.text();
}

// The expert kernels of TensorRT-LLM that its load balancer runs on. WIDEEP, an older name for
// them, is gone (pull request 17797, August 2026).
std::string_view balanced_backend(const PoolSpec& pool) {
  const bool blackwell = pool.cluster.gpu.dense_peak.contains(Precision::nvfp4);
  if (blackwell && pool.precision.experts == Precision::fp8_block) return "DEEPGEMM";
  if (blackwell && pool.precision.experts == Precision::nvfp4) return "CUTEDSL";
  return "CUTLASS";
}

// The options of TensorRT-LLM that have no flag: keys of llm_args.py.
std::string trtllm_options(const Server& server, Notes& notes) {
  const PoolSpec& pool = server.pool;
  std::string options = fmt::format("enable_attention_dp: {}\n", pool.parallel.dp > 1);
  const bool chunked = type_at(pool, "/scheduling", "chunked_prefill") == "chunked_prefill";
  options += fmt::format("enable_chunked_prefill: {}\n", chunked);
  options += fmt::format("kv_cache_config: {{enable_block_reuse: {}{}}}\n", pool.prefix_caching,
                         pool.precision.kv_cache == Precision::fp8 ? ", dtype: fp8" : "");
  const int redundant = redundant_experts(pool);
  const std::filesystem::path file = placement_file(pool);
  if (spreads_experts(pool) && !file.empty()) {
    options += fmt::format("moe_config: {{backend: {}, load_balancer: {}}}\n",
                           balanced_backend(pool), yaml_text(file.string()));
    if (file.extension() != ".yaml" && file.extension() != ".yml")
      notes.push_back(other_form(file, "trtllm"));
  } else if (spreads_experts(pool) && redundant > 0) {
    options += fmt::format(
        "moe_config: {{backend: {}, load_balancer: {{num_slots: {}, "
        "layer_updates_per_iter: 1}}}}\n",
        balanced_backend(pool), pool.model.experts + redundant);
    note_balancer(pool, "of one layer in each step", notes);
  }
  if (pool.speculation.has_module())
    options += fmt::format("speculative_config: {{decoding_type: MTP, max_draft_len: {}}}\n",
                           pool.speculation.tokens);
  if (!server.role.empty()) options += "cache_transceiver_config: {backend: DEFAULT}\n";
  if (server.role == "prefill") options += "disable_overlap_scheduler: true\n";
  return options;
}

std::string trtllm_file(const std::string& role) {
  return role.empty() ? "options.yaml" : fmt::format("options-{}.yaml", role);
}

std::string trtllm(const Server& server, const std::string& weights, Notes& notes) {
  const PoolSpec& pool = server.pool;
  const ParallelPlan& plan = pool.parallel;
  if (plan.dp > 1 && plan.tp > 1)
    notes.push_back(
        fmt::format("/parallel: dp {} x tp {}; TensorRT-LLM's attention is either data "
                    "or tensor parallel: data parallel over all is taken",
                    plan.dp, plan.tp));
  // It has a process for each GPU; on several nodes MPI starts them.
  std::string program = devices_of(server);
  if (server.nodes() > 1)
    program += fmt::format(
        "srun --nodes {} --ntasks {} --ntasks-per-node {} --mpi=pmix \\\n    "
        "trtllm-llmapi-launch ",
        server.nodes(), server.gpus(), std::min(server.per_node(), server.gpus()));
  Command command(program + "trtllm-serve " + weights);
  command.add(fmt::format("--host 0.0.0.0 --port {}", server.port()));
  command.add("--tp_size", plan.stage_gpus());
  if (spreads_experts(pool)) command.add("--ep_size", plan.ep);
  if (plan.pp > 1) command.add("--pp_size", plan.pp);
  command.add("--max_batch_size", pool.scheduler->max_num_seqs());
  command.add("--max_num_tokens", pool.scheduler->max_num_batched_tokens());
  if (const Length length = lengths_of(pool); length.known())
    command.add("--max_seq_len", length.total());
  if (pool.kv_cache.free_gpu_memory_fraction)
    command.add("--kv_cache_free_gpu_memory_fraction", *pool.kv_cache.free_gpu_memory_fraction);
  else
    notes.push_back(
        "/kv_cache/gpu_memory_utilization: TensorRT-LLM's fraction is of the memory "
        "that weights leave free; TensorRT-LLM takes its default");
  command.add("--extra_llm_api_options", trtllm_file(server.role));
  return command.text();
}

// ---- what joins the servers ----

// The policy of vLLM's and SGLang's routers that is the experiment's.
std::string router_policy(const PoolSpec& pool, Notes& notes) {
  const std::string wanted(pool.request_routing.name());
  for (const char* known : {"random", "round_robin", "power_of_two", "cache_aware"})
    if (wanted == known) return wanted;
  notes.push_back(
      fmt::format("/request_routing: {}; the router sends requests in turn", quoted_name(wanted)));
  return "round_robin";
}

std::vector<const Server*> of_role(const Layout& layout, std::string_view role) {
  std::vector<const Server*> servers;
  for (const Server& server : layout.servers)
    if (server.role == role) servers.push_back(&server);
  return servers;
}

std::string http_router(const std::string& engine, const Layout& layout, Notes& notes) {
  const bool sglang = engine == "sglang";
  Command command(sglang ? "python3 -m sglang_router.launch_router" : "vllm-router");
  command.add("--policy", router_policy(layout.servers.back().pool, notes));
  if (layout.servers.front().role.empty()) {
    command.add("--worker-urls");
    for (const Server& server : layout.servers) command.add(server.url());
  } else {
    if (!sglang && layout.servers.back().from_pipelines) {
      notes.push_back(
          "the router: vllm-router does not know NixlPushConnector; start vLLM's "
          "disagg_proxy_pushconnector_demo.py before the servers");
      return "";
    }
    command.add(sglang ? "--pd-disaggregation" : "--vllm-pd-disaggregation");
    for (const Server* server : of_role(layout, "prefill")) {
      const std::string bootstrap = sglang ? fmt::format(" {}", server->port() + 90) : "";
      command.add(fmt::format("--prefill {}{}", server->url(), bootstrap));
    }
    for (const Server* server : of_role(layout, "decode")) command.add("--decode", server->url());
  }
  command.add("--host 0.0.0.0 --port 8000");
  return command.text() + "\n";
}

std::string trtllm_router(const Layout& layout, Notes& notes) {
  if (layout.servers.front().role.empty()) {
    std::vector<std::string> urls;
    for (const Server& server : layout.servers) urls.push_back(server.url());
    notes.push_back(
        "/instances: TensorRT-LLM has no router; put one on port 8000 that shares "
        "requests of the OpenAI API among these servers");
    return "";
  }
  std::string text =
      "cat >disaggregated.yaml <<YAML\nhostname: 0.0.0.0\nport: 8000\n"
      "backend: pytorch\n";
  for (const char* role : {"prefill", "decode"}) {
    const auto servers = of_role(layout, role);
    text +=
        fmt::format("{}_servers:\n  num_instances: {}\n  urls:\n",
                    std::string_view(role) == "prefill" ? "context" : "generation", servers.size());
    for (const Server* server : servers)
      text += fmt::format("    - \"{}:{}\"\n", server->host(), server->port());
  }
  return text + "YAML\ntrtllm-serve disaggregated -c disaggregated.yaml -t 3600 -r 3600\n";
}

// ---- the load ----

int requests_in_flight(const ExperimentSpec& spec) {
  const Json& config = spec.node.json();
  if (const double many = number_at(config, "/workload/arrivals/concurrency", 0); many > 0)
    return static_cast<int>(many);
  const double of_rank = number_at(config, "/workload/arrivals/concurrency_per_rank", 0);
  return static_cast<int>(of_rank) * spec.pools.back().ranks();
}

// The experiment's load, as the engine's own benchmark makes it.
std::string benchmark(const std::string& engine, const ExperimentSpec& spec,
                      const std::string& weights, Notes& notes) {
  Command command((engine == "vllm" ? "vllm bench serve --model "
                   : engine == "sglang"
                       ? "python3 -m sglang.bench_serving --backend sglang --model "
                       : "python3 -m tensorrt_llm.serve.scripts.benchmark_serving "
                         "--backend openai --model ") +
                  weights);
  command.add("--host $NODE0 --port 8000");
  if (const Length length = lengths_of(spec.pools.back()); length.known()) {
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
  const std::string rate = text_at(spec.node.json(), "/workload/arrivals/rate");
  if (!rate.empty())
    command.add("--request-rate", number_text(parse_quantity<PerSecond>(rate).value()));
  else if (const int many = requests_in_flight(spec); many > 0)
    command.add("--max-concurrency", many);
  else
    notes.push_back("/workload/arrivals: give the benchmark a rate");
  command.add("--num-prompts", spec.pools.back().workload.requests);
  return command.text();
}

// ---- all of it ----

// Where the nodes are: a name that is put into the commands, to be changed.
std::string addresses(const Layout& layout) {
  if (layout.nodes == 1) return "NODE0=127.0.0.1\n";
  std::string text;
  for (int node = 0; node < layout.nodes; ++node)
    text += fmt::format("{}NODE{}=node{}", node > 0 ? " " : "", node, node);
  return text + "  # put the addresses of your nodes here, in each terminal\n";
}

std::string where(const Server& server, int nodes) {
  if (server.nodes() > 1)
    return fmt::format(" on nodes {} to {}", server.node, server.node + server.nodes() - 1);
  return nodes > 1 ? fmt::format(" on node {}", server.node) : "";
}

// A server's command, and how it is run where one node does not hold the server.
std::string server_text(const std::string& engine, const Server& server,
                        const std::string& command) {
  if (server.nodes() == 1 || engine == "trtllm") return command + "\n";
  const int others = server.nodes() - 1;
  if (engine == "sglang")
    return fmt::format("RANK=0  # the place of this node among them, 0 to {}\n{}\n", others,
                       command);
  std::string headless = command + " \\\n    --headless";
  if (ranks_by_node(server))
    headless += fmt::format(" --data-parallel-start-rank $((RANK * {}))",
                            server.per_node() / server.pool.parallel.tp);
  return fmt::format("RANK=0\n{}\nRANK=1  # the place of each other node, 1 to {}\n{}\n", command,
                     others, headless);
}

}  // namespace

std::string launch_text(const std::string& engine, const ExperimentSpec& spec) {
  const auto serve = engine == "vllm" ? vllm : engine == "sglang" ? sglang : trtllm;
  const Layout layout = layout_of(spec);
  const Weights weights = weights_of(spec.pools.back());
  const std::string path = shell_path(weights.path);
  Notes notes;
  if (!weights.note.empty()) notes.push_back(weights.note);
  std::string text = layout.servers.size() > 1 || layout.nodes > 1
                         ? "# each command in a terminal of its own, on its node\n"
                         : "";
  text += addresses(layout);
  std::string written;  // for which pool options stand in a file already
  for (const Server& server : layout.servers) {
    const std::string role = server.role.empty() ? "" : server.role + ": ";
    text += fmt::format("# {}{} GPU{}{}\n", role, server.gpus(), server.gpus() == 1 ? "" : "s",
                        where(server, layout.nodes));
    if (const std::string file = trtllm_file(server.role); engine == "trtllm" && written != file) {
      text += fmt::format("cat >{} <<'YAML'\n{}YAML\n", file, trtllm_options(server, notes));
      written = file;
    }
    text += server_text(engine, server, serve(server, path, notes));
  }
  if (layout.left_out > 0)
    text += fmt::format(
        "# and {} more servers of this kind, each on the next GPUs and the next hundred of "
        "ports\n",
        layout.left_out);
  if (layout.servers.size() > 1) {
    const std::string router =
        engine == "trtllm" ? trtllm_router(layout, notes) : http_router(engine, layout, notes);
    if (!router.empty()) text += "# the router of requests\n" + router;
  }
  text += "# the load\n" + benchmark(engine, spec, path, notes) + "\n";
  for (const PoolSpec& pool : spec.pools) note_common(pool, notes);
  const std::string& timed = spec.pools.back().engine;
  if (!timed.empty() && !timed_as(spec.pools.back(), engine))
    text += fmt::format("# predicted for {}, not for {}\n", shell_word(timed), engine);
  std::ranges::sort(notes);
  notes.erase(std::unique(notes.begin(), notes.end()), notes.end());
  for (const std::string& note : notes) text += fmt::format("# not in these commands: {}\n", note);
  return text;
}

}  // namespace moesim
