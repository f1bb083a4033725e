// SPDX-License-Identifier: Apache-2.0
// GPUs of a rank that compute different tokens of a prompt: is the same work done, by all of them,
// and do keys and values reach each?
#include "sim/experiment/pools.hpp"
#include "tests/tiny_experiment.hpp"

namespace moesim::test_prefill_context_parallel {
namespace {

using test::WithinRel;

// A pool of one rank that prefills and a pool that decodes.
Json apart(const Json& prefill, const Json& set = Json::object()) {
  Json json = test::tiny_experiment(
      {{"parallel", nullptr},
       {"scheduling", nullptr},
       {"placement", {{"replication", 1}}},
       {"pools",
        {{"prefill",
          {{"parallel", prefill},
           {"scheduling",
            {{"type", "chunked_prefill"}, {"max_num_batched_tokens", 64}, {"max_num_seqs", 8}}}}},
         {"decode",
          {{"parallel", {{"dp", 4}, {"tp", 1}, {"ep", 4}}},
           {"scheduling", {{"type", "decode_only"}, {"max_num_seqs", 8}}}}}}}});
  json.merge_patch(set);
  return json;
}
Json plan(int tp, int pcp) { return {{"dp", 1}, {"tp", tp}, {"ep", tp}, {"pcp", pcp}}; }

ExplainedStep prefill_of(const Json& parallel, int tokens, int prefix = 0) {
  StepContent content = prefill_step(tokens);
  content.prompts.front().prefix = prefix;
  return explain_step(test::load(apart(parallel)).pools.front(), content);
}

const ExplainedOperation* find(const ExplainedStep& step, std::string_view name) {
  const auto found = std::ranges::find(step.operations, name, &ExplainedOperation::name);
  return found == step.operations.end() ? nullptr : &*found;
}

TEST_CASE("pieces of a prompt are as much work as the prompt") {
  // Of 4 GPUs each has an eighth from the front and one from the back, which fit 64 tokens. Each
  // group has logits of its own: a tile of 16 rows.
  const double logits = 16.0 * 2 * 512 * 1024;
  for (const int prefix : {0, 100}) {
    CAPTURE(prefix);
    const auto flops = [&](int tp, int pcp) {
      return prefill_of(plan(tp, pcp), 64, prefix).cost.flops - (pcp - 1) * logits;
    };
    CHECK_THAT(flops(4, 4), WithinRel(flops(1, 1), 1e-9));
    CHECK_THAT(flops(2, 2), WithinRel(flops(1, 1), 1e-9));
    CHECK_THAT(flops(4, 2), WithinRel(flops(2, 1), 1e-9));
  }
}

TEST_CASE("every GPU gets the keys and values that the other groups have computed") {
  // Three layers, two arrays of 4 KV heads of 64 numbers, in bf16.
  const auto bytes = [](int tp, int pcp) {
    const ExplainedStep step = prefill_of(plan(tp, pcp), 64);
    const ExplainedOperation* gather = find(step, "pcp_gather_kv");
    return gather == nullptr ? 0.0 : gather->link_bytes;
  };
  const double of_token = 3 * 2 * 4 * 64 * 2;
  CHECK(bytes(4, 1) == 0);
  // Of 64 tokens a GPU lacks 48; of two groups of two GPUs each lacks 32, of half of the heads.
  CHECK_THAT(bytes(4, 4), WithinRel(48 * of_token * 4, 1e-9));
  CHECK_THAT(bytes(4, 2), WithinRel(32 * of_token / 2 * 4, 1e-9));
}

// 8.06 GB of latent keys of a prompt of 131,072 tokens over 8 GPUs, in 61 layers of 132 MB.
TEST_CASE("the bytes that each GPU gets are those of the published form: (1 - 1/c) T e") {
  const Json json = Json::parse(R"({"engine": {"name": "none"}, "cluster": "h200x16",
    "model": "deepseek_v3", "max_model_len": 200000,
    "workload": {"arrivals": {"type": "closed_loop", "concurrency": 1}, "requests": 1,
                 "lengths": {"type": "fixed", "prompt": 131072, "output": 2},
                 "gating": {"type": "uniform", "requests": 4}},
    "scheduling": {"type": "chunked_prefill", "max_num_batched_tokens": 131072,
                   "max_num_seqs": 4},
    "parallel": {"tp": 8, "pcp": 8},
    "token_routing": {"prefill": "even", "decode": "even"},
    "dispatch": {"prefill": "all_to_all", "decode": "all_to_all"}})");
  const ExplainedStep step = estimate_step(test::load(json).decode(), prefill_step(131'072));
  CHECK_THAT(step.cost.all_reduce.nvlink.value() / 8, WithinRel(8.06e9, 0.01));
}

TEST_CASE("groups cut weights among their own GPUs, and need no sums of other groups") {
  const ExplainedStep alone = prefill_of(plan(4, 4), 64);
  CHECK(find(alone, "tp_all_reduce") == nullptr);
  CHECK(find(alone, "logits_all_gather") == nullptr);
  CHECK(find(alone, "dispatch") != nullptr);
  const ExplainedStep tensor = prefill_of(plan(4, 1), 64);
  CHECK(find(tensor, "tp_all_reduce") != nullptr);
  CHECK(find(tensor, "dispatch") == nullptr);
  const auto memory = [](const Json& parallel) {
    return test::load(apart(parallel)).pools.front().memory;
  };
  CHECK(memory(plan(4, 4)).weights == memory(plan(1, 1)).weights);
  CHECK(memory(plan(4, 2)).weights == memory(plan(2, 1)).weights);
  CHECK(memory(plan(4, 4)).experts == memory(plan(4, 1)).experts);
}

TEST_CASE("the KV cache is whole in each group, and leaves as that of fewer slices does") {
  const auto layout = [](const Json& parallel) {
    return test::load(apart(parallel)).pools.front().kv_layout;
  };
  CHECK(layout(plan(4, 4)).block == layout(plan(1, 1)).block);
  CHECK(layout(plan(4, 2)).block == layout(plan(2, 1)).block);
  CHECK(layout(plan(4, 4)).block_tokens == layout(plan(1, 1)).block_tokens);
  // GPUs that hold the same share in sending: to one GPU, as from one.
  const auto crossing = [](const Json& parallel) {
    return kv_transfer(test::load(apart(parallel)), 64);
  };
  CHECK(crossing(plan(4, 4)).bytes == crossing(plan(1, 1)).bytes);
  CHECK(crossing(plan(4, 4)).all <= crossing(plan(1, 1)).all);
}

TEST_CASE("runs under PCP serve every request, and say the same again") {
  for (const int pcp : {2, 4}) {
    // All at once, so that the whole run is measured.
    const Json json = apart(plan(4, pcp), {{"workload", {{"arrivals", {{"concurrency", 120}}}}}});
    const test::Served report = test::serve(test::load(json));
    const OrderedJson document = report.document();
    CHECK(document["metrics"]["completed"] == 120);
    CHECK(document["pools"]["prefill"]["instances"][0]["prefill_tokens"] == 120.0 * 20);
    const Json config = Json::parse(document["context"]["config"].dump());
    CHECK(run(test::load(config)).document().dump() == document.dump());
  }
}

TEST_CASE("every group computes the tokens that decode, and gets what experts answer") {
  const auto decode = [](int tp, int pcp) {
    Json set{{"parallel", plan(tp, pcp)}, {"placement", {{"replication", 1}}}};
    return explain_step(test::load_tiny(set), decode_step(16, 40));
  };
  const ExplainedStep four = decode(4, 4), one = decode(1, 1);
  const auto flops_but_experts = [](const ExplainedStep& step) {  // of the slowest GPU
    double sum = 0;
    for (const ExplainedOperation& operation : step.operations)
      if (operation.part != Part::experts) sum += operation.flops;
    return sum;
  };
  CHECK_THAT(flops_but_experts(four), WithinRel(flops_but_experts(one), 1e-9));
  // 16 tokens of 512 numbers in bf16, of which a GPU lacks 12, in three layers on 4 GPUs.
  const ExplainedOperation* gather = find(four, "pcp_gather_decodes");
  REQUIRE(gather != nullptr);
  CHECK_THAT(gather->link_bytes, WithinRel(12.0 * 512 * 2 * 3 * 4, 1e-9));
  CHECK(find(four, "pcp_gather_kv") == nullptr);
  CHECK(find(prefill_of(plan(4, 4), 64), "pcp_gather_decodes") == nullptr);
  const test::Served report =
      test::serve(test::load_tiny({{"parallel", plan(4, 2)}, {"placement", {{"replication", 1}}}}));
  CHECK(report.document()["metrics"]["completed"] == 120);
}

TEST_CASE("long prompts of sparse attention gain most: tensor parallelism repeats the indexer") {
  const auto time = [](int pcp) {
    Json json = Json::parse(R"({"engine": {"name": "none"}, "cluster": "h200x16",
      "model": "deepseek_v3_2",
      "workload": {"arrivals": {"type": "closed_loop", "concurrency": 1}, "requests": 1,
                   "lengths": {"type": "fixed", "prompt": 16384, "output": 2},
                   "gating": {"type": "uniform", "requests": 4}},
      "token_routing": {"prefill": "even", "decode": "even"},
      "dispatch": {"prefill": "all_to_all", "decode": "all_to_all"},
      "pools": {"prefill": {"parallel": {"tp": 8}, "scheduling": {"type": "chunked_prefill",
                            "max_num_batched_tokens": 16384, "max_num_seqs": 4}},
                "decode": {"parallel": {"dp": 8}, "scheduling": {"type": "decode_only",
                           "max_num_seqs": 4}}}})");
    json["pools"]["prefill"]["parallel"]["pcp"] = pcp;
    return estimate_step(test::load(json).pools.front(), prefill_step(16'384)).totals.front();
  };
  CHECK(time(8) < time(2));
  CHECK(time(2) < time(1));
  CHECK(time(8) < time(1) / 1.5);
}

TEST_CASE("what PCP is not modelled with is refused with its reason") {
  const auto says = [](const Json& json, const char* what) {
    CAPTURE(what);
    CHECK(test::refused(json).find(what) != std::string::npos);
  };
  says(apart(plan(4, 3)), "3 does not divide tp 4");
  Json both = plan(4, 2);
  both["dcp"] = 2;
  says(apart(both), "DCP is not modelled with PCP");
  Json stages = plan(4, 2);
  stages["pp"] = 2;
  says(apart(stages), "neither with AFD nor with pipelines");
  says(apart(plan(4, 1),
             {{"pools",
               {{"decode", {{"parallel", {{"dp", 1}, {"tp", 4}, {"ep", 4}, {"pcp", 2}}}}}}}}),
       "this pool computes single tokens");
}

}  // namespace
}  // namespace moesim::test_prefill_context_parallel
