// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/this_build.hpp"

#include <fstream>
#include <iterator>

#include <fmt/format.h>

#include "hardware/rng.hpp"

namespace moesim {

std::string this_build() {
  std::ifstream program("/proc/self/exe", std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(program), {});
  return fmt::format("{} ({:016x})", MOESIM_VERSION, fnv1a(bytes));
}

}  // namespace moesim
