// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "tools/cli/program.hpp"

namespace moesim {

namespace {

constexpr std::array ask{
    Verb{"run", "simulate one experiment", setup_run},
    Verb{"plan", "the best deployment of a model on some GPUs under an SLO", setup_plan},
    Verb{"explain", "one forward step, operation by operation", setup_explain},
    Verb{"price", "step times for another scheduler: a batch a line, from stdin or a socket",
         setup_price},
    Verb{"what-if", "an experiment compared with a changed one, and what tells why", setup_what_if},
    Verb{"replay", "score policies on a recorded routing trace, without an event loop",
         setup_replay},
    Verb{"place", "make an expert placement from observed loads", setup_place},
    Verb{"bench", "your own benchmark compared with its simulation; corrects predictions",
         setup_bench}};

constexpr std::array many{
    Verb{"sweep", "simulate many experiments, on all cores, into a SQLite store; resumes",
         setup_sweep},
    Verb{"tune", "the best point of a sweep under an SLO, without running all points", setup_tune},
    Verb{"compare", "ratios between two settings on otherwise equal points; the best value",
         setup_compare},
    Verb{"pareto", "the frontier of a store: throughput against latency", setup_pareto},
    Verb{"report", "one HTML page of a store that opens offline", setup_report}};

constexpr std::array inputs{
    Verb{"list", "policies, models, GPUs and clusters to choose from", setup_list},
    Verb{"keys", "the keys of an experiment, with unit and default; or a JSON Schema", setup_keys},
    Verb{"check", "read an experiment and everything it names, and say what is wrong", setup_check},
    Verb{"trace", "look at, check, import or generate routing traces", setup_trace},
    Verb{"completion", "words that a shell completes: bash, zsh, fish", setup_completion}};

constexpr std::array groups{VerbGroup{"One question", ask}, VerbGroup{"Many runs", many},
                            VerbGroup{"What goes in", inputs}};

}  // namespace

const Program& moesim_program() {
  static constexpr Program program{
      "moesim", "simulates clusters that serve Mixture-of-Experts models", groups};
  return program;
}

}  // namespace moesim

int main(int argc, char** argv) {
  return moesim::run_command_line(moesim::moesim_program(), argc, argv);
}
