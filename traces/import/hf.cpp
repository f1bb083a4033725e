// SPDX-License-Identifier: Apache-2.0
// transformers' output_router_logits=True: for each layer with experts logits [tokens, experts]. A
// token picks the k largest; of equal ones the first. One file is one request.
#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "traces/import/forms.hpp"
#include "traces/import/torch_file.hpp"
#include "traces/npy.hpp"

namespace moesim {

namespace {

void append_best(const std::string& place, std::span<const double> logits, int k,
                 std::vector<double>& out) {
  if (std::any_of(logits.begin(), logits.end(), [](double x) { return std::isnan(x); }))
    refuse(place, "has a logit that is not a number");
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::partial_sort(order.begin(), order.begin() + k, order.end(),
                    [&](std::size_t a, std::size_t b) {
                      return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
                    });
  out.insert(out.end(), order.begin(), order.begin() + k);
}

// Layers one by one, each [tokens, experts] or [batch of one, tokens, experts].
void add_layers(const std::string& place, std::vector<Array> layers, TraceBuilder& builder) {
  const MoeModel& model = builder.model();
  for (Array& layer : layers) {
    if (layer.shape.size() == 3 && layer.extent(0) == 1) layer.shape.erase(layer.shape.begin());
    if (layer.shape.size() != 2 || layer.extent(1) != model.experts ||
        layer.extent(0) != layers.front().extent(0))
      refuse(place,
             fmt::format("router logits are [tokens, {} experts] in every layer", model.experts));
  }
  if (layers.empty()) refuse(place, "has no router logits");
  const std::int64_t tokens = layers.front().extent(0);
  Array ids{{tokens, std::ssize(layers), model.experts_per_token}, {}};
  for (std::int64_t token = 0; token < tokens; ++token)
    for (const Array& layer : layers)
      append_best(place, layer.part(token), model.experts_per_token, ids.values);
  builder.add({.place = place, .ids = std::move(ids)});
}

// [layers, tokens, experts]
std::vector<Array> split(const std::string& place, const Array& all) {
  if (all.shape.size() != 3) refuse(place, "router logits are [layers, tokens, experts]");
  std::vector<Array> layers;
  for (std::int64_t i = 0; i < all.extent(0); ++i) {
    const std::span<const double> part = all.part(i);
    layers.push_back({{all.extent(1), all.extent(2)}, {part.begin(), part.end()}});
  }
  return layers;
}

// A member for each layer, in the order of their numbers, or one of all.
std::vector<Array> from_npz(const std::filesystem::path& file) {
  const ZipArchive zip(file);
  std::vector<std::string> names;
  for (const auto& member : zip.members()) names.push_back(member.first);
  std::sort(names.begin(), names.end(), natural_less);
  std::vector<Array> layers;
  for (const std::string& name : names)
    layers.push_back(
        array_of(NpyArray::parse(zip.read(name), fmt::format("{}:{}", file.string(), name))));
  return layers.size() == 1 ? split(file.string(), layers[0]) : layers;
}

// A tuple of tensors, also under "router_logits".
std::vector<Array> from_torch(const std::filesystem::path& path) {
  TorchFile file(path);
  PyValue value = file.value();
  if (const auto* dict = std::get_if<const PyDict*>(&value)) {
    const PyValue* logits = (*dict)->find("router_logits");
    if (logits == nullptr) file.refuse("has no \"router_logits\"");
    value = *logits;
  }
  if (const auto* tensor = std::get_if<const PyTensor*>(&value))
    return split(path.string(), file.read(**tensor));
  const auto* list = std::get_if<const PyList*>(&value);
  if (list == nullptr) file.refuse("holds no router logits: a tensor for each layer is expected");
  std::vector<Array> layers;
  for (const PyValue& item : (*list)->items) {
    if (std::holds_alternative<std::monostate>(item)) continue;  // None: a dense layer
    const auto* tensor = std::get_if<const PyTensor*>(&item);
    if (tensor == nullptr) file.refuse("has a layer that is not a tensor");
    layers.push_back(file.read(**tensor));
  }
  return layers;
}

}  // namespace

void read_hf_logits(std::span<const std::filesystem::path> files, TraceBuilder& builder) {
  const bool groups = builder.model().expert_groups > 1;
  if (groups || builder.model().choice_bias)
    throw ConfigError(
        "{} picks experts {}: router logits do not say which; record the "
        "choices instead",
        builder.model().name, groups ? "by groups" : "with a bias");
  for (const std::filesystem::path& file : files) {
    if (file.extension() == ".npy")
      add_layers(file.string(), split(file.string(), array_of(NpyArray::open(file))), builder);
    else if (file.extension() == ".npz")
      add_layers(file.string(), from_npz(file), builder);
    else if (file.extension() == ".pt")
      add_layers(file.string(), from_torch(file), builder);
    else
      refuse_file(file, "router logits: .npy, .npz or .pt");
  }
}

}  // namespace moesim
