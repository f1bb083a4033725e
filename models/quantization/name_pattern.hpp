// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bitset>
#include <string>
#include <string_view>
#include <vector>

namespace moesim {

/// A pattern of module names, as Python's tools match them. It is compiled to a machine whose
/// states advance together, so that no pattern takes more than its length times the name's.
class NamePattern {
 public:
  /// Matches as re.match does: from the name's beginning, to any end. Groups, classes, repetitions,
  /// looks ahead and behind are known. Throws std::invalid_argument, which says why, at anything
  /// else.
  static NamePattern regex(std::string_view);
  /// Matches as fnmatch does: `*`, `?` and `[...]`, the whole name.
  static NamePattern glob(std::string_view);

  bool matches(std::string_view name) const { return runs(0, name, 0, name.size()); }

  struct Step {
    enum class Kind {
      set,     ///< a character of set `a`
      jump,    ///< `a` steps on
      fork,    ///< `a` steps on or `b` steps on
      begin,   ///< of the name
      end,     ///< of the name
      edge,    ///< of a word, or (a = 1) none
      ahead,   ///< what follows, up to a `found`, matches here, or (b = 1) does not; `a` steps on
      behind,  ///< the same of what ends here
      found
    };
    Kind kind;
    int a = 0, b = 0;
  };
  using Steps = std::vector<Step>;
  using Set = std::bitset<256>;

 private:
  bool runs(int step, std::string_view name, std::size_t from, std::size_t to,
            bool whole = false) const;
  bool holds(const Step&, int step, std::string_view name, std::size_t at) const;

  Steps steps_;
  std::vector<Set> sets_;
};

}  // namespace moesim
