// SPDX-License-Identifier: Apache-2.0
// Does a rank compose its steps as vLLM's scheduler does? The reference below does it in the
// plainest way: blocks by name, lists walked from their beginning, every rule where the engine
// applies it.
#include <algorithm>
#include <deque>
#include <map>

#include "tests/tiny_experiment.hpp"
#include "traces/requests/lengths.hpp"

namespace moesim::test_engine_steps {
namespace {

constexpr std::int32_t block_tokens = 16;

struct Rules {
  std::int64_t blocks;
  std::int32_t budget, seats, threshold;
  bool caching, reserve;
  std::vector<int> windows;  // of the groups, 0 = none
};

// One sequence of a step: what it computes, behind how many tokens that it had.
struct Part {
  std::int32_t tokens, context;
  bool operator==(const Part&) const = default;
};

struct Step {
  std::vector<Part> parts;
  int preemptions = 0;
  std::int64_t used = 0;
  bool operator==(const Step&) const = default;
};

class Engine {
 public:
  explicit Engine(const Rules& rules) : rules_(rules), blocks_(std::size_t(rules.blocks)) {
    for (int b = 0; b < rules.blocks; ++b) free_.push_back(b);
  }

  void arrives(const Request& request) {
    all_.push_back({.tokens = request.prompt_tokens, .outputs = request.output_tokens});
    Job& job = all_.back();
    job.table.resize(rules_.windows.size());
    for (int end = block_tokens; end <= request.prompt_tokens + request.output_tokens;
         end += block_tokens) {
      // Tokens that are alike as far as here are told by all their ids.
      std::vector<std::uint64_t> name;
      if (!job.names.empty()) name = job.names.back();
      const bool shared = end <= request.prompt_tokens && request.prompt_ids;
      name.push_back(shared ? request.prompt_ids->spans[std::size_t(end / block_tokens - 1)].id
                            : 1'000'000 + all_.size());
      job.names.push_back(name);
    }
    waiting_.push_back(all_.size() - 1);
  }

  Step step() {
    Step step;
    std::int32_t budget = rules_.budget;
    std::vector<std::size_t> preempted;
    for (std::size_t i = 0; i < running_.size() && budget > 0; ++i) {
      Job& job = all_[running_[i]];
      const std::int32_t tokens = share(job.tokens - job.computed, budget);
      bool fits = allocate(job, tokens);
      while (!fits) {
        preempted.push_back(running_.back());
        running_.pop_back();
        release(all_[preempted.back()]);
        if (i == running_.size()) break;
        fits = allocate(job, tokens);
      }
      if (!fits) break;
      job.planned = tokens;
      budget -= tokens;
    }
    for (const std::size_t id : preempted) waiting_.push_front(id);
    while (preempted.empty() && budget > 0 && std::ssize(running_) < rules_.seats) {
      if (waiting_.empty() || !admit(all_[waiting_.front()], budget)) break;
      running_.push_back(waiting_.front());
      waiting_.pop_front();
    }
    for (const std::size_t id : running_) {
      Job& job = all_[id];
      if (job.planned > 0) step.parts.push_back({job.planned, job.computed});
      job.computed += std::exchange(job.planned, 0);
    }
    step.preemptions = int(preempted.size());
    step.used = rules_.blocks - std::ssize(free_);
    return step;
  }

  void ended() {
    std::erase_if(running_, [&](std::size_t id) {
      Job& job = all_[id];
      if (job.computed < job.tokens) return false;
      ++job.tokens;
      if (++job.generated < job.outputs) return false;
      release(job);
      return true;
    });
  }

 private:
  struct Job {
    std::int32_t tokens, outputs, computed = 0, generated = 0, planned = 0;
    std::vector<std::vector<std::uint64_t>> names{};  // of its blocks
    std::vector<std::vector<int>> table{};            // [group]: its blocks, -1 behind a window
  };
  struct Block {
    int holders = 0;
    std::vector<std::uint64_t> name{};  // empty: cannot be found
  };

  static std::int64_t blocks_of(std::int64_t tokens) {
    return (tokens + block_tokens - 1) / block_tokens;
  }
  std::int32_t share(std::int32_t due, std::int32_t budget) const {
    const std::int32_t most = rules_.threshold > 0 ? rules_.threshold : due;
    return std::min({due, most, budget});
  }

  bool admit(Job& job, std::int32_t& budget) {
    std::vector<int> hits;
    for (std::int32_t b = 0; rules_.caching && b < (job.tokens - 1) / block_tokens; ++b) {
      const auto found = cached_.find(job.names[std::size_t(b)]);
      if (found == cached_.end()) break;
      hits.push_back(found->second.front());
    }
    const auto idle =
        std::ranges::count_if(hits, [&](int b) { return blocks_[std::size_t(b)].holders == 0; });
    std::int64_t whole = idle;
    for (const int window : rules_.windows) {
      std::int64_t blocks = blocks_of(job.tokens) - std::ssize(hits);
      if (window > 0) blocks = std::min(blocks, blocks_of(window - 1 + rules_.budget) + 1);
      whole += blocks;
    }
    if (rules_.reserve && whole > std::ssize(free_)) return false;
    const auto computed = static_cast<std::int32_t>(hits.size()) * block_tokens;
    const std::int32_t tokens = share(job.tokens - computed, budget);
    const std::int64_t more = blocks_of(computed + tokens) - std::ssize(hits);
    if (more * std::ssize(rules_.windows) + idle > std::ssize(free_)) return false;
    job.computed = computed;
    for (const int b : hits) {
      if (blocks_[std::size_t(b)].holders++ == 0) std::erase(free_, b);
      job.table.front().push_back(b);
    }
    check(allocate(job, tokens), "the reference counted wrongly");
    job.planned = tokens;
    budget -= tokens;
    return true;
  }

  bool allocate(Job& job, std::int32_t tokens) {
    std::int64_t more = 0;
    for (std::size_t g = 0; g < job.table.size(); ++g) {
      const int window = rules_.windows[g];
      for (int b = 0; window > 0 && b < (job.computed - window + 1) / block_tokens; ++b) {
        if (job.table[g][std::size_t(b)] >= 0)
          let_go(std::exchange(job.table[g][std::size_t(b)], -1));
      }
      more += blocks_of(job.computed + tokens) - std::ssize(job.table[g]);
    }
    if (more > std::ssize(free_)) return false;
    const auto full_before = std::size_t(job.computed / block_tokens);
    for (std::vector<int>& table : job.table) {
      while (std::ssize(table) < blocks_of(job.computed + tokens)) table.push_back(take());
    }
    const auto full = std::size_t((job.computed + tokens) / block_tokens);
    for (std::size_t b = full_before; rules_.caching && b < full; ++b) {
      const int block = job.table.front()[b];
      blocks_[std::size_t(block)].name = job.names[b];
      cached_[job.names[b]].push_back(block);
    }
    return true;
  }

  int take() {
    const int block = free_.front();
    free_.pop_front();
    Block& taken = blocks_[std::size_t(block)];
    if (!taken.name.empty()) {
      std::erase(cached_[taken.name], block);
      if (cached_[taken.name].empty()) cached_.erase(taken.name);
      taken.name.clear();
    }
    taken.holders = 1;
    return block;
  }

  void let_go(int block) {
    if (--blocks_[std::size_t(block)].holders == 0) free_.push_back(block);
  }

  void release(Job& job) {
    for (std::vector<int>& table : job.table) {
      for (auto block = table.rbegin(); block != table.rend(); ++block) {
        if (*block >= 0) let_go(*block);
      }
      table.clear();
    }
    job.computed = 0;
  }

  Rules rules_;
  std::vector<Block> blocks_;
  std::deque<int> free_;
  std::map<std::vector<std::uint64_t>, std::vector<int>> cached_;
  std::vector<Job> all_;
  std::deque<std::size_t> waiting_;
  std::vector<std::size_t> running_;
};

// Prompts of which many begin alike.
class Prompts final : public Lengths {
 public:
  explicit Prompts(int seed) : seed_(seed) {}
  Request request(std::int64_t index, Rng&) const override {
    Rng rng(std::uint64_t(seed_), fmt::format("test/prompt/{}", index));
    std::vector<std::uint64_t> ids;
    const auto tokens = static_cast<std::int32_t>(1 + rng.below(200));
    for (int b = 0; b * block_tokens < tokens; ++b) {
      ids.push_back(rng.below(b < 6 ? 2 : 20));
    }
    return {tokens, static_cast<std::int32_t>(1 + rng.below(40)),
            std::make_shared<const PromptIds>(ids_of_blocks(tokens, block_tokens, ids))};
  }

 private:
  int seed_;
};

struct StepWatch final : RunObserver {
  void step_ended(const StepRecord& record, Time) override {
    Step step{{}, record.step.preemptions, record.step.kv_blocks_used};
    for (const SequenceWork& work : record.batch.ranks.front().sequences)
      step.parts.push_back({work.new_tokens, work.context_tokens});
    steps.push_back(step);
    starts.push_back(record.step.start);
  }
  std::vector<Step> steps;
  std::vector<Time> starts;
};

Json alone(bool windows) {
  Json changes = {{"parallel", {{"dp", 1}, {"tp", 1}, {"ep", 1}}},
                  {"placement", {{"replication", 1.0}}},
                  {"workload", {{"requests", 60}}}};
  if (windows) {
    changes["model"]["layers"] =
        Json::array({{{"repeat", 1},
                      {"pattern", Json::array({{{"ffn", "moe"}, {"window", 40}},
                                               {{"ffn", "moe"}, {"window", 40}},
                                               {{"ffn", "moe"}}})}}});
  }
  return changes;
}

// Answers how often a sequence was preempted.
std::int64_t compare(int seed, bool caching, bool windows, bool reserve) {
  CAPTURE(seed, caching, windows, reserve);
  Rng rng(std::uint64_t(seed), "test/engine_steps");
  const Rules rules{.blocks = std::int64_t((windows ? 45 : 16) + rng.below(windows ? 90 : 30)),
                    .budget = static_cast<std::int32_t>(32 + rng.below(200)),
                    .seats = static_cast<std::int32_t>(2 + rng.below(12)),
                    .threshold = static_cast<std::int32_t>(rng.below(2) * (8 + rng.below(60))),
                    .caching = caching,
                    .reserve = reserve,
                    .windows = windows ? std::vector{0, 40, 40} : std::vector{0}};
  Json changes = alone(windows);
  changes["seed"] = seed;
  changes["kv_cache"]["prefix_caching"] = caching;
  changes["scheduling"] = {{"max_num_batched_tokens", rules.budget},
                           {"max_num_seqs", rules.seats},
                           {"long_prefill_token_threshold", rules.threshold},
                           {"reserve_full_prompt", reserve}};
  Experiment e = test::load_tiny(changes);
  e.decode().memory.kv_blocks = rules.blocks;
  const auto prompts = std::make_shared<Prompts>(seed);
  e.decode().workload.lengths = prompts;
  StepWatch watch;
  const test::Served report = test::serve(e, {&watch});

  Engine engine(rules);
  Rng unused(1, "unused");
  std::size_t arrived = 0;
  for (std::size_t s = 0; s < watch.steps.size(); ++s) {
    for (; arrived < report.requests.size() && report.requests[arrived].arrival <= watch.starts[s];
         ++arrived) {
      if (report.requests[arrived].state == RequestRecord::State::rejected) continue;
      engine.arrives(prompts->request(std::int64_t(arrived), unused));
    }
    const Step expected = engine.step();
    CAPTURE(s);
    REQUIRE(watch.steps[s].preemptions == expected.preemptions);
    REQUIRE(watch.steps[s].used == expected.used);
    REQUIRE(watch.steps[s] == expected);
    engine.ended();
  }
  return report.document()["kv"]["preemptions"].get<std::int64_t>();
}

TEST_CASE("steps hold what vLLM's hold, with whole prompts reserved and without") {
  std::int64_t preemptions = 0;
  for (int seed = 1; seed <= 60; ++seed) preemptions += compare(seed, false, false, seed % 2 == 0);
  CHECK(preemptions > 0);
}

TEST_CASE("prefixes are found as a step is composed, after those before them were filled") {
  std::int64_t preemptions = 0;
  for (int seed = 1; seed <= 150; ++seed) preemptions += compare(seed, true, false, seed % 2 == 0);
  CHECK(preemptions > 0);
}

TEST_CASE("a window's blocks are held for the whole chunk that a step computes") {
  std::int64_t preemptions = 0;
  for (int seed = 1; seed <= 60; ++seed) preemptions += compare(seed, false, true, seed % 2 == 0);
  CHECK(preemptions > 0);
}

}  // namespace
}  // namespace moesim::test_engine_steps
