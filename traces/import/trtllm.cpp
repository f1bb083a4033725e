// SPDX-License-Identifier: Apache-2.0
// TensorRT-LLM's expert statistics (EXPERT_STATISTIC_PATH; examples/wide_ep/ep_load_balancer):
//   meta_info.json            num_experts, num_experts_per_token
//   rank0.safetensors         "iteration_layer" -> tokens of each expert
//   rank0_raw.safetensors     "iteration_layer" -> experts of each token [tokens, k]
// Nothing says which token is of which request: an iteration of a rank is taken as one. Responses'
// routed_experts, [tokens - 1, layers with experts, k], come as .npy.
#include <algorithm>
#include <charconv>
#include <functional>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

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
        "{}: the tensor \"{}\" is not named ITERATION_LAYER, as "
        "TensorRT-LLM's are",
        place, key);
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

// The layers of an iteration that are the model's: the same in all iterations.
std::vector<int> same_layers(const std::string& place, const Layers& iteration,
                             std::vector<int>& layers, TraceBuilder& builder) {
  const std::vector<int> of = layers_of(iteration, builder);
  if (of.empty()) throw ConfigError(place + ": has no layer of the model");
  if (layers.empty()) {
    layers = of;
    builder.record_layers(place, layers);
  }
  if (of != layers)
    throw ConfigError(
        "{}: has layers {}; others have {}; the files of one pipeline stage belong together", place,
        fmt::join(of, ", "), fmt::join(layers, ", "));
  return of;
}

void read_tokens(const std::filesystem::path& file, std::vector<int>& layers,
                 TraceBuilder& builder) {
  for (const auto& [number, iteration] : iterations(file)) {
    const std::string place = fmt::format("{}: iteration {}", file.string(), number);
    add_tokens(place, iteration, same_layers(place, iteration, layers, builder), builder);
  }
}

// Adds the counts of a file to those of other ranks, some of which hold other pipeline stages.
void add_up(const std::filesystem::path& file, std::map<std::int64_t, Layers>& counted) {
  for (auto& [number, iteration] : iterations(file))
    for (auto& [layer, counts] : iteration) {
      const auto [sum, first] = counted[number].try_emplace(layer, counts);
      if (first) continue;
      if (sum->second.shape != counts.shape)
        throw ConfigError(
            fmt::format("{}: iteration {}, layer {}: counts other experts than other "
                        "ranks",
                        file.string(), number, layer));
      std::ranges::transform(sum->second.values, counts.values, sum->second.values.begin(),
                             std::plus());
    }
}

// With EPLB on, "num_experts" is the number of slots (ExpertStatistic.maybe_add_info).
void check_meta(const std::filesystem::path& file, const TraceBuilder& builder) {
  const MoeModel& model = builder.model();
  ConfigReader reader(ConfigNode::from_file(file));
  for (const auto& [key, expected] : {std::pair{"num_experts", builder.ids_of_layer()},
                                      std::pair{"num_experts_per_token", model.experts_per_token}})
    if (reader.has(key) && reader.integer(key) != expected)
      reader.child(key).fail(
          "is {}; {} has {}{}", reader.integer(key), model.name, expected,
          key == std::string_view("num_experts") && reader.integer(key) > model.experts
              ? " experts. EPLB may have been on, which counts slots: --placement takes its file"
              : "");
}

}  // namespace

void read_trtllm_recording(std::span<const std::filesystem::path> files, TraceBuilder& builder) {
  std::vector<int> layers;
  std::map<std::int64_t, Layers> counted;  // by iteration, of all ranks
  for (const std::filesystem::path& file : files) {
    if (file.filename() == "meta_info.json")
      check_meta(file, builder);
    else if (file.extension() == ".safetensors" && file.stem().string().ends_with("_raw"))
      read_tokens(file, layers, builder);
    else if (file.extension() == ".safetensors")
      add_up(file, counted);
    else if (file.extension() == ".npy")
      add_npy_request(file, builder);
    else if (!file.filename().string().ends_with("_numtokens.json"))
      refuse_file(file, "a statistic of TensorRT-LLM: rank*.safetensors, meta_info.json, or .npy");
  }
  for (const auto& [number, iteration] : counted) {
    const std::string place = fmt::format("iteration {}", number);
    add_counts(place, number, iteration, same_layers(place, iteration, layers, builder), builder);
  }
}

}  // namespace moesim
