// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/program.hpp"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "hardware/parse_json.hpp"
#include "hardware/quoting.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/serving_question.hpp"
#include "tools/cli/table.hpp"

namespace moesim {

namespace {

std::vector<std::string_view> names_of(const Program& program) {
  std::vector<std::string_view> names;
  for (const VerbGroup& group : program.groups)
    for (const Verb& verb : group.verbs) names.push_back(verb.name);
  return names;
}

// A descriptor of stdin, stdout or stderr that the caller closed goes to the next file that is
// opened, and output would land in it. The file opened in its place takes no results, which is then
// said, and swallows messages.
void open_closed_descriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) >= 0) continue;
    ::open("/dev/null", descriptor == STDERR_FILENO ? O_WRONLY : O_RDONLY);  // the lowest free one
  }
}

// Payload of a message: names out of configs and traces never reach a terminal as escape sequences.
class VisiblePayload final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& out) override {
    const std::string shown = visible({message.payload.data(), message.payload.size()});
    out.append(shown.data(), shown.data() + shown.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<VisiblePayload>();
  }
};

// Help that fits the terminal, and 100 columns.
class NarrowHelp : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool positional) const override {
    const std::size_t indent = get_column_width();
    std::string name = "  " + make_option_name(option, positional) + make_option_opts(option);
    std::string text =
        wrapped(std::string(indent, ' ') + make_option_desc(option), columns(), indent);
    if (name.size() < indent) return text.replace(0, name.size(), name) + "\n";
    return wrapped(name, columns(), 4) + "\n" + text + "\n";
  }
  std::string make_footer(const CLI::App* app) const override {
    std::istringstream footer(app->get_footer());
    std::string text;
    for (std::string line; std::getline(footer, line);)
      text += wrapped(line, columns(), std::min(line.find_first_not_of(' '), line.size())) + "\n";
    return text;
  }

 private:
  static std::size_t columns() {
    constexpr std::size_t least = 60;
    return std::clamp(output_columns().value_or(usual_columns), least, usual_columns);
  }
};

// A first word that is no verb, which the parser would only miss one for.
void refuse_unknown_verb(const Program& program, std::string_view word) {
  const std::vector<std::string_view> names = names_of(program);
  if (word.starts_with('-') || std::ranges::find(names, word) != names.end()) return;
  std::error_code none;
  const std::string_view nearest = nearest_name(word, names);
  if (std::filesystem::exists(word, none))
    throw ConfigError("{} is a file; to simulate it: moesim run {}", word, word);
  throw ConfigError("there is no verb \"{}\"; {}", word,
                    nearest.empty() ? fmt::format("one of: {}", join_names(names))
                                    : fmt::format("did you mean \"{}\"?", nearest));
}

// A change of the config that follows another one: --set /a=1 /b=2. A change in two words: --set
// lengths 2k.
void refuse_change_without_set(int argc, char** argv) {
  for (int i = 2; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (argv[i - 1] == std::string_view("--set") && word.find('=') == word.npos) {
      throw ConfigError(
          "--set {}: expected /pointer=value in one word, e.g. /placement/replication=1.25", word);
    }
    if (!word.starts_with('/') || word.find('=') == word.npos ||
        argv[i - 1] == std::string_view("--set"))
      continue;
    throw ConfigError("--set takes one change; write --set again before the next: --set {}", word);
  }
}

// An option that the verb does not have, where another is called nearly so.
void refuse_unknown_option(const Program& program, const CLI::App& command, int argc, char** argv) {
  std::vector<std::string_view> names;
  for (const CLI::Option* option : command.get_options())
    names.insert(names.end(), option->get_lnames().begin(), option->get_lnames().end());
  for (int i = 2; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (!word.starts_with("--")) continue;
    const std::string_view name = word.substr(2, word.find('=') - 2);
    if (std::ranges::find(names, name) != names.end()) continue;
    const std::string_view nearest = nearest_name(name, names);
    if (nearest.empty()) continue;
    throw ConfigError("{} {} has no --{}; did you mean --{}?", program.name, command.get_name(),
                      name, nearest);
  }
}

// "help" and "help VERB", as "--help" and "VERB --help".
std::vector<char*> with_help_as_option(int argc, char** argv) {
  static char option[] = "--help";
  std::vector<char*> words(argv, argv + argc);
  if (argc > 1 && words[1] == std::string_view("help")) {
    words.erase(words.begin() + 1);
    words.push_back(option);
  }
  return words;
}

// The verbs, a line each, under the headings of their groups.
std::string list_of_verbs(const Program& program) {
  std::size_t width = 0;
  for (const std::string_view name : names_of(program)) width = std::max(width, name.size());
  std::string text = fmt::format("{}: {}\n", program.name, program.about);
  for (const VerbGroup& group : program.groups) {
    text += fmt::format("\n{}\n", group.heading);
    for (const Verb& verb : group.verbs)
      text += fmt::format("  {:{}}  {}\n", verb.name, width, verb.summary);
  }
  return text + fmt::format("\n{} VERB --help prints the options of a verb.\n", program.name);
}

}  // namespace

int run_verb(const Program& program, std::vector<char*> words) {
  const int argc = static_cast<int>(words.size());
  char** const argv = words.data();
  const std::string_view first = argc > 1 ? argv[1] : "--help";
  if (argc <= 2 && (first == "--help" || first == "-h")) {
    print(list_of_verbs(program));
    return 0;
  }
  CLI::App app(std::string(program.about), std::string(program.name));
  app.require_subcommand(1);
  app.formatter(std::make_shared<NarrowHelp>());
  app.set_version_flag("--version", fmt::format("{} " MOESIM_VERSION, program.name));
  Action action;
  for (const VerbGroup& group : program.groups) {
    for (const Verb& verb : group.verbs) {
      CLI::App* command = app.add_subcommand(std::string(verb.name), std::string(verb.summary));
      command->callback([&action, run = verb.setup(*command)] { action = run; });
    }
  }
  refuse_unknown_verb(program, first);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr)
      refuse_change_without_set(argc, argv);
    for (const CLI::App* command : app.get_subcommands())
      refuse_unknown_option(program, *command, argc, argv);
    const std::string verb = first.starts_with('-') ? "" : fmt::format(" {}", first);
    throw ConfigError("{} (see {}{} --help)", error.what(), program.name, verb);
  }
  try {
    return action();
  } catch (const ConfigError& error) {
    throw ConfigError(said_of_options(error.what()));
  }
}

int run_command_line(const Program& program, int argc, char** argv) {
  open_closed_descriptors();
  // stdout is for results; everything else goes to stderr.
  const char* const plain = std::getenv("NO_COLOR");
  const bool colour = plain == nullptr || *plain == '\0';
  spdlog::set_default_logger(
      spdlog::stderr_color_mt(std::string(program.name),
                              colour ? spdlog::color_mode::automatic : spdlog::color_mode::never));
  auto format = std::make_unique<spdlog::pattern_formatter>();
  format->add_flag<VisiblePayload>('*').set_pattern("%^%l%$: %*");
  spdlog::set_formatter(std::move(format));
  // Buffers of steps come and go by the thousand: the heap keeps them, the kernel does not clear
  // their pages anew each time.
  constexpr int kept_by_heap = 256 << 20;
  mallopt(M_MMAP_THRESHOLD, kept_by_heap);
  mallopt(M_TRIM_THRESHOLD, kept_by_heap);
  // A file that outgrows its limit is then an error of writing, which is said, not a sudden end.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    const int code = run_verb(program, with_help_as_option(argc, argv));
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      fmt::print(stderr, "{}: the results could not be written to stdout; is the disk full?\n",
                 program.name);
      return 1;
    }
    return code;
  } catch (const ConfigError& error) {
    fmt::print(stderr, "{}: {}\n", program.name, visible(one_line(error.what())));
    return 2;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "{}: not enough memory for an input or a run of this size\n", program.name);
    return 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: internal error: {}\n", program.name, visible(error.what()));
    return 1;
  }
}

}  // namespace moesim
