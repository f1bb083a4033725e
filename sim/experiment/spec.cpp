// SPDX-License-Identifier: Apache-2.0
#include "sim/experiment/spec.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "hardware/choice.hpp"
#include "hardware/kernels/experts.hpp"
#include "hardware/quoting.hpp"
#include "hardware/shipped.hpp"
#include "hardware/tables/kernel_tables.hpp"
#include "models/quantization.hpp"
#include "sim/experiment/engine.hpp"
#include "sim/experiment/pools.hpp"
#include "sim/experiment/read_phases.hpp"
#include "sim/experiment/read_placement.hpp"
#include "sim/experiment/read_serving.hpp"
#include "sim/experiment/shared_cluster.hpp"
#include "sim/experiment/spelled_out.hpp"
#include "sim/step/reselection.hpp"
#include "traces/gating/presets.hpp"
#include "traces/requests/arrivals.hpp"
#include "traces/requests/lengths.hpp"
#include "traces/sessions/sessions.hpp"

namespace moesim {

namespace {

enum class Binding { random, by_workload, by_session };
constexpr std::array<std::string_view, 3> binding_names{"random", "by_workload", "by_session"};

std::span<const Key> binding_keys() {
  static constexpr Form tags = form::list(form::text);
  static constexpr Key keys[] = {
      {"type", form::choice(binding_names), required, "the order of recordings"},
      {"phases", form::list(tags), unset("none, but for by_workload"),
       "by_workload: tags of each of equally long phases"}};
  return keys;
}

BindingOrder read_binding(const ConfigNode& node, const RequestWorkload& workload) {
  return read_object(node.as_policy(), binding_keys, [&](ConfigReader& reader) {
    BindingOrder order;
    const auto type = choice<Binding>(reader, "type", binding_names);
    order.by_session = type == Binding::by_session;
    if (order.by_session && !workload.sessions)
      node.fail(R"(requests are of no sessions; give "sessions", or bind at "random")");
    if (type != Binding::by_workload) return order;
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

enum class Fidelity { exact, sampled };
constexpr std::array<std::string_view, 2> fidelity_names{"exact", "sampled"};

std::span<const Key> workload_keys() {
  static constexpr Form request_class = form::object(class_keys);
  static constexpr Form gating = form::policy("gating").or_a(form::text);
  static constexpr Key keys[] = {
      {"arrivals", form::policy("arrivals"), unset("required, but for recorded sessions"),
       "when requests come, or sessions start"},
      {"lengths", form::policy("lengths"), unset("the arrivals'"),
       "lengths of prompts and outputs"},
      {"sessions", form::policy("sessions", session_keys), unset("none: each request by itself"),
       "requests that follow each other"},
      {"requests", form::integer(1, 1e9), unset("all of the trace"), "number of requests"},
      {"gating", gating, unset("the preset of the model's family; none for a dense model"),
       "which experts tokens choose; or a preset (moesim list presets)"},
      {"prefill_gating", gating, unset("gating"), "which experts prompt tokens choose"},
      {"binding", form::typed_object(binding_keys), "random", "which recording a request replays"},
      {"classes", form::list(request_class), unset("none: one kind"),
       "kinds of requests: priorities, and objectives of their own"},
      {"timeout", form::time, unset("no limit"), "clients leave: from arrival to the last token"},
      {"ttft_timeout", form::time, unset("no limit"), "clients leave: to the first token"},
      {"cancellation", form::object(cancellation_keys), unset("none"), "clients that just leave"}};
  return keys;
}

std::span<const Key> site_power_keys() {
  static constexpr Key keys[] = {
      {"overhead_per_gpu", form::watts, unset("not counted"),
       "hosts, NICs, switches and fans, over the GPUs"},
      {"pue", form::number(1, 10), unset("not counted"), "power of the building over servers'"},
      {"dollars_per_kwh", form::number(0, 1000), unset("no cost of power"),
       "price of electricity"}};
  return keys;
}

std::span<const Key> background_keys() {
  static constexpr Form share = form::number(0, 0.99);
  static constexpr Key keys[] = {
      {"nvlink", share, "0", "share of NVLink that other tenants take"},
      {"network", share, "0", "share of the network that other tenants take"},
      {"spine", form::bytes_per_second, unset("none"),
       "what other tenants take of the network's spine_bandwidth"}};
  return keys;
}

}  // namespace

std::span<const Key> experiment_keys() {
  static constexpr Form inline_cluster = form::object(cluster_keys);
  static constexpr Form foreign_model = form::foreign(hf_model_marks);
  static constexpr Form inline_model = form::object(model_keys).or_a(foreign_model);
  static constexpr Form inline_anchor = form::object(anchor_keys);
  static constexpr Form overlap = form::typed_object(overlap_keys);
  static constexpr Form overlaps = form::list(overlap);
  static constexpr Form reselection = form::object(reselection_keys);
  static constexpr Form shared_expert = form::typed_object(shared_expert_keys);
  static constexpr Form outage = form::object(outage_keys);
  static constexpr Form outages = form::list(outage);
  static constexpr Form two_term_step = form::object(two_term_step_keys);
  static constexpr Form deployment = form::partial_object(deployment_keys);
  static constexpr Key keys[] = {
      {"engine", form::object(engine_keys).or_a(form::text),
       unset("no preset; measured kernels of any engine"),
       "engine whose defaults fill what is left out, or its bare name"},
      {"parallel", form::object(parallel_keys), required, "GPUs of an EP group"},
      {"instances", form::integer(1, 1 << 16), unset("1"), "equal EP groups behind one router"},
      {"ffn_cluster", form::file.or_a(inline_cluster), unset("cluster"),
       "cluster of the experts' GPUs with ffn_gpus (AFD), if another"},
      {"precision", form::object(precision_keys).or_a(form::text),
       unset("as the model's files say"),
       "precision of all parts; or a text of weights: \"fp8\", \"nvfp4/fp8\""},
      {"scheduling", form::policy("scheduling"), required,
       "what a step computes, unless an \"engine\" says it"},
      {"prefill_alignment", form::policy("prefill_alignment", prefill_alignment_keys),
       unset("none"), "when ranks hold prompts back to prefill together"},
      {"token_routing", form::object(token_routing_keys), required,
       "which replica serves a token, unless an \"engine\" says it"},
      {"dispatch", form::object(dispatch_keys), required,
       "how tokens reach experts and return, unless an \"engine\" says it"},
      {"placement", form::policy("placement", placement_keys), "linear", "which GPU has an expert"},
      {"rebalancing", form::policy("rebalancing", rebalancing_keys), "none", "when experts move"},
      {"request_routing", form::policy("request_routing"), "least_kv", "which rank has a request"},
      {"charges", form::object(charges_keys), "{}", "time that no kernel model gives"},
      {"two_term_step", two_term_step, unset("kernels and links"),
       "steps by KV tokens alone: a max L + b mean L + c"},
      {"capacity", form::policy("capacity"), "dropless", "bounds of an expert's tokens"},
      {"expert_reselection", reselection, unset("none"),
       "decode: fewer active experts, at other answers (OEA)"},
      {"expert_memory", form::policy("expert_memory", expert_memory_keys), "resident",
       "which experts HBM holds"},
      {"host_link", form::choice(host_link_names), unset("a link for each"),
       "what goes first where offloaded experts and KV share a GPU's link"},
      {"expert_buffers", form::object(expert_buffers_keys), "{}", "room for dispatched tokens"},
      {"overlap", overlap.or_a(overlaps), "none", "communication beside computation"},
      {"shared_expert", shared_expert, unset("local"),
       "rank that computes a token's shared expert"},
      {"speculative", form::object(speculative_keys), unset("none"), "drafts"},
      {"kv_cache", form::object(kv_cache_keys), "{}", "KV cache"},
      {"api_server", form::object(api_server_keys), "{}", "time between clients and the engine"},
      {"cuda_graph", form::object(cuda_graph_keys), unset("no padding"), "captured batches"},
      {"background", form::object(background_keys), "{}", "load of other tenants on the links"},
      {"failures", form::object(failures_keys).or_a(outages), "[]", "GPUs that stop"},
      {"fidelity", form::choice(fidelity_names), "exact",
       "route every token, or draw from samples"},

      {"anchor", form::file.or_a(inline_anchor), unset("none"),
       "what bench --anchor wrote of measured runs"},

      {"cluster", form::file.or_a(inline_cluster), required, "a file, or a name of list clusters"},
      {"model", form::file.or_a(inline_model), required,
       "a file or folder of HuggingFace's, or a name of list models"},
      {"power", form::object(site_power_keys), unset("that of the GPUs alone"),
       "overhead of a GPU, PUE, price of electricity"},
      {"workload", form::object(workload_keys), required, "requests"},
      {"max_model_len", form::integer(1, 1e9), unset("the model's max_positions"),
       "prompt and output tokens of a request; longer requests are rejected"},
      {"pools", form::object(pools_keys), unset("one for both"), "prefill and decode apart"},
      {"kv_transfer", form::object(kv_transfer_keys), "{}", "between pools"},
      {"pool_roles", form::policy("pool_roles", role_change_keys), unset("fixed"),
       "when an EP group leaves one pool for the other"},
      {"deployments", form::list(deployment), unset("one"),
       "models that share the cluster: each a name, and its own keys"},
      {"slo", form::object(slo_keys), "{}", "objectives that goodput counts"},
      {"measurement", form::object(measurement_keys), "{}", "what the report is of"},
      {"seed", form::integer(0, 9e15), "1", "seed of all random streams"},
      {"$schema", form::text, unset("none"), "where an editor finds the schema; not read"}};
  return keys;
}

// Keys of one EP group come before those that all share, of which the cluster is first.
std::span<const Key> group_keys() {
  const auto keys = experiment_keys();
  const auto shared = std::ranges::find(keys, "cluster", &Key::name);
  return keys.first(static_cast<std::size_t>(shared - keys.begin()));
}

std::span<const Key> pooled_group_keys() {
  return experiment_keys().first(group_keys().size() + 1);
}

PolicyRows Policies::rows() const {
  PolicyRows all;
  const auto add = [&](const auto& registry) { all[registry.kind()] = registry.rows(); };
  add(placement), add(token_routing), add(dispatch), add(capacity), add(expert_memory);
  add(prefetch), add(retention), add(tier_eviction), add(tier_write), add(scheduling);
  add(request_routing), add(rebalancing), add(pool_roles), add(prefill_alignment);
  add(gatings()), add(request_arrivals()), add(request_lengths()), add(session_kinds());
  return all;
}

namespace {

// Precision that the experiment says, or the model's files.
PrecisionPlan read_precision(ConfigReader& reader, const ConfigNode& model, const MoeModel& read,
                             std::vector<std::string>& remarks) {
  const std::optional<StoredPrecision> stored = read_stored_precision(model, read);
  const bool given = reader.optional("precision");
  if (!given && !stored) {
    reader.node().fail(fmt::format("\"precision\" is missing, and {} does not say it",
                                   model.file().filename().string()));
  }
  const ConfigNode node = reader.child_or("precision", Json::object());
  if (stored && !stored->unknown.empty()) {
    if (!given) throw ConfigError(stored->unknown);
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
  if (stored && !stored->warning.empty() && !given) {
    remarks.push_back("\"precision\": " + stored->warning);
  }
  return plan;
}

// Remark on keys of a model's file that nothing here knows.
std::string unknown_keys_remark(const std::vector<std::string>& keys) {
  return fmt::format(
      "\"model\": config.json has keys that are not known here: {}. If a layer or a size hangs on "
      "one, the model is another; the zoo's format (models/README.md) can describe such a model",
      visible(fmt::format("\"{}\"", fmt::join(keys, "\", \""))));
}

// A cluster with the kernels of the engine that runs on it; without one with the newest engine's
// that has the kernel.
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
      spine.fail(fmt::format("{:.4g} GB/s is all of the spine's {:.4g} GB/s; leave some",
                             taken.value() / 1e9, carries->value() / 1e9));
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
      node.fail(fmt::format("{} instances of {} GPUs take {}, but {} has {}; {} fit", instances,
                            gpus, instances * gpus, cluster.name, cluster.gpus(),
                            cluster.gpus() / gpus));
    }
    if (instances > 1 && gpus % domain != 0 && domain % gpus != 0) {
      node.fail(fmt::format(
          "instances of {} GPUs do not divide NVLink domains of {} evenly; use a divisor or a "
          "multiple of the domain",
          gpus, domain));
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
    node.fail(fmt::format("ffn_gpus = {}, but {} has {} GPUs; use fewer, or a larger cluster",
                          plan.ffn_gpus, experts.name, experts.gpus()));
  }
  for (const int domain : {e.cluster.scale_up_domain, experts.scale_up_domain}) {
    if (plan.attention_gpus() % domain == 0) continue;
    node.fail(
        fmt::format("dp * tp = {} GPUs for attention do not fill NVLink domains of {}; use a "
                    "multiple of {}",
                    plan.attention_gpus(), domain, domain));
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
    parallel.fail(fmt::format("{} = {} GPUs, but {} has {}", product, gpus, spec.cluster.name,
                              spec.cluster.gpus()));
  }
  if (spec.ffn_cluster) check_ffn_cluster(reader.child("ffn_cluster"), spec);
  if (reader.optional("instances")) {
    spec.instances = read_instances(reader.child("instances"), spec);
  }
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
  place.fail(fmt::format(
      "a prompt and its output have up to {} tokens, but {} takes {}; shorten the lengths, or give "
      "\"max_model_len\": {} (engines then also need a scaling of the rotary embedding)",
      longest, spec.max_model_len == own ? spec.model.name : "\"max_model_len\"",
      spec.max_model_len, longest));
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

// Refuses what needs the routing of the step's own tokens.
void check_sampled(const ConfigNode& node, const PoolSpec& e) {
  const auto refuse = [&](bool present, std::string_view what) {
    if (present) node.fail(fmt::format("\"sampled\" is not modelled with {}; use \"exact\"", what));
  };
  refuse(e.expert_memory.has_value(), "expert_memory");
  refuse(!e.failures.outages.empty(), "failures");
  refuse(e.capacity->limits(), "a capacity rule");
  refuse(e.speculation.tokens > 0, "speculative");
  refuse(e.rebalancing.name() != "none", "rebalancing");
}

// Refuses what a pipeline is not modelled with.
void check_pipeline(const ConfigNode& node, const PoolSpec& e) {
  const ParallelPlan& plan = e.parallel;
  if (plan.pp == 1) return;
  const int domain = e.cluster.scale_up_domain, stage = plan.stage_gpus();
  if (domain % stage != 0 && stage % domain != 0) {
    node.fail(
        fmt::format("pipeline stages of dp * tp = {} GPUs do not line up with NVLink domains "
                    "of {}; one must divide the other",
                    stage, domain));
  }
  const auto refuse = [&](bool present, std::string_view what, std::string_view instead) {
    if (present)
      node.fail(fmt::format("{} is not modelled with pp {}; use {}", what, plan.pp, instead));
  };
  refuse(e.overlap.two_batch.has_value(), "overlap two_batch", "another overlap");
  refuse(e.expert_memory.has_value(), "expert_memory", R"("resident")");
  refuse(e.speculation.tokens > 0, "speculative", "none");
  refuse(e.rebalancing.name() != "none", "rebalancing", R"("none")");
}

// Refuses what attention and experts apart are not modelled with. Attention's GPUs send tokens, and
// the experts' GPUs do not learn of others.
void check_afd(ConfigReader& reader, const PoolSpec& e) {
  if (!e.parallel.afd()) return;
  const auto refuse = [&](bool present, const char* key, std::string_view what,
                          std::string_view instead) {
    if (!present) return;
    reader.child(key).fail(fmt::format("{} is not modelled with ffn_gpus; use {}", what, instead));
  };
  refuse(e.overlap.two_batch.has_value(), "overlap", "two_batch",
         "\"parallel/micro_batches\" instead");
  refuse(e.overlap.combine_attention, "overlap", "combine_attention",
         "\"shared_expert\" or \"none\"");
  refuse(e.expert_memory.has_value(), "expert_memory", "experts below HBM", "\"resident\"");
  for (const PhaseSpec& phase : e.phases) {
    refuse(phase.dispatch->gathers_tokens(), "dispatch", "a gather of all tokens on every GPU",
           "\"all_to_all\", \"low_latency\" or \"ids_all_gather\"");
  }
}

// A shared expert that is one more slot of a rank is like an expert, and every rank has it whole.
// With AFD any attention rank can send to such a slot.
void check_shared_slot(const ConfigNode& node, const PoolSpec& e) {
  const MoeModel& model = e.model;
  const auto refuse = [&](bool present, std::string_view why) {
    if (present)
      node.fail(fmt::format("the shared expert is no slot of the experts {}; use \"local\"", why));
  };
  refuse(model.shared_width == 0, "of a model without one");
  refuse(model.shared_width != model.expert_width || model.expert_input() != model.hidden,
         fmt::format("if it is {} wide and they are {}", model.shared_width, model.expert_width));
  refuse(e.precision.ffn != e.precision.experts, "in another precision");
  if (e.parallel.afd()) {
    refuse(e.parallel.moe_tp() > 1, "unless ep is as large as \"ffn_gpus\"");
  } else {
    refuse(e.parallel.tp > 1 || e.parallel.ep != e.parallel.dp, "unless tp is 1 and ep is dp");
  }
  refuse(e.overlap.shared_expert, "with overlap \"shared_expert\"");
  refuse(e.capacity->limits(), "with a capacity rule");
  refuse(e.expert_memory.has_value(), "with experts below HBM");
}

// A cache below HBM knows slots by their number: they must stay where they are.
void refuse_moving_cached_experts(const ChosenPolicies& e) {
  if (!e.expert_memory) return;
  const bool fails = !e.failures.outages.empty();
  if (fails || e.rebalancing.name() != "none") {
    e.rebalancing.node().fail(
        "experts below HBM do not move; leave out this and \"failures\", or \"expert_memory\"");
  }
}

// Experts that move stand in as many slots of every layer.
void refuse_moving_unequal_layers(const ChosenPolicies& e) {
  if (!e.placed.by_gain) return;
  if (!e.failures.outages.empty() || e.rebalancing.name() != "none") {
    e.rebalancing.node().fail(
        "experts do not move where layers have unequal copies; leave out this and \"failures\", or "
        "\"by_gain\"");
  }
}

// A kernel that writes into other GPUs' memory reaches those of its NVLink domain.
void check_domain(ConfigReader& reader, const PoolSpec& e) {
  const int gpus = e.parallel.stage_gpus(), domain = e.cluster.scale_up_domain;
  if (!e.parallel.exchanges() || gpus <= domain) return;
  for (const PhaseSpec& phase : e.phases) {
    if (phase.dispatch->within_nvlink())
      reader.child("dispatch")
          .fail(fmt::format(
              "a dispatch over NVLink needs all {} GPUs of a group in one NVLink domain, which "
              "holds {}; use \"all_to_all\"",
              gpus, domain));
  }
}

// The kernel computes whole layers of experts that are in HBM, and was measured on few GPUs.
void check_mega_moe(ConfigReader& reader, const PoolSpec& e) {
  if (!fuses_experts(e)) return;
  const ConfigNode node = reader.child("dispatch");
  const auto refuse = [&](bool that, std::string_view what) {
    if (that)
      node.fail(fmt::format("\"mega_moe\" is not modelled with {}; leave one of them out", what));
  };
  refuse(!e.parallel.exchanges(), "one attention rank, whose tokens do not travel");
  refuse(e.parallel.afd(), "ffn_gpus");
  refuse(e.parallel.moe_tp() > 1, "experts cut over several GPUs");
  refuse(e.expert_memory.has_value(), "\"expert_memory\"");
  refuse(e.shared_expert.is_slot(), "a shared expert that is a slot");
  refuse(e.overlap.two_batch.has_value(), "\"overlap\": \"two_batch\"");
  if (has_mega_moe({.cluster = e.cluster,
                    .model = e.model,
                    .plan = e.parallel,
                    .precision = e.precision,
                    .charges = {},
                    .mega_moe = true}))
    return;
  node.fail(fmt::format(
      "no measured table prices \"mega_moe\" for experts in {} on {}; use another dispatch, or a "
      "GPU, a precision and an \"engine\" with a table megamoe_module",
      precision_names[static_cast<std::size_t>(e.precision.experts)], e.cluster.gpu.name));
}

// A request that is never due would wait for all others.
void refuse_without_deadlines(ConfigReader& reader, const PoolSpec& spec) {
  if (!spec.scheduler->needs_deadlines()) return;
  const auto never_due = [](const RequestClass& one) { return !one.slo.ttft; };
  const auto without = std::ranges::find_if(spec.classes, never_due);
  if (spec.classes.empty() ? spec.slo.ttft.has_value() : without == spec.classes.end()) return;
  const std::string who =
      spec.classes.empty() ? "requests have" : fmt::format("class \"{}\" has", without->name);
  reader.child("scheduling")
      .fail(fmt::format("\"{}\" goes by when first tokens are due, and {} no such objective; give "
                        "\"slo\": {{\"ttft\": \"30 s\"}}",
                        spec.names.scheduling, who));
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
  const Dispatch& decode = *spec.phases[static_cast<std::size_t>(StepKind::decode)].dispatch;
  if (spec.parallel.exchanges() && !decode.gives_global_counts())
    node.fail(
        "a token must know the choices of the whole group; use \"ids_all_gather\" or "
        "\"all_gather\" as dispatch of decode");
  spec.remarks.push_back(
      "\"expert_reselection\" changes what the model answers; output quality is not modelled");
}

void refuse_combinations(ConfigReader& reader, const PoolSpec& spec) {
  refuse_without_deadlines(reader, spec);
  refuse_moving_cached_experts(spec);
  refuse_moving_unequal_layers(spec);
  if (spec.overlap.two_batch && spec.expert_memory) {
    reader.child("overlap").fail(
        "two_batch is not modelled with experts below HBM; leave one of them out");
  }
  check_pipeline(reader.child("parallel"), spec);
  check_afd(reader, spec);
  check_domain(reader, spec);
  check_mega_moe(reader, spec);
  if (spec.shared_expert.is_slot()) check_shared_slot(reader.child("shared_expert"), spec);
  if (spec.sampled) check_sampled(reader.child("fidelity"), spec);
  if (spec.two_term && spec.speculation.tokens > 0) {
    reader.child("two_term_step")
        .fail("two terms do not say what drafts take; leave out this or \"speculative\"");
  }
}

// Decode steps with experts cut otherwise. What moves or loads experts knows one cut.
void read_decode_cut(ConfigReader& reader, PoolSpec& spec) {
  const ConfigNode node = reader.child("parallel").child("decode_ep");
  const auto refuse = [&](bool that, std::string_view what) {
    if (that)
      node.fail(fmt::format("experts are not cut by phase with {}; leave one of them out", what));
  };
  refuse(spec.expert_memory.has_value(), "experts below HBM");
  refuse(!spec.failures.outages.empty(), "\"failures\"");
  refuse(spec.rebalancing.name() != "none", "\"rebalancing\"");
  refuse(spec.capacity->limits(), "a capacity rule");
  refuse(spec.mixed.kind == MixedRule::Kind::decode_if_few,
         "a rule of mixed steps that hangs on their tokens");
  refuse(spec.parallel.decode_weights == DecodeWeights::moved && spec.replication_effective > 1,
         "copies of experts while weights move");
  PoolSpec cut = spec;
  cut.parallel = in_decode(spec.parallel);
  const ConfigNode whole(Json("linear"), node.file());
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
      e.parallel.exchanges() &&
      e.phases[static_cast<std::size_t>(StepKind::decode)].dispatch->needs_copies();
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
    read_max_model_len(reader, spec);
    read_plan(reader, spec);
    if (std::string warning = slice_warning(spec.model, spec.parallel, spec.precision);
        !warning.empty())
      spec.remarks.push_back(std::move(warning));
    read_policies(reader, spec);
    if (reader.optional("expert_reselection")) read_keep(reader, spec);
    if (reader.optional("shared_expert"))
      spec.shared_expert = read_shared_expert(reader.child("shared_expert"));
    read_serving(reader, spec);
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

KvLayout kv_layout_of(const PoolSpec& e) {
  KvLayout layout =
      kv_layout(e.model, e.parallel, e.precision, e.kv_cache.block_tokens, e.kv_cache.keeps_all);
  if (e.speculation.has_module()) {
    const double layers = double(e.model.layers.size());
    layout.block = layout.block * ((layers + 1) / layers);
  }
  return layout;
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
