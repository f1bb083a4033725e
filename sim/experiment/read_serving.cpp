// SPDX-License-Identifier: Apache-2.0
#include "sim/experiment/read_serving.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "hardware/choice.hpp"
#include "hardware/find_value.hpp"
#include "hardware/parse_json.hpp"
#include "hardware/shipped.hpp"
#include "models/launches.hpp"
#include "sim/engines/serving_engine.hpp"
#include "traces/requests/arrivals.hpp"
#include "traces/requests/lengths.hpp"

namespace moesim {

std::span<const Key> kv_cache_keys() {
  static constexpr Form tier = form::object(kv_tier_keys);
  static constexpr Key keys[] = {
      {"block_size", form::integer(1, 65'536), "16", "tokens of a block"},
      {"gpu_memory_utilization", form::number(0.01, 1), "0.9", "share of HBM that the engine uses"},
      {"free_gpu_memory_fraction", form::number(0.01, 1), unset("not used"),
       "instead: of what all else leaves of HBM (TensorRT-LLM)"},
      {"process_memory", form::bytes, "0 B",
       "HBM of a GPU for the engine's process: context, NCCL, graphs"},
      {"logits_copies", form::number(0, 100), unset("1, of a slice"),
       "copies of the logits of all sampled tokens that sampling holds at once"},
      {"disable_hybrid_kv_cache_manager", form::flag, "false",
       "layers with a window keep every token, too"},
      {"swa_full_tokens_ratio", form::number(0, 1), unset("one pool"),
       "tokens of the windows' own pool over those of other layers (SGLang)"},
      {"pages_as_states", form::flag, "false",
       "blocks have as many tokens as a layer's state is large (vLLM)"},
      {"state_slots", form::integer(0, 16), "0",
       "states of a sequence in a pool of their own (SGLang); 0: in blocks"},
      {"steps_in_flight", form::integer(1, 8), "1",
       "steps of a prompt whose tokens windows keep at once (vLLM)"},
      {"layer_per_draft", form::flag, "false",
       "the draft layer's KV is kept once for each draft (TensorRT-LLM)"},
      {"draft_embeddings", form::flag, "false",
       "draft layers load an embedding and a head, in bf16 (SGLang)"},
      {"prefix_caching", form::flag, "false", "blocks of finished prompts are found again"},
      {"retention", form::policy("retention"), unset("lru"),
       "what HBM holds between an agent's requests"},
      {"tiers", form::list(tier), "[]", "memories below HBM that keep blocks, nearest first"},
      {"read", form::choice(tier_read_names), "parked", "who waits for blocks from a tier"},
      {"min_load_tokens", form::integer(0, 1 << 30), "0",
       "a hit in a tier of fewer tokens is computed"},
      {"fetch", form::choice(tier_fetch_names), "all",
       "hits in a tier that are loaded: all, or if that is shorter"},
      {"prefetch_lead", form::time, unset("loads begin when a step is planned"),
       "an agent's blocks are loaded so long before it comes back"},
      {"offload_output", form::flag, unset("true"),
       "replies are copied to tiers; false: blocks of prompts alone (vLLM)"}};
  return keys;
}

std::span<const Key> expert_buffers_keys() {
  static constexpr Key keys[] = {{"tokens_per_rank", form::integer(1, 1 << 24),
                                  unset("max_num_batched_tokens"),
                                  "tokens of a step for which dispatch buffers have room"}};
  return keys;
}

namespace {

enum class Draft { mtp, time };
constexpr std::array<std::string_view, 2> draft_names{"mtp", "time"};

// Powers of two, or as an engine captures graphs.
std::span<const std::string_view> graph_size_names() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all{"powers_of_two"};
    all.insert(all.end(), engine_names().begin(), engine_names().end());
    return all;
  }();
  return names;
}

std::span<const Key> draft_keys() {
  static constexpr Key keys[] = {
      {"type", form::choice(draft_names), required,
       "a layer of the model drafts, or it takes a time"},
      {"per_token", form::time, unset("mtp: priced"), "time: of a pass, for one draft"}};
  return keys;
}

}  // namespace

std::span<const Key> speculative_keys() {
  static constexpr Form share = form::number(0, 1);
  static constexpr Key keys[] = {
      {"num_speculative_tokens", form::integer(0, 64), required, "drafts of a sequence and step"},
      {"acceptance_rate", form::number(0, 1), unset("another key says it"),
       "chance that a draft token is accepted if those before it are"},
      {"acceptance_rates", form::list(share), unset("another key says it"),
       "share of drafts at each position that are accepted, as vLLM logs it"},
      {"acceptance_length", form::number(1, 65), unset("another key says it"),
       "mean tokens of a step: those accepted and one more"},
      {"draft", form::typed_object(draft_keys), "mtp", "where drafts come from"},
      {"choice", form::policy("draft_choice"), "all", "how many drafts are verified"}};
  return keys;
}

std::span<const Key> api_server_keys() {
  static constexpr Key keys[] = {
      {"latency", form::time, "0 us", "latency of a request on its way to the engine"},
      {"latency_per_launch", form::time, "0 us",
       "added to it for each kernel launched by a step without a graph"},
      {"tokenization", form::time, "0 us", "time to tokenize one token of a prompt"},
      {"per_request", form::time, "0 us",
       "part of the latency that keeps a worker busy: HTTP, template, checks"},
      {"tokenizer_workers", form::integer(1, 1 << 10), "1",
       "prompts that are tokenized at a time, for each attention rank"},
      {"first_chunk", form::integer(1, 1 << 20), "1", "tokens that a client is first shown"},
      {"receive_interval", form::integer(1, 1 << 20), "1",
       "decode steps after which new requests are looked for"},
      {"admission_steps", form::integer(0, 1 << 20), "0",
       "steps from then on until they are scheduled"}};
  return keys;
}

std::span<const Key> cuda_graph_keys() {
  static constexpr Form size = form::integer(1, 1 << 20);
  static constexpr Form list = form::list(size);
  static const Key keys[] = {{"sizes", form::choice(graph_size_names()).or_a(list), required,
                              "decode batches that have a graph"},
                             {"max", size, "512", "the largest"}};
  return keys;
}

std::span<const Key> slo_keys() {
  static constexpr KeyDefault any = unset("no limit");
  static constexpr Key keys[] = {{"ttft", form::time, any, "time from arrival to the first token"},
                                 {"tpot", form::time, any, "per output token after the first"},
                                 {"e2el", form::time, any, "time from arrival to the last token"}};
  return keys;
}

std::span<const Key> class_keys() {
  static constexpr Key keys[] = {
      {"name", form::text, required, "what the report calls it"},
      {"share", form::number(0, 1), unset("as a file's column class says"),
       "share of the requests, or of the sessions"},
      {"priority", form::integer(-1000, 1000), "0", "lower values come first, as vLLM has it"},
      {"slo", form::object(slo_keys), unset("the experiment's"), "objectives of its requests"}};
  return keys;
}

std::span<const Key> measurement_keys() {
  static constexpr Key keys[] = {
      {"warmup", form::number(0, 0.9), "0", "share of the requests before the measurement starts"},
      {"hot_rank_threshold", form::number(1, 1e9), "2", "max/mean above which a step is counted"},
      {"expert_counts", form::flag, "true", "the report has tokens per layer and expert"},
      {"locality", form::flag, unset("false"),
       "the report has the shares of selections served near their tokens"},
      {"slowest_sessions", form::integer(1, 1000), unset("none"),
       "sessions whose turns the report has, one by one, and hits over time"}};
  return keys;
}

namespace {

// A tier is looked up by prefix, and its blocks are those of all layers alike.
void read_tiers(ConfigReader& kv, PoolSpec& spec) {
  KvCacheSpec& cache = spec.kv_cache;
  cache.read = choice<TierRead>(kv, "read", tier_read_names);
  cache.min_load_tokens = kv.integer("min_load_tokens");
  cache.fetch = choice<TierFetch>(kv, "fetch", tier_fetch_names);
  if (kv.optional("offload_output")) cache.offload_output = kv.flag("offload_output");
  const ConfigNode tiers = kv.child("tiers");
  cache.tiers = read_kv_tiers(tiers, spec.policies->tier_eviction, spec.policies->tier_write,
                              spec.cluster.gpu.host_bandwidth);
  if (kv.optional("prefetch_lead")) {
    cache.prefetch_lead = kv.quantity<Seconds>("prefetch_lead");
    if (cache.read != TierRead::parked)
      kv.child("prefetch_lead")
          .fail(R"(needs "read": "parked"; the others load for a step that computes the request)");
    if (tiers.list().empty())
      kv.child("prefetch_lead").fail("needs \"tiers\" that blocks are loaded from");
    if (!spec.workload.sessions)
      kv.child("prefetch_lead").fail("needs \"workload/sessions\", whose agents say when they ask");
  }
  if (cache.tiers.empty()) return;
  if (cache.fetch == TierFetch::if_shorter && cache.tiers.size() > 1) {
    kv.child("fetch").fail(
        R"("if_shorter" compares one tier's link with computing; give one tier, or "all")");
  }
  if (!spec.prefix_caching) {
    tiers.fail("a tier is looked up by prefix; give \"prefix_caching\": true, or leave tiers out");
  }
  const KvLayout layout = kv_layout_of(spec);
  if (layout.has_windows()) {
    tiers.fail("a tier is not modelled for the windows of {}; leave tiers out", spec.model.name);
  }
  if (!spec.failures.outages.empty()) {
    tiers.fail("a tier is not modelled with \"failures\"; leave one of them out");
  }
  const int gpus = spec.parallel.rank_gpus();
  for (const KvTierPlan& tier : cache.tiers) {
    if (tier.per != TierScope::node || spec.cluster.gpus_per_node % gpus == 0) continue;
    tiers.element(tier.place)
        .child("per")
        .fail("ranks of {} GPUs do not divide a node of {} evenly; use \"rank\"", gpus,
              spec.cluster.gpus_per_node);
  }
}

// Blocks are known by prefix, and an outage would have to give them up.
void read_retention(ConfigReader& kv, PoolSpec& spec) {
  if (!kv.optional("retention")) return;
  const ConfigNode node = kv.child("retention");
  spec.kv_cache.retention = spec.policies->retention.make(node);
  if (!spec.kv_cache.retention->holds()) return;
  if (!spec.prefix_caching)
    node.fail("blocks are found by prefix; give \"prefix_caching\": true, or use \"lru\"");
  if (!spec.workload.sessions)
    node.fail("only agents of \"workload/sessions\" come back; give these, or use \"lru\"");
  if (!spec.failures.outages.empty())
    node.fail("held blocks are not modelled with \"failures\"; leave one of the keys out");
}

// States that layers keep of a sequence are not kept for later prompts.
void read_kv_cache(const ConfigNode& node, PoolSpec& spec) {
  read_object(node, kv_cache_keys, [&](ConfigReader& kv) {
    KvPaging& paging = spec.kv_cache.paging;
    paging.block_tokens = static_cast<int>(kv.integer("block_size"));
    paging.keeps_all = kv.flag("disable_hybrid_kv_cache_manager");
    if (kv.optional("swa_full_tokens_ratio"))
      paging.window_ratio = kv.number("swa_full_tokens_ratio");
    paging.pages_as_states = kv.flag("pages_as_states");
    const std::int64_t slots = kv.integer("state_slots");
    if (spec.model.keeps_state()) paging.state_slots = static_cast<int>(slots);
    paging.steps_in_flight = static_cast<int>(kv.integer("steps_in_flight"));
    if (!kv.optional("free_gpu_memory_fraction")) {
      spec.kv_cache.gpu_memory_utilization = kv.number("gpu_memory_utilization");
    } else if (kv.optional("gpu_memory_utilization")) {
      kv.child("gpu_memory_utilization")
          .fail("\"free_gpu_memory_fraction\" says how much too; give one of them");
    } else {
      spec.kv_cache.free_gpu_memory_fraction = kv.number("free_gpu_memory_fraction");
    }
    spec.kv_cache.layer_per_draft = kv.flag("layer_per_draft");
    spec.kv_cache.draft_embeddings = kv.flag("draft_embeddings");
    spec.kv_cache.process_memory = kv.quantity<Bytes>("process_memory");
    if (kv.optional("logits_copies")) spec.kv_cache.logits_copies = kv.number("logits_copies");
    spec.prefix_caching = kv.flag("prefix_caching");
    if (spec.prefix_caching && spec.model.keeps_state()) {
      kv.child("prefix_caching")
          .fail("is not modelled for states that layers of {} keep; leave it out", spec.model.name);
    }
    read_retention(kv, spec);
    read_tiers(kv, spec);
  });
}

// The one chance for every draft that makes steps so long in the mean.
double chance_for(double length, int drafts) {
  double low = 0, high = 1;
  for (int i = 0; i < 60; ++i) {
    const double chance = (low + high) / 2;
    double tokens = 1, held = 1;
    for (int draft = 0; draft < drafts; ++draft) tokens += held *= chance;
    (tokens < length ? low : high) = chance;
  }
  return (low + high) / 2;
}

// Chance of each draft to be accepted, if those before it are.
std::vector<double> read_acceptance(ConfigReader& reader, std::size_t drafts) {
  const bool length = reader.has("acceptance_length"), rates = reader.has("acceptance_rates");
  if (length + rates + reader.has("acceptance_rate") != 1) {
    reader.node().fail(
        "expected one of \"acceptance_rate\", \"acceptance_rates\", \"acceptance_length\"");
  }
  if (!length && !rates) return std::vector<double>(drafts, reader.number("acceptance_rate"));
  if (length) {
    const double tokens = reader.number("acceptance_length");
    if (tokens > 1 + static_cast<double>(drafts)) {
      reader.child("acceptance_length")
          .fail("a step of {} drafts has at most {} tokens, not {}", drafts, drafts + 1, tokens);
    }
    return std::vector<double>(drafts, chance_for(tokens, static_cast<int>(drafts)));
  }
  const ConfigNode list = reader.child("acceptance_rates");
  const std::vector<ConfigNode> shares = list.list();
  if (shares.size() != drafts) {
    list.fail("expected a share for each of {} drafts, found {}", drafts, shares.size());
  }
  std::vector<double> chances;
  double before = 1;
  for (const ConfigNode& node : shares) {
    const double share = node.number({0, 1});
    if (share > before)
      node.fail("a draft is accepted only with those before it: shares never rise");
    chances.push_back(before > 0 ? share / before : 0);
    before = share;
  }
  return chances;
}

SpeculationPlan read_speculation(const ConfigNode& node, const Scheduler& scheduler,
                                 const Registry<DraftChoiceFactory>& choices) {
  return read_object(node, speculative_keys, [&](ConfigReader& reader) {
    SpeculationPlan plan;
    plan.tokens = static_cast<std::int32_t>(reader.integer("num_speculative_tokens"));
    plan.acceptance = read_acceptance(reader, at(plan.tokens));
    read_object(reader.child("draft").as_policy(), draft_keys, [&](ConfigReader& draft) {
      plan.mtp = choice<Draft>(draft, "type", draft_names) == Draft::mtp;
      if (!plan.mtp) plan.draft_time = draft.quantity<Seconds>("per_token");
    });
    plan.choice = choices.make(reader.child("choice"));
    const std::int64_t verified = std::int64_t{scheduler.max_num_seqs()} * (1 + plan.tokens);
    if (plan.tokens > 0 && scheduler.max_num_batched_tokens() < verified) {
      reader.child("num_speculative_tokens")
          .fail(
              "a step verifies up to max_num_seqs x {} = {} tokens, more than its "
              "max_num_batched_tokens of {}",
              1 + plan.tokens, verified, scheduler.max_num_batched_tokens());
    }
    return plan;
  });
}

ApiServer read_api_server(const ConfigNode& node, double launches) {
  return read_object(node, api_server_keys, [&](ConfigReader& reader) {
    return ApiServer{
        .latency = reader.quantity<Seconds>("latency") +
                   reader.quantity<Seconds>("latency_per_launch") * launches,
        .tokenization = reader.quantity<Seconds>("tokenization"),
        .per_request = reader.quantity<Seconds>("per_request"),
        .tokenizer_workers = static_cast<std::int32_t>(reader.integer("tokenizer_workers")),
        .first_chunk = static_cast<std::int32_t>(reader.integer("first_chunk")),
        .receive_interval = static_cast<std::int32_t>(reader.integer("receive_interval")),
        .admission_steps = static_cast<std::int32_t>(reader.integer("admission_steps"))};
  });
}

// Batches larger than any run without padding.
std::vector<std::int32_t> read_graph_sizes(const ConfigNode& node) {
  return read_object(node, cuda_graph_keys, [](ConfigReader& reader) {
    std::vector<std::int32_t> sizes;
    if (reader.child("sizes").json().is_array()) {
      for (const ConfigNode& size : reader.child("sizes").list()) {
        sizes.push_back(static_cast<std::int32_t>(size.integer()));
      }
      if (sizes.empty()) reader.child("sizes").fail("no size; leave \"cuda_graph\" out for none");
      std::sort(sizes.begin(), sizes.end());
      return sizes;
    }
    const ServingEngine* engine = find_engine(graph_size_names()[reader.choice("sizes")]);
    const auto largest = static_cast<std::int32_t>(reader.integer("max"));
    for (std::int32_t size = 1; size <= largest;
         size = engine == nullptr ? 2 * size : engine->next_graph_size(size)) {
      sizes.push_back(size);
    }
    // Engines capture the limit itself too.
    if (engine != nullptr && sizes.back() < largest) sizes.push_back(largest);
    return sizes;
  });
}

// Corrections for the load that the workload names; of lengths that it does not, those at their
// center. How many requests an open loop has in flight, a run finds out: see run().
void read_anchor_of(ConfigReader& reader, PoolSpec& spec) {
  if (!reader.has("anchor")) return;
  const Json& workload = reader.node().json().at("workload");
  const RequestWorkload& requests = spec.workload;
  const bool fixed_number = requests.arrivals->closed() && requests.arrivals->rate() == 0;
  const auto in_flight = fixed_number ? requests.arrivals->in_flight(spec.ranks()) : 0;
  spec.correct(read_anchor(file_or_inline(reader.child("anchor"))),
               {double(in_flight), number_at(workload, "/lengths/prompt", 0),
                number_at(workload, "/lengths/output", 0)});
}

Slo read_slo(const ConfigNode& node) {
  return read_object(node, slo_keys, [](ConfigReader& reader) {
    const auto limit = [&](const char* key) -> std::optional<Seconds> {
      if (!reader.optional(key)) return std::nullopt;
      const auto time = reader.quantity<Seconds>(key);
      if (!(time.count() > 0)) reader.child(key).fail("must be above zero");
      return time;
    };
    return Slo{limit("ttft"), limit("tpot"), limit("e2el")};
  });
}

RequestClass read_class(const ConfigNode& node, const Slo& otherwise) {
  return read_object(node, class_keys, [&](ConfigReader& reader) {
    RequestClass read{.name = reader.text("name"),
                      .priority = static_cast<std::int32_t>(reader.integer("priority")),
                      .slo = otherwise};
    if (reader.optional("share")) read.share = reader.number("share");
    if (reader.optional("slo")) read.slo = read_slo(reader.child("slo"));
    return read;
  });
}

std::vector<RequestClass> read_classes(const ConfigNode& list, const Slo& otherwise) {
  constexpr std::size_t most = 64;
  std::vector<RequestClass> classes;
  double shares = 0;
  for (const ConfigNode& node : list.list()) {
    RequestClass read = read_class(node, otherwise);
    if (std::ranges::find(classes, read.name, &RequestClass::name) != classes.end())
      node.child("name").fail("\"{}\" is the name of two classes", read.name);
    shares += read.share.value_or(0);
    classes.push_back(std::move(read));
  }
  if (classes.size() > most)
    list.fail("{} classes, at most {} can be told apart", classes.size(), most);
  const auto drawn = [](const RequestClass& one) { return one.share.has_value(); };
  if (std::ranges::none_of(classes, drawn)) return classes;
  const auto without = std::ranges::find_if_not(classes, drawn);
  if (without != classes.end())
    list.fail(
        "class \"{}\" has no \"share\"; give one to all classes, or to none if a "
        "recorded file names them",
        without->name);
  if (std::abs(shares - 1) > 1e-6)
    list.fail("the shares of all classes sum to {:.6g}, not to 1", shares);
  return classes;
}

// The class of each that a file names.
std::vector<std::uint8_t> recorded_classes(const ConfigNode& list,
                                           std::span<const RequestClass> classes,
                                           std::span<const std::string> recorded) {
  if (recorded.empty())
    list.fail(
        "no class has a \"share\", and no file of requests or sessions has a column \"class\"");
  std::vector<std::uint8_t> places;
  for (const std::string& name : recorded) {
    const auto found = std::ranges::find(classes, name, &RequestClass::name);
    if (found == classes.end()) {
      std::vector<std::string_view> known;
      for (const RequestClass& one : classes) known.push_back(one.name);
      list.fail(one_line(fmt::format("recorded requests are of class \"{}\"; the classes are {}",
                                     name, join_names(known))));
    }
    places.push_back(static_cast<std::uint8_t>(found - classes.begin()));
  }
  return places;
}

}  // namespace

void read_serving(ConfigReader& reader, PoolSpec& spec) {
  if (reader.optional("speculative")) {
    spec.speculation =
        read_speculation(reader.child("speculative"), *spec.scheduler, spec.policies->draft_choice);
  }
  read_object(reader.child("expert_buffers"), expert_buffers_keys, [&](ConfigReader& buffers) {
    const std::int32_t most = spec.scheduler->max_num_batched_tokens();
    spec.buffer_tokens =
        static_cast<std::int32_t>(buffers.integer_or("tokens_per_rank", most, {1, double(most)}));
  });
  read_kv_cache(reader.child("kv_cache"), spec);
  if (reader.has("cuda_graph")) spec.graph_sizes = read_graph_sizes(reader.child("cuda_graph"));
  if (!spec.graph_sizes.empty()) spec.charges.graph_tokens = spec.graph_sizes.back();
  const double launches =
      kernel_launches(beside_slots(spec.model, spec.shared_expert), spec.parallel, spec.precision,
                      fusions_of(spec.cluster.gpu));
  spec.charges.eager_layer =
      spec.charges.eager_launch * (launches / static_cast<double>(spec.model.layers.size()));
  spec.charges.wait_for_last =
      spec.charges.rank_jitter * mean_of_largest(spec.parallel.stage_gpus());
  spec.api_server = read_api_server(reader.child("api_server"), launches);
}

void read_objectives(ConfigReader& reader, ConfigReader& workload, PoolSpec& spec) {
  spec.slo = read_slo(reader.child("slo"));
  if (!workload.optional("classes")) return;
  const ConfigNode list = workload.child("classes");
  spec.classes = read_classes(list, spec.slo);
  if (!spec.classes.empty() && !spec.classes.front().share)
    spec.recorded_classes = recorded_classes(list, spec.classes, spec.workload.lengths->classes());
}

void read_measurement(ConfigReader& reader, PoolSpec& spec) {
  read_anchor_of(reader, spec);
  read_object(reader.child("measurement"), measurement_keys, [&](ConfigReader& measurement) {
    spec.warmup = measurement.number("warmup");
    // Requests that are all sent at once have no warm-up.
    const RequestWorkload& load = spec.workload;
    if (load.arrivals->closed() && load.arrivals->rate() == 0 &&
        load.arrivals->in_flight(spec.parallel.dp * spec.instances) >= load.requests)
      spec.warmup = 0;
    spec.hot_rank_threshold = measurement.number("hot_rank_threshold");
    spec.expert_counts = measurement.flag("expert_counts");
    if (measurement.optional("locality")) spec.locality = measurement.flag("locality");
    if (spec.locality && spec.parallel.afd())
      measurement.child("locality")
          .fail("no token is on a GPU of the experts with ffn_gpus; leave out one of them");
    if (measurement.optional("slowest_sessions"))
      spec.slowest_sessions = measurement.integer("slowest_sessions");
    if (spec.slowest_sessions > 0 && !spec.workload.sessions)
      measurement.child("slowest_sessions").fail("requests are of no sessions; give \"sessions\"");
  });
}

}  // namespace moesim
