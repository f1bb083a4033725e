// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/study/regime_study.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "hardware/rng.hpp"
#include "hardware/shipped.hpp"
#include "models/deployment.hpp"
#include "models/memory.hpp"
#include "sim/serving/typical_step.hpp"
#include "tools/cli/output.hpp"
#include "tools/run/intervals.hpp"
#include "traces/import/forms.hpp"

namespace moesim {

namespace {

std::span<const Key> settings_keys() {
  static constexpr Key keys[] = {{"/*", form::any, unset("the base's"), "its value"}};
  return keys;
}

std::span<const Key> named_keys() {
  static constexpr Key keys[] = {{"*", form::object(settings_keys), unset("none"),
                                  "what is set under this name, by JSON pointer"}};
  return keys;
}

RegimeStudy::Named read_named(const ConfigNode& node) {
  RegimeStudy::Named named;
  read_object(node, named_keys, [&](ConfigReader& reader) {
    for (const std::string& name : reader.all_keys()) {
      RegimeStudy::Settings settings;
      const ConfigNode set = reader.child(name);
      if (!set.json().is_object()) set.fail("expected {\"/pointer\": value}");
      for (const auto& [pointer, value] : set.json().items()) {
        if (!pointer.starts_with('/')) set.fail("\"{}\" is not a JSON pointer", pointer);
        settings[pointer] = value;
      }
      named.emplace_back(name, std::move(settings));
    }
  });
  if (named.empty()) node.fail("is empty; name at least one");
  std::ranges::sort(named, natural_less, &RegimeStudy::Named::value_type::first);
  return named;
}

// Every combination of one of each list.
RegimeStudy::Named product(const std::vector<RegimeStudy::Named>& lists) {
  RegimeStudy::Named all{{"", {}}};
  for (const RegimeStudy::Named& list : lists) {
    RegimeStudy::Named longer;
    for (const auto& [name, settings] : all) {
      for (const auto& [more, to_set] : list) {
        RegimeStudy::Settings both = settings;
        for (const auto& [pointer, value] : to_set) both[pointer] = value;
        longer.emplace_back(name.empty() ? more : fmt::format("{}, {}", name, more),
                            std::move(both));
      }
    }
    all = std::move(longer);
  }
  return all;
}

void set(Json& config, const RegimeStudy::Settings& settings, const std::filesystem::path& file) {
  for (const auto& [pointer, value] : settings) {  // shorter pointers come first
    try {
      config[Json::json_pointer(pointer)] = value;
    } catch (const Json::exception&) {
      throw ConfigError("{}: there is no place {} to set a value at", file.string(), pointer);
    }
  }
}

constexpr const char* ratio_key = "/placement/replication";
constexpr const char* exchange_key = "/dispatch";

// The ratios a policy is tried at; 0 is the one that it sets itself.
std::vector<double> ratios_of(const RegimeStudy& study, const RegimeStudy::Settings& policy) {
  return policy.contains(ratio_key) ? std::vector<double>{0} : study.replications;
}

// The exchanges a policy is tried behind; the first stands for the one that it sets itself.
std::size_t exchanges_of(const RegimeStudy& study, const RegimeStudy::Settings& policy) {
  const bool own = std::ranges::any_of(
      policy, [](const auto& setting) { return setting.first.starts_with(exchange_key); });
  return own ? 1 : study.exchanges.size();
}

Json point_config(const RegimeStudy& study, const RegimePlace& place, double replication) {
  Json config = study.base;
  // A policy comes last: it may set what it needs.
  for (const RegimeStudy::Settings* settings :
       {&study.cases[place.of_case].second, &study.constants[place.constants].second,
        &study.exchanges[place.exchange].second, &study.policies[place.policy].second})
    set(config, *settings, study.base_file);
  if (replication > 0) set(config, {{ratio_key, replication}}, study.base_file);
  return {{"experiment", std::move(config)},   {"sequences", study.sequences},
          {"prompts", study.prompts},          {"context", study.context},
          {"samples", study.samples},          {"deals", study.deals},
          {"price_errors", study.price_errors}};
}

// Steps of one size, by sample.
struct PricedSteps {
  Json ms = Json::array(), activated = Json::array(), read_mb = Json::array();
  /// Times of policies by global counts: deciding is free, as published, a fast kernel's.
  Json free_ms = Json::array(), published_ms = Json::array(), fast_ms = Json::array();
  Json off_ms = Json::array();  ///< on hardware that could as well be true, if asked for
};

double mean_activated(const StepCost& cost) {
  double sum = 0;
  for (const LayerOutcome& layer : cost.moe_layers()) sum += layer.load.most_activated();
  return sum / static_cast<double>(std::max<std::size_t>(1, cost.moe_layers().size()));
}

// A deployment for one deal, and what it could be on other hardware: one for each sample, or none.
struct DealtDeployment {
  Deployment as_given;
  std::vector<Deployment> off{};
};

Deployment on_drawn_hardware(Deployment deployment, int draw) {
  resample_hardware(deployment, draw);
  if (deployment.in_decode) {
    Deployment in_decode = *deployment.in_decode;
    resample_hardware(in_decode, draw);
    deployment.in_decode = std::make_shared<const Deployment>(std::move(in_decode));
  }
  return deployment;
}

void price_steps(const DealtDeployment& dealt, const StepContent& content, int samples,
                 PricedSteps& priced) {
  const Deployment& as_given = dealt.as_given;
  Deployment deployment = as_given;
  const bool decides = deployment.rules.of(content.kind()).router->needs_global_counts();
  const double mb_of_expert =
      expert_bytes(deployment.model, deployment.parallel, deployment.precision).value() / 1e6;
  const auto ms_of = [](const StepCost& cost) { return cost.total.count() * 1e3; };
  const auto step = [&] { return explain_step(deployment, content).cost; };
  const auto ms_if = [&](RoutingCharges taken) {
    Charges charges = routing_charges(taken);
    deployment.charges.token_routing = std::move(charges.token_routing);
    deployment.charges.top_k_of_all_tokens = charges.top_k_of_all_tokens;
    const double ms = ms_of(step());
    deployment.charges = as_given.charges;
    return ms;
  };
  for (int sample = 0; sample < samples; ++sample) {
    // The batch is drawn by the seed, the same one for every policy.
    deployment.seed =
        Rng(as_given.seed, fmt::format("study/{}/{}", content.tokens(), sample)).bits();
    const StepCost cost = step();
    const double activated = mean_activated(cost);
    priced.ms.push_back(ms_of(cost));
    priced.activated.push_back(activated);
    priced.read_mb.push_back(activated * mb_of_expert);
    if (!dealt.off.empty()) {
      Deployment off = dealt.off[static_cast<std::size_t>(sample)];
      off.seed = deployment.seed;
      priced.off_ms.push_back(ms_of(explain_step(off, content).cost));
    }
    if (!decides) continue;
    const bool free = as_given.charges.source.empty();  // "none"
    priced.free_ms.push_back(free ? ms_of(cost) : ms_if(RoutingCharges::none));
    priced.published_ms.push_back(ms_if(RoutingCharges::measured));
    priced.fast_ms.push_back(ms_if(RoutingCharges::fast));
  }
}

}  // namespace

std::span<const Key> regime_study_keys() {
  static constexpr Form experiment = form::file.or_a(form::any), named = form::object(named_keys),
                        lists = form::list(named), number = form::number(1, 100),
                        numbers = form::list(number), count = form::integer(1, 1e6),
                        counts = form::list(count), samples = form::integer(2, 1e6);
  static constexpr Key keys[] = {
      {"base", experiment, required, "an experiment, or the file of one"},
      {"cases", lists, required, "lists of settings: one of each makes a case"},
      {"constants", named, unset("the base's"), "settings by which prices are compared"},
      {"exchanges", named, unset("the base's"), "of policies that set no /dispatch"},
      {"policies", named, required, "settings of each; the first is the reference"},
      {"replications", numbers, R"([1.125, 1.25, 1.5])", "of policies that set none"},
      {"sequences", counts, "[]", "per DP rank, in a decode step"},
      {"prompts", counts, "[]", "tokens of a DP rank's prompt, in a prefill step"},
      {"context", count, "1024", "tokens of each sequence"},
      {"samples", samples, "32", "batches of each size, over all deals"},
      {"deals", count, "1", "halves of the requests to fit on, by seeds of their own"},
      {"price_errors", form::flag, "false", "price each sample as constants could be off, too"}};
  return keys;
}

RegimeStudy read_regime_study(const ConfigNode& file) {
  return read_object(file, regime_study_keys, [&](ConfigReader& reader) {
    const ConfigNode base = file_or_inline(reader.child("base"));
    const RegimeStudy::Named as_in_base{{"", {}}};
    RegimeStudy study{file.json(), base.file(), base.json(), {}, as_in_base, as_in_base, {},
                      {},          {},          {},          0,  0,          1,          false};
    std::vector<RegimeStudy::Named> lists;
    for (const ConfigNode& list : reader.child("cases").list()) lists.push_back(read_named(list));
    study.cases = product(lists);
    if (reader.optional("constants")) study.constants = read_named(reader.child("constants"));
    if (reader.optional("exchanges")) study.exchanges = read_named(reader.child("exchanges"));
    study.policies = read_named(reader.child("policies"));
    for (const ConfigNode& value : reader.child("replications").list())
      study.replications.push_back(value.number());
    const auto counts = [&](std::string_view key, std::vector<int>& of) {
      for (const ConfigNode& value : reader.child(key).list())
        of.push_back(static_cast<int>(value.integer()));
    };
    counts("sequences", study.sequences);
    counts("prompts", study.prompts);
    if (study.sequences.empty() && study.prompts.empty())
      file.fail("has no steps; give \"sequences\", \"prompts\" or both");
    study.context = static_cast<int>(reader.integer("context"));
    study.samples = static_cast<int>(reader.integer("samples"));
    study.deals = static_cast<int>(reader.integer("deals"));
    study.price_errors = reader.flag("price_errors");
    if (study.samples % study.deals != 0)
      reader.child("samples").fail(
          fmt::format("are {} over {} deals; give a multiple", study.samples, study.deals));
    const auto reference = std::ranges::find_if(
        study.policies, [](const auto& policy) { return policy.first == "none"; });
    if (reference == study.policies.end())
      reader.child("policies").fail("needs \"none\", with which the others are compared");
    std::rotate(study.policies.begin(), reference, reference + 1);
    return study;
  });
}

void for_each_regime(const RegimeStudy& study,
                     const std::function<void(const RegimePlace&, const SweepPoint&)>& call) {
  PointMaker points(study.base_file.parent_path());
  RegimePlace place;
  const auto each_exchange = [&](double replication) {
    const RegimeStudy::Settings& policy = study.policies[place.policy].second;
    for (place.exchange = 0; place.exchange < exchanges_of(study, policy); ++place.exchange)
      call(place, points.of(point_config(study, place, replication)));
  };
  for (place.of_case = 0; place.of_case < study.cases.size(); ++place.of_case) {
    for (place.constants = 0; place.constants < study.constants.size(); ++place.constants) {
      for (place.policy = 0; place.policy < study.policies.size(); ++place.policy) {
        for (const double replication : ratios_of(study, study.policies[place.policy].second))
          each_exchange(replication);
      }
    }
  }
}

Sweep points_of(const RegimeStudy& study) {
  Sweep sweep{study.document, study.base_file, {}};
  std::set<std::string> known;
  for_each_regime(study, [&](const RegimePlace&, const SweepPoint& point) {
    if (known.insert(point.config_hash).second) sweep.points.push_back(point);
  });
  return sweep;
}

void check_first(const RegimeStudy& study, const Sweep& sweep, TraceLibrary& traces) {
  load_experiment(ConfigNode(sweep.points.front().config.at("experiment"), study.base_file),
                  traces);
}

std::string price_regime(const Json& point, const std::filesystem::path& base_file,
                         TraceLibrary& traces) {
  const int deals = point.at("deals"), samples = point.at("samples").get<int>() / deals;
  std::vector<DealtDeployment> dealt;
  for (int deal = 0; deal < deals; ++deal) {
    Json json = point.at("experiment");
    if (deal > 0) json["seed"] = json.value("seed", 1) + deal;
    dealt.push_back({load_experiment(ConfigNode(std::move(json), base_file), traces).decode()});
    for (int sample = 0; point.at("price_errors") && sample < samples; ++sample)
      dealt.back().off.push_back(on_drawn_hardware(dealt.back().as_given, deal * samples + sample));
  }
  const Deployment& deployment = dealt.front().as_given;
  // A run warns of slices that not every kernel takes; a study has none for them.
  ParallelPlan cut = deployment.parallel;
  if (!deployment.placement.empty() && deployment.placement.front().cut() > 0) cut.ep = 1;
  if (std::string warning = slice_warning(deployment.model, cut, deployment.precision);
      !warning.empty())
    throw ConfigError(warning);
  const int ranks = deployment.parallel.dp, context = point.at("context");
  const double kv_tokens =
      static_cast<double>(deployment.memory.kv_blocks) * deployment.kv_layout.block_tokens * ranks;
  Json report{{"replication", deployment.replication_effective},
              {"kv_tokens", kv_tokens},
              {"layers", deployment.model.moe_layers()},
              {"steps", Json::array()}};
  std::vector<StepContent> steps;
  for (const int sequences : point.at("sequences").get<std::vector<int>>())
    steps.push_back(decode_step(sequences, context));
  for (const int prompt : point.at("prompts").get<std::vector<int>>())
    steps.push_back(prefill_step(prompt));
  for (const StepContent& content : steps) {
    PricedSteps priced;
    for (const DealtDeployment& deal : dealt) price_steps(deal, content, samples, priced);
    const int batch = ranks * content.tokens();
    const double x =
        static_cast<double>(batch) * deployment.model.experts_per_token / deployment.model.experts;
    const double held = content.kind() == StepKind::decode ? double(batch) * context : batch;
    report["steps"].push_back({{"kind", static_cast<int>(content.kind())},
                               {"batch", batch},
                               {"x", x},
                               {"fits", held <= kv_tokens},
                               {"ms", std::move(priced.ms)},
                               {"activated", std::move(priced.activated)},
                               {"read_mb", std::move(priced.read_mb)},
                               {"free_ms", std::move(priced.free_ms)},
                               {"published_ms", std::move(priced.published_ms)},
                               {"fast_ms", std::move(priced.fast_ms)},
                               {"off_ms", std::move(priced.off_ms)}});
  }
  return report.dump();
}

}  // namespace moesim
