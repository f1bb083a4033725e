// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

namespace moesim {

/// The folder with hardware/ and models/ that this program was built from: where data files are
/// looked for unless somebody says otherwise.
inline std::filesystem::path source_tree() { return MOESIM_SOURCE_DIR; }

}  // namespace moesim
