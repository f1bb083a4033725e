// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "sim/engines/serving_engine.hpp"

namespace moesim {

namespace embedded {
std::string_view vllm();
}

namespace {

// How tokens reach their experts. vLLM has one backend for both phases.
struct Backend {
  bool deep_ep = false;
  bool low_latency = false;      // its kernels for few rows
  bool one_sided = false;        // FlashInfer's over NVLink
  bool mega_moe = false;         // within the experts' kernel
  std::int64_t most_tokens = 0;  // of a rank and step, that the backend takes
};

const std::string& dispatch_of(const Server& s) {
  return s.role == "prefill" ? s.prefill_dispatch : s.decode_dispatch;
}

Backend backend_of(const Server& s) {
  Backend backend{.most_tokens = s.max_num_batched_tokens};
  if (!s.spreads_experts() || s.parallel.dp == 1) return backend;
  const std::string& wanted = dispatch_of(s);
  const std::int64_t rows = s.most_decode_rows();
  backend.low_latency = wanted == "low_latency" && rows <= low_latency_rows;
  backend.deep_ep = wanted == "low_latency" || wanted == "all_to_all";
  backend.one_sided = wanted == "one_sided";
  backend.mega_moe = wanted == "mega_moe";
  if (backend.low_latency)
    backend.most_tokens = std::min(std::max<std::int64_t>(rows, 256), backend.most_tokens);
  return backend;
}

// True if each node has attention ranks of its own, which vLLM then counts by node.
bool ranks_by_node(const Server& s) {
  const ParallelPlan& plan = s.parallel;
  return s.nodes() > 1 && plan.dp > 1 && plan.pp == 1 && s.gpus_per_node % plan.tp == 0;
}

bool balances(const Server& s) {
  return s.spreads_experts() && s.redundant_experts > 0 && s.precision.experts != Precision::mxfp4;
}

// An experiment without an engine means its share of memory as vLLM does.
bool has_own_share(const Server& s) {
  return (s.engine.empty() || s.engine == "vllm") && !s.free_gpu_memory_fraction;
}

// NixlConnector knows no pipeline stages; the one that pushes takes them from prefill workers
// (vLLM's pull request 45880, merged in July 2026; issue 52913).
std::string kv_transfer(const Server& s) {
  return fmt::format(R"('{{"kv_connector":"{}","kv_role":"kv_both"}}')",
                     s.from_pipelines ? "NixlPushConnector" : "NixlConnector");
}

// vllm/config/cache.py@002f10e.
constexpr KvCacheName kv_caches[] = {{Precision::fp8, "fp8"},
                                     {Precision::nvfp4, "nvfp4"},
                                     {Precision::int8, "int8_per_token_head"},
                                     {Precision::int4, "int4_per_token_head"}};

constexpr std::string_view arguments = "vllm/engine/arg_utils.py@09155ae, November 2026";
constexpr std::string_view parallel = "vllm/config/parallel.py@00193b8, November 2026";

constexpr Flag flags[] = {
    {"--port", [](const Server& s) { return value_of(s.port()); }, arguments},
    {"--tensor-parallel-size", [](const Server& s) { return unless_one(s.parallel.slices()); },
     parallel},
    {"--prefill-context-parallel-size", [](const Server& s) { return unless_one(s.parallel.pcp); },
     parallel},
    {"--data-parallel-size", [](const Server& s) { return unless_one(s.parallel.dp); }, parallel},
    {"--pipeline-parallel-size", [](const Server& s) { return unless_one(s.parallel.pp); },
     parallel},
    {"--decode-context-parallel-size", [](const Server& s) { return unless_one(s.parallel.dcp); },
     parallel},
    {"--dcp-comm-backend",
     [](const Server& s) {
       return value_if(s.parallel.dcp > 1 && s.parallel.dcp_merge == DcpMerge::all_to_all, "a2a");
     },
     parallel},
    {"--data-parallel-size-local",
     [](const Server& s) { return value_if(ranks_by_node(s), s.gpus_per_node / s.parallel.tp); },
     parallel},
    {"--data-parallel-address",
     [](const Server& s) {
       return value_if(ranks_by_node(s),
                       fmt::format("{} --data-parallel-rpc-port {}", s.host(), s.port() + 50));
     },
     parallel},
    {"--nnodes",
     [](const Server& s) {
       return value_if(s.nodes() > 1 && !ranks_by_node(s),
                       fmt::format("{} --node-rank $RANK --master-addr {}", s.nodes(), s.host()));
     },
     parallel},
    {"--enable-expert-parallel", [](const Server& s) { return alone_if(s.spreads_experts()); },
     parallel},
    {"--all2all-backend",
     [](const Server& s) {
       const Backend backend = backend_of(s);
       if (backend.one_sided) return value_of("flashinfer_nvlink_one_sided");
       // ROCm has MoRI in DeepEP's place (vllm#28664).
       return value_if(backend.deep_ep,
                       fmt::format("{}_{}", s.platform == "rocm" ? "mori" : "deepep",
                                   backend.low_latency ? "low_latency" : "high_throughput"));
     },
     parallel},
    {"--moe-backend",
     [](const Server& s) { return value_if(backend_of(s).mega_moe, "deep_gemm_mega_moe"); },
     "docs.vllm.ai/en/latest/api, deep_gemm_mega_moe, November 2026"},
    {"--enable-eplb",
     [](const Server& s) {
       return value_if(balances(s), fmt::format(R"(--eplb-config '{{"num_redundant_experts":{}}}')",
                                                s.redundant_experts));
     },
     parallel},
    {"--max-num-seqs", [](const Server& s) { return value_of(s.max_num_seqs); }, arguments},
    {"--max-num-batched-tokens",
     [](const Server& s) { return value_of(backend_of(s).most_tokens); }, arguments},
    {"--long-prefill-token-threshold",
     [](const Server& s) { return value_if(s.long_prefill_tokens > 0, s.long_prefill_tokens); },
     arguments},
    {"--no-scheduler-reserve-full-isl",
     [](const Server& s) { return alone_if(!s.reserves_prompts); }, arguments},
    {"--max-cudagraph-capture-size",
     [](const Server& s) { return value_if(s.largest_graph > 0, s.largest_graph); }, arguments},
    {"--prefill-schedule-interval",
     [](const Server& s) {
       return alignment_option(s, "vllm_interval", "prefill_schedule_interval");
     },
     "vllm/config/scheduler.py, vllm#44558, June 2026"},
    {"--scheduling-policy",
     [](const Server& s) { return value_if(s.scheduling == "priority", "priority"); }, arguments},
    {"--max-model-len",
     [](const Server& s) { return value_if(s.max_model_len > 0, s.max_model_len); }, arguments},
    {"--gpu-memory-utilization",
     [](const Server& s) { return value_if(has_own_share(s), s.gpu_memory_utilization); },
     arguments},
    {"--kv-cache-dtype",
     [](const Server& s) { return kv_cache_name(kv_caches, s.precision.kv_cache); }, arguments},
    {"--block-size", [](const Server& s) { return value_if(s.block_tokens != 16, s.block_tokens); },
     arguments},
    {"--no-enable-prefix-caching", [](const Server& s) { return alone_if(!s.prefix_caching); },
     arguments},
    {"--disable-hybrid-kv-cache-manager",
     [](const Server& s) { return alone_if(s.has_windows && s.keeps_all); }, arguments},
    {"--speculative-config",
     [](const Server& s) {
       return value_if(
           s.drafts_itself,
           fmt::format(R"('{{"method":"mtp","num_speculative_tokens":{}}}')", s.drafts));
     },
     arguments},
    {"--enable-dbo",
     [](const Server& s) { return alone_if(s.two_batches && backend_of(s).deep_ep); }, parallel},
    {"--kv-transfer-config",
     [](const Server& s) { return value_if(!s.role.empty(), kv_transfer(s)); }, arguments},
};

constexpr std::string_view dispatches[] = {"all_gather", "all_to_all", "low_latency", "one_sided",
                                           "mega_moe"};

std::string program(const Server& s) {
  std::string variables = s.devices();
  if (!s.role.empty())
    variables += fmt::format("VLLM_NIXL_SIDE_CHANNEL_HOST={} VLLM_NIXL_SIDE_CHANNEL_PORT={} ",
                             s.nodes() > 1 ? "$(hostname -i)" : s.host(), s.port() + 1000);
  return variables + "vllm serve ";
}

// The group of experts is that of all GPUs of a stage (distributed/parallel_state.py).
std::string part_of_experts(const ParallelPlan& plan) {
  if (plan.ep == 1 || plan.ep >= plan.stage_gpus() || plan.afd()) return "";
  return fmt::format("/parallel/ep: {} of {} GPUs; vLLM spreads experts over all of them", plan.ep,
                     plan.stage_gpus());
}

void note_experts(const Server& s, Notes& notes) {
  if (!s.spreads_experts()) return;
  if (std::string why = part_of_experts(s.parallel); !why.empty()) notes.push_back(std::move(why));
  if (!s.placement_file.empty())
    notes.emplace_back("/placement/file: vLLM makes its own placement from the load it sees");
  if (balances(s))
    note_balancer(s, "every 3,000 steps", notes);
  else if (s.redundant_experts > 0)
    notes.emplace_back("/placement/replication: vLLM has no EPLB for experts in MXFP4");
}

void note_backend(const Server& s, Notes& notes) {
  const Backend backend = backend_of(s);
  // vLLM allocates DeepEP's low-latency buffers for as many tokens (all2all_utils.py@02bd2a4).
  if (backend.most_tokens < s.max_num_batched_tokens)
    notes.push_back(fmt::format(
        "/scheduling/max_num_batched_tokens: {}; DeepEP's low-latency buffers hold {} here",
        s.max_num_batched_tokens, backend.most_tokens));
  if (backend.most_tokens < s.max_num_seqs)
    notes.push_back(few_tokens("vLLM", s.max_num_batched_tokens, s.max_num_seqs));
  if (!s.spreads_experts() || s.parallel.dp == 1) return;
  if (dispatch_of(s) == "low_latency" && !backend.low_latency)
    notes.push_back(
        fmt::format("/dispatch/{}: \"low_latency\"; DeepEP's kernels take at most {} rows of a "
                    "rank, {} sequences bring {}",
                    s.role == "prefill" ? s.role : "decode", low_latency_rows, s.max_num_seqs,
                    s.most_decode_rows()));
  if (s.role.empty() && s.prefill_dispatch != s.decode_dispatch)
    notes.push_back(
        fmt::format("/dispatch/prefill: {}; vLLM has one backend for both phases, "
                    "that of decode is taken",
                    quoted_name(s.prefill_dispatch)));
}

Notes notes_of(const Server& s) {
  Notes notes;
  note_experts(s, notes);
  note_backend(s, notes);
  note_two_batches(s, backend_of(s).deep_ep, notes);
  note_waterfill(s, false, notes);
  note_capacity(s, notes);
  note_alignment(s, {"vllm_interval"}, notes);
  if (s.scheduling == "prefill_first")
    notes.emplace_back("/scheduling: \"prefill_first\"; vLLM mixes prompt chunks with decodes");
  if (!has_own_share(s))
    notes.emplace_back(
        "/kv_cache: the share of memory is another engine's; vLLM takes its default");
  if (!s.role.empty() && s.from_pipelines)
    notes.emplace_back("/pools/prefill/parallel/pp before NixlPushConnector (after July 2026)");
  if (s.role == "decode" && s.parallel.pp > 1)
    notes.emplace_back("/pools/decode/parallel/pp: no NIXL connector hands KV caches to stages");
  return notes;
}

std::string on_nodes(const Server& s, const std::string& command) {
  std::string headless = command + " \\\n    --headless";
  if (ranks_by_node(s))
    headless +=
        fmt::format(" --data-parallel-start-rank $((RANK * {}))", s.gpus_per_node / s.parallel.tp);
  return fmt::format("RANK=0\n{}\nRANK=1  # the place of each other node, 1 to {}\n{}\n", command,
                     s.nodes() - 1, headless);
}

// vllm-project/router, src/main.rs@03e9af5.
std::string router(const Fleet& fleet, Notes& notes) {
  const std::string command =
      http_router({.program = "vllm-router", .apart = "--vllm-pd-disaggregation"}, fleet, notes);
  if (!fleet.apart() || !fleet.servers.back().from_pipelines) return command;
  notes.push_back(
      "the router: vllm-router does not know NixlPushConnector; start vLLM's "
      "disagg_proxy_pushconnector_demo.py before the servers");
  return "";
}

// Sizes of vLLM 0.11 (vllm/config/compilation.py).
std::int32_t next_graph_size(std::int32_t size) {
  if (size < 4) return 2 * size;
  return size < 256 ? size / 8 * 8 + 8 : size + 16;
}

// Nightly builds of 2026 count as the release that followed.
constexpr ImageVersion images[] = {
    {"2026-02-01", "0.19.0"}, {"2025-11-30", "0.11.2"}, {"", "0.10.2"}};

constexpr std::string_view platforms[] = {"cuda", "rocm", "tpu", "npu", "neuron"};

// An API server's defaults (arg_utils.py).
Json by_size(const ServerSizes& s) {
  const bool large = s.hbm_mib >= 70 * 1024;
  return {
      {"scheduling",
       {{"max_num_batched_tokens", large ? 8192 : 2048}, {"max_num_seqs", large ? 1024 : 256}}}};
}

}  // namespace

ServingEngine vllm_engine() {
  return {.name = "vllm",
          .title = "vLLM",
          .preset = embedded::vllm(),
          .platforms = platforms,
          .by_size = by_size,
          .unfit = [](const ParallelPlan& plan, const MoeModel&,
                      const PrecisionPlan&) { return part_of_experts(plan); },
          .next_graph_size = next_graph_size,
          .steps_hold_all_sequences = true,  // vllm/config/scheduler.py, verify_max_model_len
          .one_dispatch = true,
          .decodes_in_stages = false,
          // A proxy drops what the prefill server says (vllm#50913, #51919, #36308).
          .first_token = FirstToken::decode,
          .launch = {.program = program,
                     .flags = flags,
                     .dispatches = dispatches,
                     .kv_caches = kv_caches,
                     .notes = notes_of,
                     .on_nodes = on_nodes,
                     .router = router,
                     // benchmarks/serve.py@009e6d4
                     .benchmark = {.program = "vllm bench serve --model ",
                                   .to_the_end = "--ignore-eos",
                                   .burstiness = "--burstiness"},
                     .image = "vllm/vllm-openai",
                     .rocm_image = "vllm/vllm-openai-rocm",
                     .tag_before = "v",
                     // afd-plugin for vLLM 0.26, November 2026
                     .afd = "vLLM needs the afd-plugin, whose roles are attention and ffn (vLLM "
                            "0.26, two micro-batches)",
                     // vllm#56134, September 2026
                     .role_changes = "a draft for vLLM moves EP groups (pull request 56134)"},
          .images = images};
}

}  // namespace moesim
