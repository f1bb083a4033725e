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
///   sglang       JSON {"num_gpus": G, "num_experts": N, "physical_to_logical_map": [layer][slot]}:
///                SGLang's key for --init-expert-location, with the two counts beside it, or
///                "experts_on_gpu": [layer][gpu][slot] where GPUs hold unequal numbers
///   trtllm       YAML or JSON of TensorRT-LLM's load balancer: num_slots,
///                initial_global_assignments {model layer: [slot]}
///   vllm_ascend  expert_map.json of vllm-ascend: layer_list, device_list, device_expert
///   npy          0 or 1, [GPUs, layers, experts], as omni-infer keeps them
/// Read, but not written, is vLLM's physical_to_logical_map, .npy of shape [layers, slots].
enum class PlacementFormat { sglang, trtllm, vllm_ascend, npy };
inline constexpr std::array<std::string_view, 4> placement_format_names{"sglang", "trtllm",
                                                                        "vllm_ascend", "npy"};

/// Facts that a placement file leaves to the deployment.
struct PlacementContext {
  int gpus = 0;  ///< for trtllm, vLLM, and for sglang without "num_gpus"; 0: the file must say
  int first_layer = 0;  ///< index of the model's first MoE layer: SGLang's and TensorRT-LLM's count
                        ///< the dense layers before it
};

/// Reads a placement in any of the formats, recognised by content. GPUs may hold unequal numbers of
/// experts. Unless the file says how many experts there are, the largest id does. SGLang's rows
/// before first_layer are left out. Throws ConfigError with the pointer if a layer loses an expert
/// or an id is out of range. The same if lengths do not fit, or gpus is not what the file says.
ExpertPlacement read_placement(const std::filesystem::path& file, PlacementContext = {});
/// A placement from JSON that has been parsed.
ExpertPlacement read_placement(const ConfigNode&, PlacementContext = {});

/// The content of a file in a format. SGLang's gets first_layer rows in linear order for the dense
/// layers, TensorRT-LLM's layers count from first_layer. Throws ConfigError where a format cannot
/// say it: in trtllm unequal GPUs, in npy two slots of a GPU with one expert.
std::string placement_bytes(const ExpertPlacement&, PlacementFormat, int first_layer = 0);

/// Reads an observed load, [layers][experts]. Forms: {"load": [[tokens of each expert] per layer]};
/// SGLang's {"logical_count": the same, or a list of such over steps} as JSON or .pt. Also an .npy
/// file of shape [layers, experts] or [steps, layers, experts]; steps are summed. Throws
/// ConfigError with the pointer if it is no such thing or not finite and >= 0.
std::vector<ExpertLoad> read_load(const std::filesystem::path& file);

}  // namespace moesim
