// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "tools/cli/program.hpp"

namespace moesim {

Setup setup_validate, setup_calibrate, setup_reproduce, setup_study, setup_sensitivity;

namespace {

constexpr std::array judge{
    Verb{"validate", "predictions compared with measurements, with the error of every category",
         setup_validate},
    Verb{"reproduce", "published figures compared with simulated ones, with the verdict",
         setup_reproduce},
    Verb{"study", "a map of regimes: which policy at how many copies serves a batch best",
         setup_study},
    Verb{"sensitivity", "which constants of the prices decide a ranking or a figure",
         setup_sensitivity}};

constexpr std::array fit{
    Verb{"calibrate", "fit the constants of a GPU or an engine to measurements", setup_calibrate}};

constexpr std::array groups{VerbGroup{"Judge the model", judge}, VerbGroup{"Fit the model", fit}};

}  // namespace

}  // namespace moesim

int main(int argc, char** argv) {
  return moesim::run_command_line(
      {"moesim-lab", "fits and judges the model of moesim", moesim::groups}, argc, argv);
}
