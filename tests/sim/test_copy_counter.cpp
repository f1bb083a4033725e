// SPDX-License-Identifier: Apache-2.0
// Does every token reach every GPU that it must, once per link?
#include <algorithm>
#include <set>

#include "hardware/at.hpp"
#include "hardware/rng.hpp"
#include "sim/dispatch/token_traffic.hpp"
#include "tests/support.hpp"

namespace moesim::test_copy_counter {
namespace {

struct Case {
  int ranks, moe_tp, domain;
  LayerPlacement placement;
  std::vector<std::int32_t> tokens_of_slot;
  std::vector<std::uint16_t> ids;
  std::vector<std::int32_t> source;
  std::size_t k;
};

// What the counter promises, written down token by token.
std::int32_t active_experts(const std::vector<std::uint16_t>& ids) {
  return static_cast<std::int32_t>(std::set(ids.begin(), ids.end()).size());
}

TrafficMatrix by_hand(const Case& c) {
  const int gpus = c.ranks * c.moe_tp;
  TrafficMatrix copies(gpus);
  std::vector<std::int32_t> left = c.tokens_of_slot;
  for (std::size_t token = 0; token < c.source.size(); ++token) {
    std::set<int> targets, domains;
    for (std::size_t j = 0; j < c.k; ++j) {
      for (const std::int32_t slot : c.placement.slots_of(c.ids[token * c.k + j])) {
        if (left[at(slot)] == 0) continue;
        --left[at(slot)];
        for (int i = 0; i < c.moe_tp; ++i) {
          targets.insert(c.placement.gpu_of_slot(slot) * c.moe_tp + i);
        }
        break;
      }
    }
    const int source = c.source[token];
    for (const int target : targets) {
      const int there = target / c.domain;
      if (there == source / c.domain) {
        copies.at(source, target) += 1;
        continue;
      }
      const int relay = std::min(there * c.domain + source % c.domain, gpus - 1);
      if (domains.insert(there).second) copies.at(source, relay) += 1;
      if (relay != target) copies.at(relay, target) += 1;
    }
  }
  return copies;
}

// What a case is drawn by. `sole`: one slot serves all tokens of an expert.
struct Draw {
  std::size_t k = 4;
  std::uint64_t tokens_below = 6;  // of a GPU
  bool sole = false;
};

Case random_case(std::uint64_t seed, int ranks, int moe_tp, int domain, Draw draw = {}) {
  Rng rng(seed, "test/copies");
  const int experts = ranks * 4;
  const std::size_t k = draw.k;
  std::vector<std::vector<int>> on_gpu(at(ranks));
  for (int e = 0; e < experts; ++e) on_gpu[at(e % ranks)].push_back(e);
  for (auto& slots : on_gpu) {
    for (int i = 0; i < 2; ++i) {
      slots.push_back(static_cast<int>(rng.below(static_cast<std::uint64_t>(experts))));
    }
  }
  Case c{ranks, moe_tp, domain, LayerPlacement(experts, on_gpu), {}, {}, {}, k};
  c.tokens_of_slot.resize(at(c.placement.slots()));
  for (int gpu = 0; gpu < ranks * moe_tp; ++gpu) {
    const auto tokens = rng.below(draw.tokens_below);
    for (std::uint64_t t = 0; t < tokens; ++t) {
      c.source.push_back(gpu);
      std::set<std::uint16_t> chosen;
      while (chosen.size() < k) {
        chosen.insert(static_cast<std::uint16_t>(rng.below(static_cast<std::uint64_t>(experts))));
      }
      for (const std::uint16_t e : chosen) {
        c.ids.push_back(e);
        const auto slots = c.placement.slots_of(e);
        ++c.tokens_of_slot[at(slots[draw.sole ? slots.size() - 1 : rng.below(slots.size())])];
      }
    }
  }
  return c;
}

TEST_CASE("copies are those of a token-by-token count, in one domain and across them") {
  struct Shape {
    int ranks, moe_tp, domain;
  };
  const auto shape = GENERATE(Shape{8, 1, 8}, Shape{16, 1, 8}, Shape{8, 2, 8}, Shape{4, 4, 8},
                              Shape{72, 1, 8}, Shape{80, 1, 80}, Shape{6, 1, 4});
  const auto seed = GENERATE(1, 2, 3, 4, 5);
  const Case c =
      random_case(static_cast<std::uint64_t>(seed), shape.ranks, shape.moe_tp, shape.domain);
  LinkTraffic copies;
  CopyCounter counter;
  counter.count(c.placement, {c.tokens_of_slot, active_experts(c.ids), c.ids, c.source.size()},
                runs_of(c.source), {CopyRule::per_gpu, c.domain, c.moe_tp}, copies);
  REQUIRE(copies == LinkTraffic(by_hand(c), c.domain));
}

TEST_CASE("copies are the same with vector instructions and without, to any number of tokens") {
  struct Shape {
    int ranks, moe_tp, domain;
  };
  // Up to 256 experts in a few bits or many, in one word of 64 or two; the last has 288.
  const auto shape = GENERATE(Shape{4, 1, 4}, Shape{8, 2, 8}, Shape{16, 1, 8}, Shape{60, 1, 8},
                              Shape{64, 1, 64}, Shape{72, 1, 72});
  // Most choices that eight lanes hold are 8. A count of a byte is carried after 255 times 8
  // tokens.
  const auto draw = GENERATE(Draw{1, 40, true}, Draw{4, 40, true}, Draw{6, 40, true},
                             Draw{8, 5000, true}, Draw{10, 40, true});
  const Case c = random_case(7, shape.ranks, shape.moe_tp, shape.domain, draw);
  const LinkTraffic expected(by_hand(c), c.domain);
  for (const bool vectors : {true, false}) {
    LinkTraffic copies;
    CopyCounter counter(vectors);
    counter.count(c.placement, {c.tokens_of_slot, active_experts(c.ids), c.ids, c.source.size()},
                  runs_of(c.source), {CopyRule::per_gpu, c.domain, c.moe_tp}, copies);
    CAPTURE(vectors, shape.ranks, draw.k);
    REQUIRE(copies == expected);
  }
}

TEST_CASE("tokens that replay the same rows are copied as those with rows of their own") {
  struct Shape {
    int ranks, moe_tp, domain;
  };
  const auto shape = GENERATE(Shape{4, 1, 4}, Shape{16, 1, 8}, Shape{8, 2, 8}, Shape{72, 1, 72});
  const bool sole = GENERATE(true, false);
  const auto rule = GENERATE(CopyRule::per_gpu, CopyRule::per_selection);
  const Case rows = random_case(11, shape.ranks, shape.moe_tp, shape.domain, {8, 12, true});
  const std::vector<TokenRun> prompts = runs_of(rows.source);
  // Every GPU takes some of the prompts, and each several times.
  Rng rng(12, "test/runs");
  std::vector<TokenRun> shared;
  Case each = rows;
  each.ids.clear();
  each.source.clear();
  for (int gpu = 0; gpu < shape.ranks * shape.moe_tp; ++gpu) {
    for (int i = 0; i < 5; ++i) {
      TokenRun run = prompts[rng.below(prompts.size())];
      run.gpu = gpu;
      shared.push_back(run);
      const auto ids = std::span(rows.ids).subspan(run.first_row * rows.k, at(run.rows) * rows.k);
      each.ids.insert(each.ids.end(), ids.begin(), ids.end());
      each.source.insert(each.source.end(), at(run.rows), gpu);
    }
  }
  REQUIRE(each.source.size() > rows.source.size());
  each.tokens_of_slot.assign(each.tokens_of_slot.size(), 0);
  for (const std::uint16_t expert : each.ids) {
    const auto slots = each.placement.slots_of(expert);
    ++each.tokens_of_slot[at(slots[sole ? 0 : rng.below(slots.size())])];
  }
  const std::int32_t active = active_experts(each.ids);
  const CopyPaths paths{rule, shape.domain, shape.moe_tp};
  for (const bool vectors : {true, false}) {
    CAPTURE(shape.ranks, sole, vectors);
    CopyCounter counter(vectors);
    LinkTraffic copies, expected;
    counter.count(each.placement, {each.tokens_of_slot, active, each.ids, each.source.size()},
                  runs_of(each.source), paths, expected);
    counter.count(each.placement, {each.tokens_of_slot, active, rows.ids, rows.source.size()},
                  shared, paths, copies);
    CHECK(copies == expected);
  }
}

TEST_CASE("copies of selections with slots of their own are those of the same slots by count") {
  // Fill the slots in order by hand, and hand the choice over selection by selection.
  const Case c = random_case(9, 16, 1, 8);
  std::vector<std::int32_t> left = c.tokens_of_slot, slot_of_selection;
  for (const std::uint16_t id : c.ids) {
    for (const std::int32_t slot : c.placement.slots_of(id)) {
      if (left[at(slot)] == 0) continue;
      --left[at(slot)];
      slot_of_selection.push_back(slot);
      break;
    }
  }
  LinkTraffic by_count, by_selection;
  CopyCounter counter;
  counter.count(c.placement, {c.tokens_of_slot, active_experts(c.ids), c.ids, c.source.size()},
                runs_of(c.source), {CopyRule::per_gpu, c.domain, c.moe_tp}, by_count);
  counter.count(c.placement, slot_of_selection, c.source, {CopyRule::per_gpu, c.domain, c.moe_tp},
                by_selection);
  CHECK(by_selection == by_count);

  // One expert on both GPUs, chosen by a token of each: sent across, not to the nearest by count.
  const LayerPlacement placement(1, {{0}, {0}});
  counter.count(placement, std::vector<std::int32_t>{1, 0}, std::vector<std::int32_t>{0, 1},
                {CopyRule::per_gpu, 8}, by_selection);
  CHECK(by_selection.near_out == std::vector<double>{1, 1});
  CHECK(by_selection.near_in == std::vector<double>{1, 1});
}

TEST_CASE("per selection a token travels once for each expert, and is forwarded by nobody") {
  const auto shape = GENERATE(std::pair{8, 8}, std::pair{16, 8}, std::pair{72, 8});
  const Case c = random_case(3, shape.first, 1, shape.second);
  TrafficMatrix direct(shape.first);
  LinkTraffic shared, selections;
  std::vector<std::int32_t> left = c.tokens_of_slot;
  for (std::size_t i = 0; i < c.ids.size(); ++i) {
    for (const std::int32_t slot : c.placement.slots_of(c.ids[i])) {
      if (left[at(slot)] == 0) continue;
      --left[at(slot)];
      direct.at(c.source[i / c.k], c.placement.gpu_of_slot(slot)) += 1;
      break;
    }
  }
  CopyCounter counter;
  counter.count(c.placement, {c.tokens_of_slot, active_experts(c.ids), c.ids, c.source.size()},
                runs_of(c.source), {CopyRule::per_selection, c.domain}, selections);
  counter.count(c.placement, {c.tokens_of_slot, active_experts(c.ids), c.ids, c.source.size()},
                runs_of(c.source), {CopyRule::per_gpu, shape.first}, shared);
  CHECK(selections == LinkTraffic(direct, c.domain));
  // Bytes without duplicates are no more than those of pairs.
  for (int gpu = 0; gpu < shape.first; ++gpu) {
    const std::size_t i = at(gpu);
    CHECK(shared.near_out[i] <= selections.near_out[i] + selections.far_out[i]);
    CHECK(shared.near_in[i] <= selections.near_in[i] + selections.far_in[i]);
  }
  double local = 0, remote = 0;
  for (int gpu = 0; gpu < shape.first; ++gpu) {
    local += direct.at(gpu, gpu);
    remote += selections.near_out[at(gpu)] + selections.far_out[at(gpu)];
  }
  CHECK(local + remote == static_cast<double>(c.ids.size()));
}

TEST_CASE("a token whose experts share a GPU is sent there once") {
  // GPU 0: experts 0 1, GPU 1: experts 2 3. One token on GPU 0 picks 2 and 3: one copy, not two.
  const LayerPlacement placement(4, {{0, 1}, {2, 3}});
  const std::vector<std::int32_t> slots{0, 0, 1, 1};
  const std::vector<std::uint16_t> ids{2, 3};
  const std::vector<std::int32_t> source{0};
  LinkTraffic copies;
  CopyCounter().count(placement, {slots, active_experts(ids), ids, 1}, runs_of(source),
                      {CopyRule::per_gpu, 8}, copies);
  CHECK(copies.near_out == std::vector<double>{1, 0});
  CHECK(copies.near_in == std::vector<double>{0, 1});
}

}  // namespace
}  // namespace moesim::test_copy_counter
