// SPDX-License-Identifier: Apache-2.0
#include "sim/placement/files/plain_yaml.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "hardware/text.hpp"
#include "traces/mapped_file.hpp"

namespace moesim {

namespace {

struct Line {
  std::size_t number;  // from 1
  std::size_t indent;
  std::string_view text;  // without indent, comment and trailing space; not empty
};

class Parser {
 public:
  Parser(std::string_view text, const std::filesystem::path& file) : file_(file) {
    for_each_line(text, [&](std::size_t number, std::string_view line) {
      line = trimmed(without_comment(line));
      if (line.empty() || (line == "---" && lines_.empty())) return;
      const std::size_t indent = line.find_first_not_of(' ');
      lines_.push_back({number, indent, line.substr(indent)});
      if (line[indent] == '\t') fail("is indented by a tab; expected spaces");
      next_ = lines_.size();
    });
    next_ = 0;
  }

  Json parse() {
    if (lines_.empty()) throw ConfigError("{}: is empty", file_.string());
    if (at_item(line().indent)) fail("is a list; expected \"key:\" lines");
    Json value = mapping(line().indent);
    if (next_ < lines_.size()) fail("is indented less than the lines before it");
    return value;
  }

 private:
  static std::string_view without_comment(std::string_view line) {
    for (std::size_t i = 0; i < line.size(); ++i) {
      if (line[i] == '#' && (i == 0 || line[i - 1] == ' ')) return line.substr(0, i);
    }
    return line;
  }
  static std::string_view trimmed(std::string_view text) {
    return text.substr(0, text.find_last_not_of(" \t") + 1);
  }

  [[noreturn]] void fail(std::string_view what) const {
    const std::size_t at = std::min(next_, lines_.size() - 1);
    throw ConfigError("{}:{}: {}", file_.string(), lines_[at].number, what);
  }

  const Line& line() const { return lines_[next_]; }
  bool at_indent(std::size_t indent) const {
    return next_ < lines_.size() && line().indent == indent;
  }
  bool at_item(std::size_t indent) const {
    return at_indent(indent) && (line().text == "-" || line().text.starts_with("- "));
  }

  Json mapping(std::size_t indent) {
    Json members = Json::object();
    while (at_indent(indent) && !at_item(indent)) {
      const auto colon = line().text.find(':');
      if (colon == std::string_view::npos) fail("has no \"key:\"");
      std::string key = key_of(line().text.substr(0, colon));
      if (members.contains(key)) fail(fmt::format("has the key {} for the second time", key));
      Json value = value_after(line().text.substr(colon + 1), indent);
      members[std::move(key)] = std::move(value);
    }
    if (next_ < lines_.size() && line().indent > indent) fail("is indented more than its siblings");
    return members;
  }

  // Reads what follows "key:" on the same line, or as a block below. The lines read are behind
  // next_.
  Json value_after(std::string_view rest, std::size_t indent) {
    if (!rest.empty() && rest.front() != ' ') fail("has no space after \"key:\"");
    flow_ = rest;
    skip_space();
    if (!flow_.empty()) return flow_value();
    const std::size_t key_line = next_++;
    if (at_item(indent)) return items(indent);  // PyYAML does not indent the items of a list
    if (next_ < lines_.size() && line().indent > indent) {
      return at_item(line().indent) ? items(line().indent) : mapping(line().indent);
    }
    next_ = key_line;
    fail("has a key without a value");
  }

  Json items(std::size_t indent) {
    Json list = Json::array();
    for (; at_item(indent); ++next_) list.push_back(number_of(line().text.substr(1)));
    return list;
  }

  // A number, [list] or {mapping} in flow_, which goes on in the lines below as long as it is open.
  Json flow_value() {
    Json value = accept('{') ? flow_mapping() : flow_element();
    skip_space();
    if (!flow_.empty()) fail(fmt::format("has more than a value: \"{}\"", flow_));
    ++next_;
    return value;
  }

  Json flow_element() { return accept('[') ? flow_list() : Json(number_of(flow_word())); }

  Json flow_list() {
    Json list = Json::array();
    while (!accept_on_lines(']')) {
      list.push_back(number_of(flow_word()));
      if (!accept_on_lines(',') && !closes(']')) fail("has no , or ] after a number of a list");
    }
    return list;
  }

  Json flow_mapping() {
    Json members = Json::object();
    while (!accept_on_lines('}')) {
      std::string key = key_of(flow_word());
      if (!accept_on_lines(':')) fail("has no \"key:\"");
      if (members.contains(key)) fail(fmt::format("has the key {} for the second time", key));
      continue_line();
      members[std::move(key)] = flow_element();
      if (!accept_on_lines(',') && !closes('}')) fail("has no , or } after a member");
    }
    return members;
  }

  void skip_space() {
    const auto text = flow_.find_first_not_of(' ');
    flow_.remove_prefix(text == std::string_view::npos ? flow_.size() : text);
  }
  bool closes(char c) const { return flow_.starts_with(c); }
  bool accept(char c) {
    skip_space();
    if (!flow_.starts_with(c)) return false;
    flow_.remove_prefix(1);
    return true;
  }
  // Inside brackets: the next line where this one is read to its end.
  void continue_line() {
    skip_space();
    if (!flow_.empty()) return;
    if (next_ + 1 == lines_.size()) fail("opens a bracket that is never closed");
    flow_ = lines_[++next_].text;
  }
  bool accept_on_lines(char c) {
    continue_line();
    return accept(c);
  }
  std::string_view flow_word() {
    const std::string_view word = trimmed(flow_.substr(0, flow_.find_first_of(",:[]{}")));
    flow_.remove_prefix(word.size());
    return word;
  }

  std::int64_t number_of(std::string_view text) const {
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    const auto number = try_number<std::int64_t>(text);
    if (!number) fail(fmt::format("has \"{}\" where a whole number is expected", text));
    return *number;
  }

  std::string key_of(std::string_view text) const {
    text = trimmed(text);
    const bool quoted = text.size() >= 2 && (text.front() == '"' || text.front() == '\'') &&
                        text.back() == text.front();
    if (quoted) text = text.substr(1, text.size() - 2);
    const auto is_word = [](char c) {
      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    };
    if (text.empty() || !std::ranges::all_of(text, is_word)) {
      fail(fmt::format("has \"{}\" where a key is expected", text));
    }
    return std::string(text);
  }

  const std::filesystem::path& file_;
  std::vector<Line> lines_;
  std::size_t next_ = 0;
  std::string_view flow_;  // what is left of the flow text of line next_
};

}  // namespace

Json parse_plain_yaml(std::string_view text, const std::filesystem::path& file) {
  return Parser(text, file).parse();
}

}  // namespace moesim
