// SPDX-License-Identifier: Apache-2.0
// TensorRT-LLM's expert statistics (EXPERT_STATISTIC_PATH; examples/wide_ep/ep_load_balancer):
//   meta_info.json            num_experts, num_experts_per_token
//   rank0.safetensors         "iteration_layer" -> tokens of each expert
//   rank0_raw.safetensors     "iteration_layer" -> experts of each token [tokens, k]
// Nothing says which token is of which request: an iteration of a rank is taken as one. Responses'
// routed_experts, [tokens - 1, layers with experts, k], come as .npy.
#include <charconv>
#include <map>

#include <fmt/format.h>

#include "hardware/config.hpp"
#include "traces/import/forms.hpp"
#include "traces/import/safetensors.hpp"

namespace moesim {

namespace {

using Layers = std::map<int, Array>;  // of one iteration

// "12_3": iteration 12, layer 3.
std::pair<std::int64_t, int> parse_key(const std::string& place, const std::string& key) {
  std::pair<std::int64_t, int> numbers{-1, -1};
  const char* const end = key.data() + key.size();
  const auto [middle, wrong] = std::from_chars(key.data(), end, numbers.first);
  const bool split = wrong == std::errc() && middle != end && *middle == '_';
  const auto [last, error] =
      split ? std::from_chars(middle + 1, end, numbers.second) : std::from_chars_result{end, wrong};
  if (!split || error != std::errc() || last != end || numbers.first < 0 || numbers.second < 0)
    throw ConfigError(
        fmt::format("{}: the tensor \"{}\" is not named ITERATION_LAYER, as "
                    "TensorRT-LLM's are",
                    place, key));
  return numbers;
}

std::map<std::int64_t, Layers> iterations(const std::filesystem::path& file) {
  const Safetensors tensors(file);
  std::map<std::int64_t, Layers> iterations;
  for (const auto& tensor : tensors.tensors()) {
    const auto [iteration, layer] = parse_key(file.string(), tensor.first);
    iterations[iteration].emplace(layer, tensors.read(tensor.second));
  }
  return iterations;
}

// An iteration's layers but those that draft, in order.
std::vector<int> layers_of(const Layers& layers, TraceBuilder& builder) {
  std::vector<int> known;
  for (const auto& layer : layers)
    if (!builder.model().is_draft_layer(layer.first)) known.push_back(layer.first);
  builder.drop_drafts(static_cast<int>(layers.size() - known.size()));
  return known;
}

void require_equal_layers(const std::string& place, std::span<const int> expected,
                          std::span<const int> found) {
  if (!std::equal(expected.begin(), expected.end(), found.begin(), found.end()))
    throw ConfigError(place + ": iterations have different layers");
}

void add_tokens(const std::string& place, const Layers& layers, std::span<const int> of,
                TraceBuilder& builder) {
  const Array& first = layers.at(of.front());
  for (const int layer : of)
    if (layers.at(layer).shape.size() != 2 || layers.at(layer).shape != first.shape)
      throw ConfigError(place + ": layers of one iteration are not all [tokens, k]");
  Array ids{{first.extent(0), std::ssize(of), first.extent(1)}, {}};
  for (std::int64_t token = 0; token < first.extent(0); ++token)
    for (const int layer : of) {
      const std::span<const double> choice = layers.at(layer).part(token);
      ids.values.insert(ids.values.end(), choice.begin(), choice.end());
    }
  builder.add({.place = place, .ids = std::move(ids)});
}

void add_counts(const std::string& place, std::int64_t iteration, const Layers& layers,
                std::span<const int> of, TraceBuilder& builder) {
  Array counts{{std::ssize(of), std::ssize(layers.at(of.front()).values)}, {}};
  for (const int layer : of) {
    const std::vector<double>& experts = layers.at(layer).values;
    if (std::ssize(experts) != counts.extent(1))
      throw ConfigError(place + ": layers of one iteration count different experts");
    counts.values.insert(counts.values.end(), experts.begin(), experts.end());
  }
  builder.add_counts(place, iteration, counts, false);
}

void read_statistic(const std::filesystem::path& file, std::vector<int>& layers,
                    TraceBuilder& builder) {
  const bool raw = file.stem().string().ends_with("_raw");
  for (const auto& iteration : iterations(file)) {
    const std::string place = fmt::format("{}: iteration {}", file.string(), iteration.first);
    const std::vector<int> of = layers_of(iteration.second, builder);
    if (of.empty()) throw ConfigError(place + ": has no layer of the model");
    if (layers.empty()) {
      layers = of;
      builder.record_layers(place, layers);
    }
    require_equal_layers(place, layers, of);
    if (raw)
      add_tokens(place, iteration.second, of, builder);
    else
      add_counts(place, iteration.first, iteration.second, of, builder);
  }
}

void check_meta(const std::filesystem::path& file, const MoeModel& model) {
  ConfigReader reader(ConfigNode::from_file(file));
  for (const auto& [key, expected] : {std::pair{"num_experts", model.experts},
                                      std::pair{"num_experts_per_token", model.experts_per_token}})
    if (reader.has(key) && reader.integer(key) != expected)
      reader.child(key).fail(
          fmt::format("is {}; {} has {}", reader.integer(key), model.name, expected));
}

}  // namespace

void read_trtllm_recording(std::span<const std::filesystem::path> files, TraceBuilder& builder) {
  std::vector<int> layers;
  for (const std::filesystem::path& file : files) {
    if (file.filename() == "meta_info.json")
      check_meta(file, builder.model());
    else if (file.extension() == ".safetensors")
      read_statistic(file, layers, builder);
    else if (file.extension() == ".npy")
      add_npy_request(file, builder);
    else if (!file.filename().string().ends_with("_numtokens.json"))
      refuse_file(file, "a statistic of TensorRT-LLM: rank*.safetensors, meta_info.json, or .npy");
  }
}

}  // namespace moesim
