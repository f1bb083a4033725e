// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>

#include <fmt/format.h>

#include "tools/cli/option_checks.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/verbs.hpp"

namespace moesim {

namespace {

std::string options_of(const CLI::App& command) {
  std::string words;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) words += " --" + name;
  }
  for (const CLI::App* below : command.get_subcommands(nullptr)) words += " " + below->get_name();
  return words;
}

// Words after a verb; files where no word fits.
std::string bash(const CLI::App& program) {
  std::string verbs, cases;
  for (const CLI::App* command : program.get_subcommands(nullptr)) {
    verbs += " " + command->get_name();
    cases += fmt::format("    {}) words=\"{}\" ;;\n", command->get_name(), options_of(*command));
  }
  return fmt::format(
      "_{0}() {{\n  local words\n  case ${{COMP_WORDS[1]}} in\n{1}    *) words=\"\" ;;\n  esac\n"
      "  ((COMP_CWORD == 1)) && words=\"{2}\"\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"${{COMP_WORDS[COMP_CWORD]}}\"))\n}}\n"
      "complete -o default -F _{0} {0}\n",
      program.get_name(), cases, verbs);
}

std::string quoted(std::string text) {
  for (std::size_t at = 0; (at = text.find_first_of("'\\", at)) != text.npos; at += 2)
    text.insert(at, "\\");
  return "'" + text + "'";
}

std::string fish(const CLI::App& program) {
  const std::string& name = program.get_name();
  std::string lines;
  for (const CLI::App* command : program.get_subcommands(nullptr)) {
    lines += fmt::format("complete -c {} -n __fish_use_subcommand -a {} -d {}\n", name,
                         command->get_name(), quoted(command->get_description()));
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& of_option : option->get_lnames())
        lines +=
            fmt::format("complete -c {} -n '__fish_seen_subcommand_from {}' -l {} -d {}\n", name,
                        command->get_name(), of_option, quoted(option->get_description()));
    }
  }
  return lines;
}

}  // namespace

Action setup_completion(CLI::App& command) {
  const auto shell = std::make_shared<std::string>();
  option(command, "SHELL", *shell, "bash, zsh or fish", mandatory,
         CLI::IsMember({"bash", "zsh", "fish"}));
  command.footer(
      "bash, zsh: source <(moesim completion bash)\n"
      "fish: moesim completion fish > ~/.config/fish/completions/moesim.fish");
  return [shell, program = command.get_parent()] {
    if (*shell == "zsh") print("autoload -U +X bashcompinit && bashcompinit\n");
    print(*shell == "fish" ? fish(*program) : bash(*program));
    return 0;
  };
}

}  // namespace moesim
