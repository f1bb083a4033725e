// SPDX-License-Identifier: Apache-2.0
#include "sim/experiment/spec.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "hardware/choice.hpp"
#include "hardware/kernels/experts.hpp"
#include "hardware/quoting.hpp"
#include "hardware/shipped.hpp"
#include "hardware/tables/kernel_tables.hpp"
#include "models/quantization.hpp"
#include "sim/engines/serving_engine.hpp"
#include "sim/experiment/engine.hpp"
#include "sim/experiment/experiment_keys.hpp"
#include "sim/experiment/pools.hpp"
#include "sim/experiment/read_phases.hpp"
#include "sim/experiment/read_placement.hpp"
#include "sim/experiment/read_serving.hpp"
#include "sim/experiment/refusals.hpp"
#include "sim/experiment/shared_cluster.hpp"
#include "sim/experiment/spelled_out.hpp"
#include "sim/step/reselection.hpp"
#include "traces/gating/presets.hpp"
#include "traces/requests/arrivals.hpp"
#include "traces/requests/lengths.hpp"
#include "traces/sessions/sessions.hpp"

namespace moesim {

namespace {

BindingOrder read_binding(const ConfigNode& node, const RequestWorkload& workload) {
  return read_object(node.as_policy(), binding_keys, [&](ConfigReader& reader) {
    BindingOrder order;
    const auto type = choice<BindingKind>(reader, "type", binding_names);
    order.by_session = type == BindingKind::by_session;
    if (order.by_session && !workload.sessions)
      node.fail(R"(requests are of no sessions; give "sessions", or bind at "random")");
    if (type != BindingKind::by_workload) return order;
    order.requests = workload.requests;
    const ConfigNode phases = reader.child("phases");
    for (const ConfigNode& tags : phases.list()) {
      std::vector<std::string>& phase = order.phases.emplace_back();
      for (const ConfigNode& tag : tags.list()) phase.push_back(tag.text());
    }
    if (order.phases.empty()) phases.fail("needs at least one list of workload tags");
    return order;
  });
}

// Precision that the experiment says, or the model's files.
PrecisionPlan read_precision(ConfigReader& reader, const ConfigNode& model, const MoeModel& read,
                             std::vector<std::string>& remarks) {
  const std::optional<StoredPrecision> stored = read_stored_precision(model, read);
  const bool given = reader.optional("precision");
  if (!given && !stored) {
    reader.node().fail("\"precision\" is missing, and {} does not say it",
                       model.file().filename().string());
  }
  const ConfigNode node = reader.child_or("precision", Json::object());
  // An engine's preset may have filled in other keys.
  const bool weights_given = node.json().contains("experts");
  if (stored && !stored->unknown.empty()) {
    if (!weights_given) throw ConfigError(stored->unknown);
    const PrecisionPlan plan = read_precision(node, nullptr);
    remarks.push_back(
        fmt::format("\"precision\" says {}; how the model's weights are stored is not known ({})",
                    precision_text(plan), stored->said_by));
    return plan;
  }
  const PrecisionPlan plan = read_precision(node, stored ? &stored->plan : nullptr);
  if (stored && stored->quantised &&
      (plan.experts != stored->plan.experts || plan.attention != stored->plan.attention ||
       plan.ffn != stored->plan.ffn || plan.expert_shares != stored->plan.expert_shares ||
       plan.attention_shares != stored->plan.attention_shares ||
       plan.ffn_shares != stored->plan.ffn_shares)) {
    remarks.push_back(
        fmt::format("\"precision\" says {}; the model's weights are stored as {} ({})",
                    precision_text(plan), precision_text(stored->plan), stored->said_by));
  }
  if (stored && !stored->warning.empty() && !weights_given) {
    remarks.push_back("\"precision\": " + stored->warning);
  }
  return plan;
}

// GPUs without arithmetic in FP4 or FP8 widen such weights and multiply in bf16 (vLLM's Marlin
// kernels, marlin_utils_fp4.py and marlin_utils_fp8.py). Other engines refuse such weights there.
void widen_weights(PoolSpec& spec) {
  const GpuSpec& gpu = spec.expert_cluster().gpu;
  const bool eight = spec.precision.activations == Precision::fp8 ||
                     spec.precision.activations == Precision::fp8_block;
  const bool four = spec.precision.experts == Precision::nvfp4;
  const Precision needed = four ? Precision::nvfp4 : Precision::fp8;
  if (!(four || eight) || gpu.dense_peak.contains(needed)) return;
  spec.precision.activations = Precision::bf16;
  spec.remarks.push_back(
      fmt::format("\"precision\": {} does not multiply {}; such weights are widened and "
                  "multiplied in bf16, as vLLM does (SGLang and TensorRT-LLM refuse them there)",
                  gpu.name, precision_names[at(needed)]));
}

// Remark on keys of a model's file that nothing here knows.
std::string unknown_keys_remark(const std::vector<std::string>& keys) {
  return fmt::format(
      "\"model\": config.json has keys that are not known here: {}. If a layer or a size hangs on "
      "one, the model is another; the zoo's format (models/README.md) can describe such a model",
      visible(fmt::format("\"{}\"", fmt::join(keys, "\", \""))));
}

// A cluster whose kernels are the fastest that were measured with any engine; of expert layers and
// fused operations those that the experiment's engine runs.
ClusterSpec read_cluster_for(const ConfigNode& node, const std::optional<Engine>& engine) {
  ClusterSpec cluster = read_cluster(named_or_inline(node, Shipped::cluster));
  KernelChoice kernels{{"engines", "any"}};
  if (!engine) {
    cluster.gpu = with_engine(std::move(cluster.gpu), {}, kernels);
    return cluster;
  }
  if (engine->name == "none") return cluster;
  if (!engine->expert_kernel.empty()) kernels["experts"] = engine->expert_kernel;
  if (!engine->prompt_gemms.empty()) kernels["prompt_gemms"] = engine->prompt_gemms;
  if (!engine->prompt_attention.empty()) kernels["prompt_attention"] = engine->prompt_attention;
  if (!engine->fused.empty()) kernels["fused"] = fmt::format("{}", fmt::join(engine->fused, " "));
  cluster.gpu = with_engine(std::move(cluster.gpu), {engine->name, engine->version}, kernels);
  return cluster;
}

SitePower read_power(const ConfigNode& node) {
  return read_object(node, site_power_keys, [](ConfigReader& reader) {
    SitePower site;
    if (reader.optional("overhead_per_gpu"))
      site.overhead_per_gpu = reader.quantity<Watts>("overhead_per_gpu");
    if (reader.optional("pue")) site.pue = reader.number("pue");
    if (reader.optional("dollars_per_kwh")) site.dollars_per_kwh = reader.number("dollars_per_kwh");
    return site;
  });
}

void take_background(const ConfigNode& node, ClusterSpec& cluster) {
  read_object(node, background_keys, [&](ConfigReader& reader) {
    const auto left = [&](const char* level) { return 1 - reader.number(level); };
    cluster.gpu.scale_up_bandwidth = cluster.gpu.scale_up_bandwidth * left("nvlink");
    cluster.network.bandwidth = cluster.network.bandwidth * left("network");
    if (!reader.optional("spine")) return;
    const ConfigNode spine = reader.child("spine");
    const auto taken = spine.quantity<BytesPerSecond>();
    std::optional<BytesPerSecond>& carries = cluster.network.spine;
    if (!carries)
      spine.fail("the cluster does not say what its spine carries; give network/spine_bandwidth");
    if (taken >= *carries) {
      spine.fail("{:.4g} GB/s is all of the spine's {:.4g} GB/s; leave some", taken.value() / 1e9,
                 carries->value() / 1e9);
    }
    *carries = *carries - taken;
  });
}

// Groups alike: each in domains of its own, or with others of its kind in one.
int read_instances(const ConfigNode& node, const ServedModel& e) {
  const auto instances = static_cast<int>(node.integer());
  const auto check = [&](int gpus, const ClusterSpec& cluster) {
    const int domain = cluster.scale_up_domain;
    if (instances * gpus > cluster.gpus()) {
      node.fail("{} instances of {} GPUs take {}, but {} has {}; {} fit", instances, gpus,
                instances * gpus, cluster.name, cluster.gpus(), cluster.gpus() / gpus);
    }
    if (instances > 1 && gpus % domain != 0 && domain % gpus != 0) {
      node.fail(
          "instances of {} GPUs do not divide NVLink domains of {} evenly; use a divisor or a "
          "multiple of the domain",
          gpus, domain);
    }
  };
  check(e.ffn_cluster ? e.parallel.attention_gpus() : e.parallel.gpus(), e.cluster);
  if (e.ffn_cluster) check(e.parallel.ffn_gpus, *e.ffn_cluster);
  return instances;
}

// The experts' GPUs are counted behind those of attention, and begin an NVLink domain there.
void check_ffn_cluster(const ConfigNode& node, const PoolSpec& e) {
  const ParallelPlan& plan = e.parallel;
  const ClusterSpec& experts = *e.ffn_cluster;
  if (!plan.afd())
    node.fail("no experts are on GPUs of their own; give \"parallel/ffn_gpus\", or leave this out");
  if (plan.ffn_gpus > experts.gpus()) {
    node.fail("ffn_gpus = {}, but {} has {} GPUs; use fewer, or a larger cluster", plan.ffn_gpus,
              experts.name, experts.gpus());
  }
  for (const int domain : {e.cluster.scale_up_domain, experts.scale_up_domain}) {
    if (plan.attention_gpus() % domain == 0) continue;
    node.fail(
        "dp * tp = {} GPUs for attention do not fill NVLink domains of {}; use a "
        "multiple of {}",
        plan.attention_gpus(), domain, domain);
  }
}

void read_plan(ConfigReader& reader, PoolSpec& spec) {
  const ConfigNode background = reader.child("background");
  spec.each_cluster([&](ClusterSpec& cluster) { take_background(background, cluster); });
  const ConfigNode parallel = reader.child("parallel");
  spec.parallel = read_parallel(parallel, spec.model);
  const ParallelPlan& plan = spec.parallel;
  const int gpus = spec.ffn_cluster ? plan.attention_gpus() : plan.gpus();
  if (gpus > spec.cluster.gpus()) {
    const bool sum = plan.afd() && !spec.ffn_cluster;
    const char* product = sum ? "dp * tp + ffn_gpus" : plan.pp > 1 ? "dp * tp * pp" : "dp * tp";
    parallel.fail("{} = {} GPUs, but {} has {}", product, gpus, spec.cluster.name,
                  spec.cluster.gpus());
  }
  if (spec.ffn_cluster) check_ffn_cluster(reader.child("ffn_cluster"), spec);
  if (reader.optional("instances")) {
    spec.instances = read_instances(reader.child("instances"), spec);
  }
  // Without experts no rank waits for another: engines run DP ranks of a dense model as instances
  // (vllm/v1/engine/core.py, run_engine_core(); SGLang's data_parallel_controller.py).
  if (spec.model.experts == 0) spec.instances *= std::exchange(spec.parallel.dp, 1);
  // Groups alike exchange at any time of each other's: each has its part.
  spec.each_cluster([&](ClusterSpec& cluster) {
    std::optional<BytesPerSecond>& spine = cluster.network.spine;
    if (spine) *spine = *spine / double(spec.instances);
  });
}

// A dense model's gating is looked at by nothing.
ConfigNode read_gating(ConfigReader& workload, const MoeModel& model) {
  if (model.experts > 0) return workload.child("gating");
  const Json none{{"type", "uniform"}, {"requests", 1}, {"prompt_rows", 1}, {"decode_rows", 1}};
  return workload.child_or("gating", none);
}

// Routing that the experiment leaves out is that of the model's family, which is said.
void remark_on_gating(const ConfigNode& given, PoolSpec& spec) {
  if (spec.model.experts == 0 || given.json().at("workload").contains("gating")) return;
  const PresetOfModel chosen = preset_of(spec.model);
  spec.remarks.push_back(fmt::format(
      "\"workload\" has no \"gating\": routing is synthetic, by the statistics of {} (preset {}){}",
      chosen.preset.family, chosen.preset.name,
      chosen.of_another_family ? ", since nothing is known of this model" : ""));
}

// Warns of layouts and limits that the engine cannot start, and of GPUs that it has no build for.
void remark_on_engine(std::string_view name, PoolSpec& spec) {
  const ServingEngine* const engine = find_engine(name);
  if (engine == nullptr) return;
  if (std::string why = engine->unfit(spec.parallel, spec.model, spec.precision); !why.empty())
    spec.remarks.push_back(std::move(why));
  const Scheduler& limits = *spec.scheduler;
  if (engine->steps_hold_all_sequences && limits.max_num_batched_tokens() < limits.max_num_seqs())
    spec.remarks.push_back(
        few_tokens(engine->title, limits.max_num_batched_tokens(), limits.max_num_seqs()));
  spec.each_cluster([&](const ClusterSpec& cluster) {
    const std::string why = engine->without_build(cluster.gpu);
    if (!why.empty()) spec.remarks.push_back(why + ": no server has these figures");
  });
}

// Remarks on links between GPUs that are no faster than those to their hosts, where nothing is
// measured.
void remark_on_links(PoolSpec& spec) {
  const GpuSpec& gpu = spec.cluster.gpu;
  const bool several = std::min(spec.parallel.gpus(), spec.cluster.scale_up_domain) > 1;
  if (!several || gpu.tables || gpu.scale_up_bandwidth > gpu.host_bandwidth) return;
  spec.remarks.push_back(
      "collectives over PCIe are priced as over NVLink, which flatters four GPUs and more: name a "
      "measured GPU without NVLink as the GPU's \"sibling\"");
}

// Remarks that a layer drafts which the model's files do not name.
void remark_on_drafts(PoolSpec& spec) {
  if (!spec.speculation.has_module() || spec.model.draft_layers > 0) return;
  spec.remarks.push_back(fmt::format(
      "the files of {} name no layer that drafts (MTP): one more layer like its last drafts here; "
      "for another model \"speculative/draft\" takes a time",
      spec.model.name));
}

// Remarks that steps without a graph are as fast where nothing says what their launches take.
void remark_on_graphs(PoolSpec& spec) {
  if (spec.graph_sizes.size() > 1 || spec.charges.eager_launch > Seconds{}) return;
  spec.remarks.push_back(
      "\"cuda_graph\": decodes have no graph, and the host takes no time to launch kernels here; "
      "\"charges/eager_launch\", e.g. \"10 us\", says what each launch takes at least");
}

// Reads the limit of engines. A request is longer than the positions of the model's training only
// where the engine was told so, with a scaling of the rotary embedding.
void read_max_model_len(ConfigReader& reader, PoolSpec& spec) {
  const int own = spec.model.max_positions;
  spec.max_model_len =
      reader.optional("max_model_len") ? reader.integer("max_model_len") : std::int64_t{own};
  if (spec.max_model_len > 0 && spec.workload.sessions) {
    SessionPlan sessions = *spec.workload.sessions;
    if (!sessions.rules.max_context) sessions.rules.max_context = spec.max_model_len;
    spec.workload.sessions = std::make_shared<const SessionPlan>(std::move(sessions));
  }
  const std::int64_t longest = spec.workload.longest();
  if (spec.max_model_len == 0 || longest <= spec.max_model_len) return;
  const ConfigNode workload = reader.child("workload");
  const ConfigNode place =
      workload.json().contains("lengths") ? workload.child("lengths") : workload;
  place.fail(
      "a prompt and its output have up to {} tokens, but {} takes {}; shorten the lengths, or give "
      "\"max_model_len\": {} (engines then also need a scaling of the rotary embedding)",
      longest, spec.max_model_len == own ? spec.model.name : "\"max_model_len\"",
      spec.max_model_len, longest);
}

// Remarks on policies that decide in no time. The config charges nothing for one that a program
// adds, or leaves out a measured charge.
void remark_on_charges(PoolSpec& spec) {
  if (spec.charges.source.empty()) return;  // "none"
  for (const PhaseSpec& phase : spec.phases) {
    const std::string_view policy = phase.routing.name();
    if (spec.charges.knows(policy)) continue;
    spec.remarks.push_back(
        fmt::format("token routing by \"{}\" takes no time, because none is charged for it; say "
                    "what it takes under \"charges\"",
                    policy));
  }
}

// Once each has been made: then there is such a policy.
PolicyNames read_names(ConfigReader& reader) {
  const auto name_of = [](const ConfigNode& node) {
    return node.as_policy().json().at("type").get<std::string>();
  };
  const ConfigNode dispatch = reader.child("dispatch");
  return {.scheduling = name_of(reader.child("scheduling")),
          .placement = name_of(reader.child("placement")),
          .capacity = name_of(reader.child("capacity")),
          .expert_memory = name_of(reader.child("expert_memory")),
          .prefill_dispatch = name_of(dispatch.child("prefill")),
          .decode_dispatch = name_of(dispatch.child("decode"))};
}

PrefillAlignmentPlan read_prefill_alignment(const ConfigNode& node, const Policies& policies) {
  const PrefillAlignmentChoice choice(policies.prefill_alignment, node, prefill_alignment_keys);
  PrefillAlignmentFactory policy = choice.make();
  ConfigReader beside(choice.node(), prefill_alignment_keys);
  return {std::string(choice.name()), choice.node().json(), std::move(policy),
          beside.flag("pad_to_longest")};
}

void read_policies(ConfigReader& reader, PoolSpec& spec) {
  const Policies& policies = *spec.policies;
  spec.scheduler = policies.scheduling.make(reader.child("scheduling"));
  if (reader.optional("prefill_alignment"))
    spec.prefill_alignment = read_prefill_alignment(reader.child("prefill_alignment"), policies);
  read_placement(reader.child("placement"), spec);
  read_phases(reader, spec);
  spec.charges = read_charges(reader.child("charges"), policies.token_routing.names());
  if (reader.has("two_term_step"))
    spec.two_term = read_two_term_step(reader.child("two_term_step"));
  remark_on_charges(spec);
  spec.capacity = policies.capacity.make(reader.child("capacity"));
  spec.expert_memory =
      read_expert_memory(reader.child("expert_memory"), policies.expert_memory, policies.prefetch);
  spec.names = read_names(reader);
  ConfigReader rebalancing(spec.rebalancing.node(), rebalancing_keys);
  spec.movement = read_movement(rebalancing);
  spec.failures = read_failures(reader.child("failures"), policies.placement, spec.cluster,
                                spec.parallel, spec.placement_problem, spec.instances);
}

// Who else uses the link that brings blocks of a tier is known when the pools are.
void read_host_link(ConfigReader& reader, PoolSpec& spec) {
  spec.host_link = choice<HostLink>(reader, "host_link", host_link_names);
  const Json kv = reader.child("kv_cache").json();
  if (!kv.contains("tiers") || kv["tiers"].empty()) {
    reader.child("host_link")
        .fail(
            "the KV cache has no tier that uses the link; give \"kv_cache/tiers\", or leave this "
            "out");
  }
}

// Active experts must be known before a token drops an expert.
void read_keep(ConfigReader& reader, PoolSpec& spec) {
  const ConfigNode node = reader.child("expert_reselection");
  spec.keep_experts = read_reselection(node, spec.model.experts_per_token);
  if (spec.keep_experts == 0) return;
  if (spec.capacity->limits())
    node.fail("\"capacity\" drops selections too; leave out one of them");
  const Dispatch& decode = *spec.phases[at(StepKind::decode)].dispatch;
  if (spec.parallel.exchanges() && !decode.gives_global_counts())
    node.fail(
        "a token must know the choices of the whole group; use \"ids_all_gather\" or "
        "\"all_gather\" as dispatch of decode");
  spec.remarks.push_back(
      "\"expert_reselection\" changes what the model answers; output quality is not modelled");
}

// Decode steps with experts cut otherwise.
void read_decode_cut(ConfigReader& reader, PoolSpec& spec) {
  refuse_with_decode_cut(reader, spec);
  PoolSpec cut = spec;
  cut.parallel = in_decode(spec.parallel);
  const ConfigNode whole(Json("linear"), reader.node().file());
  read_placement(cut.parallel.ep == 1 ? whole : reader.child("placement"), cut);
  refuse_combinations(reader, cut);
  if (std::string warning = slice_warning(cut.model, cut.parallel, cut.precision); !warning.empty())
    spec.remarks.push_back("of decode steps: " + warning);
  spec.decode_cut = std::make_shared<const PoolSpec>(std::move(cut));
}

// A token that leaves its GPU carries activations there and back in bf16, on the slowest link
// that the group uses. One such token adds to all links the time of one link over their
// number.
double token_seconds(const PoolSpec& e) {
  const bool by_choice =
      e.parallel.exchanges() && e.phases[at(StepKind::decode)].dispatch->needs_copies();
  if (!by_choice) return 0;
  const bool far = e.parallel.stage_gpus() > e.cluster.scale_up_domain;
  const ClusterSpec cluster = e.token_cluster();
  const BytesPerSecond link = far ? cluster.network.bandwidth * cluster.network.bandwidth_share
                                  : cluster.gpu.scale_up_bandwidth;
  return (Bytes(4.0 * e.model.hidden) / link).count() / e.parallel.stage_gpus();
}

}  // namespace

PoolSpec read_pool(const ConfigNode& node, const Policies& policies) {
  const ConfigNode whole = with_preset(spelled_out(node));
  return read_object(whole, experiment_keys, [&](ConfigReader& reader) {
    std::optional<Engine> engine;
    const ConfigNode cluster = reader.child("cluster");
    if (reader.optional("engine")) engine = read_engine(reader.child("engine"));
    ClusterSpec with_kernels = read_cluster_for(cluster, engine);
    std::optional<ClusterSpec> of_experts;
    if (reader.optional("ffn_cluster"))
      of_experts = read_cluster_for(reader.child("ffn_cluster"), engine);
    const ConfigNode model = named_or_inline(reader.child("model"), Shipped::model);
    MoeModel read = read_model(model);
    ConfigReader workload(reader.child("workload"), workload_keys);
    RequestWorkload requests = read_workload(workload);
    const ConfigNode gating = read_gating(workload, read);
    const ConfigNode routing = reader.child("request_routing");
    const ConfigNode rebalancing = reader.child("rebalancing");
    PoolSpec spec{{.cluster = std::move(with_kernels),
                   .ffn_cluster = std::move(of_experts),
                   .model = std::move(read)},
                  {.gating = gating, .workload = std::move(requests)},
                  {.policies = std::make_shared<const Policies>(policies),
                   .request_routing = {policies.request_routing, routing},
                   .rebalancing = {policies.rebalancing, rebalancing, rebalancing_keys}},
                  {},
                  {},
                  whole};
    remark_on_gating(node, spec);
    if (workload.has("prefill_gating")) spec.prefill_gating = workload.child("prefill_gating");
    spec.binding = read_binding(workload.child("binding"), spec.workload);
    read_objectives(reader, workload, spec);
    workload.finish();
    if (engine && engine->name != "none") {
      spec.engine = engine->version.empty() ? engine->name : engine->name + " " + engine->version;
    }
    spec.seed = static_cast<std::uint64_t>(reader.integer("seed"));
    if (reader.child("model").json().is_string()) spec.model_file = model.file();
    if (!spec.model.unknown_keys.empty())
      spec.remarks.push_back(unknown_keys_remark(spec.model.unknown_keys));
    spec.precision = read_precision(reader, model, spec.model, spec.remarks);
    widen_weights(spec);
    read_max_model_len(reader, spec);
    read_plan(reader, spec);
    if (std::string warning = slice_warning(spec.model, spec.parallel, spec.precision);
        !warning.empty())
      spec.remarks.push_back(std::move(warning));
    read_policies(reader, spec);
    if (engine) remark_on_engine(engine->name, spec);
    if (reader.optional("expert_reselection")) read_keep(reader, spec);
    if (reader.optional("shared_expert"))
      spec.shared_expert = read_shared_expert(reader.child("shared_expert"));
    read_serving(reader, spec);
    if (reader.has("cuda_graph")) remark_on_graphs(spec);
    remark_on_links(spec);
    remark_on_drafts(spec);
    if (reader.optional("host_link")) read_host_link(reader, spec);
    spec.overlap = read_overlap(reader.child("overlap"));
    if (reader.optional("power")) spec.site_power = read_power(reader.child("power"));
    spec.sampled = choice<Fidelity>(reader, "fidelity", fidelity_names) == Fidelity::sampled;
    read_measurement(reader, spec);
    refuse_combinations(reader, spec);
    if (spec.parallel.decode_ep > 0) read_decode_cut(reader, spec);
    reader.optional("$schema");
    return spec;
  });
}

namespace {

void check_host_links(const ExperimentSpec& spec) {
  for (const PoolSpec& pool : spec.pools) {
    const bool sends = pool.prefill_only && spec.kv_link->network;
    if (!pool.host_link || pool.expert_memory || sends) continue;
    pool.node.child("host_link")
        .fail(
            "only a tier uses this link; give \"expert_memory\", or a prefill pool whose KV caches "
            "leave over the network, or leave the key out");
  }
}

}  // namespace

ExperimentSpec read_spec(const ConfigNode& node, const Policies& policies) {
  if (is_shared(node)) {
    node.child("deployments")
        .fail(
            "only `moesim run` and `check` take several models; with --deployment NAME `run`, "
            "`check`, `explain` and `what-if` take one");
  }
  const bool pools = node.json().is_object() && node.json().contains("pools");
  if (!pools && node.json().is_object() && node.json().contains("pool_roles"))
    node.child("pool_roles").fail("there are no pools to move between; give \"pools\"");
  ExperimentSpec spec =
      pools ? read_pools(node, policies) : ExperimentSpec{node, {read_pool(node, policies)}};
  check_host_links(spec);
  return spec;
}

Json resolved_config(const ExperimentSpec& spec) {
  if (spec.pools.size() > 1) return resolved_pools(spec);
  const ConfigNode& node = spec.pools.front().node;
  return node.resolved().at(Json::json_pointer(node.pointer()));
}

std::uint8_t draw_class(std::span<const RequestClass> classes, Rng& rng) {
  if (classes.empty()) return 0;
  double left = rng.uniform();
  std::uint8_t drawn = 0;
  while (drawn + 1U < classes.size() && left >= *classes[drawn].share)
    left -= *classes[drawn++].share;
  return drawn;
}

bool OfferedLoad::has_objective(std::optional<Seconds> Slo::*objective) const {
  const auto has = [&](const RequestClass& one) { return (one.slo.*objective).has_value(); };
  return classes.empty() ? (slo.*objective).has_value() : std::ranges::any_of(classes, has);
}

Slo OfferedLoad::loosest_slo() const {
  if (classes.empty()) return slo;
  const auto loosest = [&](std::optional<Seconds> Slo::*objective) {
    std::optional<Seconds> longest = classes.front().slo.*objective;
    for (const RequestClass& one : classes) {
      const std::optional<Seconds>& own = one.slo.*objective;
      longest = longest && own ? std::optional(std::max(*longest, *own)) : std::nullopt;
    }
    return longest;
  };
  return {loosest(&Slo::ttft), loosest(&Slo::tpot), loosest(&Slo::e2el)};
}

// METRO is for decode [METRO]; what a step does that holds both is the config's choice.
StepKind rule_kind(const MixedRule& mixed, StepKind kind, std::int64_t prefill_tokens) {
  if (kind != StepKind::mixed) return kind;
  switch (mixed.kind) {
    case MixedRule::Kind::prefill: return StepKind::prefill;
    case MixedRule::Kind::decode: return StepKind::decode;
    case MixedRule::Kind::decode_if_few:
      return prefill_tokens <= mixed.prefill_tokens_at_most ? StepKind::decode : StepKind::prefill;
    case MixedRule::Kind::own: break;
  }
  return StepKind::mixed;
}

RooflineTime expert_time(const ServedModel& e) {
  const GpuSpec& gpu = e.expert_cluster().gpu;
  const KernelConstants& kernel = gpu.kernel(grouped_gemm_kernel);
  const Flops token(2 * expert_parameters(e.model) / e.parallel.moe_tp());
  const Bytes weights = expert_bytes(e.model, e.parallel, e.precision);
  const double bandwidth_share = kernel.of(e.precision.experts).bandwidth_share;
  return {(weights / (gpu.hbm_bandwidth * bandwidth_share)).count(),
          (token / (gpu.peak(e.precision.experts, e.precision.activations) *
                    kernel.peak_share_of(e.precision.experts)))
              .count()};
}

bool fuses_experts(const ChosenPolicies& chosen) {
  return std::ranges::any_of(
      chosen.phases, [](const PhaseSpec& phase) { return phase.dispatch->fuses_experts(); });
}

namespace {

// Layers that draft attend as the last layer with a KV cache does.
MoeModel with_drafting(const MoeModel& model, int layers) {
  MoeModel all = model;
  const auto attends = [](const LayerSpec& layer) { return layer.mixer->kept({}, {}).bytes > 0; };
  const auto last = std::find_if(model.layers.rbegin(), model.layers.rend(), attends);
  if (last != model.layers.rend()) all.layers.insert(all.layers.end(), at(layers), *last);
  return all;
}

KvLayout paged(const PoolSpec& e, const KvPaging& paging) {
  const double layers = double(e.model.layers.size());
  const int drafting = !e.speculation.has_module()  ? 0
                       : e.kv_cache.layer_per_draft ? e.speculation.tokens
                                                    : 1;
  // Each layer of other models has as much as the mean one.
  const bool apart = e.model.keeps_state();
  KvLayout layout = kv_layout(apart ? with_drafting(e.model, drafting) : e.model, e.parallel,
                              e.precision, paging);
  // A state for each token that a step may keep.
  layout.state_blocks *= 1 + e.speculation.tokens;
  if (!apart) layout.block = layout.block * ((layers + drafting) / layers);
  return layout;
}

}  // namespace

KvLayout kv_layout_of(const PoolSpec& e) { return paged(e, e.kv_cache.paging); }

KvLayout kv_held_of(const PoolSpec& e) {
  const KvPaging& own = e.kv_cache.paging;
  return paged(e, {.block_tokens = own.block_tokens,
                   .keeps_all = own.keeps_all,
                   .pages_as_states = own.pages_as_states});
}

Mover mover_of(const PoolSpec& e) {
  return {e.expert_cluster(), e.parallel, expert_bytes(e.model, e.parallel, e.precision),
          e.movement.sources};
}

RebalancingContext rebalancing_context(const PoolSpec& e, const Mover& mover) {
  return {e.policies->placement, e.placement_problem, e.model.moe_layers(), mover,
          expert_time(e),        token_seconds(e),    e.parallel.dp};
}

void MeasurementSpec::correct(const Anchor& by, const ServingLoad& load) {
  anchored_tpot = by.tpot.at(load);
  anchored_ttft = by.ttft.runs > 0 ? by.ttft.at(load) / anchored_tpot : 1;
  anchored_at = load;
  anchor = by;
}

}  // namespace moesim
