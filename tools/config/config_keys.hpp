// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "hardware/config.hpp"

namespace moesim {

/// A JSON Schema (2020-12) of experiments, from the tables of keys that their readers consult. It
/// is of structure: what one key says about another, readers alone know.
OrderedJson experiment_schema(const PolicyRows&);
/// A JSON Schema (2020-12) of sweep files.
OrderedJson sweep_schema(const PolicyRows&);

/// Form of a key in a few words: "integer >= 1", "time: \"50 ms\"", "file | object".
std::string form_text(const Form&);

/// Text of the basic keys with their meanings, and the names of the usual ones.
std::string basic_keys_text();

/// Keys as text: each with its forms, default and meaning, as a tree, then the options of every
/// policy and the keys of a sweep. `wanted` names one key of an experiment, one extension point,
/// one policy (in each table that has it) or "sweep"; empty: all. Any other word is searched in
/// names and texts of all keys. Throws ConfigError if the word is in none.
std::string keys_text(const PolicyRows&, std::string_view wanted);

}  // namespace moesim
