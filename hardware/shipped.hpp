// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hardware/config.hpp"

namespace moesim {

/// File of the running program, or of the module that holds it in a program of Python.
std::filesystem::path program_file();

/// Folder with hardware/, models/ and configs/ where data files are looked for unless a command
/// says otherwise. It is what the environment variable MOESIM_DATA names, else share/moesim next to
/// the folder of the installed program, else the source tree of the build.
std::filesystem::path data_folder();

/// Kinds of JSON files that ship and may be called by their short names: "h200", "h200x16",
/// "glm_4_5_air".
enum class Shipped { gpu, cluster, model };

/// The names that there are, sorted.
std::vector<std::string> shipped_names(Shipped);
/// The file of a name, or nothing. Names are also found as others write them: "zai-org/GLM-4.5-Air"
/// is "glm_4_5_air"; a model's also as its file lists them under "huggingface", a GPU's by
/// gpu_file.
std::optional<std::filesystem::path> shipped_file(Shipped, std::string_view name);

/// Short name of a GPU that drivers and engines call "NVIDIA H100 80GB HBM3" or "H100-SXM-80GB".
/// The most words that begin it in hardware/names.json decide; empty if the GPU is not known.
std::string gpu_file(std::string_view name);

/// The file that a text names: by its path, relative to the text's own file, by a folder with a
/// config.json, or by a short name, in this order. Throws ConfigError with the nearest names.
std::filesystem::path named_file(const ConfigNode&, Shipped);
/// The object that a value is, or the one in the file whose path, relative to the value's own file,
/// it is.
ConfigNode file_or_inline(const ConfigNode&);
/// The object that a value is, or the one in the file that it names.
ConfigNode named_or_inline(const ConfigNode&, Shipped);

}  // namespace moesim
