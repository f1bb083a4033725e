// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/plan.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include <fmt/format.h>

#include "tools/sweep/axes.hpp"
#include "tools/sweep/store.hpp"

namespace moesim {

namespace {

// Deployments that a stage hands on to the next, a few more than are printed.
constexpr std::size_t kept = 5;
// How many are varied: a fourth shape that some setting makes the best was not found.
constexpr std::size_t varied = 3;
// Selected experts of all tokens of a run, up to which the last runs price each: some two seconds.
constexpr double most_exact_ids = 5e8;
// Length of a short run, in stays of a request: it is measured from the end of the first stay on.
constexpr double short_stays = 3, confirmed_stays = 6;
// Other seeds under which the best is run once more.
constexpr int redraws = 2;
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
    // What a chunk is good for depends on the depth of the pipeline and on how many ranks wait.
    refine("layouts of prefill",
           [&](const Json& d) { return with_prefill_layouts(d, search_.model, search_.cluster); });
    refine("limits on sequences", [&](const Json& d) { return with_sequences(d, room(d)); });
    confirm();
    doubt();
    if (!leaders_.empty()) nearest_.clear();
    plan_.best = std::move(leaders_);
    plan_.nearest = std::move(nearest_);
    return plan_;
  }

 private:
  // Runs of that many stays of a request over some deployments.
  SloSearch search_over(std::vector<Json> places, double stays) const {
    const double seconds = stays * longest_stay(search_.base);
    SloSearch slo{.document = document(),
                  .base_file = search_.folder / "plan",
                  .places = std::move(places),
                  .ladder = ladder_,
                  .attainment = search_.attainment,
                  .doubting = false,
                  .steady = true,
                  .spot_checks = false,
                  .store = search_.store,
                  .start = -1};
    slo.set_load = [seconds](Json& place, const std::string& rate, double per_second) {
      constexpr double fewest = 200, most = 50'000;
      place[Json::json_pointer(arrivals_rate)] = rate;
      place["workload"]["requests"] =
          static_cast<std::int64_t>(std::clamp(per_second * seconds, fewest, most));
    };
    return slo;
  }

  SloHooks begin(const std::string& stage) const {
    hooks_.begins(leaders_.empty()
                      ? stage
                      : fmt::format("{} (best so far {})", stage, goodput_text(leaders_.front())));
    return {.stop = hooks_.stop,
            .bounded = hooks_.bounded,
            .ran = [this, before = plan_.runs](std::size_t runs) { hooks_.ran(before + runs); }};
  }

  void count(const SloResult& result) {
    plan_.runs += result.search.runs;
    plan_.stopped |= result.search.stopped;
    if (result.nearest.empty()) return;
    const auto excess = [](const std::vector<SloRun>& miss) { return miss.front().trial.excess; };
    if (nearest_.empty() || excess(result.nearest) < excess(nearest_)) nearest_ = result.nearest;
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

  // MoE layers are drawn from steps alike.
  static Json sampled(Json deployment) {
    deployment["fidelity"] = "sampled";
    return deployment;
  }

  // Pools first: prefill and decode bound them closely, which makes them a good measure. Groups
  // that do both are bounded loosely where many ranks wait for the one that has a prompt.
  void look_at_shapes() {
    std::vector<Json> together = shapes(search_.base, search_.model, search_.cluster);
    std::ranges::transform(together, together.begin(), sampled);
    const std::vector<std::optional<TuneBound>> bounds = bounds_of(together);
    if (plan_.stopped) return;
    std::vector<BoundedShape> bounded;
    double best_bound = 0, prefill = 0, decode = 0;
    for (std::size_t i = 0; i < together.size(); ++i) {
      if (!bounds[i]) continue;
      bounded.push_back({together[i], *bounds[i]});
      best_bound = std::max(best_bound, bounds[i]->goodput);
      prefill = std::max(prefill, bounds[i]->prefill);
      decode = std::max(decode, bounds[i]->decode);
    }
    // Pools may serve more than any group that does both.
    best_bound = std::max(best_bound, std::min(prefill, decode));
    ladder_ = ladder_under(best_bound);  // one for all stages: they know each other's runs
    std::vector<Json> apart = pools(bounded, search_.model, search_.cluster);
    plan_.shapes = together.size() + apart.size();
    plan_.fit = bounded.size() + apart.size();
    if (!apart.empty()) {
      SloResult result = search_slo(search_over(std::move(apart), short_stays), traces_, remarks_,
                                    begin("prefill and decode apart"));
      plan_.fit -= result.cannot_run;
      count(result);
      join(std::move(result.found));
    }
    if (plan_.stopped) return;
    SloSearch slo = search_over(std::move(together), short_stays);
    slo.bounds = bounds;
    if (leaders_.size() == kept) {
      slo.to_beat = leaders_.back().trial.goodput;
      slo.runners_up = 0;
    }
    SloResult result = search_slo(slo, traces_, remarks_, begin("prefill and decode together"));
    count(result);
    join(std::move(result.found));
  }

  std::vector<std::optional<TuneBound>> bounds_of(const std::vector<Json>& places) {
    SloSearch slo = search_over(places, short_stays);
    slo.to_beat = std::numeric_limits<double>::infinity();
    const SloResult result = search_slo(slo, traces_, remarks_, begin("shapes"));
    plan_.stopped |= result.search.stopped;
    return result.bounds;
  }

  // Looks among what differs from the first leaders in one setting for what serves more.
  template <class Vary>
  void refine(const char* stage, Vary vary) {
    std::vector<Json> places;
    for (std::size_t i = 0; i < std::min(varied, leaders_.size()); ++i) {
      for (Json& place : vary(without_load(leaders_[i].config))) places.push_back(sampled(place));
    }
    if (places.empty() || plan_.stopped) return;
    SloSearch slo = search_over(std::move(places), short_stays);
    slo.to_beat = leaders_.front().trial.goodput;
    slo.runners_up = 0;
    SloResult result = search_slo(slo, traces_, remarks_, begin(stage));
    count(result);
    join(std::move(result.found));
  }

  // Sequences of the question's length that a rank's KV cache holds.
  std::int64_t room(const Json& deployment) {
    const Experiment e = load_experiment(ConfigNode(deployment, search_.folder / "plan"), traces_);
    const Json& lengths = deployment.at("workload").at("lengths");
    const std::int64_t tokens =
        lengths.at("prompt").get<std::int64_t>() + lengths.at("output").get<std::int64_t>();
    const Deployment& decode = e.decode();
    return decode.memory.kv_blocks / std::max<std::int64_t>(1, decode.kv_layout.blocks_for(tokens));
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
    if (leaders_.empty() || plan_.stopped) return;
    std::vector<Json> places;
    std::vector<double> loads;
    for (const SloRun& leader : leaders_) {
      const Json deployment = without_load(leader.config);
      places.push_back(exact_is_quick(leader, confirmed_stays) ? deployment : sampled(deployment));
      loads.push_back(std::stod(leader.rate));  // "12.5 /s"
    }
    // Short runs are forgotten: a long one says more.
    SloSearch slo = search_over(std::move(places), confirmed_stays);
    slo.spot_checks = true;
    SloResult result = confirm_slo(slo, loads, traces_, remarks_, begin("long runs"));
    count(result);
    if (plan_.stopped) return;
    leaders_.clear();
    nearest_ = result.nearest;
    join(std::move(result.found));
  }

  // How much of the answer hangs on chance, and on which experts synthetic tokens pick.
  void doubt() {
    if (leaders_.empty() || plan_.stopped) return;
    const Json& best = leaders_.front().config;
    std::vector<Json> places;
    for (int draw = 1; draw <= redraws; ++draw) {
      Json& place = places.emplace_back(best);
      place["seed"] = best.at("seed").get<std::int64_t>() + draw;
    }
    Json uniform = best;
    Json& gating = uniform["workload"]["gating"];
    const bool synthetic = gating.at("type") == "topical" && search_.model.moe_layers() > 0;
    if (synthetic) {
      gating.erase("preset");
      gating["type"] = "uniform";
      places.push_back(std::move(uniform));
    }
    const std::vector<double> loads(places.size(), std::stod(leaders_.front().rate));
    SloSearch slo = search_over(places, confirmed_stays);
    slo.climb = false;
    slo.store.clear();  // these are runs of other questions
    const SloResult result = confirm_slo(slo, loads, traces_, remarks_, begin("other draws"));
    if (result.search.stopped) return;  // the answer stands
    std::vector<double> borne(places.size(), 0.0);
    for (const SloRun& run : result.found) borne[run.place] = std::stod(run.rate);
    plan_.redrawn.assign(borne.begin(), borne.begin() + redraws);
    if (synthetic) plan_.uniform = borne.back();
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
