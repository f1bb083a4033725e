// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include <fmt/format.h>

#include "tools/cli/output.hpp"
#include "tools/cli/verbs.hpp"
#include "tools/sweep/sweep.hpp"

namespace moesim {

namespace {

struct MergeOptions {
  std::vector<std::string> stores;
  std::string output;
};

int run(const MergeOptions& options) {
  merge_stores({options.stores.begin(), options.stores.end()}, options.output);
  print(sweep_text(read_for_text(Store::open(options.output))));
  return 0;
}

}  // namespace

Action setup_merge(CLI::App& command) {
  const auto options = std::make_shared<MergeOptions>();
  command.add_option("STORE", options->stores, "stores that `moesim sweep --shard I/N` wrote")
      ->required();
  command.add_option("-o,--output", options->output, "store of all shards; new, or one to add to")
      ->required();
  command.footer(
      "Merging again changes nothing. Stores of different sweeps or schemas are refused. Stores "
      "that\n"
      "hold different results of one point are refused too. The output is then left unchanged.");
  return [options] { return run(*options); };
}

}  // namespace moesim
