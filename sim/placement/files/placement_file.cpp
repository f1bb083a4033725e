// SPDX-License-Identifier: Apache-2.0
#include "sim/placement/files/placement_file.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <stdexcept>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "hardware/at.hpp"
#include "hardware/text.hpp"
#include "hardware/text_file.hpp"
#include "sim/placement/files/plain_yaml.hpp"
#include "traces/import/torch_file.hpp"
#include "traces/npy.hpp"

namespace moesim {

namespace {

constexpr Range count_range{1, 1 << 24};
constexpr Range id_range{0, 65535};  // as in routing traces
constexpr Range expert_range{1, 65536};
constexpr int most_layers = 10'000;  // as of models

using GpuSlots = std::vector<std::vector<int>>;  // [gpu][slot] -> expert

std::vector<int> expert_ids(const ConfigNode& node) {
  std::vector<int> ids;
  for (const ConfigNode& id : node.list()) {
    ids.push_back(static_cast<int>(id.integer(id_range)));
  }
  return ids;
}

std::size_t slots_in(const GpuSlots& experts_on_gpu) {
  std::size_t slots = 0;
  for (const auto& experts : experts_on_gpu) slots += experts.size();
  return slots;
}

// A layer's slot list, cut into equal GPUs.
GpuSlots cut_into_gpus(const ConfigNode& layer, const std::vector<int>& ids, std::size_t gpus) {
  if (ids.empty() || ids.size() % gpus != 0) {
    layer.fail("{} slots do not fill {} GPUs evenly", ids.size(), gpus);
  }
  const auto slots_per_gpu = static_cast<std::ptrdiff_t>(ids.size() / gpus);
  GpuSlots experts_on_gpu;
  for (auto first = ids.begin(); first != ids.end(); first += slots_per_gpu) {
    experts_on_gpu.emplace_back(first, first + slots_per_gpu);
  }
  return experts_on_gpu;
}

GpuSlots cut_into_gpus(const ConfigNode& layer, std::size_t gpus) {
  return cut_into_gpus(layer, expert_ids(layer), gpus);
}

GpuSlots listed_by_gpu(const ConfigNode& layer, std::size_t gpus) {
  GpuSlots experts_on_gpu;
  for (const ConfigNode& gpu : layer.list()) experts_on_gpu.push_back(expert_ids(gpu));
  if (experts_on_gpu.size() != gpus) {
    layer.fail("lists {} GPUs; expected num_gpus = {}", experts_on_gpu.size(), gpus);
  }
  return experts_on_gpu;
}

// A layer as the file lists it, and where.
struct ListedLayer {
  ConfigNode place;
  GpuSlots experts_on_gpu;
};

ExpertPlacement compile(const std::vector<ListedLayer>& layers, std::optional<int> said_experts) {
  int experts = said_experts.value_or(0);
  const ListedLayer* widest = nullptr;  // what says how many experts there are
  for (std::size_t i = 0; i < layers.size() && !said_experts; ++i) {
    for (const auto& ids : layers[i].experts_on_gpu) {
      for (const int id : ids) {
        if (id < experts) continue;
        experts = id + 1;
        widest = &layers[i];
      }
    }
  }
  ExpertPlacement placement;
  for (const ListedLayer& layer : layers) {
    try {
      placement.emplace_back(experts, layer.experts_on_gpu);
    } catch (const std::invalid_argument& error) {
      if (widest == nullptr || widest == &layer) layer.place.fail(error.what());
      layer.place.fail("{}; {} has expert {}", error.what(), widest->place.pointer(), experts - 1);
    }
  }
  return placement;
}

// How many GPUs, by what the file says under `key`, which may be nothing, and what is known.
std::size_t gpu_count(ConfigReader& reader, std::string_view key, int known) {
  if (!reader.optional(key)) {
    if (known == 0) {
      reader.node().fail(
          "does not say how many GPUs its slots fill (\"{}\"); give \"gpus\" next to "
          "the file",
          key);
    }
    return at(known);
  }
  const auto said = reader.integer(key, count_range);
  if (known != 0 && said != known) {
    reader.child(key).fail("the file is for {} GPUs; expected {}", said, known);
  }
  return at(said);
}

PlacementRows read_sglang(ConfigReader& reader, PlacementContext context) {
  const std::size_t gpus = gpu_count(reader, "num_gpus", context.gpus);
  const bool by_gpu = reader.has("experts_on_gpu");
  if (by_gpu && reader.has("physical_to_logical_map")) {
    reader.node().fail("has both physical_to_logical_map and experts_on_gpu; expected one");
  }
  const ConfigNode map = reader.child(by_gpu ? "experts_on_gpu" : "physical_to_logical_map");
  const std::vector<ConfigNode> nodes = map.list();
  const auto first_layer = at(context.first_layer);
  if (nodes.size() <= first_layer) {
    map.fail(nodes.empty()
                 ? "has no layers"
                 : fmt::format("has {} layers, none from layer {} on", nodes.size(), first_layer));
  }
  std::vector<ListedLayer> layers;
  for (std::size_t i = first_layer; i < nodes.size(); ++i) {
    const ConfigNode& node = nodes[i];
    layers.push_back({node, by_gpu ? listed_by_gpu(node, gpus) : cut_into_gpus(node, gpus)});
    const std::size_t slots = slots_in(layers.back().experts_on_gpu);
    const std::size_t expected = slots_in(layers.front().experts_on_gpu);
    if (!by_gpu && slots != expected) {
      node.fail("has {} slots; expected {} as in the first layer", slots, expected);
    }
  }
  std::optional<int> experts;
  if (reader.optional("num_experts")) {
    experts = static_cast<int>(reader.integer("num_experts", expert_range));
  }
  return {compile(layers, experts), {}, true};
}

// The members of an object whose keys are layers, by layer.
std::map<int, ConfigNode> by_layer(const ConfigNode& node) {
  return read_object(node, [&](ConfigReader& reader) {
    std::map<int, ConfigNode> layers;
    for (const std::string& key : reader.all_keys()) {
      const int layer = try_number<int>(key).value_or(-1);
      const bool number = layer >= 0 && layer < most_layers;
      if (!number || !layers.emplace(layer, reader.child(key)).second) {
        node.fail("\"{}\" is not a layer; expected each layer's number once", key);
      }
    }
    if (layers.empty()) node.fail("has no layers");
    return layers;
  });
}

PlacementRows read_trtllm(ConfigReader& reader, PlacementContext context) {
  const std::size_t gpus = gpu_count(reader, "ep_size", context.gpus);
  const auto slots = at(reader.integer("num_slots", count_range));
  const ConfigNode assignments = reader.child("initial_global_assignments");
  reader.integer_or("layer_updates_per_iter", 0, non_negative);
  std::vector<ListedLayer> layers;
  std::vector<int> numbers;
  for (const auto& [layer, node] : by_layer(assignments)) {
    numbers.push_back(layer);
    layers.push_back({node, cut_into_gpus(node, gpus)});
    if (slots_in(layers.back().experts_on_gpu) != slots) {
      node.fail("has {} slots; expected num_slots = {}", slots_in(layers.back().experts_on_gpu),
                slots);
    }
  }
  return {compile(layers, std::nullopt), std::move(numbers)};
}

// The objects in a list, each of which says its place in the list under `id`.
template <class Read>
auto read_numbered(const ConfigNode& list, std::int64_t count, std::string_view id, Read read) {
  const std::vector<ConfigNode> nodes = list.list();
  if (std::ssize(nodes) != count) {
    list.fail("has {} entries; its neighbour key says {}", nodes.size(), count);
  }
  using Value = decltype(read(std::declval<ConfigReader&>()));
  std::vector<Value> values;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    values.push_back(read_object(nodes[i], [&](ConfigReader& reader) {
      const std::int64_t said = reader.integer(id);
      if (said != static_cast<std::int64_t>(i)) {
        reader.child(id).fail("is {}; expected {}, in order from 0", said, i);
      }
      return read(reader);
    }));
  }
  return values;
}

PlacementRows read_vllm_ascend(ConfigReader& reader, PlacementContext context) {
  const auto count = reader.integer("moe_layer_count", count_range);
  std::int64_t gpus = context.gpus;
  const auto layers =
      read_numbered(reader.child("layer_list"), count, "layer_id", [&](ConfigReader& layer) {
        const auto devices = layer.integer("device_count", count_range);
        if (gpus == 0) gpus = devices;
        if (devices != gpus) {
          layer.child("device_count").fail("is {}; expected {}", devices, gpus);
        }
        return ListedLayer{layer.node(),
                           read_numbered(layer.child("device_list"), devices, "device_id",
                                         [](ConfigReader& device) {
                                           return expert_ids(device.child("device_expert"));
                                         })};
      });
  return {compile(layers, std::nullopt)};
}

// A physical_to_logical_map: [layers, slots] -> expert, from a layer on.
ExpertPlacement read_map(const Array& array, const std::filesystem::path& file,
                         PlacementContext context, std::size_t first) {
  const ConfigNode whole_file(Json(), file);
  if (context.gpus == 0) {
    whole_file.fail(
        "does not say how many GPUs its slots fill ([layers, slots], as vLLM has them); give "
        "\"gpus\" next to the file");
  }
  const auto layers = at(array.shape[0]);
  const auto slots = at(array.shape[1]);
  std::vector<ListedLayer> listed;
  for (std::size_t layer = first; layer < layers; ++layer) {
    const ConfigNode place{Json(), file, fmt::format("[{}]", layer)};
    std::vector<int> ids;
    for (std::size_t slot = 0; slot < slots; ++slot) {
      const double id = array.values[layer * slots + slot];
      if (!(id >= id_range.min && id <= id_range.max)) {
        place.fail("slot {} holds {}; expected an expert's number", slot, id);
      }
      ids.push_back(static_cast<int>(id));
    }
    listed.push_back({place, cut_into_gpus(place, ids, at(context.gpus))});
  }
  return compile(listed, std::nullopt);
}

ExpertPlacement read_npy(const std::filesystem::path& file, PlacementContext context) {
  const NpyArray array = NpyArray::open(file);
  const auto refuse = [&](const std::string& what) {
    throw ConfigError("{}: {}", file.string(), what);
  };
  const auto shape = array.shape();
  if (!is_whole(array.type()) || (shape.size() != 2 && shape.size() != 3) ||
      array.elements() == 0) {
    refuse(fmt::format(
        "a placement holds whole numbers in the shape [GPUs, layers, experts], or vLLM's "
        "[layers, slots]; found {} [{}]",
        npy_type_names[at(array.type())], fmt::join(shape, ", ")));
  }
  if (shape.size() == 2) return read_map(array_of(array), file, context, 0);
  if (shape[2] > static_cast<std::int64_t>(expert_range.max)) {
    refuse(fmt::format("has {} experts; at most {} are expected", shape[2], expert_range.max));
  }
  if (context.gpus != 0 && shape[0] != context.gpus) {
    refuse(fmt::format("has {} GPUs; expected {}", shape[0], context.gpus));
  }
  const auto layers = at(shape[1]);
  const auto experts = at(shape[2]);
  std::vector<ListedLayer> listed;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    listed.push_back({{Json(), file, fmt::format("[:, {}]", layer)}, GpuSlots(at(shape[0]))});
  }
  const std::vector<double> values = array.to_doubles();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t expert = i % experts, layer = i / experts % layers,
                      gpu = i / experts / layers;
    if (values[i] != 0 && values[i] != 1) {
      refuse(fmt::format("[{}, {}, {}] is {}; expected 0 or 1", gpu, layer, expert, values[i]));
    }
    if (values[i] == 1) listed[layer].experts_on_gpu[gpu].push_back(static_cast<int>(expert));
  }
  return compile(listed, static_cast<int>(experts));
}

bool equally_filled(const ExpertPlacement& placement) {
  const int slots_per_gpu = placement.front().slots() / placement.front().gpus();
  return std::ranges::all_of(placement, [&](const LayerPlacement& layer) {
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

std::vector<int> experts_on(const LayerPlacement& layer, int gpu) {
  return experts_in_slots(layer, layer.first_slot(gpu), layer.first_slot(gpu + 1));
}

// Rows of dense layers, which are never read: SGLang's trivial map.
LayerPlacement dense_row(const LayerPlacement& like) {
  GpuSlots experts_on_gpu;
  for (int gpu = 0; gpu < like.gpus(); ++gpu) {
    std::vector<int>& experts = experts_on_gpu.emplace_back();
    for (int slot = like.first_slot(gpu); slot < like.first_slot(gpu + 1); ++slot) {
      experts.push_back(slot % like.experts());
    }
  }
  return {like.experts(), experts_on_gpu};
}

OrderedJson sglang_json(const ExpertPlacement& layers, const LayerNumbers& in_model) {
  const std::vector<int> numbers = numbers_of(layers.size(), in_model);
  const int all = std::max(in_model.all, *std::ranges::max_element(numbers) + 1);
  ExpertPlacement placement(at(all), dense_row(layers.front()));
  for (std::size_t i = 0; i < layers.size(); ++i) placement[at(numbers[i])] = layers[i];
  OrderedJson json;
  const bool equal = equally_filled(placement);
  // SGLang takes the map alone: init_by_mapping() knows no other key.
  if (!equal)
    json = {{"num_gpus", placement.front().gpus()}, {"num_experts", placement.front().experts()}};
  for (const LayerPlacement& layer : placement) {
    if (equal) {
      json["physical_to_logical_map"].push_back(experts_in_slots(layer, 0, layer.slots()));
      continue;
    }
    OrderedJson by_gpu = OrderedJson::array();
    for (int gpu = 0; gpu < layer.gpus(); ++gpu) by_gpu.push_back(experts_on(layer, gpu));
    json["experts_on_gpu"].push_back(std::move(by_gpu));
  }
  return json;
}

std::string trtllm_yaml(const ExpertPlacement& placement, const LayerNumbers& in_model) {
  if (!equally_filled(placement)) {
    throw ConfigError(
        "trtllm files hold as many slots on every GPU in every layer, which this placement does "
        "not; use another format");
  }
  std::string text =
      fmt::format("num_slots: {}\nlayer_updates_per_iter: 0\ninitial_global_assignments:\n",
                  placement.front().slots());
  const std::vector<int> numbers = numbers_of(placement.size(), in_model);
  for (std::size_t i = 0; i < placement.size(); ++i) {
    text += fmt::format("  {}: [{}]\n", numbers[i],
                        fmt::join(experts_in_slots(placement[i], 0, placement[i].slots()), ", "));
  }
  return text;
}

OrderedJson vllm_ascend_json(const ExpertPlacement& placement) {
  OrderedJson layers = OrderedJson::array();
  for (const LayerPlacement& layer : placement) {
    OrderedJson devices = OrderedJson::array();
    for (int gpu = 0; gpu < layer.gpus(); ++gpu) {
      devices.push_back({{"device_id", gpu}, {"device_expert", experts_on(layer, gpu)}});
    }
    layers.push_back({{"layer_id", layers.size()},
                      {"device_count", layer.gpus()},
                      {"device_list", std::move(devices)}});
  }
  return {{"moe_layer_count", placement.size()}, {"layer_list", std::move(layers)}};
}

std::string npy_of(const ExpertPlacement& placement) {
  const auto layers = placement.size();
  const auto experts = at(placement.front().experts());
  const auto gpus = at(placement.front().gpus());
  std::vector<std::int32_t> held(gpus * layers * experts);
  for (std::size_t layer = 0; layer < layers; ++layer) {
    for (int slot = 0; slot < placement[layer].slots(); ++slot) {
      const int gpu = placement[layer].gpu_of_slot(slot);
      const int expert = placement[layer].expert_of_slot(slot);
      auto& here = held[(at(gpu) * layers + layer) * experts + at(expert)];
      if (++here == 2) {
        throw ConfigError(
            "npy files cannot hold expert {} twice on GPU {}, as layer {} does; use "
            "another format",
            expert, gpu, layer);
      }
    }
  }
  const std::array shape{static_cast<std::int64_t>(gpus), static_cast<std::int64_t>(layers),
                         static_cast<std::int64_t>(experts)};
  return npy_bytes<std::int32_t>(shape, held);
}

// SGLang's map of all layers, as --init-expert-location takes it too.
PlacementRows read_torch(const std::filesystem::path& path, PlacementContext context) {
  TorchFile file(path);
  const PyTensor* map = file.tensor_named("physical_to_logical_map");
  if (map == nullptr) file.refuse("has no tensor \"physical_to_logical_map\"");
  const Array array = file.read(*map);
  if (array.shape.size() != 2 || array.extent(0) <= context.first_layer)
    file.refuse(fmt::format("physical_to_logical_map has the shape [layers, slots]; found [{}]",
                            fmt::join(array.shape, ", ")));
  return {read_map(array, path, context, at(context.first_layer)), {}, true};
}

PlacementRows rows_of(const ConfigNode& node, PlacementContext context) {
  return read_object(node, [&](ConfigReader& reader) {
    if (reader.has("initial_global_assignments")) return read_trtllm(reader, context);
    if (reader.has("layer_list")) return read_vllm_ascend(reader, context);
    if (reader.has("physical_to_logical_map") || reader.has("experts_on_gpu")) {
      return read_sglang(reader, context);
    }
    node.fail(
        "is not a placement; expected physical_to_logical_map, experts_on_gpu (SGLang), "
        "initial_global_assignments (TensorRT-LLM) or layer_list (vllm-ascend)");
  });
}

}  // namespace

std::vector<int> numbers_of(std::size_t layers, const LayerNumbers& in_model) {
  if (!in_model.numbers.empty()) return in_model.numbers;
  std::vector<int> numbers(layers);
  std::iota(numbers.begin(), numbers.end(), in_model.first);
  return numbers;
}

PlacementRows read_placement_rows(const std::filesystem::path& file, PlacementContext context) {
  const MappedFile mapped(file);
  const std::string_view text = mapped.text();
  if (text.starts_with("\x93NUMPY")) return {read_npy(file, context)};
  if (text.starts_with("PK")) return read_torch(file, context);
  refuse_huge(file, "placement");
  const auto first = text.find_first_not_of(" \t\r\n");
  const bool json = first != std::string_view::npos && (text[first] == '{' || text[first] == '[');
  return rows_of(
      json ? ConfigNode::from_file(file) : ConfigNode(parse_plain_yaml(text, file), file), context);
}

ExpertPlacement read_placement(const ConfigNode& node, PlacementContext context) {
  return rows_of(node, context).layers;
}

ExpertPlacement read_placement(const std::filesystem::path& file, PlacementContext context) {
  return read_placement_rows(file, context).layers;
}

std::string placement_bytes(const ExpertPlacement& placement, PlacementFormat format,
                            const LayerNumbers& in_model) {
  check(!placement.empty(), "a placement without layers cannot be written");
  if (placement.front().cut() > 0)
    throw ConfigError(
        "files of placements hold whole experts alone, and this placement cuts some; print its "
        "\"--score\", or use another policy");
  switch (format) {
    case PlacementFormat::trtllm: return trtllm_yaml(placement, in_model);
    case PlacementFormat::vllm_ascend: return vllm_ascend_json(placement).dump() + "\n";
    case PlacementFormat::npy: return npy_of(placement);
    case PlacementFormat::sglang: break;
  }
  return sglang_json(placement, in_model).dump() + "\n";
}

}  // namespace moesim
