// SPDX-License-Identifier: Apache-2.0
#include "models/context_parallel.hpp"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace moesim {

namespace {

// Part that a layer keeps whole on every GPU, so that tokens cannot be striped; empty: none.
std::string kept_whole(const LayerSpec& layer) {
  const Sight sight = layer.mixer->sight();
  if (sight.ratio > 0) return "the entries of its compressed attention";
  if (sight.top > 0) return "the index keys of its sparse attention";
  if (sight.window > 0)
    return fmt::format("the windows of {} tokens of some of its layers", sight.window);
  return {};
}

// GPUs that hold the same heads of keys.
int holders(const MoeModel& model, int tp) {
  int fewest = tp;
  bool any = false;
  for (const LayerSpec& layer : model.layers) {
    const int heads = layer.mixer->cache_heads(tp).kv_heads;
    if (heads == 0) continue;  // it keeps states, sliced by heads
    fewest = std::min(fewest, tp / heads);
    any = true;
  }
  return any ? std::max(1, fewest) : 1;
}

}  // namespace

int most_stripes(const MoeModel& model, int tp) {
  const bool whole = std::ranges::any_of(
      model.layers, [](const LayerSpec& layer) { return !kept_whole(layer).empty(); });
  return whole ? 1 : holders(model, tp);
}

std::string stripe_fault(const MoeModel& model, int tp, int dcp) {
  if (dcp == 1) return {};
  for (const LayerSpec& layer : model.layers) {
    if (const std::string whole = kept_whole(layer); !whole.empty())
      return fmt::format("DCP is not modelled for {}: every GPU holds {} whole; leave this out",
                         model.name, whole);
  }
  const auto has_heads = [&](const LayerSpec& layer) {
    return layer.mixer->cache_heads(tp).kv_heads > 0;
  };
  if (std::ranges::none_of(model.layers, has_heads))
    return fmt::format("DCP is not modelled for {}: no layer caches KV heads; leave this out",
                       model.name);
  const int most = holders(model, tp);
  if (most == 1)
    return fmt::format("no two of tp {} GPUs hold the same KV heads of {}; leave this out", tp,
                       model.name);
  std::vector<int> possible;
  for (int d = 1; d <= most; ++d)
    if (most % d == 0) possible.push_back(d);
  if (dcp > most)
    return fmt::format("{} is more than the {} of tp {} GPUs that hold the same KV heads; use {}",
                       dcp, most, tp, fmt::join(possible, ", "));
  if (most % dcp != 0)
    return fmt::format(
        "{} does not divide the {} of tp {} GPUs that hold the same KV heads; use {}", dcp, most,
        tp, fmt::join(possible, ", "));
  return {};
}

}  // namespace moesim
