// SPDX-License-Identifier: Apache-2.0
#include "hardware/quoting.hpp"

#include <fmt/format.h>

#include "hardware/config.hpp"

namespace moesim {

namespace {

// The next character of a text in UTF-8; a byte that begins none stands for itself.
struct Character {
  char32_t code = 0;
  std::size_t bytes = 1;
  bool valid = false;
};

Character character_at(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  const std::size_t bytes = first < 0x80   ? 1
                            : first < 0xc2 ? 0
                            : first < 0xe0 ? 2
                            : first < 0xf0 ? 3
                            : first < 0xf5 ? 4
                                           : 0;
  if (bytes == 0 || bytes > text.size()) return {first};
  char32_t code = bytes == 1 ? first : first & (0x7fu >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {first};
    code = code << 6 | (byte(i) & 0x3fu);
  }
  return {code, bytes, true};
}

// C0, DEL, C1; line and paragraph separators; marks of direction; the byte order mark.
bool is_hidden(char32_t c) {
  return c < 0x20 || (c >= 0x7f && c < 0xa0) || (c >= 0x200e && c <= 0x200f) ||
         (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069) || c == 0xfeff;
}

void require_visible(const std::string& text) {
  if (has_hidden_characters(text))
    throw ConfigError(
        "\"{}\" has a control or hidden character, so no command with it is printed; rename it",
        visible(text));
}

}  // namespace

bool has_hidden_characters(std::string_view text, std::string_view allowed) {
  while (!text.empty()) {
    const Character c = character_at(text);
    const bool stands = c.bytes == 1 && allowed.find(text[0]) != std::string_view::npos;
    if (!stands && (!c.valid || is_hidden(c.code))) return true;
    text.remove_prefix(c.bytes);
  }
  return false;
}

std::string visible(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const Character c = character_at(text);
    if (c.code == '\n' || c.code == '\t' || (c.valid && !is_hidden(c.code)))
      shown += text.substr(0, c.bytes);
    else
      shown += fmt::format("\\{}", c.valid ? fmt::format("u{:04x}", static_cast<unsigned>(c.code))
                                           : fmt::format("x{:02x}", static_cast<unsigned>(c.code)));
    text.remove_prefix(c.bytes);
  }
  return shown;
}

std::string in_shell(const std::string& text) {
  constexpr std::string_view plain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,+@%";
  // zsh takes a leading "=" for a command's place.
  if (!text.empty() && text.front() != '=' && text.find_first_not_of(plain) == std::string::npos)
    return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string(R"('\'')") : std::string(1, c);
  return quoted + "'";
}

std::string shell_word(const std::string& text) {
  require_visible(text);
  return in_shell(text);
}

std::string shell_path(const std::string& text) {
  return shell_word(text.starts_with('-') ? "./" + text : text);
}

std::string yaml_text(const std::string& text) {
  require_visible(text);
  return Json(text).dump(-1, ' ', /*ensure_ascii=*/true);
}

}  // namespace moesim
