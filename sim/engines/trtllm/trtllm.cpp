// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "hardware/quoting.hpp"
#include "sim/engines/serving_engine.hpp"

namespace moesim {

namespace embedded {
std::string_view trtllm();
}

namespace {

// ---- keys of llmapi/llm_args.py@0004396 that have no flag ----

std::string file_name(const Server& s) {
  return s.role.empty() ? "options.yaml" : fmt::format("options-{}.yaml", s.role);
}

// The expert kernels that its load balancer runs on. WIDEEP, an older name for them, is gone (pull
// request 17797, August 2026).
std::string_view balanced_backend(const Server& s) {
  if (s.has_nvfp4 && s.precision.experts == Precision::fp8_block) return "DEEPGEMM";
  if (s.has_nvfp4 && s.precision.experts == Precision::nvfp4) return "CUTEDSL";
  return "CUTLASS";
}

bool starts_from_file(const Server& s) { return s.spreads_experts() && !s.placement_file.empty(); }

bool balances(const Server& s) {
  return s.spreads_experts() && s.placement_file.empty() && s.redundant_experts > 0;
}

std::string load_balancer(const Server& s) {
  if (starts_from_file(s)) return yaml_text(s.placement_file.string());
  return fmt::format("{{num_slots: {}, layer_updates_per_iter: 1}}",
                     s.experts + s.redundant_experts);
}

constexpr KvCacheName kv_caches[] = {{Precision::fp8, "fp8"}, {Precision::nvfp4, "nvfp4"}};

// The file's kv_cache_config takes the place of all that options of the command say of it.
std::string kv_cache_config(const Server& s) {
  std::string text = fmt::format("enable_block_reuse: {}", s.prefix_caching);
  if (s.free_gpu_memory_fraction)
    text += fmt::format(", free_gpu_memory_fraction: {}", *s.free_gpu_memory_fraction);
  if (const auto name = kv_cache_name(kv_caches, s.precision.kv_cache))
    text += fmt::format(", dtype: {}", *name);
  if (s.block_tokens != 16) text += fmt::format(", tokens_per_block: {}", s.block_tokens);
  return fmt::format("{{{}}}", text);
}

OptionsFile options(const Server& s) {
  std::string text;
  const auto add = [&](bool wanted, const char* key, const auto& value) {
    if (wanted) text += fmt::format("{}: {}\n", key, value);
  };
  add(true, "enable_attention_dp", s.parallel.dp > 1);
  add(true, "enable_chunked_prefill", mixes_chunks(s));
  add(true, "kv_cache_config", kv_cache_config(s));
  add(s.largest_graph > 0, "cuda_graph_config",
      fmt::format("{{max_batch_size: {}}}", s.largest_graph));
  // llmapi/reference/MoeConfig.html, 1.3.0rc27.
  const std::string_view experts = runs_mega_moe(s) ? "MEGAMOE_DEEPGEMM" : balanced_backend(s);
  if (starts_from_file(s) || balances(s)) {
    add(true, "moe_config",
        fmt::format("{{backend: {}, load_balancer: {}}}", experts, load_balancer(s)));
  } else {
    add(runs_mega_moe(s), "moe_config", fmt::format("{{backend: {}}}", experts));
  }
  add(s.drafts_itself, "speculative_config",
      fmt::format("{{decoding_type: MTP, max_draft_len: {}}}", s.drafts));
  if (const auto steps = alignment_option(s, "trtllm_balance", "batch_wait_timeout_iters")) {
    const bool balances =
        alignment_option(s, "trtllm_balance", "enable_balance").value_or("") == "true";
    add(balances, "attention_dp_config",
        fmt::format("{{enable_balance: true, timeout_iters: {}}}", *steps));
    add(!balances, "batch_wait_timeout_iters", *steps);
  }
  add(s.evicts, "scheduler_config", "{capacity_scheduler_policy: MAX_UTILIZATION}");
  add(!s.role.empty(), "cache_transceiver_config", "{backend: DEFAULT}");
  add(s.role == "prefill", "disable_overlap_scheduler", "true");
  return {file_name(s), text};
}

// ---- flags ----

constexpr std::string_view serve = "tensorrt_llm/commands/serve.py@0ad591f, after 1.3";

constexpr Flag flags[] = {
    {"--host 0.0.0.0 --port", [](const Server& s) { return value_of(s.port()); }, serve},
    {"--tp_size", [](const Server& s) { return value_of(s.parallel.stage_gpus()); }, serve},
    {"--ep_size", [](const Server& s) { return value_if(s.spreads_experts(), s.parallel.ep); },
     serve},
    {"--pp_size", [](const Server& s) { return unless_one(s.parallel.pp); }, serve},
    {"--max_batch_size", [](const Server& s) { return value_of(s.max_num_seqs); }, serve},
    {"--max_num_tokens", [](const Server& s) { return value_of(s.max_num_batched_tokens); }, serve},
    {"--max_seq_len",
     [](const Server& s) { return value_if(s.max_model_len > 0, s.max_model_len); }, serve},
    {"--extra_llm_api_options", [](const Server& s) { return value_of(file_name(s)); }, serve},
};

constexpr std::string_view dispatches[] = {"all_gather", "one_sided", "mega_moe"};

// It has a process for each GPU; on several nodes MPI starts them (documentation of trtllm-serve).
std::string program(const Server& s) {
  std::string text = s.devices();
  if (s.nodes() > 1)
    text += fmt::format(
        "srun --nodes {} --ntasks {} --ntasks-per-node {} --mpi=pmix \\\n    "
        "trtllm-llmapi-launch ",
        s.nodes(), s.gpus(), std::min(s.gpus_per_node, s.gpus()));
  return text + "trtllm-serve ";
}

std::string mixed_attention(const ParallelPlan& plan) {
  if (plan.dp == 1 || plan.tp == 1) return "";
  return fmt::format(
      "/parallel: dp {} x tp {}; TensorRT-LLM's attention is either data or tensor "
      "parallel",
      plan.dp, plan.tp);
}

Notes notes_of(const Server& s) {
  Notes notes;
  const ParallelPlan& plan = s.parallel;
  if (const std::string why = mixed_attention(plan); !why.empty())
    notes.push_back(why + ": data parallel over all is taken");
  if (plan.pcp > 1)
    notes.push_back(fmt::format(
        "/parallel/pcp: {}; TensorRT-LLM has no context parallelism of this form", plan.pcp));
  if (plan.dcp > 1)
    notes.push_back(fmt::format(
        "/parallel/dcp: {}; TensorRT-LLM has Helix in its place, on servers that decode alone",
        plan.dcp));
  const auto form = s.placement_file.extension();
  if (starts_from_file(s) && form != ".yaml" && form != ".yml")
    notes.push_back(other_form(s.placement_file, "trtllm"));
  if (s.has_windows && !s.keeps_all)
    notes.emplace_back(
        "/kv_cache/disable_hybrid_kv_cache_manager: false; TensorRT-LLM keeps every token unless "
        "kv_cache_config has the windows of all layers as max_attention_window");
  if (balances(s)) note_balancer(s, "of one layer in each step", notes);
  if (s.two_batches) notes.push_back("/overlap: \"two_batch\"; TensorRT-LLM has no such overlap");
  note_waterfill(s, false, notes);
  note_alignment(s, {"trtllm_balance"}, notes);
  if (!s.free_gpu_memory_fraction)
    notes.emplace_back(
        "/kv_cache/gpu_memory_utilization: TensorRT-LLM's fraction is of the memory "
        "that weights leave free; TensorRT-LLM takes its default");
  return notes;
}

std::string router(const Fleet& fleet, Notes& notes) {
  if (!fleet.apart()) {
    notes.emplace_back(
        "/instances: TensorRT-LLM has no router; put one on port 8000 that shares "
        "requests of the OpenAI API among these servers");
    return "";
  }
  std::string text =
      "cat >disaggregated.yaml <<YAML\nhostname: 0.0.0.0\nport: 8000\n"
      "backend: pytorch\n";
  constexpr std::pair<const char*, const char*> roles[] = {{"prefill", "context"},
                                                           {"decode", "generation"}};
  for (const auto& [role, called] : roles) {
    const auto servers = fleet.of_role(role);
    text += fmt::format("{}_servers:\n  num_instances: {}\n  urls:\n", called, servers.size());
    for (const Server* server : servers)
      text += fmt::format("    - \"{}:{}\"\n", server->host(), server->port());
  }
  return text + "YAML\ntrtllm-serve disaggregated -c disaggregated.yaml -t 3600 -r 3600\n";
}

// ---- what else is known ----

// Sizes of TensorRT-LLM 1.0 (tensorrt_llm/llmapi/llm_args.py).
std::int32_t next_graph_size(std::int32_t size) {
  return size < 4 || size >= 128 ? 2 * size : size / 8 * 8 + 8;
}

constexpr ImageVersion images[] = {{"", "1.1.0"}};

// docs.nvidia.com/dynamo, support matrix, backend dependencies.
constexpr CarriedVersion carried[] = {
    {"0.6.", "1.1.0rc5"}, {"0.7.", "1.2.0rc3"}, {"0.8.", "1.2.0rc6"}, {"0.9.", "1.3.0rc1"}};

constexpr std::string_view platforms[] = {"cuda"};

}  // namespace

ServingEngine trtllm_engine() {
  return {
      .name = "trtllm",
      .title = "TensorRT-LLM",
      .preset = embedded::trtllm(),
      .platforms = platforms,
      .unfit = [](const ParallelPlan& plan, const MoeModel&,
                  const PrecisionPlan&) { return mixed_attention(plan); },
      .next_graph_size = next_graph_size,
      .launch = {.program = program,
                 .flags = flags,
                 .dispatches = dispatches,
                 .kv_caches = kv_caches,
                 .notes = notes_of,
                 .options = options,
                 .router = router,
                 // serve/scripts/benchmark_serving.py@0228a71
                 .benchmark = {.program = "python3 -m tensorrt_llm.serve.scripts.benchmark_serving "
                                          "--backend openai --model ",
                               .random_ids = "--random-ids",
                               .to_the_end = "--ignore-eos",
                               .burstiness = "--burstiness"},
                 .image = "nvcr.io/nvidia/tensorrt-llm/release"},
      .images = images,
      .carried = carried};
}

}  // namespace moesim
