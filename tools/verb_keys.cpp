// SPDX-License-Identifier: Apache-2.0
#include "sim/policies.hpp"
#include "tools/config_keys.hpp"
#include "tools/output.hpp"
#include "tools/verbs.hpp"

namespace moesim {

Action setup_keys(CLI::App& command) {
  struct Options {
    std::string wanted;
    bool schema = false;
  };
  const auto options = std::make_shared<Options>();
  command.add_option("NAME", options->wanted,
                     "one key of an experiment, or one extension point (default: all)");
  command.add_flag("--schema", options->schema, "a JSON Schema instead, for editors");
  return [options] {
    const PolicyRows policies = Policies().rows();
    print(options->schema ? experiment_schema(policies).dump(1) + "\n"
                          : keys_text(policies, options->wanted));
    return 0;
  };
}

}  // namespace moesim
