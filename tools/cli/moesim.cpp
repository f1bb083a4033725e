// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
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
#include "tools/cli/table.hpp"
#include "tools/cli/verbs.hpp"

namespace moesim {

std::span<const Verb> verbs() {
  static constexpr std::array table{
      Verb{"run", "simulate one experiment", setup_run},
      Verb{"plan", "the best deployment of a model on some GPUs under an SLO", setup_plan},
      Verb{"sweep", "simulate many experiments, on all cores, into a SQLite store; resumes",
           setup_sweep},
      Verb{"merge", "merge the shards of a sweep into one store", setup_merge},
      Verb{"pareto", "the frontier of a store: throughput against latency", setup_pareto},
      Verb{"compare", "ratios between two settings on otherwise equal points", setup_compare},
      Verb{"report", "one HTML page of a store that opens offline", setup_report},
      Verb{"best", "the best value of one axis, and what each value gains and costs", setup_best},
      Verb{"tune", "the best point of a sweep under an SLO, without running all points",
           setup_tune},
      Verb{"replay", "score policies on a recorded routing trace, without an event loop",
           setup_replay},
      Verb{"place", "make an expert placement from observed loads", setup_place},
      Verb{"route", "one token-routing decision, explained", setup_route},
      Verb{"explain", "one forward step, operation by operation", setup_explain},
      Verb{"what-if", "an experiment compared with a changed one, and the operations that tell why",
           setup_what_if},
      Verb{"sensitivity", "which constants of the prices decide a ranking or a figure",
           setup_sensitivity},
      Verb{"trace", "look at, check, import or generate routing traces", setup_trace},
      Verb{"list", "policies, models, GPUs and clusters to choose from", setup_list},
      Verb{"keys", "every key of an experiment, with unit and default; or a JSON Schema",
           setup_keys},
      Verb{"check", "read an experiment and everything it names, and say what is wrong",
           setup_check},
      Verb{"validate", "predictions compared with measurements, with the error of every category",
           setup_validate},
      Verb{"calibrate", "fit a GPU's constants to measured points", setup_calibrate},
      Verb{"reproduce", "published figures compared with simulated ones, with the verdict",
           setup_reproduce},
      Verb{"study", "a map of regimes: which policy at how many copies serves a batch best",
           setup_study}};
  return table;
}

namespace {

// A descriptor of stdin, stdout or stderr that the caller closed would be given to the next file
// that is opened, and what is printed would land in it. What is opened in their place takes no
// results, which is then said, and swallows messages.
void open_closed_descriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) >= 0) continue;
    ::open("/dev/null", descriptor == STDERR_FILENO ? O_WRONLY : O_RDONLY);  // the lowest free one
  }
}

// Of a message: names out of configs and traces never reach a terminal as escape sequences.
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
void refuse_unknown_verb(std::string_view word) {
  std::vector<std::string_view> names;
  for (const Verb& verb : verbs()) names.push_back(verb.name);
  if (word.starts_with('-') || std::ranges::find(names, word) != names.end()) return;
  std::error_code none;
  const std::string_view nearest = nearest_name(word, names);
  if (std::filesystem::exists(word, none))
    throw ConfigError(fmt::format("{} is a file; to simulate it: moesim run {}", word, word));
  throw ConfigError(fmt::format("there is no verb \"{}\"; {}", word,
                                nearest.empty() ? fmt::format("one of: {}", join_names(names))
                                                : fmt::format("did you mean \"{}\"?", nearest)));
}

// A change of the config that follows another one: --set /a=1 /b=2. A change in two words: --set
// lengths 2k.
void refuse_change_without_set(int argc, char** argv) {
  for (int i = 2; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (argv[i - 1] == std::string_view("--set") && word.find('=') == word.npos) {
      throw ConfigError(fmt::format(
          "--set {}: expected /pointer=value in one word, e.g. /placement/replication=1.25", word));
    }
    if (!word.starts_with('/') || word.find('=') == word.npos ||
        argv[i - 1] == std::string_view("--set"))
      continue;
    throw ConfigError(
        fmt::format("--set takes one change; write --set again before the next: --set {}", word));
  }
}

// An option that the verb does not have, where another is called nearly so.
void refuse_unknown_option(const CLI::App& command, int argc, char** argv) {
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
    throw ConfigError(fmt::format("moesim {} has no --{}; did you mean --{}?", command.get_name(),
                                  name, nearest));
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

int main_with_errors(std::vector<char*> words) {
  const int argc = static_cast<int>(words.size());
  char** const argv = words.data();
  CLI::App app("moesim: simulates clusters that serve Mixture-of-Experts models", "moesim");
  app.require_subcommand(1);
  app.formatter(std::make_shared<NarrowHelp>());
  app.set_version_flag("--version", "moesim " MOESIM_VERSION);
  Action action;
  for (const Verb& verb : verbs()) {
    CLI::App* command = app.add_subcommand(std::string(verb.name), std::string(verb.summary));
    command->callback([&action, run = verb.setup(*command)] { action = run; });
  }
  if (argc > 1) refuse_unknown_verb(argv[1]);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr)
      refuse_change_without_set(argc, argv);
    for (const CLI::App* command : app.get_subcommands())
      refuse_unknown_option(*command, argc, argv);
    const std::string verb = argc > 1 && argv[1][0] != '-' ? fmt::format(" {}", argv[1]) : "";
    fmt::print(stderr, "moesim: {} (see moesim{} --help)\n", visible(one_line(error.what())), verb);
    return 2;
  }
  return action();
}

}  // namespace

}  // namespace moesim

int main(int argc, char** argv) {
  moesim::open_closed_descriptors();
  // stdout is for results; everything else goes to stderr.
  spdlog::set_default_logger(spdlog::stderr_color_mt("moesim"));
  auto format = std::make_unique<spdlog::pattern_formatter>();
  format->add_flag<moesim::VisiblePayload>('*').set_pattern("%^%l%$: %*");
  spdlog::set_formatter(std::move(format));
  // Buffers of steps come and go by the thousand: the heap keeps them, the kernel does not clear
  // their pages anew each time.
  constexpr int kept_by_heap = 256 << 20;
  mallopt(M_MMAP_THRESHOLD, kept_by_heap);
  mallopt(M_TRIM_THRESHOLD, kept_by_heap);
  // A file that outgrows its limit is then an error of writing, which is said, not a sudden end.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    const int code = moesim::main_with_errors(moesim::with_help_as_option(argc, argv));
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      fmt::print(stderr, "moesim: the results could not be written to stdout; is the disk full?\n");
      return 1;
    }
    return code;
  } catch (const moesim::ConfigError& error) {
    fmt::print(stderr, "moesim: {}\n", moesim::visible(moesim::one_line(error.what())));
    return 2;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "moesim: not enough memory for an input or a run of this size\n");
    return 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "moesim: internal error: {}\n", moesim::visible(error.what()));
    return 1;
  }
}
