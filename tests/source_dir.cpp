// SPDX-License-Identifier: Apache-2.0
#include "tests/support.hpp"

namespace moesim::test {

std::filesystem::path source_dir() { return MOESIM_SOURCE_DIR; }

}  // namespace moesim::test
