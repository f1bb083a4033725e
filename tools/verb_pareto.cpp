// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "tools/output.hpp"
#include "tools/pareto.hpp"
#include "tools/verbs.hpp"

namespace moesim {

namespace {

struct Options {
  std::string store, csv;
  ParetoAxes axes;
};

int run(const Options& options) {
  const Pareto result = pareto(Store::open(options.store).read(), options.axes);
  if (!options.csv.empty()) write_file(options.csv, pareto_csv(result));
  print(pareto_text(result));
  return 0;
}

}  // namespace

Action setup_pareto(CLI::App& command) {
  const auto options = std::make_shared<Options>();
  command.add_option("STORE", options->store, "what `moesim sweep` wrote")->required();
  command.add_option("--x", options->axes.x, "to minimise; a pointer into the report")
      ->capture_default_str();
  command.add_option("--y", options->axes.y, "to maximise; a pointer into the report")
      ->capture_default_str();
  command.add_option("--by", options->axes.by, "a frontier for each value of this; repeatable")
      ->allow_extra_args(false);
  command.add_option("--csv", options->csv, "write all finished points, with column on_frontier");
  command.footer(
      "Pointers lead into the report (/metrics/.., /context/config/..) or the config\n"
      "(/token_routing/decode).");
  return [options] { return run(*options); };
}

}  // namespace moesim
