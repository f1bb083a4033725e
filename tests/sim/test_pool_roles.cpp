// SPDX-License-Identifier: Apache-2.0
// Groups that change pools: does each request go on where it is, and does the change take its time?
#include <set>

#include "sim/pool_roles/pool_roles.hpp"
#include "tests/tiny_experiment.hpp"

namespace moesim::test_pool_roles {
namespace {

using test::refused;
using test::WithinRel;

// Two groups that prefill and two that decode, of two GPUs each.
Json moving(const Json& roles, const Json& set = Json::object()) {
  Json json = test::tiny_experiment(
      {{"parallel", {{"dp", 2}, {"tp", 1}, {"ep", 2}}},
       {"pool_roles", roles},
       {"pools",
        {{"prefill", {{"instances", 2}}},
         {"decode",
          {{"instances", 2}, {"scheduling", {{"type", "decode_only"}, {"max_num_seqs", 8}}}}}}}});
  json.merge_patch(set);
  return json;
}

Json every(const char* interval, const Json& more = Json::object()) {
  Json roles{{"type", "wants"}, {"interval", interval}, {"sample", interval}};
  roles.merge_patch(more);
  return roles;
}

// Wants a group for the decode pool, whatever happens; where it turns back, for the other one from
// the fourth question on.
class Wants final : public PoolRoles {
 public:
  explicit Wants(bool back) : back_(back) {}
  std::optional<PoolRole> wants(const RolesSeen& seen) override {
    CHECK(seen.prefill.groups + seen.decode.groups == 4);
    const bool turned = back_ && ++asked_ > 3;
    return turned ? PoolRole::prefill : PoolRole::decode;
  }

 private:
  bool back_;
  int asked_ = 0;
};
std::span<const Key> wants_keys() {
  static constexpr Key keys[] = {{"back", form::flag, "false", "turns round"}};
  return keys;
}
PoolRolesFactory make_wants(ConfigReader& options) {
  return copies_of(Wants(options.flag("back")));
}

Experiment load(const Json& json) {
  Policies policies;
  policies.pool_roles.add({"wants", "for a test", make_wants, wants_keys});
  TraceLibrary traces;
  return load_experiment(ConfigNode(json, test::source_dir() / "tests" / "tiny.json"), traces,
                         policies);
}

std::optional<PoolRole> asked(const char* policy, const RoleLoad& prefill, const RoleLoad& decode) {
  const ConfigNode node = test::config(policy);
  return pool_roles().make(node)()->wants({Time{}, prefill, decode});
}

RoleLoad queue(double first, double last) {
  return {.groups = 2, .waiting = (first + last) / 2, .waiting_first = first, .waiting_last = last};
}
RoleLoad held(double kv) { return {.groups = 2, .kv_utilization = kv}; }
RoleLoad late(std::optional<Seconds> latency, Seconds objective, double waiting = 0) {
  return {.groups = 2, .waiting = waiting, .latency = latency, .objective = objective};
}

TEST_CASE("thresholds: a pool grows when its own load is high and the other one's is low") {
  const char* const policy = R"({"type": "thresholds"})";
  CHECK(asked(policy, queue(6, 6), held(0.49)) == PoolRole::prefill);
  CHECK(asked(policy, queue(5, 5), held(0.49)) == std::nullopt);
  CHECK(asked(policy, queue(6, 6), held(0.5)) == std::nullopt);
  CHECK(asked(policy, queue(0.1, 0.1), held(0.91)) == PoolRole::decode);
  CHECK(asked(policy, queue(0.2, 0.2), held(0.91)) == std::nullopt);
  CHECK(asked(policy, queue(0.1, 0.1), held(0.9)) == std::nullopt);
  // A queue of 7 that falls by 1 in an interval holds 4 in three more.
  CHECK(asked(policy, queue(8, 7), held(0.1)) == std::nullopt);
  CHECK(asked(policy, queue(7.4, 7), held(0.1)) == PoolRole::prefill);
}

TEST_CASE("slo: a group goes where the objective is missed, from where there is slack") {
  const char* const policy = R"({"type": "slo"})";
  const Seconds one{1};
  // Of two groups one stays, with twice the load: 0.4 becomes the 0.8 that is still slack.
  CHECK(asked(policy, late(Seconds{1}, one), late(Seconds{0.4}, one)) == PoolRole::prefill);
  CHECK(asked(policy, late(Seconds{0.4}, one), late(Seconds{1}, one)) == PoolRole::decode);
  CHECK(asked(policy, late(Seconds{1}, one), late(Seconds{0.41}, one)) == std::nullopt);
  CHECK(asked(policy, late(Seconds{0.99}, one), late(Seconds{0.1}, one)) == std::nullopt);
  // No token came though requests wait; no token came because there was none to come.
  CHECK(asked(policy, late({}, one, 1), late(Seconds{0.3}, one)) == PoolRole::prefill);
  CHECK(asked(policy, late({}, one), late(Seconds{2}, one)) == PoolRole::decode);
}

TEST_CASE("a group drains, changes pools, and no request is lost or sent to it meanwhile") {
  const test::Served report = test::serve(load(moving(every("4 ms"))));
  const OrderedJson document = report.document();
  CHECK(document["metrics"]["completed"] == 120);
  const OrderedJson& roles = document["pools"]["roles"];
  // The other group of the pool stays: each keeps one.
  REQUIRE(roles["changes"] == 1);
  const OrderedJson& change = roles["events"][0];
  CHECK(change["to"] == "decode");
  CHECK(change["at_s"] == 0.004);
  CHECK(change["switch_s"] == 0.0);
  const int group = change["instance"];
  const double at = change["at_s"];
  const double serves = at + change["drain_s"].get<double>();
  std::set<int> decoded;
  for (const RequestRecord& r : report.requests) {
    REQUIRE(r.generated == r.output_tokens);
    REQUIRE(r.prefill);
    if (r.prefill->instance == group) CHECK(to_seconds(r.received - Time{}).count() <= at);
    // Numbers of decode groups follow those of the four that may prefill.
    decoded.insert(r.instance - 4);
    if (r.instance - 4 == group)
      CHECK(to_seconds(r.first_token - Time{} + r.prefill->kv_exposed).count() >= serves);
  }
  CHECK(decoded == std::set<int>{group, 2, 3});
  CHECK(document["pools"]["kv_transfer"]["transfers"] == 120);
  // Reports show a group under one number in both pools, and none where it never was.
  std::vector<int> shown;
  for (const OrderedJson& one : document["pools"]["decode"]["instances"])
    shown.push_back(one["instance"]);
  CHECK(shown == std::vector<int>{group, 2, 3});
  CHECK(document["pools"]["prefill"]["instances"].size() == 2);
  CHECK(run(load(moving(every("4 ms")))).document().dump() == document.dump());
}

TEST_CASE("groups are in one pool or the other or on their way") {
  const Json roles =
      every("1 ms", {{"back", true}, {"grace_intervals", 0}, {"switch_time", "1 ms"}});
  const OrderedJson document = run(load(moving(roles))).document();
  const OrderedJson& stats = document["pools"]["roles"];
  CHECK(document["metrics"]["completed"] == 120);
  CHECK(stats["changes"].get<int>() > 1);
  CHECK_THAT(stats["mean_prefill_groups"].get<double>() +
                 stats["mean_decode_groups"].get<double>() + 4 * stats["away_share"].get<double>(),
             WithinRel(4.0, 1e-12));
  for (const OrderedJson& change : stats["events"])
    if (change.contains("switch_s"))
      CHECK_THAT(change["switch_s"].get<double>(), WithinRel(1e-3, 1e-6));
}

TEST_CASE("a pool that got a group gives none in its grace") {
  const auto changes = [](int grace) {
    const Json roles = every("1 ms", {{"back", true}, {"grace_intervals", grace}});
    return run(load(moving(roles))).document()["pools"]["roles"]["changes"].get<int>();
  };
  CHECK(changes(0) > 1);
  CHECK(changes(1000) == 1);
}

TEST_CASE("a group that loads its weights takes what its GPUs' bytes take") {
  const Json roles = every("4 ms", {{"switch_time", "1 ms"}, {"reload_bandwidth", "10 GB/s"}});
  const Experiment e = load(moving(roles));
  const MemoryBudget& memory = e.decode().memory;
  const double bytes = (memory.weights + memory.experts + memory.replicas).value();
  const OrderedJson change = run(e).document()["pools"]["roles"]["events"][0];
  CHECK_THAT(change["switch_s"].get<double>(), WithinRel(1e-3 + bytes / 10e9, 1e-6));
}

TEST_CASE("groups that stay are those of a config without the key") {
  const auto without_context = [](Json json) {
    OrderedJson document = run(test::load(json)).document();
    document.erase("context");
    return document.dump();
  };
  Json plain = moving("fixed");
  plain.erase("pool_roles");
  CHECK(without_context(moving("fixed")) == without_context(plain));
}

TEST_CASE("the resolved config of a run with roles that change gives the same run") {
  const Json roles{{"type", "thresholds"},
                   {"interval", "2 ms"},
                   {"sample", "1 ms"},
                   {"decode_kv_scale_up_threshold", 1e-9},
                   {"decode_kv_scale_down_threshold", 0},
                   {"prefill_queue_scale_down_threshold", 5}};
  const OrderedJson first = run(test::load(moving(roles))).document();
  CHECK(first["pools"]["roles"]["changes"] == 1);
  const Json config = Json::parse(first["context"]["config"].dump());
  OrderedJson again = run(test::load(config)).document();
  CHECK(again.dump() == first.dump());
}

TEST_CASE("what groups cannot change between is refused with its reason") {
  const Json roles = "thresholds";
  const auto says = [&](const Json& set, const char* what) {
    CAPTURE(what);
    CHECK(refused(moving(roles, set)).find(what) != std::string::npos);
  };
  const auto of_decode = [](const Json& set) { return Json{{"pools", {{"decode", set}}}}; };
  says({{"pools", nullptr}}, "there are no pools to move between");
  says(of_decode({{"parallel", {{"dp", 4}, {"ep", 4}}}, {"instances", 1}}), "have 2 and 4 GPUs");
  says(of_decode({{"precision", {{"experts", "fp8"}, {"attention", "bf16"}}}}),
       "give \"reload_bandwidth\"");
  says(of_decode({{"failures", Json::array({{{"instance", 1}, {"at", "1 ms"}}})}}),
       "groups that fail do not move");
  says(of_decode({{"kv_cache", {{"prefix_caching", true}, {"tiers", {{{"capacity", "1 GB"}}}}}}}),
       "do not move; leave out \"tiers\"");
  const auto refuses = [&](const Json& other_roles) { return refused(moving(other_roles)); };
  CHECK(refuses({{"type", "slo"}}).find("goes by objectives") != std::string::npos);
  CHECK(refuses({{"type", "thresholds"}, {"least_groups", 3}}).find("\"least_groups\": 3") !=
        std::string::npos);
  CHECK(refuses({{"type", "thresholds"}, {"interval", "1 s"}}).find("\"sample\"") !=
        std::string::npos);
  CHECK(refuses({{"type", "slo"}, {"slack", 2}}).find("above \"miss\"") != std::string::npos);
}

}  // namespace
}  // namespace moesim::test_pool_roles
