// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/session_plan.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "sim/serving/typical_step.hpp"
#include "tools/cli/output.hpp"
#include "tools/plan/stages.hpp"
#include "tools/sweep/nearest_refusal.hpp"
#include "traces/requests/arrivals.hpp"
#include "traces/sessions/session_file.hpp"
#include "traces/sessions/sessions.hpp"

namespace moesim {

namespace {

// Lanes and turns by which the means are taken.
constexpr int sampled_lanes = 64, sampled_turns = 4096;
// Turns of each lane in a short run, and of either run at least and at most.
constexpr double short_turns = 6, fewest_turns = 400, most_turns = 40'000;
// Share of the turns before it is measured: each lane's first prompt has then been computed.
constexpr double session_warm_up = .35;
// Sessions of each lane where their time has a limit. The first of each lane began in its midst,
// and the long ones of the last are not over.
constexpr double sessions_for_completion = 2.5;
// How much more than its estimate a shape is taken to bear: shapes below it are not looked at.
constexpr double estimate_margin = 1.4;
// Loads of short and of long runs lie so far apart.
constexpr double coarse_step = 1.05, fine_step = 1.0164;
// A short run begins with sessions of any length, but among those that are alive at a time long
// ones are more likely: what lasts is less.
constexpr double lasting_share = .9;
// Shapes that have a longer run, if they come so near the best.
constexpr std::size_t session_leaders = 3;
constexpr double near_leader = .85;
constexpr std::size_t session_draws = 3;

double rank_tokens(const Deployment& e) {
  return double(e.memory.kv_blocks) * double(e.kv_layout.block_tokens);
}

// Seconds in which every rank computes a prompt of which so many tokens are not cached. It has
// whole chunks, each at the mean of what comes before it.
double prefill_seconds(const Deployment& e, double prompt, double computed) {
  const double chunk = e.scheduler->max_num_batched_tokens();
  const int tokens = std::max(1, static_cast<int>(std::min(computed, chunk)));
  const double before = std::max(0.0, prompt - computed / 2 - tokens / 2.0);
  const StepContent content{.prompts = {{tokens, static_cast<int>(before)}}};
  return explain_step(e, content).cost.total.count() * computed / tokens;
}

// Seconds of decode steps of any batch, between those that are priced.
class DecodeSeconds {
 public:
  DecodeSeconds(const Deployment& e, double context) {
    most_ = most_sequences(e, static_cast<int>(context));
    constexpr int further = 4;
    for (int batch = 1;; batch = std::min(most_, batch * further)) {
      const StepContent content{.sequences = batch, .context = static_cast<int>(context)};
      priced_.emplace_back(batch, explain_step(e, content).cost.total.count());
      if (batch == most_) return;
    }
  }
  int most() const { return most_; }
  double operator()(double batch) const {
    for (std::size_t i = 1; i < priced_.size(); ++i) {
      const auto [low, quick] = priced_[i - 1];
      const auto [high, slow] = priced_[i];
      if (batch <= high) return quick + (slow - quick) * (batch - low) / double(high - low);
    }
    return priced_.back().second;
  }

 private:
  int most_ = 1;
  std::vector<std::pair<int, double>> priced_;
};

}  // namespace

TurnMeans turn_means(const Experiment& experiment) {
  const Deployment& e = experiment.decode();
  const auto source = e.workload.make(e.seed, e.ranks());
  TurnMeans means;
  std::int64_t turns = 0;
  Time last{};
  const std::int64_t longest = e.max_model_len;
  for (std::int64_t asked = 0; asked < sampled_turns; ++asked) {
    const auto next = source->next();
    if (!next) break;
    const std::int64_t tokens =
        std::int64_t{next->request.prompt_tokens} + next->request.output_tokens;
    if (longest > 0 && tokens > longest) {
      ++means.rejected;
      source->completed(asked, Outcome::rejected, next->arrival);
      continue;
    }
    ++turns;
    means.prompt += next->request.prompt_tokens;
    means.output += next->request.output_tokens;
    means.computed += next->request.prompt_tokens - next->request.turn->known_tokens;
    last = next->arrival;
    source->completed(asked, Outcome::finished, next->arrival);
  }
  means.served = turns;
  const double served = std::max(1.0, double(turns));
  for (double* mean : {&means.prompt, &means.output, &means.computed}) *mean /= served;
  double ended = 0;
  for (const SessionLife& life : source->sessions()) {
    ended += life.state == SessionLife::State::finished ? 1 : 0;
    means.too_long += life.too_long > 0 ? 1 : 0;
  }
  means.sessions = std::ssize(source->sessions());
  const auto lanes = static_cast<double>(e.workload.arrivals->in_flight(e.ranks()));
  means.gap = to_seconds(last - Time{}).count() * lanes / served;
  // Of those that are open half is over in the mean.
  means.turns = double(turns) / std::max(1.0, (ended + double(source->sessions().size())) / 2);
  return means;
}

std::string too_long_text(const TurnMeans& means, const Deployment& e) {
  std::string text;
  if (means.too_long > 0) {
    const SessionRules& rules = e.workload.sessions->rules;
    using TooLong = SessionRules::TooLong;
    text = fmt::format(
        "Of {} sampled sessions {} reach {} tokens of a prompt and its output{}, and {}.",
        means.sessions, means.too_long, rules.max_context.value_or(0),
        rules.max_context == e.max_model_len ? ", the most that the model takes" : "",
        rules.too_long == TooLong::end    ? "end there"
        : rules.too_long == TooLong::drop ? "leave the longer turns out"
                                          : "go on compacted");
  }
  if (means.rejected > 0)
    text += fmt::format(
        "{}Of {} sampled turns {} are rejected: the model takes {} tokens of a prompt and its "
        "output.",
        text.empty() ? "" : " ", means.served + means.rejected, means.rejected, e.max_model_len);
  if (text.empty()) return "";
  return paragraph(text + " The key \"max_model_len\" allows more.");
}

// A rank with b turns in decode passes one turn in n f + (o - 1) d(b) / b seconds, f those of its
// prompt, d(b) those of a decode step; the turn stays b n f + (o - 1) d(b). All n ranks of a group
// wait for each other, and prompts seldom come to two at a time. Lanes are turns/s times
// the time from a request to the next of its lane. What the lanes' contexts exceed the KV cache by
// is computed again.
TuneBound estimate_sessions(const Experiment& experiment, const TurnMeans& means) {
  const Deployment& p = experiment.pools.front();
  const Deployment& d = experiment.decode();
  const bool apart = experiment.apart();
  const double generated = std::max(1.0, means.output - 1);
  const DecodeSeconds decode(d, means.prompt);
  const double cached = prefill_seconds(p, means.prompt, means.computed);
  const double whole = prefill_seconds(p, means.prompt, means.prompt);
  const double stalls = d.parallel.dp;
  const double room = p.ranks() * rank_tokens(p);
  const double limit = d.slo.tpot ? d.slo.tpot->count() : std::numeric_limits<double>::infinity();
  TuneBound bound{.prefill = p.ranks() / cached};
  for (int batch = 1; batch <= decode.most(); batch += std::max(1, batch / 16)) {
    const double decoding = generated * decode(batch);
    const double per_turn = decoding / batch;
    if (decode(batch) <= limit) bound.decode = std::max(bound.decode, d.ranks() / per_turn);
    // Lanes decide what is cached, and so how many lanes there can be: halfway each time.
    double lanes = 0;
    constexpr int rounds = 12;
    for (int round = 0; round < rounds; ++round) {
      const double missing = lanes == 0 ? 0 : std::max(0.0, 1 - room / (lanes * means.prompt));
      const double prompt = cached + missing * (whole - cached);
      const double turns = apart ? std::min(p.ranks() / prompt, d.ranks() / per_turn)
                                 : d.ranks() / (stalls * prompt + per_turn);
      const double stay = apart ? prompt + decoding : batch * stalls * prompt + decoding;
      const double served = turns * (means.gap + stay);
      if (!apart && stay > limit * generated) {
        lanes = 0;
        break;
      }
      lanes = round == 0 ? served : (lanes + served) / 2;
    }
    if (apart && decode(batch) > limit) break;
    bound.goodput = std::max(bound.goodput, lanes);
  }
  return bound;
}

RateLadder session_ladder(double most, double step) {
  std::vector<double> lanes;
  const auto above = [&](double load) { return std::max(load + 1, std::round(load * step)); };
  for (double load = 1; load <= std::max(2.0, most); load = above(load)) lanes.push_back(load);
  return RateLadder(std::move(lanes));
}

Json session_deployment(Json base, const Json& sessions) {
  Json& workload = base["workload"];
  workload.erase("lengths");
  workload["arrivals"] = {{"type", "closed_loop"}, {"concurrency", sampled_lanes}};
  workload["sessions"] = sessions;
  if (!sessions.contains("start_at")) workload["sessions"]["start_at"] = "uniform";
  workload["requests"] = sampled_turns;
  base["kv_cache"] = {{"prefix_caching", true}};
  base["request_routing"] = {{"type", "sticky"}};
  base["measurement"]["warmup"] = session_warm_up;
  return base;
}

Json sessions_of_option(const std::string& named) {
  if (!std::filesystem::exists(named)) {
    Json preset{{"type", named}};
    read_sessions(ConfigNode(preset, "--sessions"));
    return preset;
  }
  const std::string file = std::filesystem::absolute(named).string();
  if (is_session_file(file)) return {{"type", "recorded"}, {"file", file}};
  return ConfigNode::from_file(named).json();
}

namespace {

class SessionSearch : Stages {
 public:
  // Points differ in more than these, which only makes longer reports.
  SessionSearch(const SessionPlanSearch& asked, SessionPlanned& planned, TraceLibrary& traces,
                Remarks& remarks, const PlanHooks& hooks)
      : Stages(asked.plan, planned, traces, remarks, hooks,
               {"/parallel", "/instances", "/pools", "/dispatch", "/placement/replication",
                "/token_routing/decode", "/scheduling/max_num_batched_tokens", "/request_routing",
                "/kv_cache/tiers", "/seed", "/workload/requests", lanes_pointer}),
        asked_(asked),
        planned_(planned) {
    planned_.drafts = choices_in(search_.base).drafts > 0;
    sessions_ = true;
  }

  void look() {
    look_at_shapes();
    vary("chunks", with_chunks);
    vary("drafts", with_drafts);
    vary("copies of experts",
         [&](const PlannedDeployment& planned) { return with_copies(planned, search_.model); });
    refine("routers of requests", with_other_routers);
    confirm_leaders();
    ask_for_tiers();
    finish();
    planned_.times_sessions = asked_.limits.completion.has_value();
  }

 private:
  static std::vector<Json> with_other_routers(Json place) {
    place["request_routing"] = "dynamo_kv";
    return {std::move(place)};
  }

  // Looks among what differs from the best in one choice.
  void vary(const char* stage,
            const std::function<std::vector<PlannedDeployment>(const PlannedDeployment&)>& like) {
    refine(stage, [&](const Json& place) {
      std::vector<Json> others;
      for (const PlannedDeployment& other : like(choices_in(place)))
        others.push_back(with_choices(place, other));
      others.erase(others.begin());  // the place itself
      return others;
    });
  }

  Experiment load(const Json& config) {
    return remarks_.say_of(
        load_experiment(ConfigNode(config, search_.folder / experiment_file), traces_));
  }

  std::vector<std::string_view> stages() const override {
    std::vector<std::string_view> names{"shapes", "deployments", "chunks"};
    if (planned_.drafts) names.emplace_back("drafts");
    names.insert(names.end(),
                 {"copies of experts", "routers of requests", "long runs", "other seeds"});
    if (!asked_.host_memory.empty()) names.emplace_back("a tier of host memory");
    return names;
  }

  // Turns of a lane in a long run.
  double long_turns() const {
    const double sessions = asked_.limits.completion ? sessions_for_completion : 1;
    return std::max(2 * short_turns, sessions * planned_.means.turns);
  }

  SloSearch search_over(std::vector<Json> places, double turns) const {
    SloSearch slo = stage(std::move(places));
    slo.sessions = true;
    slo.session_limits = asked_.limits;
    slo.set_load = [turns](Json& place, const std::string&, double lanes) {
      place[Json::json_pointer(lanes_pointer)] = static_cast<std::int64_t>(lanes);
      place["workload"]["requests"] =
          static_cast<std::int64_t>(std::clamp(turns * lanes, fewest_turns, most_turns));
    };
    return slo;
  }

  // A time that few runs tell is no matter of short ones.
  double first_turns() const { return asked_.limits.completion ? long_turns() : short_turns; }

  // Adds the best runs, each shape once.
  void join(std::vector<SloRun> found) {
    add(std::move(found));
    if (leaders_.size() > session_leaders) leaders_.resize(session_leaders);
  }

  // The estimates of some places, side by side; nothing where one cannot be run.
  std::vector<std::optional<TuneBound>> estimates_of(const std::vector<Json>& places) {
    std::vector<std::optional<TuneBound>> bounds(places.size());
    bound_all(bounds, 0, begin("shapes"), refused_, [&](std::size_t place) {
      return estimate_sessions(load(places[place]), planned_.means);
    });
    planned_.stopped |= hooks_.stop();
    return bounds;
  }

  // Lengths of turns depend on no shape: the first that fits says them.
  void look_at_turns(const std::vector<Json>& places) {
    NearestRefusal refused;
    for (std::size_t i = 0; i < places.size(); ++i) {
      Json from_the_first = places[i];
      from_the_first["workload"]["sessions"]["start_at"] = "first_turn";
      try {
        const Experiment experiment = load(from_the_first);
        planned_.means = turn_means(experiment);
        planned_.too_long = too_long_text(planned_.means, experiment.decode());
        if (planned_.means.served > 0) return;
        throw ConfigError("--sessions: no turn is served: all exceed {} tokens (max_model_len)",
                          experiment.decode().max_model_len);
      } catch (const ConfigError& error) {
        refused.add(i, error);
      }
    }
    throw ConfigError(refused.text(places[refused.place()]));
  }

  void look_at_shapes() {
    const std::vector<PlannedDeployment> together = shapes_to_try();
    std::vector<Json> places = places_of(search_.base, together);
    look_at_turns(places);
    std::vector<std::optional<TuneBound>> bounds = estimates_of(places);
    if (planned_.stopped) return;
    std::vector<BoundedShape> bounded;
    for (std::size_t i = 0; i < places.size(); ++i) {
      if (bounds[i]) bounded.push_back({together[i], *bounds[i]});
    }
    planned_.shapes = places.size();
    if (bounded.empty()) throw ConfigError(refused_.text(places[refused_.place()]));
    std::vector<Json> apart = places_of(search_.base, pools_to_try(bounded));
    planned_.shapes += apart.size();
    for (std::optional<TuneBound>& bound : estimates_of(apart)) bounds.push_back(bound);
    std::ranges::move(apart, std::back_inserter(places));
    double most = 0;
    for (const auto& bound : bounds) {
      if (!bound) continue;
      ++planned_.fit;
      most = std::max(most, bound->goodput);
    }
    constexpr double above_estimate = 4, first_load = .6;
    ladder_ = session_ladder(above_estimate * std::max(1.0, most), coarse_step);
    fine_ = session_ladder(above_estimate * std::max(1.0, most), fine_step);
    if (planned_.stopped) return;
    for (auto& bound : bounds) {
      // A shape that seems to serve none may serve a few.
      if (bound) bound->goodput = std::max(1.5, bound->goodput);
    }
    SloSearch slo = search_over(std::move(places), first_turns());
    slo.bounds = std::move(bounds);
    slo.bound_margin = estimate_margin;
    slo.runners_up = 0;
    slo.start = std::max(1.0, first_load * most);
    join(run(slo, "deployments").found);
  }

  // Looks among other places like the best.
  void refine(const char* stage, const std::function<std::vector<Json>(const Json&)>& others) {
    if (is_over()) return;
    std::vector<Json> places = others(leaders_.front().config);
    if (places.empty()) return;
    SloSearch slo = search_over(std::move(places), first_turns());
    slo.to_beat = leaders_.front().trial.goodput;
    slo.runners_up = 0;
    slo.near_misses = false;
    constexpr double likely_gain = 1.15;
    slo.bounds.assign(slo.places.size(),
                      TuneBound{.goodput = likely_gain * leaders_.front().per_second()});
    try {
      join(run(slo, stage).found);
    } catch (const ConfigError&) {
      // None of them can be run.
    }
  }

  std::vector<SloRun> long_runs(LongRuns asked, std::size_t seeds, const std::string& stage) {
    for (Json& place : asked.places) place["measurement"]["slowest_sessions"] = 10;  // for the page
    SloSearch slo = search_over(drawn(asked.places, seeds), long_turns());
    slo.draws = seeds;
    slo.ladder = fine_;
    slo.proof = Proof::steady;
    SloResult result = confirm(slo, asked.loads, stage);
    keep_nearest(result);
    return std::move(result.found);
  }

  // Longer runs of the leaders; then the best under several seeds, until that is the best.
  void confirm_leaders() {
    if (is_over()) return;
    LongRuns asked;
    for (const SloRun& leader : leaders_) {
      if (leader.per_second() < near_leader * leaders_.front().per_second()) continue;
      asked.add(leader.config, std::max(1.0, lasting_share * leader.per_second()));
    }
    std::vector<SloRun> lasting = long_runs(std::move(asked), 1, "long runs");
    if (planned_.stopped) return;
    leaders_.clear();
    join(std::move(lasting));
    const std::vector<SloRun> single = leaders_;
    while (!leaders_.empty() && leaders_.front().draws == 1 && !planned_.stopped) {
      const SloRun best = leaders_.front();
      std::vector<SloRun> under_all =
          long_runs({{best.config}, {best.per_second()}}, session_draws, "other seeds");
      if (planned_.stopped) return;
      std::erase_if(leaders_, [&](const SloRun& run) { return run.config == best.config; });
      join(std::move(under_all));
    }
    if (leaders_.empty()) return;
    const std::string shape = choices_of(leaders_.front()).shape();
    for (const SloRun& run : single) {
      if (choices_of(run).shape() == shape) planned_.single_seed = run;
    }
  }

  // The best with host memory below its KV cache, written through and back, under the seed of
  // `single_seed`.
  void ask_for_tiers() {
    if (!planned_.single_seed || asked_.host_memory.empty() || planned_.stopped) return;
    LongRuns asked;
    for (const char* write : {"write_back", "write_through"}) {
      planned_.tiers.push_back({.write = write, .run = {}});
      Json place = planned_.single_seed->config;
      place["kv_cache"]["tiers"] = {
          {{"name", "host"}, {"per", "node"}, {"capacity", asked_.host_memory}, {"write", write}}};
      try {
        load(place);
      } catch (const ConfigError& error) {
        planned_.no_tier = error.what();
        planned_.tiers.clear();
        return;
      }
      asked.add(std::move(place), planned_.single_seed->per_second());
    }
    for (SloRun& run : long_runs(std::move(asked), 1, "a tier of host memory"))
      planned_.tiers[run.place].run = std::move(run);
  }

  const SessionPlanSearch& asked_;
  std::optional<RateLadder> fine_;
  NearestRefusal refused_;
  SessionPlanned& planned_;
};

}  // namespace

SessionPlanned make_session_plan(const SessionPlanSearch& search, TraceLibrary& traces,
                                 Remarks& remarks, const PlanHooks& hooks) {
  SessionPlanned planned;
  SessionSearch(search, planned, traces, remarks, hooks).look();
  return planned;
}

}  // namespace moesim
