// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "hardware/at.hpp"
#include "sim/placement/files/placement_file.hpp"

namespace moesim {

namespace {

std::string drafts_left_out(std::size_t layers) {
  return fmt::format("; {} of layers that draft (MTP) {} left out", layers,
                     layers == 1 ? "is" : "are");
}

TakenRows by_number(const std::string& file, const std::vector<int>& numbers,
                    const PlacementProblem& problem) {
  TakenRows taken;
  std::vector<int> unknown, missing;
  std::size_t drafts = 0;
  for (const int number : numbers) {
    if (std::ranges::find(problem.moe_layers, number) != problem.moe_layers.end()) continue;
    const bool draft =
        number >= problem.model_layers && number < problem.model_layers + problem.draft_layers;
    if (draft)
      ++drafts;
    else
      unknown.push_back(number);
  }
  for (const int layer : problem.moe_layers) {
    const auto found = std::ranges::find(numbers, layer);
    if (found == numbers.end()) missing.push_back(layer);
    taken.rows.push_back(at(found - numbers.begin()));
  }
  if (!unknown.empty() || !missing.empty())
    throw ConfigError("{}: {}; the model has {} layers from 0 on, with experts in {}", file,
                      !unknown.empty()
                          ? fmt::format("has layers that have no experts in the model: {}",
                                        fmt::join(unknown, ", "))
                          : fmt::format("lacks layers {}", fmt::join(missing, ", ")),
                      problem.model_layers, fmt::join(problem.moe_layers, ", "));
  if (drafts > 0)
    taken.remark =
        fmt::format("{}: {} layers are taken{}", file, taken.rows.size(), drafts_left_out(drafts));
  return taken;
}

}  // namespace

TakenRows take_rows(const std::string& file, const PlacementRows& placement,
                    const PlacementProblem& problem) {
  TakenRows taken;
  const std::size_t rows = placement.layers.size(), moe = problem.moe_layers.size();
  const std::size_t all = at(problem.model_layers), drafts = at(problem.draft_layers);
  if (moe == 0) {  // a model that is not known
    taken.rows.resize(rows);
    std::iota(taken.rows.begin(), taken.rows.end(), std::size_t{0});
    return taken;
  }
  if (!placement.numbers.empty()) return by_number(file, placement.numbers, problem);
  taken.rows.resize(moe);
  std::iota(taken.rows.begin(), taken.rows.end(), std::size_t{0});
  if (rows == moe) return taken;
  const bool moe_and_drafts = rows == moe + drafts;
  const bool every_layer = all != moe && (rows == all || rows == all + drafts);
  if (every_layer && !(moe_and_drafts && !placement.has_dense_layers)) {
    taken.rows.assign(problem.moe_layers.begin(), problem.moe_layers.end());
    taken.remark = fmt::format(
        "{}: has a row for each of the model's {} layers; those of its {} MoE layers are taken, "
        "from row {} on{}",
        file, rows, moe, problem.moe_layers.front(), rows == all ? "" : drafts_left_out(drafts));
  } else if (moe_and_drafts) {
    taken.remark = fmt::format("{}: {} rows are taken{}", file, moe, drafts_left_out(drafts));
  } else {
    throw ConfigError("{}: {} layers; expected {}, the model's MoE layers{}{}", file, rows, moe,
                      all == moe ? "" : fmt::format(", or {} with dense ones", all),
                      drafts == 0 ? "" : fmt::format(", and {} that draft or not", drafts));
  }
  return taken;
}

}  // namespace moesim
