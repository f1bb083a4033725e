// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "hardware/rng.hpp"
#include "tools/sweep/sweep.hpp"

namespace moesim {

namespace {

namespace fs = std::filesystem;

// A point as one store holds it, without its report: of that only what tells two apart.
struct Row {
  std::string config_hash, config;
  PointStatus status;
  std::uint64_t report;
};

struct Input {
  fs::path file;
  Store store;
  std::string sweep;
  std::vector<Row> rows;
};

Input read_input(const fs::path& file, Store store) {
  std::vector<Row> rows;
  store.for_each_row([&](StoreRow row) {
    rows.push_back(
        {std::move(row.config_hash), std::move(row.config), row.status, fnv1a(row.report)});
  });
  std::string sweep = store.sweep();
  return {file, std::move(store), std::move(sweep), std::move(rows)};
}

void check_same_sweep(const std::vector<Input>& inputs) {
  for (const Input& input : inputs) {
    if (input.sweep == inputs.front().sweep) continue;
    throw ConfigError(
        "{}: holds another sweep than {}, or another version of it; merge stores of one sweep",
        input.file.string(), inputs.front().file.string());
  }
}

// A merged point, and the store that it is taken from.
struct Merged {
  Row row;
  const Input* from;
};

[[noreturn]] void contradict(const Merged& known, const Row& row, const fs::path& file,
                             std::string_view what) {
  throw ConfigError(
      "{}: point {} has another {} than in {}; were both written by one version of "
      "moesim and its files? Leave one store out",
      file.string(), row.config_hash, what, known.from->file.string());
}

// Which of two rows of one point stays: one that says how it ended, and done before all.
int weight(PointStatus status) {
  switch (status) {
    case PointStatus::pending: return 0;
    case PointStatus::infeasible: return 1;
    case PointStatus::failed: return 2;
    case PointStatus::done: break;
  }
  return 3;
}

class Merge {
 public:
  void add(const Row& row, const Input& from) {
    const auto [place, is_new] = place_of_.emplace(row.config_hash, merged_.size());
    if (is_new) {
      refuse_other_inputs(row, from);
      merged_.push_back({row, &from});
      return;
    }
    Merged& known = merged_[place->second];
    if (known.row.config != row.config) contradict(known, row, from.file, "config");
    const bool both_done = known.row.status == PointStatus::done && row.status == PointStatus::done;
    if (both_done && known.row.report != row.report) contradict(known, row, from.file, "report");
    if (weight(row.status) > weight(known.row.status)) known = {row, &from};
  }

  const std::vector<Merged>& points() const { return merged_; }

 private:
  // A point's hash is of its config and of what is in the files that the config names.
  void refuse_other_inputs(const Row& row, const Input& from) {
    const auto [place, is_new] = place_of_config_.emplace(fnv1a(row.config), merged_.size());
    if (is_new || merged_[place->second].row.config != row.config) return;
    const Merged& known = merged_[place->second];
    throw ConfigError(
        "{}: point {} has the config of point {} of {}, and other files behind it: a trace or a "
        "model was changed in between. Leave one store out",
        from.file.string(), row.config_hash, known.row.config_hash, known.from->file.string());
  }

  std::vector<Merged> merged_;
  std::map<std::uint64_t, std::size_t> place_of_config_;
  std::map<std::string, std::size_t> place_of_;
};

}  // namespace

void merge_stores(const std::vector<fs::path>& stores, const fs::path& output) {
  std::vector<Input> inputs;
  for (const fs::path& file : stores) inputs.push_back(read_input(file, Store::open(file)));
  // Last, so that the rows stand in the order of the shards.
  if (std::optional<Store> begun = Store::open_if_begun(output))
    inputs.push_back(read_input(output, std::move(*begun)));
  check_same_sweep(inputs);

  std::size_t longest = 0;
  for (const Input& input : inputs) longest = std::max(longest, input.rows.size());
  Merge merge;
  for (std::size_t i = 0; i < longest; ++i) {
    for (const Input& input : inputs) {
      if (i < input.rows.size()) merge.add(input.rows[i], input);
    }
  }
  std::vector<SweepPoint> points;
  for (const Merged& point : merge.points())
    points.push_back({point.row.config_hash, Json::parse(point.row.config)});
  // Points that the output holds already stay as they are.
  std::error_code ignored;
  std::vector<Merged> news = merge.points();
  std::erase_if(
      news, [&](const Merged& point) { return fs::equivalent(point.from->file, output, ignored); });
  Store::open_for(output, Json::parse(inputs.front().sweep), points)
      .record(news.size(),
              [&](std::size_t i) { return news[i].from->store.row(news[i].row.config_hash); });
}

}  // namespace moesim
