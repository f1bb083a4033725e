// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/point_names.hpp"

#include <algorithm>
#include <charconv>
#include <vector>

#include "hardware/shipped.hpp"
#include "hardware/text.hpp"
#include "models/moe_model.hpp"
#include "sim/engines/serving_engine.hpp"

namespace moesim {

namespace {

/// models/names.json: how files of measured runs call models, and the expert layers of models that
/// models/zoo does not have.
struct KnownNames {
  std::map<std::string, std::string> models;  // names of our files
  std::map<std::string, ExpertShape> expert_layers;
};

std::map<std::string, std::string> texts_of(const Json& object) {
  std::map<std::string, std::string> texts;
  for (const auto& [name, text] : object.items()) texts[name] = text.get<std::string>();
  return texts;
}

KnownNames read_known_names(const std::filesystem::path& root) {
  const Json models = ConfigNode::from_file(root / "models/names.json").json();
  KnownNames names{texts_of(models.at("models")), {}};
  for (const auto& [name, layer] : models.at("expert_layers").items())
    names.expert_layers[name] = {layer.at("hidden").get<double>(), layer.at("width").get<double>(),
                                 layer.at("experts").get<int>(), layer.at("top_k").get<int>()};
  return names;
}

const KnownNames& known_names() {
  static const KnownNames all = read_known_names(data_folder());
  return all;
}

/// The row with the longest name for which `fits` holds; null: none.
template <class Rows, class Fits>
const typename Rows::value_type* longest(const Rows& rows, Fits fits) {
  const typename Rows::value_type* best = nullptr;
  for (const auto& row : rows)
    if (fits(row.first) && (best == nullptr || row.first.size() > best->first.size())) best = &row;
  return best;
}

// The longest name of the zoo that a longer form holds: "zai-org/GLM-4.5-Air-FP8" is glm_4_5_air.
std::string zoo_name_in(std::string_view name) {
  // Whole words: "deepseek_v3_20241226" is no deepseek_v3_2.
  const std::string plain = '_' + file_name_of(name) + '_';
  std::string longest;
  for (const std::string& model : shipped_names(Shipped::model))
    if (model.size() > longest.size() && contains(plain, '_' + model + '_')) longest = model;
  return longest;
}

struct EngineName {
  std::string_view written, engine;
};
const std::vector<EngineName>& engine_spellings() {
  static const std::vector<EngineName> all = [] {
    std::vector<EngineName> names;
    for (const ServingEngine& engine : serving_engines())
      for (const std::string_view written : {engine.name, engine.title})
        names.push_back({written, engine.name});
    return names;
  }();
  return all;
}

/// The engine's name and version where a source gives them: "gemm/sglang-0.5.10",
/// "online serving vllm 0.19.0", "comm/sglang/0.5.6.post2".
std::optional<EngineVersion> engine_in(std::string_view text) {
  for (const auto& [written, engine] : engine_spellings()) {
    for (std::size_t at = text.find(written); at != text.npos; at = text.find(written, at + 1)) {
      const std::string_view rest = text.substr(std::min(text.size(), at + written.size() + 1));
      const std::size_t end = rest.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyz.");
      if (!rest.empty() && rest[0] >= '0' && rest[0] <= '9')
        return EngineVersion{std::string(engine), std::string(rest.substr(0, end))};
    }
  }
  return std::nullopt;
}

}  // namespace

double number_after(const std::string& text, const std::string& name) {
  const std::size_t place = text.find(name + "=");
  if (place == std::string::npos) return 0;
  const char* digits = text.data() + place + name.size() + 1;
  long number = 0;
  std::from_chars(digits, text.data() + text.size(), number);
  return static_cast<double>(number);
}

std::string word_after(const std::string& text, const std::string& name) {
  const std::size_t place = text.find(name);
  if (place == std::string::npos) return {};
  const std::size_t begin = place + name.size();
  return text.substr(begin, text.find_first_of(" ,", begin) - begin);
}

std::string model_file(std::string_view name) {
  if (std::string model = zoo_name_in(name); !model.empty()) return model;
  const auto* row = longest(known_names().models,
                            [&](const std::string& known) { return name.starts_with(known); });
  return row == nullptr ? std::string() : row->second;
}

std::filesystem::path gpu_path(const std::string& name, const std::filesystem::path& root,
                               const GpuFiles& given) {
  if (const auto found = given.find(name); found != given.end())
    return std::filesystem::absolute(found->second);
  const std::string file = gpu_file(name);
  return file.empty() ? std::filesystem::path() : root / "hardware/gpus" / (file + ".json");
}

std::optional<ExpertShape> expert_shape(const MeasuredPoint& point) {
  const std::string text = point.operation + " " + point.notes;
  const ExpertShape given{number_after(text, "hidden"), number_after(text, "width"),
                          static_cast<int>(number_after(text, "experts")),
                          static_cast<int>(number_after(text, "top_k"))};
  if (given.hidden > 0 && given.width > 0 && given.experts > 0 && given.per_token > 0) return given;
  const auto named = [&](const std::string& name) { return contains(point.model, name); };
  const auto* layer = longest(known_names().expert_layers, named);
  const auto* zoo = longest(known_names().models, named);
  if (layer != nullptr && (zoo == nullptr || zoo->first.size() < layer->first.size()))
    return layer->second;
  const auto file =
      shipped_file(Shipped::model, zoo != nullptr ? zoo->second : model_file(point.model));
  if (!file) return std::nullopt;
  const MoeModel model = read_model(ConfigNode::from_file(*file));
  if (model.experts == 0) return std::nullopt;
  return ExpertShape{static_cast<double>(model.expert_input()),
                     static_cast<double>(model.expert_width), model.experts,
                     model.experts_per_token};
}

EngineVersion timed_engine(const MeasuredPoint& point) {
  for (const std::string& text : {point.operation, point.source, point.notes})
    if (const auto engine = engine_in(text)) return *engine;
  for (const std::string& text : {point.operation, point.source, point.notes})
    for (const auto& [written, engine] : engine_spellings())
      if (contains(text, written)) return {std::string(engine), ""};
  return {};
}

}  // namespace moesim
