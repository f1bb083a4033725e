// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <set>

#include "sim/experiment/pools.hpp"
#include "tools/sweep/sweep.hpp"

namespace moesim {

namespace {

constexpr std::size_t most_points = 1'000'000;

// Settings of one point, or what a rule of "skip" matches: sorted, so that "/placement" comes
// before "/placement/replication".
using PointSettings = std::map<std::string, Json>;

// An axis, or a column of a zip.
struct Column {
  std::string pointer;
  std::vector<Json> values;
};

void check_pointer(const std::string& pointer, const ConfigNode& node) {
  try {
    if (!Json::json_pointer(pointer).empty()) return;
  } catch (const Json::exception&) {
  }
  node.fail("\"{}\" is not a JSON pointer such as \"/placement/replication\"", pointer);
}

constexpr KeyDefault as_in_base = unset("as in the base");

std::span<const Key> column_keys() {
  static constexpr Form values = form::list(form::any);
  static constexpr Key keys[] = {{"/*", values, as_in_base, "the values it takes, in this order"}};
  return keys;
}

std::span<const Key> setting_keys() {
  static constexpr Key keys[] = {{"/*", form::any, as_in_base, "its value"}};
  return keys;
}

std::span<const Key> couple_keys() {
  static constexpr Key keys[] = {{"/*", form::any, unset("nothing"),
                                  "by its value, the settings {\"/pointer\": value} to make too"}};
  return keys;
}

std::span<const Key> block_keys() {
  static constexpr Form columns = form::object(column_keys), settings = form::object(setting_keys);
  static constexpr Key keys[] = {
      {"axes", columns, unset("none"), "every combination of these values"},
      {"zip", columns, unset("none"), "... with each row of these lists of one length"},
      {"set", settings, unset("none"), "... and this in all of them"}};
  return keys;
}

std::vector<Column> read_columns(const ConfigNode& node) {
  std::vector<Column> columns;
  read_object(node, column_keys, [&](ConfigReader& reader) {
    for (const std::string& pointer : reader.all_keys()) {
      check_pointer(pointer, node);
      const ConfigNode list = reader.child(pointer);
      if (!list.json().is_array() || list.json().empty())
        node.fail("\"{}\" needs a list of at least one value", pointer);
      columns.push_back({pointer, list.json()});
    }
  });
  return columns;
}

// 1 and 1.0 are one value.
std::vector<Json> different(const std::vector<Json>& values) {
  std::vector<Json> kept;
  std::set<Json> seen;
  for (const Json& value : values) {
    if (seen.insert(value).second) kept.push_back(value);
  }
  return kept;
}

PointSettings read_settings(const ConfigNode& node) {
  return read_object(node, setting_keys, [&](ConfigReader& reader) {
    PointSettings settings;
    for (const std::string& pointer : reader.all_keys()) {
      check_pointer(pointer, node);
      settings[pointer] = reader.child(pointer).json();
    }
    return settings;
  });
}

// Every point with every row of the columns, which are of one length.
std::vector<PointSettings> cross(const std::vector<PointSettings>& points,
                                 const std::vector<Column>& columns, const ConfigNode& node) {
  const std::size_t rows = columns.front().values.size();
  if (points.size() * rows > most_points)
    node.fail("more than {} points; sweep fewer values", most_points);
  std::vector<PointSettings> crossed;
  for (const PointSettings& point : points) {
    for (std::size_t row = 0; row < rows; ++row) {
      PointSettings& next = crossed.emplace_back(point);
      for (const Column& column : columns) {
        if (!next.emplace(column.pointer, column.values[row]).second)
          node.fail("\"{}\" is set twice; leave it in one place", column.pointer);
      }
    }
  }
  return crossed;
}

std::vector<PointSettings> read_block(ConfigReader& block, const std::vector<Column>& seeds) {
  const ConfigNode& node = block.node();
  std::vector<PointSettings> points(1);
  if (block.optional("set")) points.front() = read_settings(block.child("set"));
  if (block.optional("axes")) {
    for (const Column& axis : read_columns(block.child("axes")))
      points = cross(points, {{axis.pointer, different(axis.values)}}, node);
  }
  if (block.optional("zip")) {
    const ConfigNode zip = block.child("zip");
    const std::vector<Column> columns = read_columns(zip);
    for (const Column& column : columns) {
      if (column.values.size() == columns.front().values.size()) continue;
      zip.fail("\"{}\" has {} values, \"{}\" has {}; give each equally many",
               columns.front().pointer, columns.front().values.size(), column.pointer,
               column.values.size());
    }
    if (!columns.empty()) points = cross(points, columns, node);
  }
  return seeds.empty() ? points : cross(points, seeds, node);
}

// Sets one value; what holds it must be there.
void assign(Json& config, const std::string& pointer, const Json& value, const ConfigNode& block) {
  const Json::json_pointer place(pointer);
  const Json::json_pointer above = place.parent_pointer();
  const Json* holder = find_value(config, above.to_string());
  if (holder == nullptr)
    block.fail("\"{}\": the base has no \"{}\" to set \"{}\" in; add it to the base", pointer,
               above.to_string(), place.back());
  if (holder->is_string())
    block.fail("\"{}\": \"{}\" is the text {} in the base; write it as an object, {{\"type\": {}}}",
               pointer, above.to_string(), holder->dump(), holder->dump());
  const bool in_list = holder->is_array() && find_value(config, pointer) != nullptr;
  if (!holder->is_object() && !in_list)
    block.fail("\"{}\": \"{}\" in the base is {}, which has no such place", pointer,
               above.to_string(), holder->dump());
  config[place] = value;
}

// A value that both pools replace by their own would give equal points.
void refuse_beside_pools(const Json& config, const std::string& pointer, const ConfigNode& block) {
  const std::string key = Json::json_pointer(pointer.substr(0, pointer.find('/', 1))).back();
  if (!both_pools_have(config, key)) return;
  block.fail(
      "\"{0}\" has no effect, because both pools have their own \"{1}\"; set "
      "\"/pools/prefill{0}\" or \"/pools/decode{0}\"",
      pointer, key);
}

// Settings that some values of a key bring along, by the value's text.
struct Coupling {
  std::string pointer, value;
  PointSettings settings;
};

std::vector<Coupling> read_couplings(const ConfigNode& node) {
  std::vector<Coupling> couplings;
  read_object(node, couple_keys, [&](ConfigReader& reader) {
    for (const std::string& pointer : reader.all_keys()) {
      check_pointer(pointer, node);
      const Json by_value = reader.child(pointer).json();
      if (!by_value.is_object())
        node.fail("\"{}\" needs {{\"value\": {{\"/pointer\": setting}}}}", pointer);
      for (const auto& [value, settings] : by_value.items()) {
        if (!settings.is_object() || settings.empty())
          node.fail("\"{}\": \"{}\" needs {{\"/pointer\": setting}}", pointer, value);
        Coupling& coupling = couplings.emplace_back(Coupling{pointer, value, {}});
        for (const auto& [coupled, to] : settings.items()) {
          check_pointer(coupled, node);
          coupling.settings[coupled] = to;
        }
      }
    }
  });
  return couplings;
}

// Adds to a point what its values, or those of the base, are coupled to.
void couple(PointSettings& point, const std::vector<Coupling>& couplings, const Json& base,
            std::vector<char>& used, const ConfigNode& node) {
  const PointSettings own = point;
  for (std::size_t i = 0; i < couplings.size(); ++i) {
    const auto& [pointer, value, settings] = couplings[i];
    const auto set = own.find(pointer);
    const Json* here = set != own.end() ? &set->second : find_value(base, pointer);
    if (here == nullptr || setting_text(*here) != value) continue;
    used[i] = 1;
    for (const auto& [coupled, to] : settings) {
      if (!point.emplace(coupled, to).second)
        node.fail("\"{}\" is set twice, by \"couple\" too; leave it in one place", coupled);
    }
  }
}

void require_used(const std::vector<Coupling>& couplings, const std::vector<char>& used,
                  const ConfigNode& node) {
  for (std::size_t i = 0; i < couplings.size(); ++i) {
    if (used[i] != 0) continue;
    node.fail(
        "no point has {} at \"{}\"; a coupling is by what the base and the axes write, "
        "as tables show it",
        couplings[i].value, couplings[i].pointer);
  }
}

std::vector<PointSettings> read_skip_rules(const ConfigNode& node) {
  std::vector<PointSettings> rules;
  for (const ConfigNode& rule : node.list()) {
    rules.push_back(read_settings(rule));
    if (rules.back().empty()) rule.fail("matches every point; name a pointer and a value");
  }
  return rules;
}

bool matches(const Json& config, const PointSettings& rule) {
  return std::ranges::all_of(rule, [&](const auto& pair) {
    const Json* value = find_value(config, pair.first);
    return value != nullptr && same_setting(*value, pair.second);
  });
}

void skip_points(std::vector<SweepPoint>& points, const ConfigNode& node) {
  for (const PointSettings& rule : read_skip_rules(node)) {
    for (const auto& [pointer, value] : rule) {
      // clang 14 captures a structured binding only by a name of its own.
      const bool known =
          std::ranges::any_of(points, [&, &pointer = pointer](const SweepPoint& point) {
            return find_value(point.config, pointer) != nullptr;
          });
      if (!known)
        node.fail(
            "no point has a \"{}\"; a rule matches what the base and the axes write, not defaults",
            pointer);
    }
    std::erase_if(points, [&](const SweepPoint& point) { return matches(point.config, rule); });
    if (points.empty()) node.fail("leaves no point");
  }
}

void refuse_experiment(const ConfigNode& file) {
  const Json& json = file.json();
  if (json.contains("base") || !(json.contains("model") || json.contains("workload"))) return;
  const std::string name = file.file().filename().string();
  file.fail(
      "this is an experiment, not a sweep; run it with `moesim run {0}`, or write a sweep that "
      "names it: {{\"base\": \"{0}\", \"axes\": {{\"/placement/replication\": [1, 1.5]}}}}",
      name);
}

ConfigNode read_base(const ConfigNode& node) {
  ConfigNode base = node.json().is_string() ? ConfigNode::from_file(node.relative(node.text()))
                                            : ConfigNode(node.json(), node.file());
  if (!base.json().is_object()) node.fail("expected the name of an experiment, or an experiment");
  refuse_keys_beside_pools(base);
  return base;
}

std::vector<Column> read_seeds(const ConfigNode& node) {
  for (const ConfigNode& seed : node.list()) seed.integer();
  if (node.json().empty()) node.fail("needs at least one seed");
  return {{"/seed", node.json()}};
}

}  // namespace

std::span<const Key> sweep_keys() {
  static constexpr Form experiment = form::file.or_a(form::any), seed = form::integer(0, 9e15),
                        seeds = form::list(seed), rule = form::object(setting_keys),
                        rules = form::list(rule), block = form::object(block_keys),
                        blocks = form::list(block);
  static const std::vector<Key> keys = [] {
    std::vector<Key> all{
        {"base", experiment, required, "an experiment, or the file of one"},
        {"blocks", blocks, unset("none"), "instead of these, several such objects in turn"},
        {"couple", form::object(couple_keys), unset("none"),
         "settings that go with values of a key, e.g. a routing's own dispatch"},
        {"seeds", seeds, unset("the base's"), "every point with each of them"},
        {"skip", rules, unset("none"), "points to leave out: all of a rule holds"},
        {"$schema", form::text, unset("none"), "where an editor finds the schema; not read"}};
    all.insert(all.begin() + 1, block_keys().begin(), block_keys().end());
    return all;
  }();
  return keys;
}

Sweep expand_sweep(const ConfigNode& file) {
  refuse_experiment(file);
  return read_object(file, sweep_keys, [&](ConfigReader& reader) {
    reader.optional("$schema");
    const ConfigNode base = read_base(reader.child("base"));
    Sweep sweep{file.json(), base.file(), {}};
    std::vector<Column> seeds;
    if (reader.optional("seeds")) seeds = read_seeds(reader.child("seeds"));

    std::map<std::string, std::size_t> place_of;
    PointMaker points(base.file().parent_path());
    std::vector<Coupling> couplings;
    if (reader.optional("couple")) couplings = read_couplings(reader.child("couple"));
    std::vector<char> used(couplings.size());
    const auto add_block = [&](ConfigReader& block) {
      for (PointSettings& assignment : read_block(block, seeds)) {
        couple(assignment, couplings, base.json(), used, block.node());
        Json config = base.json();
        for (const auto& [pointer, value] : assignment)
          assign(config, pointer, value, block.node());
        for (const auto& [pointer, value] : assignment)
          refuse_beside_pools(config, pointer, block.node());
        SweepPoint point = points.of(std::move(config));
        const auto [place, is_new] = place_of.emplace(point.config_hash, sweep.points.size());
        if (is_new)
          sweep.points.push_back(std::move(point));
        else
          check(sweep.points[place->second].config == point.config, "two configs have one hash");
      }
    };
    if (reader.optional("blocks")) {
      for (const char* key : {"axes", "zip", "set"}) {
        if (reader.optional(key))
          file.fail("\"{}\" is given with \"blocks\"; move it into each block", key);
      }
      for (const ConfigNode& block : reader.child("blocks").list())
        read_object(block, block_keys, add_block);
    } else {
      add_block(reader);
    }
    require_used(couplings, used, file);
    if (reader.optional("skip")) skip_points(sweep.points, reader.child("skip"));
    if (sweep.points.empty()) file.fail("has no axes; add \"axes\" or a block");
    return sweep;
  });
}

}  // namespace moesim
