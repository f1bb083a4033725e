// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "tools/analysis/best.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/verbs.hpp"

namespace moesim {

Action setup_best(CLI::App& command) {
  struct Options {
    std::string store, over, metric = "/metrics/total_token_throughput";
    bool lower = false, json = false;
  };
  const auto options = std::make_shared<Options>();
  command.add_option("STORE", options->store, "what `moesim sweep` wrote")->required();
  command.add_option("--over", options->over, "pointer to the axis, e.g. /placement/replication")
      ->required();
  command.add_option("--metric", options->metric, "to maximise; a pointer into the report")
      ->capture_default_str();
  command.add_flag("--lower", options->lower, "minimise the metric instead");
  command.add_flag("--json", options->json, "print JSON instead of tables");
  return [options] {
    const BestChoice choice = best_choice(Store::open(options->store).read(), options->over,
                                          options->metric, options->lower);
    print(options->json ? best_json(choice).dump(1) + "\n" : best_text(choice));
    return 0;
  };
}

}  // namespace moesim
