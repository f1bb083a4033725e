// SPDX-License-Identifier: Apache-2.0
// Placements in every format; what was read can be written in each that can say it.
#include "sim/placement/files/placement_file.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace moesim;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::File file;
  return fuzz::reads([&] {
    const PlacementContext context{.gpus = size % 2 == 0 ? 0 : 2, .first_layer = 0};
    const ExpertPlacement placement = read_placement(file.holding(fuzz::text(data, size)), context);
    for (std::size_t i = 0; i < placement_format_names.size(); ++i)
      fuzz::reads([&] { placement_bytes(placement, static_cast<PlacementFormat>(i)); });
  });
}
