// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "traces/requests/lognormal.hpp"
#include "traces/sessions/sessions.hpp"

namespace moesim {

namespace {

constexpr Range counts{1, 1e9};

std::span<const Key> drawn_count_keys() {
  static constexpr Key keys[] = {
      {"median", form::number(1e-3, 1e9), required, "of the draws, which are at least 1"},
      {"sigma", form::number(0, 10), required, "standard deviation of the logarithm"},
      {"max", form::number(counts), "1e9", "to which draws are clipped"}};
  return keys;
}

std::span<const Key> drawn_time_keys() {
  static constexpr Key keys[] = {
      {"median", form::time, required, "of the draws"},
      {"sigma", form::number(0, 10), required, "standard deviation of the logarithm"},
      {"max", form::time, unset("720 h"), "to which draws are clipped"}};
  return keys;
}

constexpr Form drawn_count = form::object(drawn_count_keys);
constexpr Form drawn_time = form::object(drawn_time_keys);
constexpr Form count_form = form::integer(counts).or_a(drawn_count);
constexpr Form time_form = form::time.or_a(drawn_time);
// Bounds of a child, whose turns are drawn when it starts.
constexpr double most_children = 1000, most_turns = 10'000;
constexpr Form turns_form = form::integer(1, most_turns).or_a(drawn_count);

std::span<const Key> fan_out_keys() {
  static constexpr Key keys[] = {
      {"share", form::number(0, 1), "1", "of the turns of the main agent that start others"},
      {"children", form::integer(1, most_children), required, "agents that such a turn starts"},
      {"turns", turns_form, "1", "turns of such an agent, at most 10,000"},
      {"first", count_form, unset("the session's"), "tokens of its first prompt"},
      {"offset", time_form, "0 s", "time from the reply to the agent's first turn"},
      {"background", form::number(0, 1), "0", "share of these agents that no turn waits for"}};
  return keys;
}

constexpr Form fan_out_form = form::object(fan_out_keys);

struct Defaults {
  KeyDefault turns = required, first = required, added = required, output = required;
  KeyDefault gap = "0 s";
};

constexpr std::array<Key, 6> keys_with(const Defaults& defaults) {
  return {Key{"turns", count_form, defaults.turns, "turns of a session"},
          Key{"first", count_form, defaults.first, "tokens of the first prompt"},
          Key{"new", count_form, defaults.added,
              "tokens of a later prompt after the context: tool results, questions"},
          Key{"output", count_form, defaults.output, "tokens of a reply"},
          Key{"gap", time_form, defaults.gap, "time between two turns: tools run, a user thinks"},
          Key{"fan_out", fan_out_form, unset("none"), "agents that turns of a session start"}};
}

Lognormal read_count(const ConfigNode& node) {
  if (!node.json().is_object()) return {.median = double(node.integer()), .max = counts.max};
  return read_object(node, drawn_count_keys, [](ConfigReader& options) {
    const double median = options.number("median"), sigma = options.number("sigma");
    return Lognormal{median, sigma, options.number("max", Range{std::max(1.0, median), 1e9})};
  });
}

Lognormal read_gap(const ConfigNode& node) {
  constexpr double longest = 720 * 3600;
  if (!node.json().is_object()) return {.median = node.quantity<Seconds>().count(), .max = longest};
  return read_object(node, drawn_time_keys, [](ConfigReader& options) {
    Lognormal gap{options.quantity<Seconds>("median").count(), options.number("sigma"), longest};
    if (options.optional("max")) gap.max = options.quantity<Seconds>("max").count();
    if (gap.max < gap.median) options.child("max").fail("is below the median");
    return gap;
  });
}

// Agents that turns of the main agent start.
struct FanOut {
  double share = 0, background = 0;
  std::int64_t children = 0;
  Lognormal turns{}, first{}, offset{};
};

FanOut read_fan_out(const ConfigNode& node, const Lognormal& first) {
  return read_object(node, fan_out_keys, [&](ConfigReader& options) {
    FanOut fan_out{.share = options.number("share"),
                   .background = options.number("background"),
                   .children = options.integer("children"),
                   .turns = read_count(options.child("turns")),
                   .first = first,
                   .offset = read_gap(options.child("offset"))};
    fan_out.turns.max = std::min(fan_out.turns.max, most_turns);
    if (options.optional("first")) fan_out.first = read_count(options.child("first"));
    return fan_out;
  });
}

// Each prompt is all that was said before and something new.
class GeneratedSessions final : public Sessions {
 public:
  GeneratedSessions(ConfigReader& options, bool gaps_from_starts)
      : turns_(read_count(options.child("turns"))),
        first_(read_count(options.child("first"))),
        new_(read_count(options.child("new"))),
        output_(read_count(options.child("output"))),
        gap_(read_gap(options.child("gap"))),
        gaps_from_starts_(gaps_from_starts) {
    if (options.optional("fan_out")) fan_out_ = read_fan_out(options.child("fan_out"), first_);
  }

  Request request(std::int64_t, Rng& rng) const override {
    const std::int32_t prompt = first_.draw_count(rng);
    return {prompt, output_.draw_count(rng)};
  }
  std::int64_t turns(std::int64_t, Rng& rng) const override { return turns_.draw_count(rng); }
  NextTurn turn(std::int64_t, std::int64_t, std::int64_t context, Rng& rng) const override {
    NextTurn turn = next(context, rng);
    turn.children = children(rng);
    return turn;
  }
  ChildAgents first_children(std::int64_t, Rng& rng) const override { return children(rng); }
  NextTurn turn_of(std::int64_t, const ChildAgent&, std::int64_t turn, std::int64_t context,
                   Rng& draws) const override {
    if (turn > 0) return next(context, draws);
    NextTurn first = first_of_child(draws);
    fan_out_->turns.draw_count(draws);  // ChildAgent::turns has it
    return first;
  }
  bool gaps_from_starts() const override { return gaps_from_starts_; }

 private:
  NextTurn next(std::int64_t context, Rng& rng) const {
    NextTurn turn{.gap = Seconds(gap_.draw(rng)), .kept = context};
    turn.prompt_tokens = context + new_.draw_count(rng);
    turn.output_tokens = output_.draw_count(rng);
    return turn;
  }
  NextTurn first_of_child(Rng& rng) const {
    NextTurn first;
    first.prompt_tokens = fan_out_->first.draw_count(rng);
    first.output_tokens = output_.draw_count(rng);
    return first;
  }
  // Turns are drawn when they are asked for, from where each child's are in the session's draws. So
  // an agent of many turns is no list of them.
  ChildAgents children(Rng& rng) const {
    if (!fan_out_ || rng.uniform() >= fan_out_->share) return nullptr;
    std::vector<ChildAgent> all;
    for (std::int64_t i = 0; i < fan_out_->children; ++i) {
      ChildAgent& child = all.emplace_back();
      child.offset = Seconds(fan_out_->offset.draw(rng));
      child.background = rng.uniform() < fan_out_->background;
      child.draws = rng;
      first_of_child(rng);
      child.turns = fan_out_->turns.draw_count(rng);
      for (std::int64_t more = child.turns - 1; more > 0; --more) next(0, rng);
    }
    return started_agents(std::move(all));
  }

  Lognormal turns_, first_, new_, output_, gap_;
  bool gaps_from_starts_;
  std::optional<FanOut> fan_out_{};
};

}  // namespace

std::span<const Key> generated_session_keys() {
  static constexpr auto keys = keys_with({});
  return keys;
}

// Turns: one Alibaba-like cluster, 2.11 M requests in 1.31 M sessions, of which 90.3 % have one
// turn; the others make 44 % of the requests [agentic-kvc]. A lognormal through both figures has a
// median below one. Lengths and gaps: Mooncake's conversation trace [Mooncake]; prompts p50 6,909,
// p90 27,367, max 126,195; outputs 350, 597; a prompt grows by 485 in the median, 4,852 at p90,
// reply included; gaps 126 and 483 s from start to start.
std::span<const Key> chat_session_keys() {
  static constexpr auto keys =
      keys_with({.turns = R"({"median": 0.098, "sigma": 2.1})",
                 .first = R"({"median": 6909, "sigma": 1.07, "max": 126195})",
                 .added = R"({"median": 135, "sigma": 1.8, "max": 126195})",
                 .output = R"({"median": 350, "sigma": 0.42})",
                 .gap = R"({"median": "126 s", "sigma": 0.95})"});
  return keys;
}

// TraceLab (arXiv 2606.30560), 4,265 sessions of Claude Code and Codex: calls per session p50 16
// (a user's request and 15 that tools start), sigma 1.7 to 1.85; 523 tokens out a call. First
// prompts, growth and gaps are Codex's, as TraceLab's page tells none.
std::span<const Key> coding_session_keys() {
  static constexpr auto keys = keys_with({.turns = R"({"median": 16, "sigma": 1.75, "max": 1500})",
                                          .first = R"({"median": 12278, "sigma": 0.05})",
                                          .added = "1720",
                                          .output = "523",
                                          .gap = R"({"median": "5.2 s", "sigma": 1.18})"});
  return keys;
}

// 610 runs of Codex on SWE-bench Pro (vLLM's blog of 2026-05-06): calls p50 30, p90 57; first
// context p50 12,278, p99 13,744; growth 2,242 a turn, of which 522 are output; gaps p50 5.2 s,
// p99 81.4 s. How far growth and outputs vary is not published.
std::span<const Key> codex_session_keys() {
  static constexpr auto keys = keys_with({.turns = R"({"median": 30, "sigma": 0.5})",
                                          .first = R"({"median": 12278, "sigma": 0.05})",
                                          .added = "1720",
                                          .output = "522",
                                          .gap = R"({"median": "5.2 s", "sigma": 1.18})"});
  return keys;
}

std::unique_ptr<Sessions> make_generated_sessions(ConfigReader& options) {
  return std::make_unique<GeneratedSessions>(options, false);
}

std::unique_ptr<Sessions> make_chat_sessions(ConfigReader& options) {
  return std::make_unique<GeneratedSessions>(options, true);
}

}  // namespace moesim
