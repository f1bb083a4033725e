// SPDX-License-Identifier: Apache-2.0
#include "sim/experiment/engine.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "hardware/find_value.hpp"
#include "hardware/shipped.hpp"
#include "models/moe_model.hpp"
#include "models/quantization.hpp"
#include "sim/engines/serving_engine.hpp"

namespace moesim {

namespace {

// The engines, and the name of an experiment that goes by data sheets.
std::span<const std::string_view> choices() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all(engine_names().begin(), engine_names().end());
    all.emplace_back("none");
    return all;
  }();
  return names;
}

constexpr std::array<std::string_view, 3> fusions{"norm", "rope", "quantise"};
constexpr std::array<std::string_view, 4> recipes{"none", "inferencex", "srt_slurm",
                                                  "trtllm_bench"};

// Facts that rules and conditions of a preset look at. Numbers that are not given are 0.
struct Situation {
  Engine engine;
  std::string gpu, model, experts;
  bool moe = true;  // else ranks are servers of their own
  ServerSizes sizes;
  double prompt = 0, output = 0;  // tokens of the longest
  double concurrency = 0;
  double dp = 1, tp = 1;
  double domain = 1;       // GPUs of an NVLink domain
  bool files_say = false;  // the model's files say how it is quantised, and the experiment does not
  bool states_unsaid = false;  // its layers keep states, in a precision that no file says
};

// The precision with the largest share.
std::string largest_share(const Json& shares) {
  std::string most;
  double largest = 0;
  for (const auto& part : shares.items()) {
    const double share = part.value().is_number() ? part.value().get<double>() : 0;
    if (share > largest) most = part.key();
    largest = std::max(largest, share);
  }
  return most;
}

// Takes off the owner of "Qwen/Qwen3-32B", or of a folder "models--Qwen--Qwen3-32B".
std::string without_owner(std::string name) {
  if (const auto slash = name.find_last_of('/'); slash + 1 < name.size()) name.erase(0, slash + 1);
  if (const auto owner = name.rfind("--"); owner != name.npos) name.erase(0, owner + 2);
  return name;
}

void look_at_gpu(const ConfigNode& gpu, Situation& now) {
  now.gpu = text_at(gpu.json(), "/name");
  if (gpu.json().contains("hbm_capacity"))
    now.sizes.hbm_mib = gpu.child("hbm_capacity").quantity<Bytes>().value() / (1 << 20);
}

// Reads a vision encoder as SGLang does.
void look_at_vision(const Json& model, Situation& now) {
  if (!model.contains("vision_config")) return;
  constexpr double usual_layers = 24, usual_hidden = 1024;
  const auto size = [&](const std::string& key, double usual) {
    const double other = number_at(model, "/vision_config/vt_" + key, usual);
    return number_at(model, "/vision_config/" + key, other);
  };
  now.sizes.vision_layers = size("num_hidden_layers", usual_layers);
  now.sizes.vision_hidden = size("hidden_size", usual_hidden);
}

Situation look_at(const ConfigNode& experiment) {
  const Json& json = experiment.json();
  Situation now;
  now.engine = read_engine(experiment.child("engine"));
  if (json.contains("cluster")) {
    const ConfigNode cluster = named_or_inline(experiment.child("cluster"), Shipped::cluster);
    if (cluster.json().contains("gpu"))
      look_at_gpu(named_or_inline(cluster.child("gpu"), Shipped::gpu), now);
    now.domain = number_at(cluster.json(), "/scale_up_domain",
                           number_at(cluster.json(), "/gpus_per_node", 1));
  }
  if (json.contains("model")) {
    const ConfigNode file = named_or_inline(experiment.child("model"), Shipped::model);
    const MoeModel model = read_model(file);
    now.model = without_owner(model.name);
    now.moe = model.experts > 0;
    look_at_vision(file.json(), now);
    const std::optional<StoredPrecision> stored = read_stored_precision(file, model);
    now.states_unsaid = model.keeps_state() && !(stored && stored->states_said);
    // Left out, the precision is that of the model's files.
    if (stored && stored->unknown.empty()) {
      now.experts = precision_names[at(stored->plan.experts)];
      now.files_say = stored->quantised && !json.contains(Json::json_pointer("/precision/experts"));
    }
  }
  if (const std::string given = text_at(json, "/precision/experts"); !given.empty())
    now.experts = given;
  if (const Json::json_pointer place("/precision/experts");
      json.contains(place) && json.at(place).is_object())
    now.experts = largest_share(json.at(place));
  now.prompt = number_at(json, "/workload/lengths/prompt", 0);
  now.output = number_at(json, "/workload/lengths/output", 0);
  now.dp = number_at(json, "/parallel/dp", 1);
  now.tp = number_at(json, "/parallel/tp", 1);
  const double per_rank = number_at(json, "/workload/arrivals/concurrency_per_rank", 0);
  now.concurrency = number_at(json, "/workload/arrivals/concurrency", per_rank * now.dp);
  // Numbers that are no sizes are refused when they are read.
  const auto size = [](double value) { return static_cast<int>(std::clamp(value, 1., 65536.)); };
  now.sizes.dp = now.moe ? size(now.dp) : 1;
  now.sizes.gpus = size(now.sizes.dp * now.tp);
  now.sizes.pp = size(number_at(json, "/parallel/pp", 1));
  now.sizes.drafts = number_at(json, "/speculative/num_speculative_tokens", 0) > 0;
  now.sizes.recipe = !now.engine.recipe.empty();
  return now;
}

// ---- presets ----

constexpr Form texts = form::list(form::text);
constexpr Form amount = form::number(-1e9, 1e9);
constexpr KeyDefault any_at_all = unset("any");

std::span<const Key> rule_keys() {
  static constexpr Key keys[] = {
      {"prompt", amount, "0", "times the longest prompt"},
      {"output", amount, "0", "times the longest output"},
      {"concurrency", amount, "0", "times the requests in flight"},
      {"concurrency_per_rank", amount, "0", "times those of one attention rank"},
      {"of_all_ranks", amount, "0", "this, shared out among attention ranks"},
      {"plus", amount, "0", "and this"},
      {"multiple_of", form::integer(positive_count), "1", "rounded up to it"},
      {"at_least", amount, "1", "the least it can be"},
      {"at_most", amount, "1e9", "the most"}};
  return keys;
}

std::int64_t work_out(const ConfigNode& rule, const Situation& now) {
  return read_object(rule, rule_keys, [&](ConfigReader& r) {
    double value = r.number("prompt") * now.prompt + r.number("output") * now.output +
                   r.number("concurrency") * now.concurrency +
                   r.number("concurrency_per_rank") * now.concurrency / now.dp +
                   r.number("of_all_ranks") / now.dp + r.number("plus");
    const auto step = static_cast<double>(r.integer("multiple_of"));
    value = std::ceil(value / step) * step;
    return std::llround(std::clamp(value, r.number("at_least"), r.number("at_most")));
  });
}

std::span<const Key> condition_keys() {
  static constexpr Key keys[] = {
      {"versions", texts, any_at_all, "versions that begin with one of these"},
      {"gpus", texts, any_at_all, "GPUs whose names begin with one of these"},
      {"models", texts, any_at_all, "models whose names begin with one of these"},
      {"experts", texts, any_at_all, "precisions of the experts, in full"},
      {"states_unsaid", form::flag, any_at_all,
       "true: the model keeps states, and its files do not say their precision"},
      {"recipe", form::text, any_at_all, "recipe whose launch scripts set this"},
      {"from", form::text, any_at_all, "first date of the recipe"},
      {"before", form::text, any_at_all, "first date after the recipe"},
      {"attention_dp", form::flag, any_at_all, "true: several attention ranks; false: one"},
      {"one_domain", form::flag, any_at_all, "whether one NVLink domain holds all GPUs of a group"},
      {"tp_at_least", amount, "0", "GPUs of an attention rank"},
      {"tp_at_most", amount, "1e9", "GPUs of an attention rank"},
      {"prompt_at_least", amount, "0", "tokens of the longest prompt"},
      {"prompt_at_most", amount, "1e9", "tokens of the longest prompt"},
      {"output_at_most", amount, "1e9", "tokens of the longest output"},
      {"concurrency_at_least", amount, "0", "requests in flight"},
      {"concurrency_below", amount, any_at_all, "requests in flight"}};
  return keys;
}

template <class Fits>
bool any_fits(ConfigReader& r, std::string_view key, Fits&& fits) {
  if (!r.optional(key)) return true;
  const std::vector<ConfigNode> listed = r.child(key).list();
  return std::ranges::any_of(listed, [&](const ConfigNode& text) { return fits(text.text()); });
}

bool begins_with_any(ConfigReader& r, std::string_view key, std::string_view name) {
  return any_fits(r, key, [&](const std::string& start) { return name.starts_with(start); });
}

// An undated recipe is the latest one: after every date.
bool holds(const ConfigNode& condition, const Situation& now) {
  return read_object(condition, condition_keys, [&](ConfigReader& r) {
    const std::string& date = now.engine.date;
    bool all = begins_with_any(r, "versions", now.engine.version);
    all &= begins_with_any(r, "gpus", now.gpu);
    all &= begins_with_any(r, "models", now.model);
    // "fp8" is not "fp8_block".
    all &= any_fits(r, "experts", [&](const std::string& name) { return name == now.experts; });
    if (r.optional("states_unsaid")) all &= r.flag("states_unsaid") == now.states_unsaid;
    if (r.optional("recipe")) {
      const std::string& recipe = now.engine.recipe;
      all &= r.text("recipe") == (recipe.empty() ? recipes[0] : recipe);
    }
    if (r.optional("from")) all &= date.empty() || date >= r.text("from");
    if (r.optional("before")) all &= !date.empty() && date < r.text("before");
    if (r.optional("attention_dp")) all &= r.flag("attention_dp") == (now.dp > 1);
    if (r.optional("one_domain")) all &= r.flag("one_domain") == (now.dp * now.tp <= now.domain);
    all &= now.tp >= r.number("tp_at_least") && now.tp <= r.number("tp_at_most");
    all &= now.prompt >= r.number("prompt_at_least") && now.prompt <= r.number("prompt_at_most");
    all &= now.output <= r.number("output_at_most");
    all &= now.concurrency >= r.number("concurrency_at_least");
    if (r.optional("concurrency_below")) all &= now.concurrency < r.number("concurrency_below");
    return all;
  });
}

std::span<const Key> setting_keys() {
  static constexpr Key keys[] = {
      {"when", form::object(condition_keys), "{}", "every condition must hold"},
      {"set", form::any, required, "values by JSON pointer; {\"rule\": {..}} is worked out"},
      {"source", form::text, required, "where it comes from"}};
  return keys;
}

// Values by pointer, e.g. {"/scheduling/max_num_seqs": 256}.
void set_values(const ConfigNode& values, const Situation& now, Json& preset) {
  for (const auto& [pointer, value] : values.json().items()) {
    const bool rule = value.is_object() && value.contains("rule");
    preset[Json::json_pointer(pointer)] =
        rule ? Json(work_out(values.child(pointer).child("rule"), now)) : value;
  }
}

std::span<const Key> preset_keys() {
  static constexpr Form setting = form::object(setting_keys);
  static constexpr Key keys[] = {
      {"name", form::text, required, "the engine's name"},
      {"source", form::text, required, "what its settings were read from"},
      {"without_vision", texts, "[]", "models that begin so run without their vision encoder"},
      {"settings", form::list(setting), required,
       "settings in order; a later setting replaces an earlier one"}};
  return keys;
}

// True if a setting only guesses what a checkpoint's own files say: without a recipe one by the
// precision of experts does.
bool files_say_more(const ConfigNode& when, const Situation& now) {
  return now.files_say && now.engine.recipe.empty() && when.json().contains("experts");
}

// Takes back what a setting says of the precisions that files say.
void restore_precision(const Json& before, Json& all) {
  for (const char* key : {"experts", "attention", "ffn", "kv_cache", "activations"}) {
    if (before.contains(key)) {
      all["precision"][key] = before[key];
    } else if (all.contains("precision")) {
      all["precision"].erase(key);
    }
  }
}

// The preset's settings over those by size.
Json settings_of(const ConfigNode& preset, const Situation& now, Json all) {
  return read_object(preset, preset_keys, [&](ConfigReader& r) {
    r.text("name"), r.text("source"), r.optional("without_vision");
    for (const ConfigNode& setting : r.child("settings").list()) {
      read_object(setting, setting_keys, [&](ConfigReader& s) {
        s.text("source");
        const ConfigNode values = s.child("set"), when = s.child("when");
        if (!holds(when, now)) return;
        if (!files_say_more(when, now)) return set_values(values, now, all);
        const Json before = all.value("precision", Json::object());
        set_values(values, now, all);
        restore_precision(before, all);
      });
    }
    return all;
  });
}

// Fills in keys that `config` leaves out.
void fill(Json& config, const Json& preset) {
  for (const auto& [key, value] : preset.items()) {
    if (!config.contains(key)) {
      config[key] = value;
      continue;
    }
    Json& own = config[key];
    if (!own.is_object() || !value.is_object()) continue;
    if (own.contains("type") && value.contains("type") && own["type"] != value["type"]) continue;
    fill(own, value);
  }
}

// A release's number, with or without the "v" of its tag.
std::string release_in(const ConfigNode& node) {
  std::string release = node.text();
  const auto number_at = [&](std::size_t place) {
    return place < release.size() && std::isdigit(static_cast<unsigned char>(release[place])) != 0;
  };
  if (release.starts_with('v') && number_at(1)) release.erase(0, 1);
  if (!number_at(0))
    node.fail(
        "\"{}\" is no release; a number such as \"0.19.0\" is expected, or no "
        "version for the newest",
        release);
  return release;
}

}  // namespace

std::span<const Key> engine_keys() {
  static constexpr Form fusion = form::choice(fusions);
  static const Key keys[] = {
      {"name", form::choice(choices()), required,
       "sim/engines/*/preset.json; none: no preset and no measured kernels"},
      {"version", form::text, unset("the newest"), "version of the release"},
      {"recipe", form::choice(recipes), "none", "recipe whose launch scripts set up the engine"},
      {"date", form::text, unset("the latest"), "date of the recipe, e.g. 2026-04-21"},
      {"expert_kernel", form::text, "fastest", "part of its name in tables of expert layers"},
      {"prompt_gemms", form::flops_per_second, unset("as tables say"),
       "rate of prompts' fp8_block GEMMs, if slower than tables say"},
      {"prompt_attention", form::flops_per_second, unset("as tables say"),
       "rate of prompts' attention, if slower than tables say"},
      {"fused", form::list(fusion), "[]", "small operations that it computes inside larger ones"}};
  return keys;
}

Engine read_engine(const ConfigNode& node) {
  return read_object(node, engine_keys, [](ConfigReader& r) {
    Engine engine;
    engine.name = std::string(choices()[r.choice("name")]);
    if (r.optional("version")) engine.version = release_in(r.child("version"));
    if (const auto recipe = r.choice("recipe"); recipe > 0) engine.recipe = recipes[recipe];
    if (r.optional("date")) engine.date = r.text("date");
    if (const std::string kernel = r.text("expert_kernel"); kernel != "fastest")
      engine.expert_kernel = kernel;
    for (const auto& [key, rate] : {std::pair{"prompt_gemms", &Engine::prompt_gemms},
                                    {"prompt_attention", &Engine::prompt_attention}}) {
      if (!r.optional(key)) continue;
      engine.*rate = fmt::format("{} TFLOP/s", r.quantity<FlopsPerSecond>(key).value() / 1e12);
    }
    for (const ConfigNode& operation : r.child("fused").list())
      engine.fused.emplace_back(fusions[operation.choice()]);
    Engine bare;
    bare.name = "none";
    if (engine.name == bare.name && engine != bare)
      r.node().fail("\"none\" is not an engine: remove the other keys");
    return engine;
  });
}

Fusions fusions_of(const Engine& engine) {
  return fusions_where([&](std::string_view operation) {
    return std::ranges::find(engine.fused, operation) != engine.fused.end();
  });
}

namespace {

// Parsed once: a plan asks for it a thousand times.
ConfigNode preset_of(const ServingEngine& engine) {
  static const auto all = [] {
    std::map<std::string_view, Json> presets;
    for (const ServingEngine& each : serving_engines())
      presets.emplace(each.name, Json::parse(each.preset));
    return presets;
  }();
  return {all.at(engine.name), fmt::format("sim/engines/{}/preset.json", engine.name)};
}

}  // namespace

ConfigNode with_preset(const ConfigNode& experiment) {
  if (!experiment.json().is_object() || !experiment.json().contains("engine")) return experiment;
  Situation now = look_at(experiment);
  const ServingEngine* engine = find_engine(now.engine.name);
  if (engine == nullptr) return experiment;
  Json config = experiment.json();
  const ConfigNode file = preset_of(*engine);
  for (const Json& model : file.json().value("without_vision", Json::array()))
    if (now.model.starts_with(model.get<std::string>())) now.sizes.vision_layers = 0;
  Json preset =
      settings_of(file, now, engine->by_size ? engine->by_size(now.sizes) : Json::object());
  // Two keys for one share: the experiment's own holds.
  constexpr std::pair<const char*, const char*> shares[] = {
      {"gpu_memory_utilization", "free_gpu_memory_fraction"},
      {"free_gpu_memory_fraction", "gpu_memory_utilization"}};
  for (const auto& [own, other] : shares)
    if (find_value(config, fmt::format("/kv_cache/{}", own)) && preset.contains("kv_cache"))
      preset["kv_cache"].erase(other);
  // A list of sizes has no largest one beside it.
  const Json* sizes = find_value(config, "/cuda_graph/sizes");
  if (sizes != nullptr && sizes->is_array() && preset.contains("cuda_graph"))
    preset["cuda_graph"].erase("max");
  fill(config, preset);
  const bool has_room = !config.contains("kv_cache") || config["kv_cache"].is_object();
  if (engine->memory_share != nullptr && has_room &&
      !find_value(config, "/kv_cache/gpu_memory_utilization") &&
      !find_value(config, "/kv_cache/free_gpu_memory_fraction"))
    config["kv_cache"]["gpu_memory_utilization"] = engine->memory_share(now.sizes, config);
  return {std::move(config), experiment.file(), experiment.pointer()};
}

}  // namespace moesim
