// SPDX-License-Identifier: Apache-2.0
// Do the tables of keys, the schema made of them and the readers that consult them agree?
#include <algorithm>
#include <functional>
#include <regex>
#include <sstream>

#include <fmt/format.h>

#include "hardware/parse_json.hpp"
#include "sim/experiment/experiment.hpp"
#include "tests/support.hpp"
#include "tests/tiny_experiment.hpp"
#include "tools/config/config_keys.hpp"
#include "tools/config/key_rows.hpp"
#include "tools/config/keys_markdown.hpp"
#include "tools/sweep/sweep.hpp"

namespace moesim::test_keys {

using namespace moesim::test;
using Catch::Matchers::Contains;

namespace {

const OrderedJson& schema() {
  static const OrderedJson made = experiment_schema(Policies().rows());
  return made;
}

bool is_type(const Json& value, std::string_view type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "number") return value.is_number();
  return value.is_number() && value.get<double>() == std::floor(value.get<double>());
}

// The keywords of JSON Schema that ours is written in; any other fails.
bool valid(const Json& value, const OrderedJson& rule) {
  const auto all = [&](const auto& items, const auto& holds) {
    return std::all_of(items.begin(), items.end(), holds);
  };
  for (const auto& entry : rule.items()) {
    const std::string& keyword = entry.key();
    const OrderedJson& of = entry.value();
    bool holds = true;
    if (keyword == "type") {
      holds = is_type(value, of.get<std::string>());
    } else if (keyword == "enum") {
      holds =
          std::any_of(of.begin(), of.end(), [&](const auto& one) { return value == Json(one); });
    } else if (keyword == "const") {
      holds = value == Json(of);
    } else if (keyword == "minimum") {
      holds = value.get<double>() >= of.get<double>();
    } else if (keyword == "maximum") {
      holds = value.get<double>() <= of.get<double>();
    } else if (keyword == "pattern") {
      holds = std::regex_search(value.get<std::string>(), std::regex(of.get<std::string>()));
    } else if (keyword == "items") {
      holds = all(value, [&](const Json& item) { return valid(item, of); });
    } else if (keyword == "anyOf") {
      holds = std::any_of(of.begin(), of.end(), [&](const auto& one) { return valid(value, one); });
    } else if (keyword == "required") {
      holds =
          all(of, [&](const auto& key) { return value.contains(key.template get<std::string>()); });
    } else if (keyword == "properties") {
      holds = all(value.items(), [&](const auto& item) {
        return !of.contains(item.key()) || valid(item.value(), of[item.key()]);
      });
    } else if (keyword == "patternProperties") {
      holds = all(value.items(), [&](const auto& item) {
        return !item.key().starts_with('/') || valid(item.value(), of.at("^/"));
      });
    } else if (keyword == "additionalProperties") {
      holds = all(value.items(), [&](const auto& item) {
        return rule["properties"].contains(item.key()) ||
               (rule.contains("patternProperties") && item.key().starts_with('/'));
      });
    } else if (keyword == "$ref") {
      holds = valid(value, schema()[OrderedJson::json_pointer(of.get<std::string>().substr(1))]);
    } else if (keyword != "description" && keyword != "default" && keyword != "$schema" &&
               keyword != "title" && keyword != "$defs") {
      throw std::logic_error("the test does not know the keyword " + keyword);
    }
    if (!holds) return false;  // of what "type" refuses nothing more is asked
  }
  return true;
}

bool is_experiment(const Json& json) {
  return json.is_object() && json.contains("cluster") &&
         (json.contains("workload") || json.contains("deployments"));
}

bool is_sweep(const Json& json) {
  return json.contains("base") && (json.contains("axes") || json.contains("blocks"));
}

// How many of the shipped configs are such; checks that each is valid by the rule.
int check_shipped(bool (*such)(const Json&), const OrderedJson& rule) {
  int found = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(source_dir() / "configs")) {
    if (entry.path().extension() != ".json") continue;
    const Json json = ConfigNode::from_file(entry.path()).json();
    if (!such(json)) continue;
    CAPTURE(entry.path());
    CHECK(valid(json, rule));
    ++found;
  }
  return found;
}

template <class Visit>
void for_each_table(const PolicyRows& policies, Visit&& visit) {
  std::vector<KeyTable> todo{experiment_keys, sweep_keys}, seen;
  for (const auto& [registry, rows] : policies) {
    for (const PolicyRow& row : rows) todo.push_back(row.keys);
  }
  while (!todo.empty()) {
    const KeyTable table = todo.back();
    todo.pop_back();
    if (std::find(seen.begin(), seen.end(), table) != seen.end()) continue;
    seen.push_back(table);
    visit(table());
    for (const Key& key : table()) {
      for (const Form* form = &key.form; form != nullptr; form = form->or_else) {
        const Form& inner = form->kind == Form::Kind::list ? *form->element : *form;
        if (inner.keys != nullptr) todo.push_back(inner.keys);
      }
    }
  }
}

}  // namespace

TEST_CASE("every shipped experiment is valid by the schema") {
  CHECK(check_shipped(is_experiment, schema()) >= 15);
}

TEST_CASE("every shipped sweep is valid by the schema, and what that refuses the reader does too") {
  const OrderedJson rule = sweep_schema(Policies().rows());
  CHECK(check_shipped(is_sweep, rule) >= 15);

  const Json good{{"base", tiny_experiment(Json::object())},
                  {"axes", {{"/placement/replication", {1, 1.5}}}},
                  {"seeds", {1, 2}}};
  const auto refused = [](const Json& sweep) {
    return config_error([&] { expand_sweep(ConfigNode(sweep, source_dir() / "tests/x.json")); });
  };
  REQUIRE(valid(good, rule));
  REQUIRE(refused(good).empty());
  for (const char* change :
       {"/axis={}", "/axes=[1]", "/axes={\"/seed\": 1}", "/axes={\"seed\": [1]}", "/set=1",
        "/zip={\"/seed\": {}}", "/seeds=1", "/seeds=[-1]", "/skip={}", "/skip=[1]", "/blocks={}",
        "/blocks=[{\"base\": 1}]"}) {
    Json bad = good;
    apply_override(bad, change);
    CAPTURE(change);
    CHECK_FALSE(valid(bad, rule));
    CHECK_FALSE(refused(bad).empty());
  }
}

TEST_CASE("clusters, GPUs and models are valid as inline objects") {
  const OrderedJson& properties = schema()["properties"];
  for (const std::string folder : {"hardware/clusters", "hardware/gpus", "models/zoo"}) {
    for (const auto& entry : std::filesystem::directory_iterator(source_dir() / folder)) {
      CAPTURE(entry.path());
      const Json json = ConfigNode::from_file(entry.path()).json();
      const OrderedJson* rule = &properties[folder == "models/zoo" ? "model" : "cluster"];
      if (folder == "hardware/gpus") rule = &(*rule)["anyOf"][1]["properties"]["gpu"];
      CHECK(valid(json, *rule));
    }
  }
}

TEST_CASE("a resolved config, every default written out, is valid and reads back as itself") {
  const Experiment once = load(tiny_experiment(Json::object()));
  CHECK(valid(once.config, schema()));
  CHECK(load(once.config).config == once.config);
}

TEST_CASE("what the schema refuses in one place readers refuse too") {
  const Json good = tiny_experiment(Json::object());
  REQUIRE(valid(good, schema()));
  for (const char* change :
       {"/sede=1", "/parallel/dp=0", "/parallel/dp=1.5", "/placement=metro",
        R"(/placement={"type": "linear", "failure_domains": 2})", "/scheduling/max_num_seqs=many",
        R"(/slo={"ttft": 2})", R"(/slo={"ttft": "2 parsecs"})", "/token_routing/mixed=neither",
        "/precision/experts=fp7", R"(/kv_cache={"prefix_caching": 1})",
        R"(/overlap=["shared_experts"])", R"(/failures=[{"gpu": 1}])", "/pools={}",
        "/deployments={}", R"(/deployments=[{"name": 1}])",
        R"(/deployments=[{"cluster": "h100x8"}])"}) {
    Json bad = good;
    apply_override(bad, change);
    CAPTURE(change);
    CHECK_FALSE(valid(bad, schema()));
    CHECK_FALSE(test::refused(bad).empty());
  }
}

namespace {

// Experiments that between them have most keys.
std::vector<Json> varied() {
  const char* patches[] = {
      R"({})",
      R"({"pools": {"prefill": {"parallel": {"dp": 2, "tp": 1}},
                    "decode": {"scheduling": {"type": "decode_only", "max_num_seqs": 8}}},
          "kv_transfer": {"sends": "chunk", "first_token": "admission"}})",
      R"({"expert_memory": {"type": "lfu_aging", "slots_per_layer": 3, "lookahead": 2,
            "host": {"bandwidth": "50 GB/s", "latency": "10 us", "source": "a test"},
            "prefetch": {"type": "popularity", "weight": 0.2},
            "nvme": {"dram_slots_per_gpu": 8, "bandwidth": "5 GB/s", "latency": "1 ms", "source": "a test"}},
          "charges": {"token_routing": {"source": "a test", "metro": {"fixed": "3 us"}}}})",
      R"({"kv_cache": {"prefix_caching": true, "read": "layerwise", "min_load_tokens": 16,
            "tiers": [{"name": "dram", "per": "node", "capacity": {"of_hbm": 2}, "bandwidth": "50 GB/s",
                       "write_bandwidth": "40 GB/s", "aggregate_bandwidth": "100 GB/s", "latency": "2 us",
                       "link": "equal", "eviction": "oracle", "write": "write_back"}]}})",
      R"({"rebalancing": {"type": "migrate", "popularity": {"by": "request"}, "movement": {"sources": "vllm"}},
          "failures": {"events": [{"gpu": 1, "at": "1 ms", "recovers_after": "2 ms"}], "placement": "eplb"},
          "capacity": {"type": "drop", "factor": 1.5}, "overlap": ["shared_expert"], "instances": 2,
          "cuda_graph": {"sizes": [1, 2, 4]}, "background": {"nvlink": 0.1}})",
      R"({"speculative": {"num_speculative_tokens": 1, "acceptance_rate": 0.5,
                          "draft": {"type": "time", "per_token": "1 ms"}},
          "cuda_graph": {"sizes": "powers_of_two"}, "slo": {"ttft": "1 s"},
          "overlap": {"type": "two_batch", "decode_tokens": 2},
          "placement": {"type": "eplb", "load": {"disjoint": true}},
          "token_routing": {"decode": {"type": "metro", "order": "random"},
                            "mixed": {"decode_if_prefill_tokens_at_most": 3}},
          "dispatch": {"decode": {"type": "all_gather", "combine": "reduce_scatter"}},
          "workload": {"arrivals": {"type": "gamma", "concurrency": null, "cv": 2,
                                    "rate": [{"rate": "50 /s", "until": "1 s"}, {"rate": "9 /s"}]},
                       "lengths": {"type": "lognormal", "prompt": {"median": 9, "sigma": 1, "max": 20},
                                   "output": {"median": 9, "sigma": 1, "max": 20}},
                       "binding": {"type": "by_workload", "phases": [["chat"], ["law", "math"]]},
                       "timeout": "60 s", "cancellation": {"share": 0.1, "mean_after": "1 s"}},
          "request_routing": {"type": "brh", "form": "pool", "points": [0, 4]}})"};
  std::vector<Json> all;
  for (const char* patch : patches) all.push_back(tiny_experiment(Json::parse(patch)));
  return all;
}

// Every pointer into a config, deepest last.
void pointers(const Json& json, const std::string& at, std::vector<std::string>& all) {
  if (!at.empty()) all.push_back(at);
  if (!json.is_structured()) return;
  for (const auto& item : json.items()) pointers(item.value(), at + "/" + item.key(), all);
}

}  // namespace

TEST_CASE("whatever stands under a key is read, or refused in a sentence if the schema does") {
  const Json junk =
      Json::parse(R"([null, true, -1, 0, 0.5, 3, 1e300, "x", "", "-1 s", "3 s", [], [1],
                                   {}, {"type": "x"}, {"x": 1}])");
  int tried = 0, refused_by_both = 0;
  for (const Json& good : varied()) {
    CAPTURE(good);
    REQUIRE(test::refused(good).empty());
    REQUIRE(valid(good, schema()));
    std::vector<std::string> places;
    pointers(good, "", places);
    for (std::size_t i = 0; i < places.size(); ++i) {
      const std::string& place = places[i];
      for (std::size_t j = 0; j < 3; ++j) {  // some for each place, in turns
        const Json& value = junk[(5 * i + j) % junk.size()];
        Json bad = good;
        bad[Json::json_pointer(place)] = value;
        CAPTURE(place, value);
        const bool sentence = !test::refused(bad).empty();  // anything but a ConfigError fails here
        if (!valid(bad, schema())) {
          CHECK(sentence);
          ++refused_by_both;
        }
        ++tried;
      }
    }
  }
  CHECK(tried > 1000);
  CHECK(refused_by_both > tried / 2);
}

TEST_CASE("every key has a line of prose, and every default is a value of its own form") {
  int keys = 0;
  for_each_table(Policies().rows(), [&](std::span<const Key> table) {
    for (const Key& key : table) {
      CAPTURE(key.name);
      CHECK(key.meaning.size() >= 5);
      CHECK(key.meaning.size() <= 70);
      CHECK((key.by_default.kind != KeyDefault::Kind::words || !key.by_default.text.empty()));
      ++keys;
    }
  });
  CHECK(keys >= 200);
  const std::function<void(const OrderedJson&)> check_defaults = [&](const OrderedJson& node) {
    if (node.is_object() && node.contains("default") && node.contains("description")) {
      CAPTURE(node.dump());
      OrderedJson rule = node;
      CHECK(valid(Json(node["default"]), rule));
    }
    for (const auto& item : node) {
      if (item.is_structured()) check_defaults(item);
    }
  };
  check_defaults(schema());
}

TEST_CASE("every policy can be written as the schema says") {
  // Every required option of every policy, by its form; paths lead nowhere, so nothing is read.
  const PolicyRows policies = Policies().rows();
  for (const auto& [registry, rows] : policies) {
    for (const PolicyRow& row : rows) {
      CAPTURE(registry, row.name);
      const bool bare = std::ranges::none_of(row.keys(), [](const Key& key) {
        return key.by_default.kind == KeyDefault::Kind::required;
      });
      CHECK(valid(Json(row.name), schema()["$defs"][std::string(registry)]) == bare);
      CHECK_FALSE(valid(Json{{"type", row.name}, {"no_such_option", 1}},
                        schema()["$defs"][std::string(registry)]));
    }
  }
}

TEST_CASE("the text names every key and fits the terminal") {
  const PolicyRows policies = Policies().rows();
  const std::string text = "\n" + keys_text(policies, "");
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    CAPTURE(line);
    CHECK(line.size() <= 100);
  }
  for_each_table(policies, [&](std::span<const Key> table) {
    for (const Key& key : table) {
      if (key.name != "*" && key.name != "/*")
        CHECK_THAT(text, Contains(fmt::format(" {} ", key.name)) ||
                             Contains(fmt::format("\n{} ", key.name)));
    }
  });
  CHECK_THAT(keys_text(policies, "kv_cache"), Contains("block_size") && !Contains("replication"));
  CHECK_THAT(keys_text(policies, "gating"), Contains("popularity_sigma"));
  CHECK_THAT(config_error([&] { keys_text(policies, "kv_cash"); }), Contains("kv_cache"));
  CHECK_THAT(keys_text(policies, "metro"), Contains("a policy of token_routing") &&
                                               Contains("    order ") && !Contains("hybrid"));
  // Of every table that has one, and one without keys says that it has none.
  for (const auto& [registry, rows] : policies) {
    for (const PolicyRow& row : rows) {
      const bool point =
          policies.contains(row.name) ||
          std::ranges::find(experiment_keys(), row.name, &Key::name) != experiment_keys().end();
      if (point || row.name == "sweep") continue;
      CAPTURE(registry, row.name);
      const std::string of_row = keys_text(policies, row.name);
      CHECK_THAT(of_row, Contains(fmt::format("a policy of {}\n  {} ", registry, row.name)));
      CHECK((row.keys().empty() || of_row.find(row.keys()[0].name) != std::string::npos));
    }
  }
  CHECK_THAT(keys_text(policies, "even"),
             Contains("(no keys of its own; for the keys around it: moesim keys token_routing)"));
  CHECK_THAT(config_error([&] { keys_text(policies, "metor"); }),
             Contains("did you mean \"metro\"?"));
}

TEST_CASE("any other word is searched in names and texts, whatever its case") {
  const PolicyRows policies = Policies().rows();
  const std::string found = keys_text(policies, "Prefix");
  CHECK_THAT(found, Contains("\n/kv_cache/prefix_caching ") &&
                        Contains("policies of request_routing\n") &&
                        Contains("keys of a report\n") && !Contains("/parallel/tp"));
  CHECK_THAT(keys_text(policies, "system prompt"), Contains("/workload/sessions/shared_prefix"));
  CHECK_THAT(keys_text(policies, "/parallel/dp"), Contains("/parallel/dp "));
}

TEST_CASE("every level has the keys that its list names") {
  std::map<KeyLevel, int> keys;
  for (const KeyRow& row : experiment_rows()) ++keys[row.level];
  CHECK(keys[KeyLevel::basic] == 10);
  CHECK(keys[KeyLevel::usual] == 61);
  CHECK(keys[KeyLevel::expert] > 100);
  CHECK_THAT(basic_keys_text(), Catch::Matchers::StartsWith("/cluster ") && Contains(" /slo/ttft"));
}

TEST_CASE("a repeated group of a report is one row only if each of its keys has a twin") {
  const std::vector<ReportKey> keys{{"/a", "ms", Better::less, "time"},
                                    {"/pools/prefill/a", "ms", Better::less, "time"},
                                    {"/b", "ms", Better::less, "time"},
                                    {"/pools/prefill/b", "s", Better::less, "time"},
                                    {"/pools/prefill/c", "", Better::less, "alone"}};
  std::vector<std::string> rows;
  for (const ReportKey& key : folded(keys)) rows.push_back(key.pointer);
  CHECK(rows == std::vector<std::string>{"/a", "/pools/prefill/...", "/b", "/pools/prefill/b",
                                         "/pools/prefill/c"});
}

TEST_CASE("the page of a report's keys has the statistics of a quantity in one row") {
  const std::string page = report_keys_markdown();
  CHECK_THAT(page, Contains("|`/metrics/{mean,median,std,p50,p90,p95,p99}_ttft_ms`|ms|lower|"
                            "time to first token, from arrival|") &&
                       Contains("|`/metrics/mean_queue_ms`|") && !Contains("|`/metrics/p50_"));
}

TEST_CASE("the page of keys names every key and every policy, and each row fills its table") {
  const PolicyRows policies = Policies().rows();
  const std::string page = keys_markdown(policies);
  for_each_table(policies, [&](std::span<const Key> table) {
    for (const Key& key : table) {
      if (key.name == "*" || key.name == "/*") continue;
      CHECK_THAT(page, Contains(fmt::format("/{}`|", key.name)) ||
                           Contains(fmt::format("|`{}`|", key.name)));
    }
  });
  for (const auto& [registry, rows] : policies) {
    for (const PolicyRow& row : rows) CHECK_THAT(page, Contains(fmt::format("`{}`", row.name)));
  }
  std::istringstream lines(page);
  std::size_t columns = 0;
  for (std::string line; std::getline(lines, line);) {
    std::size_t bars = 0;
    for (std::size_t i = 0; i < line.size(); ++i)
      bars += line[i] == '|' && (i == 0 || line[i - 1] != '\\') ? 1U : 0U;
    CAPTURE(line);
    if (columns > 0 && bars > 0) CHECK(bars == columns);
    columns = bars;
  }
}

}  // namespace moesim::test_keys
