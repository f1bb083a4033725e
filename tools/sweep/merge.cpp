// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "tools/sweep/sweep.hpp"

namespace moesim {

namespace {

namespace fs = std::filesystem;

struct Input {
  fs::path file;
  std::string sweep;
  std::vector<StoreRow> rows;
};

Input read_input(const fs::path& file) {
  const Store store = Store::open(file);
  return {file, store.sweep(), store.rows()};
}

void check_same_sweep(const std::vector<Input>& inputs) {
  for (const Input& input : inputs) {
    if (input.sweep == inputs.front().sweep) continue;
    throw ConfigError(fmt::format(
        "{}: holds another sweep than {}, or another version of it; merge stores of one sweep",
        input.file.string(), inputs.front().file.string()));
  }
}

// A merged row, and the store it came from.
struct Merged {
  StoreRow row;
  const fs::path* file;
};

[[noreturn]] void contradict(const Merged& known, const StoreRow& row, const fs::path& file,
                             std::string_view what) {
  throw ConfigError(
      fmt::format("{}: point {} has another {} than in {}; were both written by one version of "
                  "moesim and its files? Leave one store out",
                  file.string(), row.config_hash, what, known.file->string()));
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
  void add(StoreRow row, const fs::path& file) {
    const auto [place, is_new] = place_of_.emplace(row.config_hash, merged_.size());
    if (is_new) {
      merged_.push_back({std::move(row), &file});
      return;
    }
    Merged& known = merged_[place->second];
    if (known.row.config != row.config) contradict(known, row, file, "config");
    const bool both_done = known.row.status == PointStatus::done && row.status == PointStatus::done;
    if (both_done && known.row.report != row.report) contradict(known, row, file, "report");
    if (weight(row.status) > weight(known.row.status)) known = {std::move(row), &file};
  }

  std::vector<StoreRow> rows() && {
    std::vector<StoreRow> rows;
    for (Merged& merged : merged_) rows.push_back(std::move(merged.row));
    return rows;
  }

 private:
  std::vector<Merged> merged_;
  std::map<std::string, std::size_t> place_of_;
};

}  // namespace

void merge_stores(const std::vector<fs::path>& stores, const fs::path& output) {
  std::vector<Input> inputs;
  std::error_code ignored;
  const auto size = fs::file_size(output, ignored);
  // Last, so that the rows stand in the order of the shards.
  std::vector<fs::path> files = stores;
  if (!ignored && size > 0) files.push_back(output);
  for (const fs::path& file : files) inputs.push_back(read_input(file));
  check_same_sweep(inputs);

  std::size_t longest = 0;
  for (const Input& input : inputs) longest = std::max(longest, input.rows.size());
  Merge merge;
  for (std::size_t i = 0; i < longest; ++i) {
    for (Input& input : inputs) {
      if (i < input.rows.size()) merge.add(std::move(input.rows[i]), input.file);
    }
  }
  const std::vector<StoreRow> rows = std::move(merge).rows();
  std::vector<SweepPoint> points;
  for (const StoreRow& row : rows) points.push_back({row.config_hash, Json::parse(row.config)});
  Store::open_for(output, Json::parse(inputs.front().sweep), points).record(rows);
}

}  // namespace moesim
