// SPDX-License-Identifier: Apache-2.0
#include "sim/engines/serving_engine.hpp"

#include <algorithm>

namespace moesim {

// Functions of the rows, in NAME/NAME.cpp.
ServingEngine vllm_engine();
ServingEngine sglang_engine();
ServingEngine trtllm_engine();

std::span<const ServingEngine> serving_engines() {
  static const ServingEngine rows[] = {vllm_engine(), sglang_engine(), trtllm_engine()};
  return rows;
}

const ServingEngine* find_engine(std::string_view name) {
  const auto rows = serving_engines();
  const auto row = std::ranges::find(rows, name, &ServingEngine::name);
  return row == rows.end() ? nullptr : &*row;
}

std::string ServingEngine::without_build(const GpuSpec& gpu) const {
  if (std::ranges::find(platforms, gpu.platform) != platforms.end()) return "";
  return fmt::format("{} does not run on {} ({})", title, gpu.name, gpu.platform);
}

std::span<const std::string_view> engine_names() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all;
    for (const ServingEngine& engine : serving_engines()) all.push_back(engine.name);
    return all;
  }();
  return names;
}

}  // namespace moesim
