// SPDX-License-Identifier: Apache-2.0
#include "sim/placement/placement_file.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <stdexcept>

#include <fmt/format.h>

#include "traces/npy.hpp"

namespace moesim {

namespace {

constexpr Range count_range{1, 1 << 24};

using GpuSlots = std::vector<std::vector<int>>;  // [gpu][slot] -> expert

std::vector<int> expert_ids(const ConfigNode& node) {
  std::vector<int> ids;
  for (const ConfigNode& id : node.list()) {
    ids.push_back(static_cast<int>(id.integer({0, count_range.max})));
  }
  return ids;
}

GpuSlots cut_into_gpus(const ConfigNode& layer, std::size_t gpus) {
  const std::vector<int> ids = expert_ids(layer);
  if (ids.empty() || ids.size() % gpus != 0) {
    layer.fail(fmt::format("{} slots do not fill {} GPUs evenly", ids.size(), gpus));
  }
  const auto slots_per_gpu = static_cast<std::ptrdiff_t>(ids.size() / gpus);
  GpuSlots experts_on_gpu;
  for (auto first = ids.begin(); first != ids.end(); first += slots_per_gpu) {
    experts_on_gpu.emplace_back(first, first + slots_per_gpu);
  }
  return experts_on_gpu;
}

GpuSlots listed_by_gpu(const ConfigNode& layer, std::size_t gpus) {
  GpuSlots experts_on_gpu;
  for (const ConfigNode& gpu : layer.list()) experts_on_gpu.push_back(expert_ids(gpu));
  if (experts_on_gpu.size() != gpus) {
    layer.fail(fmt::format("lists {} GPUs; expected num_gpus = {}", experts_on_gpu.size(), gpus));
  }
  return experts_on_gpu;
}

std::size_t slots_in(const GpuSlots& experts_on_gpu) {
  std::size_t slots = 0;
  for (const auto& experts : experts_on_gpu) slots += experts.size();
  return slots;
}

int largest_id(const std::vector<GpuSlots>& layers) {
  int largest = -1;
  for (const GpuSlots& layer : layers) {
    for (const auto& experts : layer) {
      for (const int expert : experts) largest = std::max(largest, expert);
    }
  }
  return largest;
}

bool equally_filled(const ExpertPlacement& placement) {
  const int slots_per_gpu = placement.front().slots() / placement.front().gpus();
  return std::all_of(placement.begin(), placement.end(), [&](const LayerPlacement& layer) {
    for (int gpu = 0; gpu < layer.gpus(); ++gpu) {
      if (layer.first_slot(gpu + 1) - layer.first_slot(gpu) != slots_per_gpu) return false;
    }
    return true;
  });
}

std::vector<int> experts_in_slots(const LayerPlacement& layer, int first, int last) {
  std::vector<int> experts;
  for (int slot = first; slot < last; ++slot) experts.push_back(layer.expert_of_slot(slot));
  return experts;
}

std::vector<ExpertLoad> load_from_json(const std::filesystem::path& file) {
  return read_object(ConfigNode::from_file(file), [](ConfigReader& reader) {
    const ConfigNode node = reader.child("load");
    std::vector<ExpertLoad> load;
    for (const ConfigNode& layer : node.list()) {
      ExpertLoad experts;
      for (const ConfigNode& tokens : layer.list()) experts.push_back(tokens.number(non_negative));
      if (experts.empty() || (!load.empty() && experts.size() != load.front().size())) {
        layer.fail(fmt::format("has {} experts; expected {}", experts.size(),
                               load.empty() ? "at least 1" : std::to_string(load.front().size())));
      }
      load.push_back(std::move(experts));
    }
    if (load.empty()) node.fail("has no layers");
    return load;
  });
}

std::vector<ExpertLoad> load_from_npy(const std::filesystem::path& file) {
  const NpyArray array = NpyArray::open(file);
  const auto shape = array.shape();
  if ((shape.size() != 2 && shape.size() != 3) || array.elements() == 0) {
    throw ConfigError(fmt::format(
        "{}: a load has the shape [layers, experts] or [steps, layers, experts]; found [{}]",
        file.string(), fmt::join(shape, ", ")));
  }
  const auto experts = static_cast<std::size_t>(shape.back());
  const auto layers = static_cast<std::size_t>(shape[shape.size() - 2]);
  std::vector<ExpertLoad> load(layers, ExpertLoad(experts));
  const std::vector<double> values = array.to_doubles();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t layer = i / experts % layers;
    if (!std::isfinite(values[i]) || values[i] < 0) {
      throw ConfigError(
          fmt::format("{}: the load of expert {} in layer {} is {}; expected a finite number >= 0",
                      file.string(), i % experts, layer, values[i]));
    }
    load[layer][i % experts] += values[i];
  }
  return load;
}

}  // namespace

ExpertPlacement read_placement(const ConfigNode& node) {
  return read_object(node, [](ConfigReader& reader) {
    const auto gpus = static_cast<std::size_t>(reader.integer("num_gpus", count_range));
    const bool by_gpu = reader.has("experts_on_gpu");
    if (by_gpu && reader.has("physical_to_logical_map")) {
      reader.node().fail("has both physical_to_logical_map and experts_on_gpu; expected one");
    }
    const ConfigNode map = reader.child(by_gpu ? "experts_on_gpu" : "physical_to_logical_map");
    const std::vector<ConfigNode> nodes = map.list();
    if (nodes.empty()) map.fail("has no layers");

    std::vector<GpuSlots> layers;
    for (const ConfigNode& layer : nodes) {
      layers.push_back(by_gpu ? listed_by_gpu(layer, gpus) : cut_into_gpus(layer, gpus));
      if (!by_gpu && slots_in(layers.back()) != slots_in(layers.front())) {
        layer.fail(fmt::format("has {} slots; expected {} as in the first layer",
                               slots_in(layers.back()), slots_in(layers.front())));
      }
    }
    const int experts = reader.has("num_experts")
                            ? static_cast<int>(reader.integer("num_experts", count_range))
                            : largest_id(layers) + 1;
    ExpertPlacement placement;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      try {
        placement.emplace_back(experts, layers[i]);
      } catch (const std::invalid_argument& error) {
        nodes[i].fail(error.what());
      }
    }
    return placement;
  });
}

ExpertPlacement read_placement(const std::filesystem::path& file) {
  return read_placement(ConfigNode::from_file(file));
}

OrderedJson placement_json(const ExpertPlacement& placement) {
  check(!placement.empty(), "a placement without layers cannot be written");
  OrderedJson json{{"num_gpus", placement.front().gpus()},
                   {"num_experts", placement.front().experts()}};
  if (equally_filled(placement)) {
    for (const LayerPlacement& layer : placement) {
      json["physical_to_logical_map"].push_back(experts_in_slots(layer, 0, layer.slots()));
    }
    return json;
  }
  for (const LayerPlacement& layer : placement) {
    OrderedJson by_gpu = OrderedJson::array();
    for (int gpu = 0; gpu < layer.gpus(); ++gpu) {
      by_gpu.push_back(experts_in_slots(layer, layer.first_slot(gpu), layer.first_slot(gpu + 1)));
    }
    json["experts_on_gpu"].push_back(std::move(by_gpu));
  }
  return json;
}

std::vector<ExpertLoad> read_load(const std::filesystem::path& file) {
  return file.extension() == ".npy" ? load_from_npy(file) : load_from_json(file);
}

}  // namespace moesim
