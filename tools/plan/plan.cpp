// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/plan.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "tools/plan/stages.hpp"
#include "tools/sweep/axes.hpp"
#include "tools/sweep/store.hpp"

namespace moesim {

namespace {

// Deployments that a stage hands on to the next, a few more than are printed.
constexpr std::size_t kept = 5;
// How many are varied: a fourth shape that some setting makes the best was not found.
constexpr std::size_t most_varied = 3;
// Selected experts of all tokens of a run, up to which the last runs price each: half a second.
constexpr double most_exact_ids = 1e8;
// Length of a short run, in stays of a request: it is measured from the end of the first stay on.
constexpr double short_stays = 3;
// Length of a last run, and the share of its requests that come before it is measured. It begins
// warm and is measured over more than twenty stays. If few requests are in flight, chance needs
// more.
constexpr double long_stays = 25, warm_up = .18;
constexpr double enough_requests = 1000, longest_times = 4;
// Seeds of the arrivals and the routing under which a deployment must bear its load.
constexpr std::size_t draws = 3;
// Factor by which the last of them takes longer. A backlog that creeps up at the very limit of a
// pool's capacity does not show in less.
constexpr double last_draw_times = 4;
// Requests of a long run, and output tokens of the last draw, which may have more: a minute of a
// core.
constexpr double most_requests = 50'000, most_tokens = 5e7;
// Factor by which a shape may sustain more than its bound before the bound rules it out. Load comes
// in waves, and how prompts fall into steps decides how many experts are activated.
constexpr double bound_margin = 1.3;
// The best of the other kind, together or apart, is varied too where it comes so near.
constexpr double near_best = .75;
// Groups that do both are looked at in plain shapes alone if none sustains so much of what pools
// do. What sustains less than so much of the best is not asked to sustain it under every draw.
constexpr double worth_a_search = .5;

double seconds_of(const Json& config, const char* key, double otherwise) {
  const Json* value = find_value(config, key);
  return value == nullptr ? otherwise : parse_quantity<Seconds>(value->get<std::string>()).count();
}

// Tokens of a request of the question: each is a session of one turn where prompts share a prefix.
struct QuestionTokens {
  double prompt, output;
};

QuestionTokens tokens_in(const Json& deployment) {
  const Json& workload = deployment.at("workload");
  if (const auto sessions = workload.find("sessions"); sessions != workload.end())
    return {sessions->at("first"), sessions->at("output")};
  return {workload.at("lengths").at("prompt"), workload.at("lengths").at("output")};
}

// From arrival to the last token for a request that just meets the SLO.
double longest_stay(const Json& base) {
  constexpr double usual_ttft = 1, usual_tpot = .05;
  const double output = tokens_in(base).output;
  return seconds_of(base, "/slo/ttft", usual_ttft) +
         output * seconds_of(base, "/slo/tpot", usual_tpot);
}

class Search : Stages {
 public:
  Search(const PlanSearch& search, Plan& plan, TraceLibrary& traces, Remarks& remarks,
         const PlanHooks& hooks)
      : Stages(search, plan, traces, remarks, hooks,
               {"/parallel", "/instances", "/pools", "/dispatch", "/placement/replication",
                "/token_routing/decode", "/scheduling/max_num_batched_tokens",
                "/scheduling/max_num_seqs", "/fidelity", "/seed", "/workload/gating",
                "/workload/requests", "/measurement/warmup", rate_pointer}),
        plan_(plan) {}

  void look() {
    look_at_shapes();
    refine("copies and routing", [&](const PlannedDeployment& d, const SloRun&) {
      return with_copies(d, search_.model);
    });
    refine("chunks", [](const PlannedDeployment& d, const SloRun&) { return with_chunks(d); });
    if (choices_in(search_.base).drafts > 0)
      refine("drafts", [](const PlannedDeployment& d, const SloRun&) { return with_drafts(d); });
    // Good chunks depend on the depth of the pipeline and on how many ranks wait.
    refine("layouts of prefill", [&](const PlannedDeployment& d, const SloRun&) {
      return that_start(with_prefill_layouts(d, search_.model, search_.cluster, search_.layouts));
    });
    if (search_.layouts == Layouts::all)
      refine("one kernel",
             [](const PlannedDeployment& d, const SloRun&) { return with_one_kernel(d); });
    refine("limits on sequences", [&](const PlannedDeployment& d, const SloRun& run) {
      return with_sequences(d, std::min(room(run), in_flight(run)));
    });
    confirm_leaders();
    try_uniform_routing();
    finish();
  }

 private:
  // Runs of that many stays of a request over some deployments.
  SloSearch search_over(std::vector<Json> places, double stays) const {
    const double seconds = stays * longest_stay(search_.base);
    SloSearch slo = stage(std::move(places));
    slo.by_load = true;
    slo.mixed_steps = true;
    slo.start = -1;
    slo.set_load = [seconds](Json& place, const std::string& rate, double per_second) {
      constexpr double fewest = 200, most = 50'000;
      place[Json::json_pointer(rate_pointer)] = rate;
      place["workload"]["requests"] =
          static_cast<std::int64_t>(std::clamp(per_second * seconds, fewest, most));
    };
    return slo;
  }

  std::vector<std::string_view> stages() const override {
    std::vector<std::string_view> names{"shapes",
                                        "prefill and decode apart",
                                        "steps of prefill and decode together",
                                        "prefill and decode together",
                                        "copies and routing",
                                        "chunks"};
    if (choices_in(search_.base).drafts > 0) names.emplace_back("drafts");
    names.emplace_back("layouts of prefill");
    if (search_.layouts == Layouts::all) names.emplace_back("one kernel");
    names.insert(names.end(), {"limits on sequences", "long runs", "other seeds"});
    if (tries_uniform()) names.emplace_back("uniform routing");
    return names;
  }

  // True if routing is synthetic, so that the answer hangs on which experts tokens pick.
  bool tries_uniform() const {
    return search_.model.moe_layers() > 0 &&
           search_.base.at("workload").at("gating").at("type") == "topical";
  }

  // Adds the best runs, each shape once, and of each kind at least one.
  void join(std::vector<SloRun> found) {
    add(std::move(found));
    if (leaders_.size() <= kept) return;
    constexpr auto last = static_cast<std::ptrdiff_t>(kept) - 1;
    const auto other = best_of_kind(leaders_, !choices_of(leaders_.front()).apart());
    if (const auto place = other - leaders_.cbegin(); other != leaders_.end() && place > last)
      std::rotate(leaders_.begin() + last, leaders_.begin() + place, leaders_.begin() + place + 1);
    std::move(leaders_.begin() + last + 1, leaders_.end(), std::back_inserter(reserve_));
    leaders_.resize(kept);
  }

  static Json without_load(Json config) {
    config[Json::json_pointer(rate_pointer)] = "1 /s";
    config["workload"]["requests"] = 1;
    config.erase("fidelity");
    return config;
  }

  // Pools first: prefill and decode bound them closely, which makes them a good measure. Groups
  // that do both are bounded loosely where many ranks wait for the one that has a prompt.
  void look_at_shapes() {
    const std::vector<PlannedDeployment> together = shapes_to_try();
    SloSearch of_shapes = search_over(places_of(search_.base, together), short_stays);
    of_shapes.mixed_steps = false;
    const std::vector<std::optional<TuneBound>> bounds =
        bounds_of(std::move(of_shapes), begin("shapes"));
    if (plan_.stopped) return;
    std::vector<BoundedShape> bounded;
    double prefill = 0, decode = 0;
    for (std::size_t i = 0; i < together.size(); ++i) {
      if (!bounds[i]) continue;
      bounded.push_back({together[i], *bounds[i]});
      prefill = std::max(prefill, bounds[i]->prefill);
      decode = std::max(decode, bounds[i]->decode);
    }
    // Pools may serve as much, and no group that does both serves more.
    double best_bound = std::min(prefill, decode);
    // If no shape has a chance, a load under which requests are alone says how near they come.
    constexpr double few_in_flight = 10;
    if (best_bound == 0) best_bound = few_in_flight / longest_stay(search_.base);
    ladder_ = ladder_under(best_bound);  // one for all stages: they know each other's runs
    const std::vector<PlannedDeployment> apart = pools_to_try(bounded);
    plan_.shapes = together.size() + apart.size();
    plan_.fit = bounded.size() + apart.size();
    note_least(together, bounds);
    if (!apart.empty()) {
      SloResult result =
          run(search_over(places_of(search_.base, apart), short_stays), "prefill and decode apart");
      plan_.fit -= result.cannot_run;
      join(std::move(result.found));
    }
    if (plan_.stopped) return;
    std::vector<std::size_t> all(together.size()), plain;
    std::iota(all.begin(), all.end(), std::size_t{0});
    for (const std::size_t i : all) {
      if (together[i].plain()) plain.push_back(i);
    }
    const double to_beat = leaders_.empty() ? 0 : worth_a_search * leaders_.front().trial.goodput;
    std::vector<std::optional<TuneBound>> lifted = bounds;
    bound_by_mixed_steps(lifted, together, to_beat);
    if (plan_.stopped) return;
    double promised = 0;
    // Whatever their bounds say, the plain shapes are run.
    for (const std::size_t i : plain) {
      if (!lifted[i] || lifted[i]->goodput <= 0) continue;
      promised = std::max(promised, std::exchange(lifted[i]->goodput, best_bound));
    }
    SloSearch of_all = search_together(together, lifted, all);
    of_all.to_beat = to_beat;
    if (look_at(of_all) || to_beat == 0 || plan_.stopped) return;
    SloSearch of_plain = search_together(together, lifted, plain);
    of_plain.start = std::min(promised, to_beat);
    // Where all leaders are better there is room for one.
    if (leaders_.size() == kept && leaders_.back().per_second() >= to_beat) of_plain.runners_up = 0;
    look_at(of_plain);
  }

  // Search of some of the shapes that prefill and decode in one group.
  SloSearch search_together(const std::vector<PlannedDeployment>& together,
                            const std::vector<std::optional<TuneBound>>& bounds,
                            const std::vector<std::size_t>& some) const {
    std::vector<PlannedDeployment> shapes;
    for (const std::size_t i : some) shapes.push_back(together[i]);
    SloSearch slo = search_over(places_of(search_.base, shapes), short_stays);
    for (const std::size_t i : some) slo.bounds.push_back(bounds[i]);
    slo.bound_margin = bound_margin;
    slo.near_misses = leaders_.empty();
    return slo;
  }

  // Returns true if anything is found.
  bool look_at(const SloSearch& slo) {
    SloResult result = run(slo, "prefill and decode together");
    const bool found = !result.found.empty();
    join(std::move(result.found));
    return found;
  }

  // The shapes whose requests get their tokens soonest when they are alone.
  void note_least(const std::vector<PlannedDeployment>& shapes,
                  const std::vector<std::optional<TuneBound>>& bounds) {
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      if (!bounds[i]) continue;
      const auto note = [&](std::optional<Plan::Least>& least, double seconds) {
        if (seconds > 0 && (!least || seconds < least->seconds))
          least = {seconds, shapes[i].shape()};
      };
      note(plan_.least_ttft, bounds[i]->least_ttft);
      note(plan_.least_tpot, bounds[i]->least_tpot);
    }
  }

  // Bounds shapes by the steps of a steady state too: the plain ones, and those whose bounds leave
  // a chance to serve more than `to_beat`.
  void bound_by_mixed_steps(std::vector<std::optional<TuneBound>>& bounds,
                            const std::vector<PlannedDeployment>& shapes, double to_beat) {
    const double worth = to_beat / bound_margin;
    const SloHooks hooks = begin("steps of prefill and decode together");
    for (const bool plain : {true, false}) {
      std::vector<PlannedDeployment> some;
      std::vector<std::size_t> which;
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        if (!bounds[i] || shapes[i].plain() != plain) continue;
        if (bounds[i]->goodput <= (plain ? 0 : worth)) continue;
        some.push_back(shapes[i]);
        which.push_back(i);
      }
      if (some.empty() || plan_.stopped) continue;
      SloSearch slo = search_over(places_of(search_.base, some), short_stays);
      slo.worth = plain ? 0 : worth;
      const auto exact = bounds_of(std::move(slo), hooks);
      for (std::size_t n = 0; n < which.size(); ++n) bounds[which[n]] = exact[n];
    }
  }

  // Bounds the places of a search, and runs none.
  std::vector<std::optional<TuneBound>> bounds_of(SloSearch slo, const SloHooks& hooks) {
    slo.to_beat = std::numeric_limits<double>::infinity();
    return run(slo, hooks).bounds;
  }

  // Looks for what serves more among what differs from a leader in one setting. Leaders are the
  // first ones of the best's kind, and the best of the other kind.
  template <class Vary>
  void refine(const char* stage, Vary vary) {
    const std::vector<SloRun> varied = worth_varying();
    if (varied.empty()) return;
    SloHooks hooks = begin(stage);
    std::vector<SloRun> found;
    for (const SloRun& leader : varied) {
      if (plan_.stopped) break;
      hooks.ran = [this, before = plan_.runs](std::size_t runs) { hooks_.ran(before + runs); };
      std::vector<Json> places;
      const Json without = without_load(leader.config);
      for (const PlannedDeployment& other : vary(choices_of(leader), leader))
        places.push_back(sampled(with_choices(without, other)));
      SloSearch slo = search_over(std::move(places), short_stays);
      slo.bound_margin = bound_margin;
      slo.to_beat = leader.per_second();
      slo.worth = slo.to_beat / bound_margin;
      slo.runners_up = 0;
      slo.near_misses = false;
      std::ranges::move(run(slo, hooks).found, std::back_inserter(found));
    }
    join(std::move(found));
  }

  std::vector<SloRun> worth_varying() const {
    std::vector<SloRun> some;
    std::size_t like_the_best = 0, others = 0;
    for (const SloRun& leader : leaders_) {
      if (leader.per_second() < near_best * leaders_.front().per_second()) continue;
      const bool alike = choices_of(leader).apart() == choices_of(leaders_.front()).apart();
      if (alike ? like_the_best++ < most_varied : others++ < 1) some.push_back(leader);
    }
    return some;
  }

  // Sequences on a rank that decodes, in the mean of a run.
  static std::int64_t in_flight(const SloRun& run) {
    const PlannedGroup group = choices_of(run).decode;
    const int ranks = group.instances * group.parallel.dp;
    const double stay = run.report.at("metrics").value("mean_e2el_ms", 0.0) / 1e3;
    return static_cast<std::int64_t>(std::ceil(run.per_second() * stay / ranks));
  }

  // Sequences of the question's length that a rank's KV cache holds.
  std::int64_t room(const SloRun& run) {
    const Json deployment = without_load(run.config);
    const Experiment e =
        load_experiment(ConfigNode(deployment, search_.folder / experiment_file), traces_);
    const QuestionTokens of = tokens_in(deployment);
    const auto tokens = static_cast<std::int64_t>(of.prompt + of.output);
    const Deployment& decode = e.decode();
    return decode.memory.kv_blocks / std::max<std::int64_t>(1, decode.kv_layout.blocks_for(tokens));
  }

  // So many requests make a long run at this rate.
  double long_run(double per_second) const {
    constexpr double fewest = 400;
    const double requests = per_second * long_stays * longest_stay(search_.base);
    return std::clamp(std::max(requests, std::min(enough_requests, longest_times * requests)),
                      fewest, most_requests);
  }

  // True if a long run prices every token in reasonable time.
  bool exact_is_quick(const SloRun& run) const {
    const QuestionTokens of = tokens_in(search_.base);
    const double tokens = of.prompt + of.output;
    return long_run(run.per_second()) * tokens * search_.model.moe_layers() *
               search_.model.experts_per_token <
           most_exact_ids;
  }

  // Makes as many distinct synthetic requests as are in flight, for equal requests activate the
  // same experts; half of those that are made are served. Of more requests each needs fewer decode
  // rows to be as unlike.
  static void vary_routing(Json& deployment, const SloRun& run) {
    constexpr double most = 4096;
    constexpr int fewest_rows = 8;
    Json& gating = deployment["workload"]["gating"];
    const auto mean_stay = run.report.at("metrics").value("mean_e2el_ms", 0.0) / 1e3;
    const double wanted = std::min(most, 2 * run.per_second() * mean_stay);
    if (!gating.contains("requests")) return;
    int requests = gating.at("requests"), rows = gating.at("decode_rows");
    for (; requests < wanted; requests *= 2) rows = std::max(std::min(rows, fewest_rows), rows / 2);
    gating["requests"] = requests;
    gating["decode_rows"] = rows;
  }

  // Long runs of deployments, each under several seeds.
  SloSearch long_runs(const std::vector<Json>& places, std::size_t seeds) const {
    SloSearch slo = search_over(drawn(places, seeds), long_stays);
    slo.proof = Proof::lasting;
    slo.draws = seeds;
    const double output = tokens_in(search_.base).output;
    const double most = std::max(most_requests, most_tokens / output);
    const auto last = search_.base.at("seed").get<std::uint64_t>() + draws - 1;
    slo.set_load = [this, seeds, most, last](Json& place, const std::string& rate,
                                             double per_second) {
      double requests = long_run(per_second);
      if (seeds == draws && place.at("seed") == last)
        requests = std::min(last_draw_times * requests, most);
      place[Json::json_pointer(rate_pointer)] = rate;
      place["workload"]["requests"] = static_cast<std::int64_t>(requests);
      place["measurement"]["warmup"] = warm_up;
    };
    // A backlog of 1 % of the load passes the limit on TTFT in it.
    const double seconds = std::max(60.0, 100 * seconds_of(search_.base, "/slo/ttft", 0));
    slo.lengthen = [seconds, most](Json& place, double per_second) {
      Json& requests = place["workload"]["requests"];
      requests = std::max(requests.get<std::int64_t>(),
                          std::int64_t(std::min(seconds * per_second, most)));
    };
    return slo;
  }

  void confirm_leaders() {
    if (is_over()) return;
    plan_.nearest.clear();
    std::vector<SloRun> lasting = long_runs_of(leaders_);
    if (plan_.stopped) return;
    // Short runs are forgotten: a long one says more.
    const std::vector<SloRun> short_runs = std::exchange(leaders_, {});
    join(std::move(lasting));
    for (const bool apart : {false, true}) {
      const auto of_kind = [&](const SloRun& run) { return choices_of(run).apart() == apart; };
      // Where long runs refute all of a kind, what came behind them in short runs is asked.
      if (std::ranges::any_of(short_runs, of_kind) && std::ranges::none_of(leaders_, of_kind))
        join(long_runs_of(best_in_reserve(apart)));
    }
    confirm_best();
  }

  // Shapes of a kind that were left out of the leaders, each once, the best first.
  std::vector<SloRun> best_in_reserve(bool apart) {
    std::erase_if(reserve_, [&](const SloRun& run) { return choices_of(run).apart() != apart; });
    std::ranges::stable_sort(reserve_, std::greater{}, &SloRun::per_second);
    std::set<std::string> seen;
    std::vector<SloRun> best;
    for (const SloRun& run : reserve_) {
      if (best.size() < most_varied && seen.insert(choices_of(run).shape()).second)
        best.push_back(run);
    }
    return best;
  }

  // Returns what deployments sustain in long runs, those that sustain anything.
  std::vector<SloRun> long_runs_of(const std::vector<SloRun>& short_runs) {
    if (short_runs.empty() || plan_.stopped) return {};
    LongRuns asked;
    for (const SloRun& leader : short_runs) {
      Json place = without_load(leader.config);
      if (!exact_is_quick(leader)) place = sampled(std::move(place));
      vary_routing(place, leader);
      // What a short run bears is a little more than what lasts, unless pools bound it closely.
      asked.add(std::move(place), (choices_of(leader).apart() ? 1 : .97) * leader.per_second());
    }
    SloResult result = confirm(long_runs(asked.places, 1), asked.loads, "long runs");
    keep_nearest(result);
    return std::move(result.found);
  }

  // The best of each kind bears its load under every draw, if it is worth it. Others bear no more
  // than under one, so that they need not be asked unless that is more.
  void confirm_best() {
    while (!plan_.stopped) {
      LongRuns asked;
      for (const bool apart : {false, true}) {
        const auto best = best_of_kind(leaders_, apart);
        if (best == leaders_.end() || best->draws == draws) continue;
        if (best->per_second() < worth_a_search * leaders_.front().per_second()) continue;
        asked.add(best->config, best->per_second());
      }
      if (asked.places.empty()) return;
      SloResult result = confirm(long_runs(asked.places, draws), asked.loads, "other seeds");
      if (plan_.stopped) return;
      std::erase_if(leaders_, [&](const SloRun& run) {
        return std::ranges::find(asked.places, run.config) != asked.places.end();
      });
      join(std::move(result.found));
    }
  }

  // How much of the best answer of each kind hangs on which experts synthetic tokens pick.
  void try_uniform_routing() {
    plan_.uniform.resize(leaders_.size());
    if (is_over() || !tries_uniform()) return;
    LongRuns asked;
    std::vector<std::size_t> whose;
    for (const bool apart : {false, true}) {
      const auto best = best_of_kind(leaders_, apart);
      if (best == leaders_.end() || best->draws != draws) continue;
      asked.add(best->config, best->per_second());
      Json& gating = asked.places.back()["workload"]["gating"];
      gating.erase("preset");
      gating["type"] = "uniform";
      whose.push_back(at(best - leaders_.cbegin()));
    }
    SloSearch slo = long_runs(asked.places, draws);
    slo.tells_heavier = false;
    for (const SloRun& run : confirm(slo, asked.loads, "uniform routing").found)
      plan_.uniform[whose[run.place]] = run.per_second();
  }

  std::vector<SloRun> reserve_;  // short runs of what leaders left no room for
  Plan& plan_;
};

}  // namespace

Plan make_plan(const PlanSearch& search, TraceLibrary& traces, Remarks& remarks,
               const PlanHooks& hooks) {
  Plan plan;
  Search(search, plan, traces, remarks, hooks).look();
  return plan;
}

std::string limit_text(const SloRun& run) {
  if (run.heavier) return run.heavier->binds;
  const auto tpot = margin_of(run, "tpot"), ttft = margin_of(run, "ttft");
  const bool by_ttft = ttft && (!tpot || *ttft < *tpot);
  return by_ttft ? "TTFT" : "TPOT";
}

std::optional<BusyPart> busy_part(const SloRun& run) {
  const Json* breakdown = find_value(run.report, "/breakdown");
  if (breakdown == nullptr) return std::nullopt;
  std::optional<BusyPart> busy;
  double longest = 0;
  for (const auto& [part, entry] : breakdown->at("parts").items()) {
    if (busy && entry.at("seconds") <= longest) continue;
    longest = entry.at("seconds");
    busy = {.part = part, .share = entry.at("share")};
    double seconds = 0;
    const Json by_resource = entry.value("bound_by", Json::object());
    for (const auto& [resource, time] : by_resource.items()) {
      if (time.get<double>() > seconds) busy->bound_by = resource;
      seconds = std::max(seconds, time.get<double>());
    }
  }
  return busy;
}

std::string busy_text(const SloRun& run) {
  const auto busy = busy_part(run);
  if (!busy) return "";
  return fmt::format("{} {:.0f} % ({})", busy->part, 100 * busy->share, busy->bound_by);
}

}  // namespace moesim
