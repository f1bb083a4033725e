// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <mutex>

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
  FromFile(std::string file, PlacementContext context, bool cut)
      : file_(std::move(file)), context_(context), cut_(cut) {}

  std::filesystem::path file() const override { return file_; }
  LayerPlacement place(const PlacementProblem& problem, const LayerStatistics& seen,
                       int layer) const override {
    require_sound(problem, seen.load);
    const std::vector<std::size_t> rows = taken(problem).rows;
    if (at(layer) >= rows.size()) {
      throw ConfigError("{}: {} layers; layer {} is asked for too", file_, rows.size(), layer);
    }
    const LayerPlacement& found = read(problem).layers[rows[at(layer)]];
    require_equal("experts", found.experts(), problem.experts);
    require_equal("GPUs", found.gpus(), problem.gpus);
    if (fullest_ != problem.slots_per_gpu) {
      throw ConfigError(
          "{}: its fullest GPU holds {} experts, but a GPU has {} slots; replication {} fits",
          file_, fullest_, problem.slots_per_gpu,
          double(fullest_) * problem.gpus / problem.experts);
    }
    return found;
  }

  bool uses_load() const override { return false; }

  std::string remark(const PlacementProblem& problem) const override {
    std::string remark = taken(problem).remark;
    if (const PlacementRows& file = read(problem); cut_ && !file.has_dense_layers)
      remark += fmt::format("{} \"first_layer\" has no effect, as the file {}",
                            remark.empty() ? file_ + ":" : ";",
                            file.numbers.empty() ? "lists MoE layers alone" : "numbers its layers");
    return remark;
  }

 private:
  // The file, read when the group is known: engines' files do not say how many GPUs they are for.
  const PlacementRows& read(const PlacementProblem& problem) const {
    std::call_once(once_, [&] {
      PlacementContext context = context_;
      if (context.gpus == 0) context.gpus = problem.gpus;
      placement_ = read_placement_rows(file_, context);
      for (const LayerPlacement& layer : placement_.layers)
        fullest_ = std::max(fullest_, fullest_gpu(layer));
    });
    return placement_;
  }

  // Rows that begin with the first MoE layer are of these alone: the user said where it is.
  TakenRows taken(PlacementProblem problem) const {
    if (cut_ && read(problem).has_dense_layers)
      problem.model_layers = static_cast<int>(problem.moe_layers.size());
    return take_rows(file_, read(problem), problem);
  }

  void require_equal(std::string_view what, int found, int expected) const {
    if (found == expected) return;
    throw ConfigError("{}: {} {}; expected {}", file_, found, what, expected);
  }

  std::string file_;
  PlacementContext context_;
  bool cut_;  // the rows before the first MoE layer are gone, as the user said
  mutable std::once_flag once_;
  mutable PlacementRows placement_;
  mutable int fullest_ = 0;  // slots of the fullest GPU
};

}  // namespace

std::span<const Key> from_file_placement_keys() {
  static constexpr Key keys[] = {
      {"file", form::file, required, "placement file, in any format that `place` writes"},
      {"gpus", form::integer(1, 1 << 20), unset("the file's"),
       "number of GPUs; where the file does not say, those of the group"},
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
  return std::make_unique<FromFile>(file.string(), context, cut);
}

}  // namespace moesim
