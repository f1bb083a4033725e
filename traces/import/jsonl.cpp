// SPDX-License-Identifier: Apache-2.0
// What loggers write, one JSON object in a line: a request with its "routed_experts", or the choice
// of one token in one layer,
//   {"req_id": "a", "token_idx": 0, "layer": 3, "topk_ids": [5, 17]}
// ("request_id", "topk_experts" and lists of several tokens' choices too). Without "token_idx"
// tokens are counted in the order of the lines. Layers that never appear were not recorded.
#include <map>
#include <set>

#include <fmt/format.h>

#include "hardware/config.hpp"
#include "traces/import/forms.hpp"

namespace moesim {

namespace {

const Json* find(const Json& object, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const auto found = object.find(name); found != object.end()) return &*found;
  return nullptr;
}

class ChoiceLog {
 public:
  explicit ChoiceLog(TraceBuilder& builder) : builder_(builder) {}

  void add_line(const std::string& place, const Json& line) {
    const Json* chosen = find(line, {"topk_ids", "topk_experts"});
    const Json* layer = find(line, {"layer", "layer_id"});
    if (chosen == nullptr || !chosen->is_array() || layer == nullptr || !layer->is_number_integer())
      refuse(place, "has neither routed_experts nor a layer with topk_ids");
    const auto number = layer->get<std::int64_t>();
    const MoeModel& model = builder_.model();
    if (model.is_draft_layer(number)) {
      drafts_.insert(number);
      builder_.drop_drafts(static_cast<int>(drafts_.size()));
      return;
    }
    if (number < 0 || number >= model.numbered_layers)
      refuse(place, fmt::format("layer {}; {} has {}, from 0 on", number, model.name,
                                model.numbered_layers));
    Request& request = request_of(line);
    if (request.place.empty()) request.place = place;
    Layer& of_layer = request.layers[static_cast<int>(number)];
    const bool several = !chosen->empty() && chosen->front().is_array();
    std::int64_t token = std::ssize(of_layer);
    if (const Json* said = find(line, {"token_idx"}))
      token = said->is_number_integer() ? said->get<std::int64_t>() : -1;
    if (!several) return add_choice(place, token, *chosen, of_layer);
    for (const Json& one : *chosen) add_choice(place, token++, one, of_layer);
  }

  void finish() {
    if (requests_.empty()) return;
    std::vector<int> layers;
    for (const auto& layer : requests_.front().layers) layers.push_back(layer.first);
    builder_.record_layers(requests_.front().place, layers);
    for (const Request& request : requests_) add(request, layers);
  }

 private:
  using Layer = std::map<std::int64_t, std::vector<double>>;  // token -> ids
  struct Request {
    std::string place;
    std::map<int, Layer> layers;
  };

  Request& request_of(const Json& line) {
    const Json* id = find(line, {"req_id", "request_id"});
    const auto [found, is_new] =
        by_id_.try_emplace(id == nullptr ? "" : id->dump(), requests_.size());
    if (is_new) requests_.emplace_back();
    return requests_[found->second];
  }

  void add_choice(const std::string& place, std::int64_t token, const Json& ids, Layer& layer) {
    std::vector<double> choice;
    if (ids.is_array())
      for (const Json& id : ids) choice.push_back(id.is_number() ? id.get<double>() : -2);
    constexpr std::int64_t last_token = std::int64_t{1} << 53;
    if (token < 0 || token > last_token)
      refuse(place, fmt::format("token_idx is not a number from 0 to {}", last_token));
    if (std::find(choice.begin(), choice.end(), -2) != choice.end() || choice.empty())
      refuse(place, "has a choice that is not a list of experts of a token");
    if (!layer.emplace(token, std::move(choice)).second)
      refuse(place, fmt::format("repeats token {} of its request", token));
  }

  void add(const Request& request, const std::vector<int>& layers) {
    const Layer& first = request.layers.begin()->second;
    Array ids{{std::ssize(first), std::ssize(layers), std::ssize(first.begin()->second)}, {}};
    for (const auto& token : first)
      for (const int layer : layers) {
        const auto of_layer = request.layers.find(layer);
        const bool there =
            of_layer != request.layers.end() && of_layer->second.contains(token.first);
        if (!there || request.layers.size() != layers.size() ||
            of_layer->second.size() != first.size())
          refuse(request.place, fmt::format("its request lacks token {} in some of its {} layers",
                                            token.first, layers.size()));
        const std::vector<double>& choice = of_layer->second.at(token.first);
        if (std::ssize(choice) != ids.extent(2))
          refuse(request.place, fmt::format("its request picks {} experts for token {}, and {} "
                                            "elsewhere",
                                            choice.size(), token.first, ids.extent(2)));
        ids.values.insert(ids.values.end(), choice.begin(), choice.end());
      }
    builder_.add({.place = request.place, .ids = std::move(ids)});
  }

  TraceBuilder& builder_;
  std::map<std::string, std::size_t> by_id_;
  std::vector<Request> requests_;
  std::set<std::int64_t> drafts_;  // layers that draft
};

}  // namespace

void read_jsonl_recording(std::span<const std::filesystem::path> files, TraceBuilder& builder) {
  ChoiceLog log(builder);
  for (const std::filesystem::path& file : files) {
    if (!is_json_file(file)) refuse_file(file, "a .jsonl file");
    for_each_json(file, [&](const std::string& place, const Json& line) {
      if (!line.is_object()) refuse(place, "is not a JSON object");
      if (add_response(place, line, builder) == 0) log.add_line(place, line);
    });
  }
  log.finish();
}

}  // namespace moesim
