// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include "hardware/at.hpp"
#include "sim/placement/files/placement_file.hpp"
#include "sim/placement/placers.hpp"

namespace moesim {

namespace {

int fullest_gpu(const LayerPlacement& layer) {
  int most = 0;
  for (int gpu = 0; gpu < layer.gpus(); ++gpu) {
    most = std::max(most, layer.first_slot(gpu + 1) - layer.first_slot(gpu));
  }
  return most;
}

// A placement made elsewhere, as it stands in a file that read_placement_rows() reads. It must be
// of the problem's experts and GPUs, and its fullest GPU must fill the slots that memory is
// reserved for. Which of its rows are the model's MoE layers take_rows() says.
class FromFile final : public Placer {
 public:
  FromFile(std::string file, PlacementRows placement, bool cut)
      : file_(std::move(file)), placement_(std::move(placement)), cut_(cut) {
    for (const LayerPlacement& layer : placement_.layers) {
      slots_per_gpu_ = std::max(slots_per_gpu_, fullest_gpu(layer));
    }
  }

  std::filesystem::path file() const override { return file_; }
  LayerPlacement place(const PlacementProblem& problem, const LayerStatistics& seen,
                       int layer) const override {
    require_sound(problem, seen.load);
    const std::vector<std::size_t> rows = taken(problem).rows;
    if (at(layer) >= rows.size()) {
      throw ConfigError(
          fmt::format("{}: {} layers; layer {} is asked for too", file_, rows.size(), layer));
    }
    const LayerPlacement& found = placement_.layers[rows[at(layer)]];
    require_equal("experts", found.experts(), problem.experts);
    require_equal("GPUs", found.gpus(), problem.gpus);
    if (slots_per_gpu_ != problem.slots_per_gpu) {
      throw ConfigError(fmt::format(
          "{}: its fullest GPU holds {} experts, but a GPU has {} slots; replication {} fits",
          file_, slots_per_gpu_, problem.slots_per_gpu,
          double(slots_per_gpu_) * problem.gpus / problem.experts));
    }
    return found;
  }

  bool uses_load() const override { return false; }

  std::string remark(const PlacementProblem& problem) const override {
    std::string remark = taken(problem).remark;
    if (cut_ && !placement_.has_dense_layers)
      remark += fmt::format(
          "{} \"first_layer\" has no effect, as the file {}", remark.empty() ? file_ + ":" : ";",
          placement_.numbers.empty() ? "lists MoE layers alone" : "numbers its layers");
    return remark;
  }

 private:
  // Rows that begin with the first MoE layer are of these alone: the user said where it is.
  TakenRows taken(PlacementProblem problem) const {
    if (cut_ && placement_.has_dense_layers)
      problem.model_layers = static_cast<int>(problem.moe_layers.size());
    return take_rows(file_, placement_, problem);
  }

  void require_equal(std::string_view what, int found, int expected) const {
    if (found == expected) return;
    throw ConfigError(fmt::format("{}: {} {}; expected {}", file_, found, what, expected));
  }

  std::string file_;
  PlacementRows placement_;
  bool cut_;  // the rows before the first MoE layer are gone, as the user said
  int slots_per_gpu_ = 0;
};

}  // namespace

std::span<const Key> from_file_placement_keys() {
  static constexpr Key keys[] = {
      {"file", form::file, required, "placement file, in any format that `place` writes"},
      {"gpus", form::integer(1, 1 << 20), unset("the file's"),
       "number of GPUs, if the file does not say"},
      {"first_layer", form::integer(0, 1 << 20), unset("by the model's layers"),
       "row of the file that holds the first MoE layer"}};
  return keys;
}

std::unique_ptr<Placer> make_from_file(ConfigReader& options) {
  const std::filesystem::path file = options.path("file");
  PlacementContext context;
  if (options.optional("gpus")) {
    context.gpus = static_cast<int>(options.integer("gpus"));
  }
  const bool cut = options.optional("first_layer");
  if (cut) context.first_layer = static_cast<int>(options.integer("first_layer"));
  return std::make_unique<FromFile>(file.string(), read_placement_rows(file, context), cut);
}

}  // namespace moesim
