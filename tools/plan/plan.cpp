// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/plan.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "tools/sweep/axes.hpp"
#include "tools/sweep/store.hpp"

namespace moesim {

namespace {

// Deployments that a stage hands on to the next, a few more than are printed.
constexpr std::size_t kept = 5;
// Selected experts of all tokens of a run, up to which the last runs price each: some ten seconds.
constexpr double most_exact_ids = 3e9;
// Length of a short run, in stays of a request: it is measured from the end of the first stay on.
constexpr double short_stays = 2.5;
constexpr const char* arrivals_rate = "/workload/arrivals/rate";

double seconds_of(const Json& config, const char* key, double otherwise) {
  const Json* value = find_value(config, key);
  return value == nullptr ? otherwise : parse_quantity<Seconds>(value->get<std::string>()).count();
}

// From arrival to the last token for a request that just meets the SLO.
double longest_stay(const Json& base) {
  constexpr double usual_ttft = 1, usual_tpot = .05;
  const double output = base.at("workload").at("lengths").at("output");
  return seconds_of(base, "/slo/ttft", usual_ttft) +
         output * seconds_of(base, "/slo/tpot", usual_tpot);
}

std::string goodput_text(const SloRun& run) {
  return fmt::format("{} requests/s: {}", number_text(run.trial.goodput), shape_text(run.config));
}

class Search {
 public:
  Search(const PlanSearch& search, TraceLibrary& traces, Remarks& remarks, const PlanHooks& hooks)
      : search_(search), traces_(traces), remarks_(remarks), hooks_(hooks) {
    std::error_code none;
    if (std::filesystem::file_size(search.store, none) > 0 && !none) {
      for (const StoreRow& row : Store::open(search.store).rows())
        plan_.before += row.status == PointStatus::done;
    }
  }

  Plan run() {
    look_at_shapes();
    refine("copies and routing", [&](const Json& d) { return with_copies(d, search_.model); });
    refine("chunks", with_chunks);
    refine("limits on sequences", [&](const Json& d) { return with_sequences(d, room(d)); });
    confirm();
    if (!leaders_.empty()) nearest_.clear();
    plan_.best = std::move(leaders_);
    plan_.nearest = std::move(nearest_);
    return plan_;
  }

 private:
  // One search over some deployments; what it found joins the leaders.
  SloResult stage(const std::string& name, std::vector<Json> places, double stays) {
    hooks_.begins(leaders_.empty()
                      ? name
                      : fmt::format("{} (best so far {})", name, goodput_text(leaders_.front())));
    const double seconds = stays * longest_stay(search_.base);
    SloSearch slo{.document = document(),
                  .base_file = search_.folder / "plan",
                  .places = std::move(places),
                  .ladder = ladder_,
                  .attainment = search_.attainment,
                  .doubting = false,
                  .store = search_.store,
                  .start = leaders_.empty() ? -1 : leaders_.front().trial.goodput};
    slo.set_load = [seconds](Json& place, const std::string& rate, double per_second) {
      constexpr double fewest = 200, most = 50'000;
      place[Json::json_pointer(arrivals_rate)] = rate;
      place["workload"]["requests"] =
          static_cast<std::int64_t>(std::clamp(per_second * seconds, fewest, most));
    };
    const std::size_t ran_before = plan_.runs;
    SloHooks hooks;
    hooks.stop = hooks_.stop;
    hooks.bounded = hooks_.bounded;
    hooks.ran = [&](std::size_t runs) { hooks_.ran(ran_before + runs); };
    SloResult result = search_slo(slo, traces_, remarks_, hooks);
    plan_.runs += result.search.runs;
    plan_.deployments += slo.places.size() - result.cannot_run;
    plan_.stopped |= result.search.stopped;
    if (leaders_.empty() && nearest_.empty()) nearest_ = result.nearest;
    return result;
  }

  void join(std::vector<SloRun> found) {
    std::ranges::move(found, std::back_inserter(leaders_));
    std::ranges::stable_sort(leaders_, [](const SloRun& a, const SloRun& b) {
      return a.trial.goodput > b.trial.goodput;
    });
    // Each shape once, with what makes the most of it; of equals what was found first, which has
    // fewer settings of its own.
    std::set<std::string> seen;
    std::erase_if(leaders_,
                  [&](const SloRun& run) { return !seen.insert(shape_text(run.config)).second; });
    if (leaders_.size() > kept) leaders_.resize(kept);
  }

  static Json without_load(Json config) {
    config[Json::json_pointer(arrivals_rate)] = "1 /s";
    config["workload"]["requests"] = 1;
    config.erase("fidelity");
    return config;
  }

  // MoE layers are drawn from steps alike, where that is modelled.
  static Json sampled(Json deployment) {
    if (decode_group(deployment).at("parallel").at("pp") == 1) deployment["fidelity"] = "sampled";
    return deployment;
  }

  void look_at_shapes() {
    std::vector<Json> all = shapes(search_.base, search_.model, search_.cluster);
    plan_.shapes = all.size();
    std::ranges::transform(all, all.begin(), sampled);
    SloResult result = stage("shapes", all, short_stays);
    std::vector<BoundedShape> bounded;
    double best_bound = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!result.bounds[i]) continue;
      bounded.push_back({all[i], *result.bounds[i]});
      best_bound = std::max(best_bound, result.bounds[i]->goodput);
    }
    plan_.fit = bounded.size();
    join(std::move(result.found));
    ladder_ = ladder_under(best_bound);  // as that search had it: stages know each other's runs
    std::vector<Json> apart = pools(bounded, search_.cluster);
    plan_.shapes += apart.size();
    if (apart.empty() || plan_.stopped) return;
    result = stage("prefill and decode apart", std::move(apart), short_stays);
    plan_.fit += result.bounds.size() - result.cannot_run;
    join(std::move(result.found));
  }

  template <class Vary>
  void refine(const char* name, Vary vary) {
    std::vector<Json> places;
    for (const SloRun& leader : leaders_) {
      for (Json& place : vary(without_load(leader.config))) places.push_back(sampled(place));
    }
    if (places.empty() || plan_.stopped) return;
    join(stage(name, std::move(places), short_stays).found);
  }

  // Sequences of the question's length that a rank's KV cache holds.
  std::int64_t room(const Json& deployment) {
    const Experiment e = load_experiment(ConfigNode(deployment, search_.folder / "plan"), traces_);
    const Json& lengths = deployment.at("workload").at("lengths");
    const std::int64_t tokens =
        lengths.at("prompt").get<std::int64_t>() + lengths.at("output").get<std::int64_t>();
    return e.memory.kv_blocks / std::max<std::int64_t>(1, e.kv_layout.blocks_for(tokens));
  }

  // Whether a long run prices every token in reasonable time.
  bool exact_is_quick(const SloRun& run, double stays) const {
    const Json& lengths = search_.base.at("workload").at("lengths");
    const double tokens = lengths.at("prompt").get<double>() + lengths.at("output").get<double>();
    const double requests = run.trial.goodput * stays * longest_stay(search_.base);
    return requests * tokens * search_.model.moe_layers() * search_.model.experts_per_token <
           most_exact_ids;
  }

  void confirm() {
    constexpr double stays = 5;
    if (leaders_.empty() || plan_.stopped) return;
    std::vector<Json> places;
    for (const SloRun& leader : leaders_) {
      const Json deployment = without_load(leader.config);
      places.push_back(exact_is_quick(leader, stays) ? deployment : sampled(deployment));
    }
    // Of the short runs nothing is left: a long one says more.
    SloResult result = stage("long runs", std::move(places), stays);
    if (plan_.stopped) return;
    leaders_.clear();
    nearest_ = result.nearest;
    join(std::move(result.found));
  }

  // What the store says of itself: the question, and what its points differ in.
  Json document() const {
    Json axes;
    for (const char* pointer :
         {"/parallel", "/instances", "/pools", "/dispatch", "/placement/replication",
          "/token_routing/decode", "/scheduling/max_num_batched_tokens", "/scheduling/max_num_seqs",
          "/fidelity", "/workload/requests", arrivals_rate}) {
      axes[pointer] = Json::array();
    }
    return {{"base", search_.base}, {"axes", axes}};
  }

  const PlanSearch& search_;
  TraceLibrary& traces_;
  Remarks& remarks_;
  const PlanHooks& hooks_;
  std::optional<RateLadder> ladder_;
  std::vector<SloRun> leaders_, nearest_;
  Plan plan_;
};

}  // namespace

Plan make_plan(const PlanSearch& search, TraceLibrary& traces, Remarks& remarks,
               const PlanHooks& hooks) {
  return Search(search, traces, remarks, hooks).run();
}

namespace {

// The part of the steps that takes most of their time, and what bounds it.
std::string main_part(const Json& breakdown) {
  const Json* most = nullptr;
  std::string name;
  for (const auto& [part, entry] : breakdown.at("parts").items()) {
    if (most != nullptr && entry.at("seconds") <= most->at("seconds")) continue;
    most = &entry;
    name = part;
  }
  if (most == nullptr) return "";
  std::string bound;
  double seconds = 0;
  const Json by_resource = most->value("bound_by", Json::object());
  for (const auto& [resource, time] : by_resource.items()) {
    if (time.get<double>() > seconds) bound = resource;
    seconds = std::max(seconds, time.get<double>());
  }
  return fmt::format("{} {:.0f} % ({})", name, 100 * most->at("share").get<double>(), bound);
}

}  // namespace

std::string binding_text(const SloRun& run) {
  const auto tpot = margin_of(run, "tpot"), ttft = margin_of(run, "ttft");
  const bool by_ttft = ttft && (!tpot || *ttft < *tpot);
  const std::string limit = by_ttft ? "TTFT" : "TPOT";
  const Json* breakdown = find_value(run.report, "/breakdown");
  return breakdown == nullptr ? limit : fmt::format("{}; {}", limit, main_part(*breakdown));
}

}  // namespace moesim
