// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

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

// A placement made elsewhere, as it stands in a file that read_placement() reads. It must be of the
// problem's experts and GPUs, and its fullest GPU must fill the slots that memory is reserved for.
// Its rows are the model's MoE layers, or all of the model's layers, as SGLang writes them.
class FromFile final : public Placer {
 public:
  FromFile(std::string file, ExpertPlacement placement, bool cut)
      : file_(std::move(file)), placement_(std::move(placement)), cut_(cut) {
    for (const LayerPlacement& layer : placement_) {
      slots_per_gpu_ = std::max(slots_per_gpu_, fullest_gpu(layer));
    }
  }

  std::filesystem::path file() const override { return file_; }
  LayerPlacement place(const PlacementProblem& problem, const LayerStatistics& seen,
                       int layer) const override {
    require_sound(problem, seen.load);
    const std::size_t index = row_of(problem, static_cast<std::size_t>(layer));
    if (index >= placement_.size()) {
      throw ConfigError(
          fmt::format("{}: {} layers; layer {} is asked for too", file_, placement_.size(), layer));
    }
    const LayerPlacement& found = placement_[index];
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
    if (!has_dense_rows(problem)) return {};
    return fmt::format(
        "{}: has a row for each of the model's {} layers; those of its {} MoE layers are taken, "
        "from row {} on",
        file_, placement_.size(), problem.moe_layers.size(), problem.moe_layers.front());
  }

 private:
  bool has_dense_rows(const PlacementProblem& problem) const {
    const std::size_t rows = placement_.size();
    return rows != problem.moe_layers.size() && !problem.moe_layers.empty() && !cut_ &&
           rows == static_cast<std::size_t>(problem.model_layers);
  }

  std::size_t row_of(const PlacementProblem& problem, std::size_t layer) const {
    if (has_dense_rows(problem)) return static_cast<std::size_t>(problem.moe_layers.at(layer));
    const std::size_t expected = problem.moe_layers.size();
    if (expected != 0 && placement_.size() != expected) {
      throw ConfigError(fmt::format(
          "{}: {} layers{}; expected {}, the model's MoE layers{}", file_, placement_.size(),
          cut_ ? " by its \"first_layer\"" : "", expected,
          cut_ || problem.model_layers == std::ssize(problem.moe_layers)
              ? ""
              : fmt::format(", or {} with dense ones, or give \"first_layer\" next to the file",
                            problem.model_layers)));
    }
    return layer;
  }

  void require_equal(std::string_view what, int found, int expected) const {
    if (found == expected) return;
    throw ConfigError(fmt::format("{}: {} {}; expected {}", file_, found, what, expected));
  }

  std::string file_;
  ExpertPlacement placement_;
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
  return std::make_unique<FromFile>(file.string(), read_placement(file, context), cut);
}

}  // namespace moesim
