// SPDX-License-Identifier: Apache-2.0
// Clusters, models, overrides: JSON files and what reads their values.
#include "hardware/fabric.hpp"
#include "models/moe_model.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace moesim;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::File file;
  const std::filesystem::path path = file.holding(fuzz::text(data, size));
  fuzz::reads([&] { read_model(ConfigNode::from_file(path)); });
  fuzz::reads([&] { read_cluster(ConfigNode::from_file(path)); });
  return fuzz::reads([&] {
    Json json{{"a", 1}, {"list", {1, 2}}, {"object", Json::object()}};
    apply_override(json, fuzz::text(data, size));
  });
}
