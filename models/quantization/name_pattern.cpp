// SPDX-License-Identifier: Apache-2.0
#include "models/quantization/name_pattern.hpp"

#include <algorithm>
#include <cctype>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "hardware/at.hpp"

namespace moesim {

namespace {

using Step = NamePattern::Step;
using Steps = NamePattern::Steps;
using Set = NamePattern::Set;
using Kind = Step::Kind;

[[noreturn]] void not_read(std::string_view why) { throw std::invalid_argument(std::string(why)); }

void append(Steps& to, const Steps& more) { to.insert(to.end(), more.begin(), more.end()); }
int length(const Steps& steps) { return static_cast<int>(steps.size()); }

Set set_of(int (*is)(int)) {
  Set set;
  for (int c = 0; c < 128; ++c) set[at(c)] = is(c) != 0;
  return set;
}
int is_word(int c) { return std::isalnum(c) != 0 || c == '_' ? 1 : 0; }

/// Reads a regular expression as Python writes it.
class Parser {
 public:
  Parser(std::string_view text, std::vector<Set>& sets) : left_(text), sets_(sets) {
    while (take("(?i)")) any_case_ = true;
  }

  Steps read() {
    Steps steps = alternatives();
    if (!left_.empty()) not_read("\")\" closes no group");
    steps.push_back({Kind::found});
    return steps;
  }

 private:
  static constexpr int most_steps = 20'000, deepest = 50, most_repeats = 1000;

  bool take(std::string_view text) {
    if (!left_.starts_with(text)) return false;
    left_.remove_prefix(text.size());
    return true;
  }

  char next() {
    if (left_.empty()) not_read("the pattern ends too early");
    const char c = left_.front();
    left_.remove_prefix(1);
    return c;
  }

  Steps alternatives() {
    if (++depth_ > deepest) not_read("groups are nested too deep");
    Steps first = branch();
    while (take("|")) {
      const Steps second = branch();
      Steps both{{Kind::fork, 1, length(first) + 2}};
      append(both, first);
      both.push_back({Kind::jump, length(second) + 1});
      append(both, second);
      first = std::move(both);
    }
    --depth_;
    return first;
  }

  Steps branch() {
    Steps steps;
    while (!left_.empty() && left_.front() != '|' && left_.front() != ')') {
      append(steps, repeated(atom()));
      if (length(steps) > most_steps) not_read("the pattern is too long");
    }
    return steps;
  }

  // A name matches or does not: greedy and lazy repetitions are alike.
  Steps repeated(Steps one) {
    for (;;) {
      int least = 0, most = -1;
      if (take("*")) {
      } else if (take("+")) {
        least = 1;
      } else if (take("?")) {
        most = 1;
      } else if (!bounds(least, most)) {
        return one;
      }
      if (take("+")) not_read("possessive repetitions are not known here");
      take("?");
      one = times(one, least, most);
    }
  }

  // "{2}", "{2,}", "{,3}" or "{2,3}"; any other brace is itself.
  bool bounds(int& least, int& most) {
    const std::size_t end = left_.find('}');
    if (!left_.starts_with("{") || end == left_.npos) return false;
    const std::string_view inside = left_.substr(1, end - 1);
    if (inside.empty() || inside == "," || inside.find_first_not_of("0123456789,") != inside.npos)
      return false;
    const std::size_t comma = inside.find(',');
    const auto number = [](std::string_view digits) {
      if (digits.size() > 4) not_read("a part repeats too often");
      return std::stoi(std::string(digits));
    };
    const std::string_view low = inside.substr(0, comma);
    least = low.empty() ? 0 : number(low);
    if (comma == inside.npos)
      most = least;
    else if (comma + 1 < inside.size())
      most = number(inside.substr(comma + 1));
    if (std::max(least, most) > most_repeats) not_read("a part repeats too often");
    left_.remove_prefix(end + 1);
    return true;
  }

  static Steps times(const Steps& one, int least, int most) {
    Steps steps;
    const auto room = [&] {
      if (length(steps) > most_steps) not_read("the pattern is too long");
    };
    for (int i = 0; i < least; ++i, room()) append(steps, one);
    if (most < 0) {
      steps.push_back({Kind::fork, 1, length(one) + 2});
      append(steps, one);
      steps.push_back({Kind::jump, -(length(one) + 1)});
    }
    for (int i = least; i < most; ++i, room()) {
      steps.push_back({Kind::fork, 1, length(one) + 1});
      append(steps, one);
    }
    return steps;
  }

  Steps atom() {
    const char c = next();
    switch (c) {
      case '(': return group();
      case '[': return {one_of(characters())};
      case '.': return {one_of(~Set().set('\n'))};
      case '^': return {{Kind::begin}};
      case '$': return {{Kind::end}};
      case '\\': return escaped();
      case '*':
      case '+':
      case '?': not_read(fmt::format("\"{}\" repeats nothing", c));
      default: return {one_of(only(c))};
    }
  }

  Steps group() {
    Steps steps;
    if (take("?=")) {
      steps = looking(Kind::ahead, false);
    } else if (take("?!")) {
      steps = looking(Kind::ahead, true);
    } else if (take("?<=")) {
      steps = looking(Kind::behind, false);
    } else if (take("?<!")) {
      steps = looking(Kind::behind, true);
    } else {
      if (take("?P<")) {
        while (next() != '>') {
        }
      } else if (!take("?:") && left_.starts_with("?")) {
        not_read(fmt::format("\"({}\" is not known here", left_.substr(0, 3)));
      }
      steps = alternatives();
    }
    if (!take(")")) not_read("a group is not closed");
    return steps;
  }

  Steps looking(Kind where, bool fails) {
    const Steps inside = alternatives();
    Steps steps{{where, length(inside) + 2, fails ? 1 : 0}};
    append(steps, inside);
    steps.push_back({Kind::found});
    return steps;
  }

  Steps escaped() {
    const char c = next();
    if (c == 'b' || c == 'B') return {{Kind::edge, c == 'B' ? 1 : 0}};
    if (c == 'A') return {{Kind::begin}};
    if (c == 'Z') return {{Kind::end}};
    return {one_of(class_of(c))};
  }

  // "\d" and its like, or a character that the backslash makes one of its own.
  Set class_of(char c) const {
    switch (c) {
      case 'd': return set_of(std::isdigit);
      case 'D': return ~set_of(std::isdigit);
      case 'w': return set_of(is_word);
      case 'W': return ~set_of(is_word);
      case 's': return set_of(std::isspace);
      case 'S': return ~set_of(std::isspace);
      default: break;
    }
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      not_read(fmt::format("\"\\{}\" is not known here", c));
    return only(c);
  }

  Set only(char c) const {
    Set set;
    const auto byte = static_cast<unsigned char>(c);
    set.set(byte);
    if (any_case_) set.set(at(std::tolower(byte)));
    if (any_case_) set.set(at(std::toupper(byte)));
    return set;
  }

  Set characters() {
    const bool others = take("^");
    Set set;
    for (bool first = true; first || !left_.starts_with("]"); first = false) {
      const char c = next();
      if (c == '\\') {
        set |= class_of(next());
      } else if (left_.size() > 1 && left_[0] == '-' && left_[1] != ']') {
        next();
        const char last = next();
        const int low = static_cast<unsigned char>(c), high = static_cast<unsigned char>(last);
        if (high < low) not_read(fmt::format("the range {}-{} is reversed", c, last));
        for (int i = low; i <= high; ++i) set |= only(static_cast<char>(i));
      } else {
        set |= only(c);
      }
    }
    next();
    return others ? ~set : set;
  }

  Step one_of(const Set& set) {
    const auto found = std::ranges::find(sets_, set);
    const auto index = found - sets_.begin();
    if (found == sets_.end()) sets_.push_back(set);
    return {Kind::set, static_cast<int>(index)};
  }

  std::string_view left_;
  std::vector<Set>& sets_;
  bool any_case_ = false;
  int depth_ = 0;
};

}  // namespace

NamePattern NamePattern::regex(std::string_view text) {
  NamePattern pattern;
  pattern.steps_ = Parser(text, pattern.sets_).read();
  return pattern;
}

NamePattern NamePattern::glob(std::string_view text) {
  std::string regex;
  for (std::size_t i = 0; i < text.size(); ++i) {
    // A bracket right behind the opening one, or behind its "!", is of the class.
    const std::size_t closing = text.find(']', i + (text.substr(i).starts_with("[!") ? 3 : 2));
    if (text[i] == '*') {
      regex += ".*";
    } else if (text[i] == '?') {
      regex += '.';
    } else if (text[i] == '[' && closing != text.npos) {
      std::string inside(text.substr(i + 1, closing - i - 1));
      if (inside.starts_with('!')) inside.front() = '^';
      regex += '[' + inside + ']';
      i = closing;
    } else {
      if (std::isalnum(static_cast<unsigned char>(text[i])) == 0) regex += '\\';
      regex += text[i];
    }
  }
  return NamePattern::regex(regex + "\\Z");
}

bool NamePattern::holds(const Step& step, int number, std::string_view name, std::size_t at) const {
  const auto word = [&](std::size_t i) {
    return i < name.size() && is_word(static_cast<unsigned char>(name[i])) != 0;
  };
  switch (step.kind) {
    case Kind::begin: return at == 0;
    case Kind::end: return at == name.size();
    case Kind::edge: return ((at > 0 && word(at - 1)) != word(at)) == (step.a == 0);
    case Kind::ahead: return runs(number + 1, name, at, name.size()) == (step.b == 0);
    case Kind::behind: {
      bool any = false;
      for (std::size_t from = 0; from <= at && !any; ++from)
        any = runs(number + 1, name, from, at, true);
      return any == (step.b == 0);
    }
    default: return true;
  }
}

bool NamePattern::runs(int first, std::string_view name, std::size_t from, std::size_t to,
                       bool whole) const {
  // Most patterns begin with characters that most names do not have.
  while (steps_[at(first)].kind == Kind::set) {
    const Step& step = steps_[at(first)];
    if (from == to || !sets_[at(step.a)][static_cast<unsigned char>(name[from])]) return false;
    ++first, ++from;
  }
  std::vector<int> now{first}, then;
  std::vector<std::size_t> seen(steps_.size(), name.size() + 1);
  for (std::size_t at = from;; ++at) {
    for (std::size_t i = 0; i < now.size(); ++i) {  // grows
      const int number = now[i];
      if (std::exchange(seen[static_cast<std::size_t>(number)], at) == at) continue;
      const Step& step = steps_[static_cast<std::size_t>(number)];
      switch (step.kind) {
        case Kind::found:
          if (!whole || at == to) return true;
          break;
        case Kind::set:
          if (at < to &&
              sets_[static_cast<std::size_t>(step.a)][static_cast<unsigned char>(name[at])])
            then.push_back(number + 1);
          break;
        case Kind::jump: now.push_back(number + step.a); break;
        case Kind::fork:
          now.push_back(number + step.a);
          now.push_back(number + step.b);
          break;
        case Kind::ahead:
        case Kind::behind:
          if (holds(step, number, name, at)) now.push_back(number + step.a);
          break;
        default:
          if (holds(step, number, name, at)) now.push_back(number + 1);
      }
    }
    if (then.empty() || at == to) return false;
    now.swap(then);
    then.clear();
  }
}

}  // namespace moesim
