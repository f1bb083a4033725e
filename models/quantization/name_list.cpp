// SPDX-License-Identifier: Apache-2.0
#include "models/quantization/name_list.hpp"

#include <algorithm>
#include <cctype>
#include <stdexcept>

namespace moesim {

namespace {

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

// True if `text` continues at `at` with what can only be part of a layer's number. These are
// digits, dots, groups and classes, of which none reaches beyond that number.
bool is_of_number(const std::string& text, std::size_t at) {
  const char c = text[at], before = at > 0 ? text[at - 1] : ' ';
  const char then = at + 1 < text.size() ? text[at + 1] : ' ';
  if (c == '.' && before != '\\')
    return std::string_view("*+?{").find(then) == std::string_view::npos;
  if (c == '+') return before == ']' || before == 'd' || before == ')';
  if (c == 'd') return before == '\\';
  return is_digit(c) || std::string_view("\\.()[]{}|?:-,").find(c) != std::string_view::npos;
}

std::string without_layers(std::string text) {
  for (const std::string_view before : {"layers", "blocks"}) {
    for (std::size_t at = 0; (at = text.find(before, at)) != text.npos;) {
      at += before.size();
      std::size_t end = at;
      while (end < text.size() && is_of_number(text, end)) ++end;
      text.erase(at, end - at);
    }
  }
  return text;
}

bool is_wild(const std::string& text) { return text.find_first_of("*?[") != text.npos; }

// True if `part` is one or several whole parts of a name, side by side.
bool has_part(std::string_view name, std::string_view part) {
  for (std::size_t at = name.find(part); at != name.npos; at = name.find(part, at + 1)) {
    const std::size_t end = at + part.size();
    if ((at == 0 || name[at - 1] == '.') && (end == name.size() || name[end] == '.')) return true;
  }
  return false;
}

// The name with 0 in the place of an expert's number.
std::string of_expert_0(const std::string& name) {
  constexpr std::string_view before = "experts.";
  const std::size_t at = name.find(before);
  if (at == name.npos) return name;
  std::size_t end = at + before.size();
  while (end < name.size() && is_digit(name[end])) ++end;
  return name.substr(0, at) + "experts.0" + name.substr(end);
}

}  // namespace

NameList::NameList(const ConfigNode& node, const std::vector<std::string>& entries, Reading reading,
                   const std::vector<std::string>& prefixes)
    : reading_(reading) {
  const auto compiled = [&](const std::string& text, bool glob) {
    try {
      return glob ? NamePattern::glob(text) : NamePattern::regex(text);
    } catch (const std::invalid_argument& wrong) {
      node.fail("\"{}\" cannot be read: {}; give \"precision\" in the experiment", text,
                wrong.what());
    }
  };
  for (std::string text : entries) {
    Entry entry{text};
    const bool may_be_regex =
        reading == Reading::exact || reading == Reading::wildcard || reading == Reading::part;
    if (reading == Reading::regex) {
      if (text.starts_with("+:") || text.starts_with("-:")) text.erase(0, 2);
      entry.pattern = compiled(text, false);
    } else if (may_be_regex && text.starts_with("re:")) {
      entry.pattern = compiled(text.substr(3), false);
    } else {
      for (const std::string& prefix : prefixes)
        if (text.starts_with(prefix)) {
          text = prefixes.front() + text.substr(prefix.size());
          break;
        }
      if (reading == Reading::part &&
          (text.starts_with(".*") || text.find_first_of("\\^$()|+") != text.npos)) {
        entry.pattern = compiled(text, false);
      } else if ((reading == Reading::part || reading == Reading::wildcard) && is_wild(text)) {
        entry.pattern = compiled(text, true);
        entry.anywhere = reading == Reading::part;
      }
      entry.text = text;
    }
    const bool whole =
        !entry.pattern && (reading == Reading::exact || reading == Reading::wildcard ||
                           (reading == Reading::part && text.starts_with(prefixes.front())));
    if (whole)
      whole_.emplace(text, entries_.size());
    else
      others_.push_back(entries_.size());
    tells_apart_ = tells_apart_ || std::ranges::any_of(without_layers(text), is_digit);
    entries_.push_back(std::move(entry));
  }
}

bool NameList::holds(const Entry& entry, const std::string& name) const {
  if (entry.pattern) {
    if (entry.pattern->matches(name)) return true;
    if (!entry.anywhere) return false;
    for (std::size_t from = 0, dot = 0; dot != name.npos; from = dot + 1) {
      dot = name.find('.', from);
      if (dot != name.npos && entry.pattern->matches(name.substr(0, dot))) return true;
      if (entry.pattern->matches(
              std::string_view(name).substr(from, dot == name.npos ? dot : dot - from)))
        return true;
    }
    return false;
  }
  if (reading_ == Reading::substring) return name.find(entry.text) != name.npos;
  if (reading_ == Reading::block)
    return has_part(name, entry.text) || has_part(of_expert_0(name), entry.text);
  return has_part(name, entry.text);
}

// The entry that is the name, or the innermost module that it is in.
std::optional<std::size_t> NameList::exactly(const std::string& name) {
  std::optional<std::size_t> innermost;
  for (std::size_t end = name.size(); end != name.npos && end > 0 && !whole_.empty();
       end = reading_ == Reading::part ? name.rfind('.', end - 1) : name.npos) {
    const auto found = whole_.find(name.substr(0, end));
    if (found == whole_.end()) continue;
    entries_[found->second].used = true;
    if (!innermost) innermost = found->second;
  }
  return innermost;
}

std::optional<std::size_t> NameList::first(const WeightModule& module) {
  const std::optional<std::size_t> fused = exactly(module.fused);  // marks its entry as used
  std::optional<std::size_t> found = exactly(module.name);
  if (!found) found = fused;
  const bool decided = found && reading_ == Reading::part;
  for (const std::size_t i : others_) {
    Entry& entry = entries_[i];
    const bool decides = !decided && (!found || i < *found);
    if ((!decides && entry.used) || !holds(entry, module.name)) continue;
    entry.used = true;
    if (decides) found = i;
  }
  return found;
}

std::vector<std::string> NameList::unused() const {
  std::vector<std::string> texts;
  for (const Entry& entry : entries_)
    if (!entry.used) texts.push_back(entry.text);
  return texts;
}

}  // namespace moesim
