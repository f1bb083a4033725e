// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/this_build.hpp"

#include <cstdint>
#include <fstream>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "hardware/rng.hpp"
#include "hardware/shipped.hpp"

namespace moesim {

std::string this_build() {
  std::ifstream program(program_file(), std::ios::binary);
  std::vector<char> bytes(1 << 20);
  std::uint64_t hash = fnv1a({});
  while (program) {
    program.read(bytes.data(), std::ssize(bytes));
    hash = fnv1a(std::string_view(bytes.data(), at(program.gcount())), hash);
  }
  return fmt::format("{} ({:016x})", MOESIM_VERSION, hash);
}

}  // namespace moesim
