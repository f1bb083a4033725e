// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "sim/report/metric_catalogue.hpp"
#include "tools/analysis/best.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/verbs.hpp"

namespace moesim {

Action setup_best(CLI::App& command) {
  struct Options {
    std::string store, over, metric{moesim::metric("total_token_throughput").pointer};
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
    std::vector<std::string> pointers = best_pointers();
    pointers.insert(pointers.end(), {options->over, options->metric});
    const BestChoice choice = best_choice(Store::open(options->store).read(pointers), options->over,
                                          options->metric, options->lower);
    print(options->json ? best_json(choice).dump(1) + "\n" : best_text(choice));
    return 0;
  };
}

}  // namespace moesim
