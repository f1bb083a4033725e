// SPDX-License-Identifier: Apache-2.0
#include "hardware/parse_json.hpp"

#include <algorithm>
#include <set>
#include <vector>

#include <fmt/format.h>

#include "hardware/text_file.hpp"

namespace moesim {

namespace {

constexpr int deepest = 64;

// Brackets that are open at once, outside of strings.
bool too_deep(std::string_view text) {
  int open = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++open > deepest) return true;
    } else if (c == ']' || c == '}') {
      --open;
    }
  }
  return false;
}

// Throws ConfigError on the second of two equal keys of one object.
class KeyCheck : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return ended(); }
  bool boolean(bool) override { return ended(); }
  bool number_integer(number_integer_t) override { return ended(); }
  bool number_unsigned(number_unsigned_t) override { return ended(); }
  bool number_float(number_float_t, const string_t&) override { return ended(); }
  bool string(string_t&) override { return ended(); }
  bool binary(binary_t&) override { return ended(); }
  bool start_object(std::size_t) override { return begin(true); }
  bool start_array(std::size_t) override { return begin(false); }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool parse_error(std::size_t, const std::string&, const Json::exception&) override {
    return false;
  }

  bool key(string_t& key) override {
    Open& object = open_.back();
    object.key = key;
    if (object.keys.insert(key).second) return true;
    Json::json_pointer place;
    for (const Open& open : open_)
      place.push_back(open.is_object ? open.key : std::to_string(open.index));
    throw ConfigError("\"{}\" is there twice; leave it in one place", place.to_string());
  }

 private:
  // A list or an object around the value that is read.
  struct Open {
    bool is_object;
    std::set<std::string> keys{};
    std::string key{};      // the latest, of an object
    std::size_t index = 0;  // of the next value
  };

  bool begin(bool is_object) {
    open_.push_back({is_object});
    return true;
  }
  bool end() {
    open_.pop_back();
    return ended();
  }
  bool ended() {
    if (!open_.empty()) ++open_.back().index;
    return true;
  }

  std::vector<Open> open_;
};

// True if it is JSON. Throws ConfigError if an object has a key twice.
bool is_json(std::string_view text) {
  KeyCheck keys;
  return Json::sax_parse(text, &keys);
}

// Python's json writes floats that JSON has no word for; they become null.
std::string without_python_words(std::string_view text) {
  std::string plain;
  plain.reserve(text.size());
  bool in_string = false;
  for (std::size_t i = 0; i < text.size();) {
    const auto word = [&]() -> std::string_view {
      for (const std::string_view one : {"NaN", "Infinity", "-Infinity"}) {
        if (!in_string && text.substr(i, one.size()) == one) return one;
      }
      return {};
    }();
    if (!word.empty()) {
      plain += "null";
      i += word.size();
      continue;
    }
    if (text[i] == '"') in_string = !in_string;
    if (in_string && text[i] == '\\' && i + 1 < text.size()) plain += text[i++];
    plain += text[i++];
  }
  return plain;
}

// True if the bracket that ends at `byte` closes a list or object behind a comma.
bool ends_with_comma(std::string_view text, std::size_t byte) {
  if (byte == 0 || byte > text.size()) return false;
  if (text[byte - 1] != '}' && text[byte - 1] != ']') return false;
  const std::string_view before = text.substr(0, byte - 1);
  const auto last = before.find_last_not_of(" \t\r\n");
  return last != before.npos && before[last] == ',';
}

}  // namespace

Json parse_written_json(std::string_view text) {
  if (text.starts_with("SQLite format 3"))
    throw ConfigError("a store of runs, not JSON; report, best, pareto and compare read stores");
  if (too_deep(text)) throw ConfigError("nested deeper than {} lists and objects", deepest);
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    // A number such as 1e999 is refused with another type of exception than wrong syntax, and
    // without a place.
    const auto* wrong = dynamic_cast<const Json::parse_error*>(&error);
    if (wrong != nullptr && ends_with_comma(text, wrong->byte))
      throw ConfigError("not JSON: line {} has a comma before \"{}\"; leave the comma out",
                        1 + std::ranges::count(text.substr(0, wrong->byte), '\n'),
                        text[wrong->byte - 1]);
    const std::string_view message = error.what();
    const auto place = message.find("at line");
    throw ConfigError("not JSON {}", message.substr(place == message.npos ? 0 : place));
  }
}

Json parse_json(std::string_view text) {
  if (const char* const why = unreadable(text)) throw ConfigError(why);
  if (!too_deep(text) && !is_json(text)) {
    const std::string plain = without_python_words(text);
    if (plain != text) return parse_json(plain);
  }
  return parse_written_json(text);
}

Json json_or_text(std::string_view text) {
  if (too_deep(text) || !is_json(text)) return std::string(text);
  return Json::parse(text);
}

std::string one_line(std::string_view message) {
  std::string line;
  for (const char c : message) {
    const auto byte = static_cast<unsigned char>(c);
    line += byte < 0x20 || byte == 0x7f ? fmt::format("\\u{:04x}", byte) : std::string(1, c);
  }
  return line;
}

}  // namespace moesim
