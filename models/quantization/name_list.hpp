// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "models/quantization/name_pattern.hpp"
#include "models/quantization/weight_modules.hpp"

namespace moesim {

/// How a tool takes an entry of a list of modules. "re:" begins a regular expression in all but the
/// last three.
enum class Reading {
  exact,     ///< the whole name (compressed-tensors)
  wildcard,  ///< the whole name, with `*` (Quark)
  part,      ///< the name, a module that it is in, or parts of it side by side, with `*` (ModelOpt,
             ///< fp8, MXFP4, bitsandbytes); what looks like a regular expression is one
  regex,     ///< a regular expression, behind "+:" or "-:" if any (GPTQ's "dynamic")
  substring,  ///< a piece of the name (AWQ)
  block       ///< parts side by side; expert 0 stands for all (GPTQ)
};

/// Names of modules, and patterns of such names, as a file lists them.
class NameList {
 public:
  /// Names are taken as those of a model whose modules' begin with the first of `prefixes`,
  /// whichever of them they begin with. Throws ConfigError at `node` for a pattern that cannot be
  /// read.
  NameList(const ConfigNode& node, const std::vector<std::string>& entries, Reading,
           const std::vector<std::string>& prefixes);

  /// The first entry that a module goes by, if any.
  std::optional<std::size_t> first(const WeightModule&);
  bool names(const WeightModule& module) { return first(module).has_value(); }
  /// True if an entry can be meant for some experts and not for others.
  bool tells_experts_apart() const { return tells_apart_; }
  /// Entries that no module went by so far.
  std::vector<std::string> unused() const;

 private:
  struct Entry {
    std::string text;
    std::optional<NamePattern> pattern{};
    bool anywhere = false;  ///< a pattern of the name, of modules that it is in, or of one part
    bool used = false;
  };
  bool holds(const Entry&, const std::string& name) const;
  std::optional<std::size_t> exactly(const std::string& name);

  Reading reading_;
  std::vector<Entry> entries_;
  std::vector<std::size_t> others_;                     ///< that are no whole names
  std::unordered_map<std::string, std::size_t> whole_;  ///< names
  bool tells_apart_ = false;
};

}  // namespace moesim
