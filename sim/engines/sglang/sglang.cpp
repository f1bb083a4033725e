// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "hardware/find_value.hpp"
#include "hardware/quoting.hpp"
#include "sim/engines/serving_engine.hpp"

namespace moesim {

namespace embedded {
std::string_view sglang();
}

namespace {

// DeepEP's mode, empty without DeepEP. Where one server does both, its prefill steps bring more
// rows than the low-latency kernels take.
std::string_view deepep_mode(const Server& s) {
  const bool direct = s.decode_dispatch == "low_latency";
  const bool whole = s.prefill_dispatch == "all_to_all";
  if (!s.spreads_experts() || s.parallel.dp == 1 || !(direct || whole)) return "";
  if (s.role == "prefill" || (s.role.empty() && !direct)) return "normal";
  return s.role == "decode" ? "low_latency" : "auto";
}

// Rows of a rank that the low-latency kernels are given buffers for; 0: SGLang's 128 are enough.
std::int64_t deepep_rows(const Server& s) {
  constexpr std::int64_t usual_rows = 128;
  const std::string_view mode = deepep_mode(s);
  if (mode.empty() || mode == "normal" || s.most_decode_rows() <= usual_rows) return 0;
  return std::min(s.most_decode_rows(), low_latency_rows + 1);
}

constexpr std::string_view dispatches[] = {"all_gather",  "all_reduce", "all_to_all",
                                           "low_latency", "one_sided",  "mega_moe"};

std::string program(const Server& s) {
  std::string variables = s.devices();
  if (const std::int64_t rows = deepep_rows(s); rows > 0) {
    // DeepEP keeps two requests of a row in flight (deep_ep/buffer.py).
    constexpr std::int64_t usual_depth = 1024;
    const std::int64_t depth = 2 * (rows + 1);
    variables += fmt::format("SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK={} {}", rows,
                             depth > usual_depth ? fmt::format("NVSHMEM_QP_DEPTH={} ", depth) : "");
  }
  // Pull requests 25052 and 29016: DeepEP's backend, whose layers then run MegaMoE.
  if (runs_mega_moe(s)) variables += "SGLANG_OPT_USE_DEEPGEMM_MEGA_MOE=1 ";
  return variables + "python3 -m sglang.launch_server --model-path ";
}

std::string redundant_experts(const Server& s) {
  return fmt::format("{} --ep-dispatch-algorithm {}", s.redundant_experts,
                     s.decode_routing == "sglang_static" ? "static" : "dynamic");
}

bool starts_from_file(const Server& s) { return s.spreads_experts() && !s.placement_file.empty(); }

bool has_copies(const Server& s) { return s.spreads_experts() && s.redundant_experts > 0; }

// Its recorder of loads knows one mode alone (srt/eplb/expert_distribution.py).
bool balances(const Server& s) {
  return has_copies(s) && s.placement_file.empty() && deepep_mode(s) != "auto";
}

// SGLang's share is that of weights and KV cache alone; vLLM's is of all that the GPU holds.
bool has_own_share(const Server& s) { return s.engine == "sglang" && !s.free_gpu_memory_fraction; }

// srt/arg_groups, model@0481724.
constexpr KvCacheName kv_caches[] = {
    {Precision::fp8, "fp8_e4m3"}, {Precision::nvfp4, "fp4_e2m1"}, {Precision::mxfp4, "fp4_e2m1"}};

std::string drafts(const Server& s) {
  return fmt::format(
      "EAGLE --speculative-num-steps {} --speculative-eagle-topk 1 "
      "--speculative-num-draft-tokens {}",
      s.drafts, s.drafts + 1);
}

std::string nodes(const Server& s) {
  return fmt::format("{} --node-rank $RANK --dist-init-addr {}:{}", s.nodes(), s.host(),
                     s.port() + 50);
}

constexpr std::string_view parallel = "srt/arg_groups, fields/parallel@0481724, November 2026";
constexpr std::string_view schedule = "srt/arg_groups, schedule@144437f, November 2026";
constexpr std::string_view disagg = "srt/arg_groups, disagg@f489bf9, November 2026";

constexpr std::string_view delayer = "sglang#23189 and #32880, July 2026";

// Delay of the trigger that goes by requests that wait.
FlagValue max_delay_ms(const Server& s) {
  if (!alignment_option(s, "sglang_delayer", "queue_min_ratio")) return std::nullopt;
  const auto delay = s.alignment_options.value("max_delay", std::string("5 s"));
  return value_of(parse_quantity<Seconds>(delay).count() * 1e3);
}

FlagValue prefill_decode_interval(const Server& s) {
  const auto own = alignment_option(s, "sglang_decode_interval", "prefill_decode_interval");
  return own ? own : alignment_option(s, "sglang_delayer", "prefill_decode_interval");
}

constexpr Flag flags[] = {
    {"--host 0.0.0.0 --port", [](const Server& s) { return value_of(s.port()); }, schedule},
    // That of the experts; attention ranks divide it.
    {"--tp-size", [](const Server& s) { return value_of(s.parallel.stage_gpus()); }, parallel},
    {"--dp-size",
     [](const Server& s) {
       return value_if(s.parallel.dp > 1, fmt::format("{} --enable-dp-attention", s.parallel.dp));
     },
     parallel},
    {"--pp-size", [](const Server& s) { return unless_one(s.parallel.pp); }, parallel},
    {"--enable-prefill-cp --cp-strategy zigzag --attn-cp-size",
     [](const Server& s) { return unless_one(s.parallel.pcp); },
     "sglang/srt/server_args.py, November 2026"},
    {"--dcp-size", [](const Server& s) { return unless_one(s.parallel.dcp); },
     "docs.sglang.io/docs/advanced_features/dcp, November 2026"},
    {"--nnodes", [](const Server& s) { return value_if(s.nodes() > 1, nodes(s)); }, parallel},
    {"--ep-size", [](const Server& s) { return value_if(s.spreads_experts(), s.parallel.ep); },
     parallel},
    {"--moe-a2a-backend deepep --deepep-mode",
     [](const Server& s) {
       return value_if(!deepep_mode(s).empty() && s.platform != "rocm", deepep_mode(s));
     },
     parallel},
    {"--moe-a2a-backend",
     [](const Server& s) {
       const bool one_sided = s.decode_dispatch == "one_sided" && s.parallel.dp > 1;
       if (runs_mega_moe(s)) return value_of("deepep");
       if (!deepep_mode(s).empty() && s.platform == "rocm") return value_of("mori");
       return value_if(s.spreads_experts() && one_sided, "flashinfer");
     },
     parallel},
    {"--ep-num-redundant-experts",
     [](const Server& s) { return value_if(has_copies(s), redundant_experts(s)); }, parallel},
    // A .json with physical_to_logical_map (srt/eplb/expert_location.py).
    {"--init-expert-location",
     [](const Server& s) -> FlagValue {
       if (!starts_from_file(s)) return std::nullopt;
       return shell_path(s.placement_file.string());
     },
     parallel},
    {"--enable-eplb", [](const Server& s) { return alone_if(balances(s)); }, parallel},
    // Both are of all attention ranks together, by which hooks of the arguments divide them.
    {"--max-running-requests",
     [](const Server& s) { return value_of(std::int64_t{s.max_num_seqs} * s.parallel.dp); },
     schedule},
    {"--chunked-prefill-size",
     [](const Server& s) { return value_of(s.max_num_batched_tokens * s.parallel.dp); }, schedule},
    {"--enable-mixed-chunk", [](const Server& s) { return alone_if(mixes_chunks(s)); }, schedule},
    {"--enable-prefill-delayer",
     [](const Server& s) { return alone_if(s.prefill_alignment == "sglang_delayer"); }, delayer},
    {"--prefill-delayer-max-delay-passes",
     [](const Server& s) { return alignment_option(s, "sglang_delayer", "max_delay_passes"); },
     delayer},
    {"--prefill-delayer-token-usage-low-watermark",
     [](const Server& s) {
       return alignment_option(s, "sglang_delayer", "token_usage_low_watermark");
     },
     delayer},
    {"--prefill-delayer-queue-min-ratio",
     [](const Server& s) { return alignment_option(s, "sglang_delayer", "queue_min_ratio"); },
     delayer},
    {"--prefill-delayer-max-delay-ms", max_delay_ms, delayer},
    {"--prefill-decode-interval", prefill_decode_interval, "sglang#35017, August 2026"},
    // Otherwise its higher values come first.
    {"--enable-priority-scheduling --schedule-low-priority-values-first",
     [](const Server& s) { return alone_if(s.scheduling == "priority"); },
     "docs.nvidia.com/dynamo, SGLang for Agentic Workloads, November 2026"},
    {"--context-length",
     [](const Server& s) { return value_if(s.max_model_len > 0, s.max_model_len); }, schedule},
    {"--mem-fraction-static",
     [](const Server& s) { return value_if(has_own_share(s), s.gpu_memory_utilization); },
     schedule},
    {"--kv-cache-dtype",
     [](const Server& s) { return kv_cache_name(kv_caches, s.precision.kv_cache); }, schedule},
    {"--page-size", [](const Server& s) { return value_if(s.block_tokens != 16, s.block_tokens); },
     schedule},
    {"--cuda-graph-max-bs",
     [](const Server& s) { return value_if(s.largest_graph > 0, s.largest_graph); }, schedule},
    {"--disable-radix-cache", [](const Server& s) { return alone_if(!s.prefix_caching); },
     schedule},
    {"--disable-hybrid-swa-memory",
     [](const Server& s) { return alone_if(s.has_windows && s.keeps_all); }, schedule},
    {"--speculative-algorithm",
     [](const Server& s) { return value_if(s.drafts_itself, drafts(s)); }, schedule},
    {"--enable-two-batch-overlap",
     [](const Server& s) { return alone_if(s.two_batches && !deepep_mode(s).empty()); }, parallel},
    {"--enable-deepep-waterfill",
     [](const Server& s) { return alone_if(s.waterfill && !deepep_mode(s).empty()); },
     "sgl-project/sglang#19290, May 2026"},
    {"--disaggregation-mode",
     [](const Server& s) {
       return value_if(!s.role.empty(),
                       fmt::format("{} --disaggregation-transfer-backend nixl", s.role));
     },
     disagg},
    {"--disaggregation-bootstrap-port",
     [](const Server& s) { return value_if(s.role == "prefill", s.port() + 90); }, disagg},
};

void note_placement(const Server& s, Notes& notes) {
  if (starts_from_file(s)) {
    if (s.placement_file.extension() != ".json")
      notes.push_back(other_form(s.placement_file, "sglang"));
  } else if (balances(s)) {
    note_balancer(s, "every 1,000 steps", notes);
  } else if (has_copies(s)) {
    notes.push_back(
        "/placement: SGLang's EPLB does not go with DeepEP's mode auto; experts keep "
        "their order");
  }
}

Notes notes_of(const Server& s) {
  Notes notes;
  if (const std::int64_t rows = deepep_rows(s); rows > 0 && rows < s.most_decode_rows())
    notes.push_back(
        fmt::format("/scheduling/max_num_seqs: {}; DeepEP's low-latency kernels take "
                    "at most {} rows of a rank",
                    s.max_num_seqs, rows));
  if (s.parallel.dcp > 1 && s.parallel.dcp_merge != DcpMerge::all_to_all)
    notes.push_back(
        "/parallel/dcp_merge: \"reduce_scatter\"; SGLang merges partial outputs by all_to_all");
  note_placement(s, notes);
  note_two_batches(s, !deepep_mode(s).empty(), notes);
  note_waterfill(s, !deepep_mode(s).empty(), notes);
  note_capacity(s, notes);
  note_alignment(s, {"sglang_delayer", "sglang_decode_interval"}, notes);
  if (!has_own_share(s))
    notes.push_back(
        "/kv_cache/gpu_memory_utilization: SGLang's --mem-fraction-static counts "
        "weights and KV cache alone; SGLang chooses it");
  return notes;
}

std::string on_nodes(const Server& s, const std::string& command) {
  return fmt::format("RANK=0  # the place of this node among them, 0 to {}\n{}\n", s.nodes() - 1,
                     command);
}

// sglang_router's router_args.py@05e589a.
std::string router(const Fleet& fleet, Notes& notes) {
  return http_router({.program = "python3 -m sglang_router.launch_router",
                      .apart = "--pd-disaggregation",
                      .bootstrap_port_above = 90},
                     fleet, notes);
}

// Sizes of SGLang 0.5.9 (python/sglang/srt/server_args.py).
std::int32_t next_graph_size(std::int32_t size) {
  if (size < 4) return 2 * size;
  if (size < 16) return size + 4;
  if (size < 256) return size / 8 * 8 + 8;
  return size < 512 ? size + 16 : size + 32;
}

// bench_serving began as a copy of vLLM's.
constexpr BenchName bench_names[] = {{"total_throughput", "total_token_throughput"},
                                     {"mean_e2e_latency_ms", "mean_e2el_ms"},
                                     {"median_e2e_latency_ms", "median_e2el_ms"},
                                     {"p90_e2e_latency_ms", "p90_e2el_ms"},
                                     {"p99_e2e_latency_ms", "p99_e2el_ms"}};

constexpr ImageVersion images[] = {
    {"2026-03-15", "0.5.10"}, {"2026-01-15", "0.5.8"}, {"2025-11-10", "0.5.5"}, {"", "0.5.3"}};

constexpr std::string_view platforms[] = {"cuda", "rocm", "npu"};

// Returns what 0.5.9's server_args.py chooses (_handle_gpu_memory_settings). Attention ranks divide
// the tokens of a chunk; scripts give them theirs.
Json by_size(const ServerSizes& s) {
  struct Class {
    double below_gib;
    int chunk, few_graphs, graphs;  // graphs below TP 4, and from there on
  };
  static constexpr Class classes[] = {{20, 2048, 8, 8},
                                      {35, 2048, 24, 80},
                                      {60, 4096, 32, 160},
                                      {160, 8192, 256, 512},
                                      {1e9, 16384, 512, 512}};
  const Class& own = *std::ranges::find_if(
      classes, [&](const Class& each) { return s.hbm_mib < 1024 * each.below_gib; });
  if (s.recipe)
    return {{"scheduling", {{"max_num_batched_tokens", own.chunk}, {"max_num_seqs", 1024}}},
            {"cuda_graph", {{"max", s.gpus < 4 ? own.few_graphs : own.graphs}}}};
  // Requests that run: 2,048 at least, 48 with drafts. Commands of wide EP capture graphs of 128.
  const int graphs = s.dp > 8 ? 128 : s.gpus < 4 ? own.few_graphs : own.graphs;
  return {{"scheduling",
           {{"max_num_batched_tokens", std::max(1, own.chunk / s.dp)},
            {"max_num_seqs", std::max(1, (s.drafts ? 48 : 2048) / s.dp)}}},
          {"cuda_graph", {{"max", graphs}}}};
}

// HBM less what the same function reserves for activations, graphs and communication, in MiB, and
// of vision models less (adjust_mem_fraction_for_vlm). Kimi-K2.5 on 8 MI355X logs .82604.
double memory_share(const ServerSizes& s, const Json& experiment) {
  const double chunk = s.dp * number_at(experiment, "/scheduling/max_num_batched_tokens", 8192);
  const double graph = number_at(experiment, "/cuda_graph/max", 512);
  if (s.hbm_mib <= 0) return .88;  // as SGLang where it does not know
  double reserved = 512 + 1.5 * std::max(chunk, 2048.) + 2 * graph + 128. * s.gpus * s.pp;
  if (s.dp > 1) reserved += graph * s.dp * (graph > 300 ? 4.5 : 3);
  if (s.hbm_mib > 60 * 1024) reserved = std::max(reserved, 10. * 1024);
  if (s.drafts) reserved += 2 * 1024;
  double share = std::round(1000 * (1 - reserved / s.hbm_mib)) / 1000;
  if (s.vision_layers > 0) {
    constexpr double usual = 24. * 1024 * 1024;
    const double more = s.vision_layers * s.vision_hidden * s.vision_hidden / usual - 1;
    share *= .95 * std::clamp(1 - .1 * more, .8, 1.05);
  }
  return std::max(share, .7);  // whoever takes larger steps gives a share
}

// layers/quantization/fp8.py: the widths of a rank's experts must be whole blocks.
std::string unfit(const ParallelPlan& plan, const MoeModel& model, const PrecisionPlan& precision) {
  constexpr int block = 128;
  const int parts = plan.moe_tp();
  if (model.experts == 0 || precision.experts != Precision::fp8_block || parts == 1 ||
      model.expert_width % (parts * block) == 0)
    return "";
  return fmt::format(
      "/parallel: experts of width {} are cut into {} parts; SGLang refuses fp8 blocks that are "
      "not whole",
      model.expert_width, parts);
}

}  // namespace

ServingEngine sglang_engine() {
  return {.name = "sglang",
          .title = "SGLang",
          .preset = embedded::sglang(),
          .platforms = platforms,
          .by_size = by_size,
          .memory_share = memory_share,
          .unfit = unfit,
          .next_graph_size = next_graph_size,
          .prompts_first = true,
          .kv_sends = KvSends::chunk,  // disaggregation/prefill.py, send_kv_chunk
          .launch = {.program = program,
                     .flags = flags,
                     .dispatches = dispatches,
                     .kv_caches = kv_caches,
                     .notes = notes_of,
                     .on_nodes = on_nodes,
                     .router = router,
                     // It draws lengths from ratio x length on, the others within length x (1 +-
                     // ratio).
                     .benchmark = {.program =
                                       "python3 -m sglang.bench_serving --backend sglang --model ",
                                   .range = BenchCommand::up_to},
                     .image = "lmsysorg/sglang",
                     .tag_before = "v",
                     // The flag is refused without a storage, which has flags of its own.
                     .decode_offload =
                         "give decode servers --disaggregation-decode-enable-offload-kvcache and a "
                         "--hicache-storage-backend",
                     // sglang#28403, merged in September 2026
                     .role_changes =
                         "--enable-pd-role-switch lets a router call /pd_role_switch; SGLang "
                         "refuses the flag with EP, attention DP and pipelines"},
          .bench_names = bench_names,
          .images = images};
}

}  // namespace moesim
