// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace moesim {

/// True if a text holds what a terminal obeys and no reader sees. These are control characters of
/// C0 and C1, marks that turn the direction of writing, and bytes that are not UTF-8. `allowed`
/// lists control characters that may be there.
bool has_hidden_characters(std::string_view text, std::string_view allowed = "");

/// A text with each hidden character but line feed and tab written out as JSON has it: "\u001b"; a
/// byte that is not UTF-8 as "\xff".
std::string visible(std::string_view text);

/// A text as one word of a shell command, in quotes where a shell would read it otherwise.
std::string in_shell(const std::string& text);

/// Quotes as in_shell(), for a command that people copy out of a terminal. Throws ConfigError if
/// the text holds hidden characters.
std::string shell_word(const std::string& text);

/// Quotes as shell_word(), for a name or path where a program would take a leading dash for an
/// option: "-x" becomes "./-x".
std::string shell_path(const std::string& text);

/// A text between the double quotes of YAML and JSON, ASCII throughout. Throws as shell_word().
std::string yaml_text(const std::string& text);

}  // namespace moesim
