// SPDX-License-Identifier: Apache-2.0
#include "tools/sweep/sweep.hpp"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <exception>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include "hardware/parse_json.hpp"
#include "hardware/rng.hpp"
#include "hardware/shipped.hpp"
#include "sim/experiment/pools.hpp"
#include "sim/report/metric_catalogue.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/trust.hpp"

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
  node.fail(
      fmt::format("\"{}\" is not a JSON pointer such as \"/placement/replication\"", pointer));
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
        node.fail(fmt::format("\"{}\" needs a list of at least one value", pointer));
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
    node.fail(fmt::format("more than {} points; sweep fewer values", most_points));
  std::vector<PointSettings> crossed;
  for (const PointSettings& point : points) {
    for (std::size_t row = 0; row < rows; ++row) {
      PointSettings& next = crossed.emplace_back(point);
      for (const Column& column : columns) {
        if (!next.emplace(column.pointer, column.values[row]).second)
          node.fail(fmt::format("\"{}\" is set twice; leave it in one place", column.pointer));
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
      zip.fail(fmt::format("\"{}\" has {} values, \"{}\" has {}; give each equally many",
                           columns.front().pointer, columns.front().values.size(), column.pointer,
                           column.values.size()));
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
    block.fail(fmt::format("\"{}\": the base has no \"{}\" to set \"{}\" in; add it to the base",
                           pointer, above.to_string(), place.back()));
  if (holder->is_string())
    block.fail(fmt::format(
        "\"{}\": \"{}\" is the text {} in the base; write it as an object, {{\"type\": {}}}",
        pointer, above.to_string(), holder->dump(), holder->dump()));
  const bool in_list = holder->is_array() && find_value(config, pointer) != nullptr;
  if (!holder->is_object() && !in_list)
    block.fail(fmt::format("\"{}\": \"{}\" in the base is {}, which has no such place", pointer,
                           above.to_string(), holder->dump()));
  config[place] = value;
}

// A value that both pools replace by their own would give equal points.
void refuse_beside_pools(const Json& config, const std::string& pointer, const ConfigNode& block) {
  const std::string key = Json::json_pointer(pointer.substr(0, pointer.find('/', 1))).back();
  if (!both_pools_have(config, key)) return;
  block.fail(
      fmt::format("\"{0}\" has no effect, because both pools have their own \"{1}\"; set "
                  "\"/pools/prefill{0}\" or \"/pools/decode{0}\"",
                  pointer, key));
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
        node.fail(fmt::format("\"{}\" needs {{\"value\": {{\"/pointer\": setting}}}}", pointer));
      for (const auto& [value, settings] : by_value.items()) {
        if (!settings.is_object() || settings.empty())
          node.fail(fmt::format("\"{}\": \"{}\" needs {{\"/pointer\": setting}}", pointer, value));
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
        node.fail(
            fmt::format("\"{}\" is set twice, by \"couple\" too; leave it in one place", coupled));
    }
  }
}

void require_used(const std::vector<Coupling>& couplings, const std::vector<char>& used,
                  const ConfigNode& node) {
  for (std::size_t i = 0; i < couplings.size(); ++i) {
    if (used[i] != 0) continue;
    node.fail(
        fmt::format("no point has {} at \"{}\"; a coupling is by what the base and the axes write, "
                    "as tables show it",
                    couplings[i].value, couplings[i].pointer));
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
  return std::all_of(rule.begin(), rule.end(), [&](const auto& pair) {
    const Json* value = find_value(config, pair.first);
    return value != nullptr && same_setting(*value, pair.second);
  });
}

void skip_points(std::vector<SweepPoint>& points, const ConfigNode& node) {
  for (const PointSettings& rule : read_skip_rules(node)) {
    for (const auto& [pointer, value] : rule) {
      // clang 14 captures a structured binding only by a name of its own.
      const bool known = std::any_of(points.begin(), points.end(),
                                     [&, &pointer = pointer](const SweepPoint& point) {
                                       return find_value(point.config, pointer) != nullptr;
                                     });
      if (!known)
        node.fail(fmt::format(
            "no point has a \"{}\"; a rule matches what the base and the axes write, not defaults",
            pointer));
    }
    std::erase_if(points, [&](const SweepPoint& point) { return matches(point.config, rule); });
    if (points.empty()) node.fail("leaves no point");
  }
}

void refuse_experiment(const ConfigNode& file) {
  const Json& json = file.json();
  if (json.contains("base") || !(json.contains("model") || json.contains("workload"))) return;
  const std::string name = file.file().filename().string();
  file.fail(fmt::format(
      "this is an experiment, not a sweep; run it with `moesim run {0}`, or write a sweep that "
      "names it: {{\"base\": \"{0}\", \"axes\": {{\"/placement/replication\": [1, 1.5]}}}}",
      name));
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

// Does `work` on 0 .. n - 1, on `threads` threads, until stopped or until one throws; then
// rethrows. Each piece of work is isolated. A thread that waits for the inner loops of one run must
// not start another run in between. That could wait for a lock that the first one holds.
template <class Work>
void for_each_point(std::size_t n, const SweepOptions& options, Work&& work) {
  std::mutex mutex;
  std::exception_ptr broken;
  std::atomic<bool> ended = false;
  // More threads than cores are given, too, if asked for.
  const tbb::global_control limit(tbb::global_control::max_allowed_parallelism,
                                  static_cast<std::size_t>(options.threads));
  tbb::task_arena arena(options.threads);
  arena.execute([&] {
    tbb::parallel_for(
        tbb::blocked_range<std::size_t>(0, n, 1),
        [&](const auto& range) {
          for (std::size_t i = range.begin(); i < range.end(); ++i) {
            if (ended || options.stop()) return;
            try {
              tbb::this_task_arena::isolate([&] { work(i); });
            } catch (...) {
              // Not thrown on from here: that would cancel the inner loops of the runs in flight,
              // whose reports would then be wrong.
              const std::lock_guard lock(mutex);
              if (!broken) broken = std::current_exception();
              ended = true;
            }
          }
        },
        tbb::simple_partitioner());
  });
  if (broken) std::rethrow_exception(broken);
}

struct Result {
  PointStatus status;
  std::string error;
  std::string report;
};

Result run_point(const PointRunner& runner, const Json& config) {
  try {
    return {PointStatus::done, "", runner.run(config)};
  } catch (const ConfigError& error) {
    return {PointStatus::infeasible, error.what(), ""};
  } catch (const std::exception& error) {
    return {PointStatus::failed, error.what(), ""};
  }
}

// Why each point cannot be run; nothing for those that can.
std::vector<std::optional<std::string>> check_points(const std::vector<const SweepPoint*>& points,
                                                     const PointRunner& runner,
                                                     const SweepOptions& options) {
  std::vector<std::optional<std::string>> errors(points.size());
  std::mutex mutex;
  std::size_t checked = 0;
  for_each_point(points.size(), options, [&](std::size_t i) {
    try {
      runner.check(points[i]->config);
    } catch (const ConfigError& error) {
      errors[i] = error.what();
    }
    const std::lock_guard lock(mutex);
    options.checked(++checked, points.size());
  });
  return errors;
}

// Columns of a finished sweep's table.
constexpr std::array text_columns{
    &metric("tokens_per_s_per_gpu"),
    &metric("total_token_throughput"),
    &metric("mean_tpot_ms"),
    &metric("median_tpot_ms"),
    &metric("p99_ttft_ms"),
    &metric("decode_max_activated_mean"),
    &metric("joules_per_output_token"),
};

// How many points' rates are not those of a steady state, by why.
std::string unsteady_text(const StoredSweep& sweep) {
  std::map<std::string, std::size_t> points;
  for (const StoredPoint& point : sweep.points) {
    const Json* state = find_value(point.report, state_pointer);
    if (state != nullptr && *state != "stable") ++points[state->get<std::string>()];
  }
  std::string text;
  for (const auto& [state, count] : points)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, state);
  return text.empty() ? ""
                      : paragraph(
                            "not in a steady state: {} (measurement/state of a report; `moesim "
                            "run` says what helps)",
                            text);
}

std::string axes_text(const std::vector<Axis>& axes, const StoredPoint& point) {
  std::string text;
  for (const Axis& axis : axes) {
    const Json* value = find_value(point.config, axis.pointer);
    if (value != nullptr) text += fmt::format("{}={} ", axis.name, setting_text(*value));
  }
  if (!text.empty()) text.pop_back();
  return text.empty() ? point.config_hash : text;
}

constexpr std::uintmax_t mebibyte = 1 << 20;
constexpr std::uintmax_t pieces_of_large = 64;  // of a MiB each

// The content of a small file; of a large one evenly spread pieces, the first and the last too.
std::string file_content(const std::filesystem::path& file, std::uintmax_t size) {
  std::ifstream stream(file, std::ios::binary);
  const bool whole = size <= pieces_of_large * mebibyte;
  std::string content(whole ? size : pieces_of_large * mebibyte, '\0');
  const auto read = [&](std::uintmax_t from, std::uintmax_t to, std::uintmax_t bytes) {
    stream.seekg(static_cast<std::streamoff>(from));
    stream.read(content.data() + to, static_cast<std::streamsize>(bytes));
  };
  if (whole) {
    read(0, 0, size);
  } else {
    for (std::uintmax_t i = 0; i < pieces_of_large; ++i)
      read((size - mebibyte) / (pieces_of_large - 1) * i, i * mebibyte, mebibyte);
    read(size - mebibyte, (pieces_of_large - 1) * mebibyte, mebibyte);
  }
  return content;
}

// Contents of the files that configs name, each read once. A JSON file's own files count too, and
// what a checkpoint has next to it. A routing trace is its three files, a GPU's tables are a
// folder. Of a file above 64 MiB pieces of that much in all count.
class FileFingerprints {
 public:
  /// 0 if the config names none. Every text that is the path of a file is taken for its name.
  std::uint64_t of(const Json& config, const std::filesystem::path& folder) {
    std::uint64_t all = 0;
    if (config.is_string()) return of_text(config.get<std::string>(), folder);
    if (!config.is_structured()) return 0;
    for (const auto& [key, value] : config.items()) {
      all = and_also(all, of(value, folder));
      if (key == "profiles" && value.is_string())
        all = and_also(all, of_tables(folder / value.get<std::string>()));
    }
    return all;
  }

 private:
  static std::uint64_t and_also(std::uint64_t all, std::uint64_t one) {
    if (one == 0) return all;
    return fnv1a(fmt::format("{:016x}", one), all == 0 ? fnv1a("") : all);
  }

  std::uint64_t of_text(const std::string& text, const std::filesystem::path& folder) {
    const auto [known, is_new] = of_texts_.try_emplace((folder / text).string(), 0);
    if (!is_new) return known->second;
    std::uint64_t print = of_path(folder / text);
    for (const Shipped which : {Shipped::gpu, Shipped::cluster, Shipped::model}) {
      if (print != 0) break;
      if (const auto file = shipped_file(which, text)) print = of_path(*file);
    }
    if (const auto file = file_of_class(text); !file.empty()) print = of_path(folder / file);
    return known->second = print;
  }

  std::uint64_t of_path(const std::filesystem::path& path) {
    const auto [known, is_new] = known_.try_emplace(path.string(), 0);
    std::error_code none;
    if (!is_new) return known->second;
    std::uint64_t print = 0;
    if (std::filesystem::is_regular_file(path, none)) {
      print = of_file(path);
      constexpr std::array<const char*, 2> quantised{"hf_quant_config.json", "quant_cfg.json"};
      if (std::ranges::find(quantised, path.filename().string()) == quantised.end())
        for (const char* name : quantised)
          if (const auto beside = path.parent_path() / name;
              std::filesystem::is_regular_file(beside, none))
            print = and_also(print, of_path(beside));
    }
    if (std::filesystem::is_regular_file(path / "config.json", none))
      print = of_path(path / "config.json");
    if (std::filesystem::is_regular_file(path / "meta.json", none)) {
      for (const char* name : {"meta.json", "requests.jsonl", "topk_ids.npy"})
        print = and_also(print, of_path(path / name));
    }
    return known_[path.string()] = print;
  }

  std::uint64_t of_tables(const std::filesystem::path& folder) {
    const auto [known, is_new] = known_.try_emplace(folder.string() + "/*", 0);
    if (!is_new) return known->second;
    std::error_code none;
    std::set<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder, none))
      if (entry.is_regular_file(none)) files.insert(entry.path());
    std::uint64_t print = 0;
    for (const std::filesystem::path& file : files) {
      const std::string content = file_content(file, std::filesystem::file_size(file, none));
      print = and_also(and_also(print, fnv1a(file.lexically_relative(folder).string())),
                       fnv1a(content));
    }
    return known->second = print;
  }

  std::uint64_t of_file(const std::filesystem::path& file) {
    std::error_code none;
    const std::uintmax_t size = std::filesystem::file_size(file, none);
    if (none) return 0;
    const std::string content = file_content(file, size);
    std::uint64_t print = fnv1a(content) ^ size;
    if (size > mebibyte) return print;  // no config is as long
    try {
      const Json json = json_or_text(content);
      if (json.is_structured()) print ^= of(json, file.parent_path());
    } catch (const ConfigError&) {  // a key twice: refused where the file is read
    }
    return print;
  }

  // Fingerprints by path, and by what a config says: a name of the zoo is looked for in many files.
  std::map<std::string, std::uint64_t> known_, of_texts_;
};

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
    FileFingerprints files;
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
        const std::uint64_t inputs = files.of(config, base.file().parent_path());
        SweepPoint point = sweep_point(std::move(config), inputs);
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
          file.fail(fmt::format("\"{}\" is given with \"blocks\"; move it into each block", key));
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

struct PointMaker::Files {
  FileFingerprints prints;
};

PointMaker::PointMaker(std::filesystem::path folder)
    : folder_(std::move(folder)), files_(std::make_unique<Files>()) {}
PointMaker::~PointMaker() = default;

SweepPoint PointMaker::of(Json config) {
  const std::uint64_t inputs = files_->prints.of(config, folder_);
  return sweep_point(std::move(config), inputs);
}

Shard parse_shard(std::string_view text) {
  std::size_t place = 0, count = 0;
  const char* const end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, place);
  const bool slash = first.ec == std::errc() && first.ptr != end && *first.ptr == '/';
  const auto second = slash ? std::from_chars(first.ptr + 1, end, count) : first;
  if (!slash || second.ec != std::errc() || second.ptr != end || place < 1 || place > count) {
    throw ConfigError(fmt::format("--shard {}: expected I/N with I from 1 to N, e.g. 2/8", text));
  }
  return {place - 1, count};
}

Sweep shard_of(Sweep sweep, Shard shard) {
  std::vector<SweepPoint> points;
  for (std::size_t i = shard.index; i < sweep.points.size(); i += shard.count)
    points.push_back(std::move(sweep.points[i]));
  if (points.empty()) {
    throw ConfigError(fmt::format("--shard {}/{}: the sweep has {} points; use no more shards",
                                  shard.index + 1, shard.count, sweep.points.size()));
  }
  sweep.points = std::move(points);
  return sweep;
}

SweepOutcome run_sweep(const Sweep& sweep, const std::filesystem::path& file,
                       const PointRunner& runner, const SweepOptions& options) {
  std::map<std::string, PointStatus> known;
  std::string written_by;
  if (const std::optional<Store> store = Store::open_if_begun(file)) {
    known = store->statuses_of(sweep.points);
    written_by = store->written_by();
  }
  std::vector<const SweepPoint*> open;
  for (const SweepPoint& point : sweep.points) {
    const auto found = known.find(point.config_hash);
    if (found == known.end() || found->second != PointStatus::done) open.push_back(&point);
  }

  SweepOutcome outcome{sweep.points.size() - open.size(), 0, open.size(), std::move(written_by)};
  options.resumes(outcome.resumed);
  const std::vector<std::optional<std::string>> errors = check_points(open, runner, options);
  if (options.stop()) return outcome;
  const auto infeasible = static_cast<std::size_t>(std::count_if(
      errors.begin(), errors.end(), [](const auto& error) { return error.has_value(); }));
  if (options.refuse_infeasible && infeasible == sweep.points.size()) {
    throw ConfigError(infeasible == 1
                          ? *errors.front()
                          : fmt::format("{} (none of the {} points can be run; this is the first)",
                                        *errors.front(), infeasible));
  }

  Store store = Store::open_for(file, sweep.document, sweep.points);
  if (!open.empty()) store.add_writer(options.version);
  std::vector<const SweepPoint*> to_run;
  for (std::size_t i = 0; i < open.size(); ++i) {
    if (errors[i]) {
      store.record(open[i]->config_hash, PointStatus::infeasible, *errors[i], "");
    } else {
      to_run.push_back(open[i]);
    }
  }
  options.progress(0, to_run.size());
  std::mutex mutex;
  for_each_point(to_run.size(), options, [&](std::size_t i) {
    const Result result = run_point(runner, to_run[i]->config);
    const std::lock_guard lock(mutex);
    store.record(to_run[i]->config_hash, result.status, result.error, result.report);
    options.progress(++outcome.ran, to_run.size());
  });
  outcome.left = to_run.size() - outcome.ran;
  return outcome;
}

StoredSweep read_for_text(const Store& store) {
  std::vector<std::string> pointers;
  for (const Metric* column : text_columns) pointers.emplace_back(column->pointer);
  for (const std::string& pointer : trust_pointers()) pointers.push_back(pointer);
  pointers.emplace_back(state_pointer);
  return store.read(pointers);
}

OrderedJson sweep_rows(const Store& store) {
  std::vector<std::string> pointers{state_pointer};
  for (const Metric& metric : metric_catalogue) pointers.emplace_back(metric.pointer);
  const StoredSweep sweep = store.read(pointers);
  const auto value = [](const Json* found) { return found == nullptr ? Json() : *found; };
  OrderedJson rows = OrderedJson::array();
  for (const StoredPoint& point : sweep.points) {
    OrderedJson& row = rows.emplace_back(OrderedJson::object());
    row["config_hash"] = point.config_hash;
    row["status"] = std::string(status_name(point.status));
    row["error"] = point.error.empty() ? Json() : Json(point.error);
    row["state"] = value(find_value(point.report, state_pointer));
    for (const Axis& axis : sweep.axes) row[axis.name] = value(setting_of(point, axis.pointer));
    for (const Metric& metric : metric_catalogue)
      row[std::string(metric.name)] = value(find_value(point.report, std::string(metric.pointer)));
  }
  return rows;
}

std::string sweep_text(const StoredSweep& sweep) {
  std::vector<std::string> head;
  for (const Axis& axis : sweep.axes) head.push_back(axis.name);
  for (const Metric* column : text_columns)
    head.push_back(fmt::format("{}{}", column->heading, column->key().unit == "ms" ? " ms" : ""));

  std::vector<std::vector<std::string>> rows;
  std::string others;
  for (const StoredPoint& point : sweep.points) {
    if (point.status != PointStatus::done) {
      const std::string why = point.error.empty() ? "" : ": " + point.error;
      others += indented(
          fmt::format("{}: {}{}", axes_text(sweep.axes, point), status_name(point.status), why), 4);
      continue;
    }
    auto& row = rows.emplace_back();
    for (const Axis& axis : sweep.axes)
      row.push_back(setting_cell(find_value(point.config, axis.pointer)));
    for (const Metric* column : text_columns) {
      const auto number = report_number(point, std::string(column->pointer));
      row.push_back(number ? number_text(*number) : "-");
    }
  }
  const std::string table =
      rows.empty() ? "" : narrow_table(std::move(head), std::move(rows), sweep.axes.size());
  return fmt::format("{}{}{} points: {}\n{}{}", table, table.empty() ? "" : "\n",
                     sweep.points.size(), count_by_status(sweep.points), unsteady_text(sweep),
                     others);
}

std::string trust_line(const StoredSweep& sweep) {
  std::vector<const Json*> reports;
  std::string engine;
  for (const StoredPoint& point : sweep.points) {
    if (point.status != PointStatus::done) continue;
    if (reports.empty()) engine = engine_of(point.config);
    reports.push_back(&point.report);
  }
  return trust_line_over(reports, engine);
}

}  // namespace moesim
