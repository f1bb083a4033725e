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
class FromFile final : public Placer {
 public:
  FromFile(std::string file, ExpertPlacement placement)
      : file_(std::move(file)), placement_(std::move(placement)) {
    for (const LayerPlacement& layer : placement_) {
      slots_per_gpu_ = std::max(slots_per_gpu_, fullest_gpu(layer));
    }
  }

  LayerPlacement place(const PlacementProblem& problem, const LayerStatistics& seen,
                       int layer) const override {
    require_sound(problem, seen.load);
    const std::size_t index = static_cast<std::size_t>(layer);
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

 private:
  void require_equal(std::string_view what, int found, int expected) const {
    if (found == expected) return;
    throw ConfigError(fmt::format("{}: {} {}; expected {}", file_, found, what, expected));
  }

  std::string file_;
  ExpertPlacement placement_;
  int slots_per_gpu_ = 0;
};

}  // namespace

std::span<const Key> from_file_placement_keys() {
  static constexpr Key keys[] = {
      {"file", form::file, required, "in any format that `place` writes"},
      {"gpus", form::integer(1, 1 << 20), otherwise("the file's"),
       "where the file does not say it"},
      {"first_layer", form::integer(0, 1 << 20), "0", "of the file that is the first MoE layer"}};
  return keys;
}

std::unique_ptr<Placer> make_from_file(ConfigReader& options) {
  const std::filesystem::path file = options.path("file");
  PlacementContext context;
  if (options.optional("gpus")) {
    context.gpus = static_cast<int>(options.integer("gpus"));
  }
  context.first_layer = static_cast<int>(options.integer("first_layer"));
  return std::make_unique<FromFile>(file.string(), read_placement(file, context));
}

}  // namespace moesim
