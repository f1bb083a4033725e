// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "hardware/config.hpp"
#include "sim/placement/placement.hpp"

namespace moesim {

/// The forms of a placement file. A slot list is rank-major: the slots of GPU 0, of GPU 1, ...
///   sglang       JSON {"physical_to_logical_map": [layer][slot]}, as --init-expert-location takes
///                it; read with "num_gpus" and "num_experts" beside it, too. Where GPUs hold
///                unequal numbers: {"num_gpus": G, "num_experts": N, "experts_on_gpu":
///                [layer][gpu][slot]}
///   trtllm       YAML or JSON of TensorRT-LLM's load balancer: num_slots,
///                initial_global_assignments {model layer: [slot]}
///   vllm_ascend  expert_map.json of vllm-ascend: layer_list, device_list, device_expert
///   npy          0 or 1, [GPUs, layers, experts], as omni-infer keeps them
/// Read, but not written, are vLLM's physical_to_logical_map, .npy of shape [layers, slots], and
/// SGLang's as a .pt.
enum class PlacementFormat { sglang, trtllm, vllm_ascend, npy };
inline constexpr std::array<std::string_view, 4> placement_format_names{"sglang", "trtllm",
                                                                        "vllm_ascend", "npy"};

/// Facts that a placement file leaves to the deployment.
struct PlacementContext {
  int gpus = 0;  ///< for trtllm, vLLM, and for sglang without "num_gpus"; 0: the file must say
  int first_layer = 0;  ///< row of the first MoE layer, in files that do not number their layers
};

/// The layers of a placement file, in its order.
struct PlacementRows {
  ExpertPlacement layers;
  std::vector<int> numbers{};     ///< as the file numbers them (trtllm); empty: it does not
  bool has_dense_layers = false;  ///< its form lists the model's dense layers too (sglang)
};

/// Reads a placement in any of the formats, recognised by content. GPUs may hold unequal numbers of
/// experts. Unless the file says how many experts there are, the largest id does. SGLang's rows
/// before first_layer are left out. Throws ConfigError with the pointer if a layer loses an expert
/// or an id is out of range. The same if lengths do not fit, or gpus is not what the file says.
PlacementRows read_placement_rows(const std::filesystem::path& file, PlacementContext = {});
/// The layers of read_placement_rows() alone.
ExpertPlacement read_placement(const std::filesystem::path& file, PlacementContext = {});
/// A placement from JSON that has been parsed.
ExpertPlacement read_placement(const ConfigNode&, PlacementContext = {});

/// Rows of a file that are a model's MoE layers, in order, and one line on those left out.
struct TakenRows {
  std::vector<std::size_t> rows;
  std::string remark;
};
/// Takes rows by their numbers. Rows without are the model's MoE layers, or all of its layers, with
/// those that draft (MTP) behind them or not. Throws ConfigError, naming layers that the model
/// does not have, or that the file lacks.
TakenRows take_rows(const std::string& file, const PlacementRows&, const PlacementProblem&);

/// How the layers of a placement are numbered in their model.
struct LayerNumbers {
  std::vector<int> numbers{};  ///< of each; empty: from `first` on
  int first = 0;
  int all = 0;  ///< layers of the model; 0: none follows the last one
};
std::vector<int> numbers_of(std::size_t layers, const LayerNumbers&);
/// The content of a file in a format. SGLang's gets rows in linear order for dense layers,
/// TensorRT-LLM's are named by their numbers; the other forms list MoE layers alone. Throws
/// ConfigError where a format cannot say it: in trtllm unequal GPUs, in npy two slots of a GPU with
/// one expert.
std::string placement_bytes(const ExpertPlacement&, PlacementFormat, const LayerNumbers& = {});

}  // namespace moesim
