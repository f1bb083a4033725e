// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "hardware/at.hpp"
#include "hardware/rng.hpp"
#include "traces/expert_load.hpp"
#include "traces/gating/gating.hpp"
#include "traces/gating/synthetic.hpp"
#include "traces/import/zip_archive.hpp"
#include "traces/npy.hpp"

namespace moesim {
namespace {

/// How often each expert was chosen: of each workload, [layers][experts].
using Counts = std::vector<std::vector<std::int64_t>>;

/// Whole numbers in the proportions of a load: itself where it is whole, else of a part in 1e9 of
/// the layer's largest.
Counts whole_counts(const std::vector<ExpertLoad>& load) {
  constexpr double steps = 1e9;
  Counts counts;
  for (const ExpertLoad& layer : load) {
    const bool whole = std::ranges::all_of(layer, [](double n) { return n == std::floor(n); });
    const double scale = whole ? 1 : steps / std::ranges::max(layer);
    std::vector<std::int64_t>& row = counts.emplace_back();
    for (const double tokens : layer) row.push_back(std::llround(tokens * scale));
  }
  return counts;
}

/// Draws k distinct experts by systematic sampling in random order (Madow 1949; Hartley and Rao
/// 1962). Experts lie one after another on a line, each k counts[e] long. A comb with a tooth every
/// sum(counts) is put down at random. No expert gets two teeth while none is longer than that.
/// `order` holds all experts and is shuffled.
void draw_by_counts(std::span<const std::int64_t> counts, std::int64_t sum,
                    std::span<std::uint16_t> order, std::span<std::uint16_t> picks, Rng& rng) {
  const auto k = static_cast<std::int64_t>(picks.size());
  auto tooth = static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(sum)));
  std::int64_t end = 0;
  std::size_t picked = 0;
  for (std::size_t i = 0; i < order.size() && picked < picks.size(); ++i) {
    std::swap(order[i], order[i + rng.below(order.size() - i)]);  // a step of a shuffle
    end += k * counts[order[i]];
    if (tooth >= end) continue;
    picks[picked++] = order[i];
    tooth += sum;
  }
}

/// Loads of a file, one for each workload.
struct CountsFile {
  std::vector<std::string> workloads;
  std::vector<std::vector<ExpertLoad>> loads;  // of each
};

CountsFile read_file(ConfigReader& options) {
  const std::filesystem::path path = options.path("file");
  CountsFile file;
  if (path.extension() != ".npz") {
    if (options.has("workloads"))
      options.child("workloads").fail("names arrays of an .npz file; this file holds one load");
    file.workloads.push_back(path.stem().string());
    file.loads.push_back(read_load(path));
    return file;
  }
  const ZipArchive zip(path);
  const auto add = [&](const std::string& name) {
    const std::string place = fmt::format("{}:{}.npy", path.string(), name);
    file.workloads.push_back(name);
    file.loads.push_back(load_in(place, NpyArray::parse(zip.read(name + ".npy"), place)));
  };
  if (!options.has("workloads")) {
    for (const auto& [name, member] : zip.members()) add(name.substr(0, name.rfind(".npy")));
    return file;
  }
  for (const ConfigNode& tag : options.child("workloads").list()) {
    if (!zip.has(tag.text() + ".npy"))
      tag.fail("{} has no array \"{}\"", path.string(), tag.text());
    add(tag.text());
  }
  if (file.workloads.empty()) options.child("workloads").fail("names no workload");
  return file;
}

class CountsGating final : public SyntheticGating {
 public:
  CountsGating(ConfigReader& options, CountsFile file)
      : SyntheticGating(read_rows(options, std::move(file.workloads))),
        node_(options.node()),
        adapt_(options.flag("adapt")),
        loads_(std::move(file.loads)) {}

  RoutingTrace trace(const MoeModel& model, std::uint64_t seed) const override {
    const std::size_t layers = moe_layer_ids(model).size();
    std::vector<Counts> counts;  // of each workload
    for (std::size_t w = 0; w < loads_.size(); ++w) {
      const std::vector<ExpertLoad> of_moe = moe_rows(place_of(w), loads_[w], model);
      counts.push_back(whole_counts(of_moe.empty() ? loads_[w] : of_moe));
      require_of(model, layers, counts[w], rows().workloads[w]);
      require_drawable(model, counts[w], rows().workloads[w]);
    }
    const std::size_t k = at(model.experts_per_token);
    const auto fill = [&](std::size_t request, std::span<std::uint16_t> ids) {
      Rng rng(seed, fmt::format("gating counts {}", request));
      draw_rows(counts[request % counts.size()], layers, k, ids, rng);
    };
    return fill_trace(model, rows(), "tokens drawn by counts", seed, fill);
  }

 private:
  std::string place_of(std::size_t workload) const {
    return fmt::format("{}:{}: {}", node_.file().string(), node_.pointer(),
                       rows().workloads[workload]);
  }

  void require_of(const MoeModel& model, std::size_t layers, const Counts& counts,
                  std::string_view workload) const {
    if (counts.front().size() != at(model.experts))
      node_.fail("the counts of {} are of {} experts, the model {} has {}", workload,
                 counts.front().size(), model.name, model.experts);
    if (counts.size() != layers && !adapt_)
      node_.fail(
          "the counts of {} are of {} MoE layers, the model {} has {}; \"adapt\": true takes the "
          "counted layers in turn",
          workload, counts.size(), model.name, layers);
  }

  // No token takes an expert twice.
  void require_drawable(const MoeModel& model, const Counts& counts,
                        std::string_view workload) const {
    for (std::size_t layer = 0; layer < counts.size(); ++layer) {
      const std::int64_t sum = std::reduce(counts[layer].begin(), counts[layer].end());
      const auto most = std::max_element(counts[layer].begin(), counts[layer].end());
      if (sum == 0) node_.fail("the counts of {} have no token in layer {}", workload, layer);
      if (*most > sum / model.experts_per_token)
        node_.fail(
            "the counts of {} in layer {} have expert {} with {} of {} choices; a token takes {} "
            "experts, none of them twice: at most 1 of {}",
            workload, layer, most - counts[layer].begin(), *most, sum, model.experts_per_token,
            model.experts_per_token);
    }
  }

  ConfigNode node_;
  bool adapt_;
  std::vector<std::vector<ExpertLoad>> loads_;  // of each workload
};

}  // namespace

void draw_rows(std::span<const std::vector<std::int64_t>> counts, std::size_t layers, std::size_t k,
               std::span<std::uint16_t> ids, Rng& rng) {
  std::vector<std::int64_t> sums;
  for (const auto& layer : counts) sums.push_back(std::reduce(layer.begin(), layer.end()));
  std::vector<std::uint16_t> order(counts.front().size());
  std::iota(order.begin(), order.end(), std::uint16_t{0});
  for (std::size_t i = 0; i * k < ids.size(); ++i) {
    const std::size_t layer = i % layers % counts.size();
    draw_by_counts(counts[layer], sums[layer], order, ids.subspan(i * k, k), rng);
  }
}

std::span<const Key> counts_gating_keys() {
  static constexpr Key keys[] = {
      {"file", form::file, required,
       "loads as place --load reads them, or .npz, one for each workload"},
      {"workloads", form::list(form::text), unset("all"), "arrays of the .npz, taken in turn"},
      {"adapt", form::flag, "false", "take counts of another number of layers"},
      row_keys[0],
      row_keys[1],
      row_keys[2]};
  return keys;
}

std::unique_ptr<Gating> make_counts_gating(ConfigReader& options) {
  return std::make_unique<CountsGating>(options, read_file(options));
}

}  // namespace moesim
