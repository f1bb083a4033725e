// SPDX-License-Identifier: Apache-2.0
#include "traces/expert_load.hpp"

#include <algorithm>
#include <functional>

#include <fmt/ranges.h>

#include "hardware/at.hpp"
#include "hardware/config.hpp"
#include "models/moe_model.hpp"
#include "traces/import/array.hpp"
#include "traces/import/torch_file.hpp"
#include "traces/npy.hpp"

namespace moesim {

namespace {

constexpr Range token_range{0, 1e15};  // sums and ratios of these stay finite in a float

std::vector<ExpertLoad> listed_load(const ConfigNode& node) {
  std::vector<ExpertLoad> load;
  for (const ConfigNode& layer : node.list()) {
    ExpertLoad experts;
    for (const ConfigNode& tokens : layer.list()) experts.push_back(tokens.number(token_range));
    if (experts.empty() || (!load.empty() && experts.size() != load.front().size())) {
      layer.fail("has {} experts; expected {}", experts.size(),
                 load.empty() ? "at least 1" : std::to_string(load.front().size()));
    }
    load.push_back(std::move(experts));
  }
  if (load.empty()) node.fail("has no layers");
  return load;
}

// SGLang's expert distribution: a load, or one for each of the steps that its buffer held.
std::vector<ExpertLoad> logical_count(const ConfigNode& node) {
  const auto depth_of_three = [](const Json& json) {
    return !json.empty() && json[0].is_array() && !json[0].empty() && json[0][0].is_array();
  };
  if (!depth_of_three(node.json())) return listed_load(node);
  std::vector<ExpertLoad> sum;
  for (const ConfigNode& step : node.list()) {
    const std::vector<ExpertLoad> load = listed_load(step);
    if (sum.empty()) sum.assign(load.size(), ExpertLoad(load.front().size()));
    if (load.size() != sum.size() || load.front().size() != sum.front().size()) {
      step.fail("has {} layers of {} experts; expected {} of {} as in the first step", load.size(),
                load.front().size(), sum.size(), sum.front().size());
    }
    for (std::size_t layer = 0; layer < sum.size(); ++layer) {
      std::ranges::transform(sum[layer], load[layer], sum[layer].begin(), std::plus<>());
    }
  }
  return sum;
}

std::vector<ExpertLoad> load_from_json(const std::filesystem::path& file) {
  return read_object(ConfigNode::from_file(file), [](ConfigReader& reader) {
    if (!reader.has("logical_count")) return listed_load(reader.child("load"));
    // What SGLang writes beside it.
    reader.optional("rank");
    reader.optional("average_utilization_rate_over_window");
    return logical_count(reader.child("logical_count"));
  });
}

// [layers, experts], or one for each of some steps.
std::vector<ExpertLoad> load_from_array(const std::filesystem::path& file, const Array& array) {
  const std::vector<std::int64_t>& shape = array.shape;
  if ((shape.size() != 2 && shape.size() != 3) || array.values.empty()) {
    throw ConfigError(
        "{}: a load has the shape [layers, experts] or [steps, layers, experts]; found [{}]",
        file.string(), fmt::join(shape, ", "));
  }
  const auto experts = at(shape.back());
  const auto layers = at(shape[shape.size() - 2]);
  std::vector<ExpertLoad> load(layers, ExpertLoad(experts));
  for (std::size_t i = 0; i < array.values.size(); ++i) {
    const std::size_t layer = i / experts % layers;
    const double tokens = array.values[i];
    if (!(tokens >= 0 && tokens <= token_range.max)) {
      throw ConfigError("{}: the load of expert {} in layer {} is {}; expected 0 to 1e15",
                        file.string(), i % experts, layer, tokens);
    }
    load[layer][i % experts] += tokens;
  }
  return load;
}

// Reads what SGLang's recorder dumps in its modes stat and stat_approx.
std::vector<ExpertLoad> load_from_torch(const std::filesystem::path& path) {
  TorchFile file(path);
  const PyTensor* counts = file.tensor_named("logical_count");
  if (counts == nullptr) {
    file.refuse(
        "has no tensor \"logical_count\"; of other dumps of SGLang moesim trace import makes an "
        "expert_counts.npy");
  }
  return load_from_array(path, file.read(*counts));
}

}  // namespace

std::vector<ExpertLoad> load_in(const std::filesystem::path& file, const NpyArray& array) {
  return load_from_array(file, array_of(array));
}

std::vector<ExpertLoad> read_load(const std::filesystem::path& file) {
  const std::filesystem::path form = file.extension();
  if (form == ".npy") return load_in(file, NpyArray::open(file));
  if (form == ".pt") return load_from_torch(file);
  for (const char* other : {".npz", ".csv", ".safetensors", ".txt", ".pkl", ".parquet"})
    if (form == other)
      throw ConfigError("{}: is no load; give .npy [layers, experts], SGLang's .pt, or JSON",
                        file.string());
  return load_from_json(file);
}

std::vector<ExpertLoad> moe_rows(const std::string& place, const std::vector<ExpertLoad>& load,
                                 const MoeModel& model) {
  const std::vector<int> numbers = model.moe_layer_numbers();
  const int all = model.numbered_layers, drafts = model.draft_layers;
  const auto found = std::ssize(load), moe = std::ssize(numbers);
  const bool every = found == all || found == all + drafts;
  if (!every && found != moe && found != moe + drafts) return {};
  for (int layer = 0; every && layer < all; ++layer)
    if (std::ranges::find(numbers, layer) == numbers.end() &&
        std::ranges::any_of(load[at(layer)], [](double tokens) { return tokens > 0; }))
      throw ConfigError("{}: has tokens in layer {}, which has no experts in {}", place, layer,
                        model.name);
  std::vector<ExpertLoad> rows;
  for (std::size_t i = 0; i < numbers.size(); ++i) rows.push_back(load[every ? at(numbers[i]) : i]);
  return rows;
}

}  // namespace moesim
