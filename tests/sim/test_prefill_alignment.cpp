// SPDX-License-Identifier: Apache-2.0
// Prompts that ranks hold back to prefill together: what does each rule hold when, and what does it
// change?
#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

#include "sim/prefill_alignment/prefill_alignment.hpp"
#include "tests/temporary.hpp"
#include "tests/tiny_experiment.hpp"

namespace moesim::test_prefill_alignment {
namespace {

using test::load_tiny;
using test::serve;
using test::WithinRel;

// A rank before a step. It has nothing (.), decodes only (d), decodes and could begin a prompt (p),
// could begin one of two that wait (q), begin one but must preempt (x), continue one (c), do both
// (b), or begin one though its KV cache is nearly full (h). Capitals: the same where nothing
// decodes.
RankPrompts rank_of(char what) {
  const char kind = static_cast<char>(what >= 'A' && what <= 'Z' ? what - 'A' + 'a' : what);
  RankPrompts rank;
  if (kind == '.') return rank;
  rank.decoding = kind == what ? 4 : 0;
  rank.kv_usage = kind == 'h' ? .95 : .5;
  rank.preempts = kind == 'x';
  rank.left = kind == 'q' || kind == 'x' ? 1 : 0;
  const bool begins = std::string_view("pqxbh").find(kind) != std::string_view::npos;
  const bool continues = kind == 'c' || kind == 'b';
  rank.admits = begins ? 1 : 0;
  rank.under_way = continues ? 1 : 0;
  rank.tokens = kind == 'q' ? 60 : 30 * (rank.admits + rank.under_way);
  return rank;
}

struct Step {
  std::string_view ranks;  // before it
  std::string_view held;   // -: nothing, u: all but prompts under way, n: all
};

std::unique_ptr<PrefillAlignment> policy(const Json& options) {
  return prefill_alignments().make(ConfigNode(options, "test.json"))();
}

std::string held_by(PrefillAlignment& rule, std::string_view step, Seconds now = {}) {
  std::vector<RankPrompts> ranks;
  for (const char rank : step) ranks.push_back(rank_of(rank));
  std::vector<PromptWork> allowed(ranks.size(), PromptWork::all);
  rule.align({Time{} + to_duration(now), ranks, 100, 16}, allowed);
  std::string held;
  for (const PromptWork work : allowed)
    held += work == PromptWork::all ? '-' : work == PromptWork::under_way ? 'u' : 'n';
  return held;
}

void check_steps(const Json& options, const std::vector<Step>& steps) {
  const auto rule = policy(options);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    INFO("step " << i << ": " << steps[i].ranks);
    CHECK(held_by(*rule, steps[i].ranks) == steps[i].held);
  }
}

TEST_CASE("vllm_interval: every third step admits, unless a rank could not drain its queue") {
  check_steps({{"type", "vllm_interval"}, {"prefill_schedule_interval", 3}},
              {{"ppd", "---"},    // step 0 of the group
               {"dpd", "nnn"},    // 1
               {"dpd", "nnn"},    // 2
               {"dpd", "---"},    // 3
               {".pc", "-nn"},    // a rank that does not decode has nothing to protect
               {"Ppc", "-nn"},    // so it begins its prompt
               {"dqc", "---"},    // 6: rank 1 begins one and leaves one waiting
               {"dqc", "n-n"},    // so it goes on, while a chunk of rank 2 is held
               {"dpc", "n-n"},    // rank 1 drains its queue
               {"dpc", "---"},    // 9
               {"dpd", "nnn"},    // and is held again
               {"qpd", "nnn"},    // a queue that is held says nothing of what a step can drain
               {"qpd", "---"},    // 12: rank 0 leaves one waiting
               {"xpd", "-nn"},    // a step that preempts says nothing either
               {"dpd", "-nn"},    // rank 0 drains
               {"dpd", "---"},    // 15
               {"...", "---"},    // the wave ends: steps count from 0
               {"pdd", "---"},    // 0
               {"pdd", "nnn"},    // 1
               {"pdd", "nnn"}});  // 2
}

TEST_CASE("vllm_interval: a single rank has no others to wait for") {
  const auto alone = policy({{"type", "vllm_interval"}, {"prefill_schedule_interval", 3}});
  for (int step = 0; step < 6; ++step) CHECK(held_by(*alone, "p") == "-");
}

TEST_CASE("sglang_decode_interval: two rounds without prompts after one with, on all ranks") {
  check_steps({{"type", "sglang_decode_interval"}, {"prefill_decode_interval", 2}},
              {{"ddd", "---"},
               {"pdd", "---"},  // one rank prefills
               {"dpd", "nnn"},  // all defer
               {"dpd", "nnn"},
               {"dpd", "---"},
               {"ddd", "nnn"},  // rounds count though nobody has a prompt
               {"ddd", "nnn"},
               {"ddd", "---"},
               {"dcd", "---"},  // so it is with chunks
               {"dcd", "nnn"},
               {"dcd", "nnn"},
               {"dcd", "---"},
               {"PC.", "---"},  // where nothing decodes
                                // rounds take no time
               {"PC.", "---"},
               {"pC.", "nnn"},
               {"pC.", "nnn"},
               {"pC.", "---"},
               {"...", "---"},
               {"pdd", "---"},
               {"ppp", "nnn"}});
}

TEST_CASE("sglang_delayer: prompts wait for those of all ranks, three passes at most") {
  check_steps({{"type", "sglang_delayer"}, {"max_delay_passes", 4}},
              {{"ddd", "---"}, {"pdd", "uuu"},                  // mixed
               {"ppd", "uuu"}, {"ppd", "uuu"}, {"ppd", "---"},  // the fourth pass
               {"pdd", "uuu"}, {"ppp", "---"},                  // all
               {"cpp", "uuu"},  // a rank amid a prompt is not prefillable
               {"bpp", "---"},  // but for the last chunk, beside which it begins another
               {"cpd", "uuu"}, {"ddd", "---"},  // none: the count begins anew
               {"ppd", "uuu"}, {"ppd", "uuu"}, {"ddd", "---"}, {"ppd", "uuu"}, {"ppd", "uuu"},
               {"ppd", "uuu"}, {"ppd", "---"}, {"...", "---"}, {"PPP", "---"}});
}

TEST_CASE("sglang_delayer: low KV use lets prompts go, a short queue holds them for a while") {
  const auto low = policy({{"type", "sglang_delayer"}, {"token_usage_low_watermark", .6}});
  CHECK(held_by(*low, "pdd") == "---");
  CHECK(held_by(*low, "hdd") == "uuu");
  // min(int(4 x .5), most admitted at once): one request waits, two should.
  const auto queue =
      policy({{"type", "sglang_delayer"}, {"queue_min_ratio", .5}, {"max_delay", "1 s"}});
  std::vector<RankPrompts> burst(1, rank_of('p'));
  burst[0].admits = 3;
  std::vector<PromptWork> allowed(1, PromptWork::all);
  queue->align({Time{}, burst, 100, 16}, allowed);
  CHECK(allowed[0] == PromptWork::all);
  CHECK(held_by(*queue, "p", Seconds(10)) == "-");  // the first time it is let off
  CHECK(held_by(*queue, "p", Seconds(11)) == "u");
  CHECK(held_by(*queue, "p", Seconds(11.9)) == "u");
  CHECK(held_by(*queue, "q", Seconds(11.95)) == "-");
  CHECK(held_by(*queue, "p", Seconds(12)) == "u");
  CHECK(held_by(*queue, "p", Seconds(13)) == "-");
}

TEST_CASE("sglang_delayer: prompts wait for as many seats as were ever filled at once") {
  const auto rule = policy({{"type", "sglang_delayer"}, {"max_delay_passes", 3}});
  std::vector<RankPrompts> ranks(1, rank_of('p'));
  const auto held = [&](int running, int admits) {
    ranks[0].decoding = running;
    ranks[0].admits = admits;
    std::vector<PromptWork> allowed(1, PromptWork::all);
    rule->align({Time{}, ranks, 100, 16}, allowed);
    return allowed[0] != PromptWork::all;
  };
  CHECK_FALSE(held(4, 8));   // 8 at once
  CHECK_FALSE(held(12, 1));  // 4 seats are too few, but the first time is let off
  CHECK(held(12, 1));
  CHECK(held(12, 1));
  CHECK_FALSE(held(12, 1));  // the third pass
  CHECK_FALSE(held(8, 1));   // 8 seats; 8 x .998 x .998 rounds down to 7
}

TEST_CASE("coalescer: prompts wait until they fill half of a step of all ranks") {
  check_steps({{"type", "coalescer"},
               {"target_fill", .5},
               {"ttft_max_ticks", 5},
               {"partial_max_ticks", 2},
               {"stall_ticks", 2}},
              {{"pdd", "---"},                  // the first one
               {"pdd", "nnn"},                  // two ranks have none
               {"ppd", "nnn"}, {"ppp", "nnn"},  // 90 of 150 tokens
               {"qqp", "---"},                  // 150
               {"ppp", "nnn"}, {"ppp", "nnn"},  // no more than before
               {"ppp", "---"},                  // twice
               {"pdd", "nnn"}, {"pdd", "nnn"}, {"pdd", "nnn"},
               {"pdd", "nnn"}, {"pdd", "nnn"}, {"pdd", "---"},  // held for five
               {"cdd", "nnn"}, {"cdd", "nnn"}, {"cdd", "---"},  // a prompt under way for two
               {"P..", "---"},                                  // nothing decodes
               {"ddd", "---"}, {"hdd", "---"}});                // 95 % of the KV cache
}

TEST_CASE("trtllm_balance: new prompts wait for those of all ranks, three steps at most") {
  check_steps(
      {{"type", "trtllm_balance"}, {"batch_wait_timeout_iters", 3}, {"enable_balance", true}},
      {{"...", "---"}, {"P..", "---"},                                  // nothing runs
       {"pdd", "uuu"}, {"ppd", "uuu"}, {"ppp", "---"},                  // every rank has one
       {"pdd", "uuu"}, {"pdd", "uuu"}, {"pdd", "uuu"}, {"pdd", "---"},  // after three
       {"pdd", "uuu"}, {"ddd", "---"}, {"pdd", "uuu"}, {"pdd", "uuu"},
       {"pdd", "uuu"}, {"pdd", "---"}, {"cpd", "uuu"},  // those under way go on
       {"cpp", "uuu"}, {"bpp", "---"}, {"C.P", "uuu"}, {"ddd", "---"}});
}

// Every rule, with options under which it holds prompts back.
std::vector<Json> rules() {
  std::vector<Json> all{
      {{"type", "none"}},
      {{"type", "vllm_interval"}, {"prefill_schedule_interval", 4}},
      {{"type", "sglang_delayer"}, {"prefill_decode_interval", 2}},
      {{"type", "sglang_decode_interval"}, {"prefill_decode_interval", 3}},
      {{"type", "coalescer"}},
      {{"type", "trtllm_balance"}, {"batch_wait_timeout_iters", 20}, {"enable_balance", true}}};
  CHECK(all.size() == prefill_alignments().entries().size());
  return all;
}

Json loaded(const Json& alignment, const char* scheduling = "chunked_prefill") {
  return {{"prefill_alignment", alignment},
          {"scheduling", {{"type", scheduling}, {"max_num_seqs", 16}}},
          {"workload",
           {{"arrivals", {{"type", "closed_loop"}, {"concurrency", 32}}},
            {"lengths", {{"type", "uniform"}, {"prompt", 100}, {"output", 60}}},
            {"requests", 160}}}};
}

// What steps computed and held back.
struct Work : RunObserver {
  std::int64_t prompts = 0, held_tokens = 0, steps = 0, steps_held = 0;
  void step_ended(const StepRecord& record, Time) override {
    prompts += record.step.prefill_tokens;
    held_tokens += record.step.held.tokens;
    steps_held += record.step.held.prompts > 0 ? 1 : 0;
    ++steps;
  }
};

TEST_CASE("whatever is held back is computed later: no token is lost") {
  for (const char* scheduling : {"chunked_prefill", "prefill_first"}) {
    for (const Json& rule : rules()) {
      INFO(scheduling << ' ' << rule.dump());
      Work work;
      const auto served = serve(load_tiny(loaded(rule, scheduling)), {&work});
      std::int64_t prompts = 0;
      for (const RequestRecord& request : served.requests) {
        CHECK(request.state == RequestRecord::State::finished);
        CHECK(request.generated == request.output_tokens);
        prompts += request.prompt_tokens;
      }
      CHECK(served.requests.size() == 160);
      CHECK(work.prompts == prompts);
      CHECK((work.steps_held > 0) == (rule["type"] != "none"));
      const auto document = served.document();
      if (rule["type"] == "none") {
        CHECK_FALSE(document.contains("prefill_alignment"));
        continue;
      }
      const auto& section = document["prefill_alignment"];
      CHECK(section["type"].get<std::string>() == rule["type"].get<std::string>());
      // Of the window in which it measures.
      CHECK(section["steps_held"] > 0);
      CHECK(section["steps_held"] <= work.steps_held);
      CHECK(section["tokens_held"] > 0);
      CHECK(section["tokens_held"] <= work.held_tokens);
      CHECK(section["mean_wait_ms"] > 0);
    }
  }
}

OrderedJson without_choice(OrderedJson document) {
  document["context"]["config"].erase("prefill_alignment");
  document.erase("prefill_alignment");
  return document;
}

TEST_CASE("an interval of 1, and one of 0 rounds, change nothing") {
  const std::string plain =
      without_choice(serve(load_tiny(loaded({{"type", "none"}}))).document()).dump();
  for (const Json& off : {Json{{"type", "vllm_interval"}, {"prefill_schedule_interval", 1}},
                          Json{{"type", "sglang_decode_interval"}, {"prefill_decode_interval", 0}},
                          Json{{"type", "trtllm_balance"}}}) {
    CHECK(without_choice(serve(load_tiny(loaded(off))).document()).dump() == plain);
  }
}

TEST_CASE("the longer the interval, the later first tokens and the sooner the others") {
  for (const auto& [type, option] :
       {std::pair("vllm_interval", "prefill_schedule_interval"),
        std::pair("sglang_decode_interval", "prefill_decode_interval")}) {
    double ttft = 0, tpot = 1e9;
    for (const int interval : {1, 3, 9, 27}) {
      Json set = loaded({{"type", type}, {option, interval}});
      // A group with time to spare: nothing else waits.
      set["workload"]["arrivals"] = {
          {"type", "poisson"}, {"rate", "1500 /s"}, {"concurrency", nullptr}};
      set["workload"]["requests"] = 600;
      const auto metrics = serve(load_tiny(set)).document()["metrics"];
      INFO(type << ' ' << interval << ' ' << metrics["mean_ttft_ms"] << ' '
                << metrics["mean_tpot_ms"]);
      CHECK(metrics["mean_ttft_ms"].get<double>() > ttft);
      CHECK(metrics["mean_tpot_ms"].get<double>() < tpot);
      ttft = metrics["mean_ttft_ms"], tpot = metrics["mean_tpot_ms"];
    }
  }
}

// Prompts of seven chunks and a bit; the first one of each of four ranks is shorter by so many
// chunks.
std::string prompts_of(std::array<int, 4> chunks_less) {
  std::string csv = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  for (int i = 0; i < 400; ++i) {
    const int prompt = 468 - (i < 4 ? 64 * chunks_less[static_cast<std::size_t>(i)] : 0);
    csv += fmt::format("2023-11-16 18:{:02}:{:02}.0000000,{},2\n", 15 + i / 60, i % 60, prompt);
  }
  return csv;
}

struct Drifted {
  double throughput = 0, held_late = 0;  // share of the steps of the second half
};

Drifted drift(const Json& alignment, std::array<int, 4> chunks_less) {
  const test::TemporaryFile file("prompts.csv", prompts_of(chunks_less));
  struct Late : RunObserver {
    std::vector<bool> held;
    void step_ended(const StepRecord& record, Time) override {
      held.push_back(record.step.held.prompts > 0);
    }
  } late;
  const auto metrics = serve(load_tiny({{"prefill_alignment", alignment},
                                        {"workload",
                                         {{"arrivals", {{"concurrency", 8}}},
                                          {"lengths",
                                           {{"type", "trace"},
                                            {"file", file.path().string()},
                                            {"prompt", nullptr},
                                            {"output", nullptr}}},
                                          {"requests", 400}}}}),
                             {&late})
                           .document()["metrics"];
  const auto half = std::ssize(late.held) / 2;
  return {metrics["request_throughput"],
          static_cast<double>(std::count(late.held.begin() + half, late.held.end(), true)) /
              static_cast<double>(half)};
}

// sglang#35241: eight ranks with prompts of 7.3 chunks serve 87,000 or 62,000 tokens/s under one
// load, by how they began. A rank whose chunk fills the step is not prefillable, so that others
// wait for its last one, and begin theirs with other remainders: the ranks never meet again.
TEST_CASE("sglang_delayer: ranks that drift by a chunk keep each other waiting for good") {
  const Json delayer{{"type", "sglang_delayer"}}, none{{"type", "none"}};
  const Drifted together = drift(delayer, {0, 0, 0, 0}), apart = drift(delayer, {0, 1, 2, 3});
  CHECK(together.held_late == 0);
  CHECK(together.throughput == drift(none, {0, 0, 0, 0}).throughput);
  CHECK(apart.held_late > .1);
  CHECK(apart.throughput < .88 * together.throughput);
  // What the drift costs without it.
  CHECK(apart.throughput < .95 * drift(none, {0, 1, 2, 3}).throughput);
}

TEST_CASE("ranks that are padded all compute what the largest does") {
  struct Padded : RunObserver {
    bool even = true, any = false;
    void step_ended(const StepRecord& record, Time) override {
      if (record.step.kind == StepKind::decode) return;
      const auto& ranks = record.batch.ranks;
      for (const RankStep& rank : ranks) {
        even = even && rank.tokens + rank.padding == ranks[0].tokens + ranks[0].padding;
        any = any || rank.padding > 0;
      }
    }
  } padded;
  const Json on{{"type", "none"}, {"pad_to_longest", true}};
  const double slow = serve(load_tiny(loaded(on)), {&padded}).document()["metrics"]["mean_tpot_ms"];
  CHECK(padded.even);
  CHECK(padded.any);
  const double fast =
      serve(load_tiny(loaded({{"type", "none"}}))).document()["metrics"]["mean_tpot_ms"];
  CHECK(slow > fast);
}

}  // namespace
}  // namespace moesim::test_prefill_alignment
