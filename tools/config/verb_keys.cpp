// SPDX-License-Identifier: Apache-2.0
#include "sim/experiment/policies.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/verbs.hpp"
#include "tools/config/config_keys.hpp"
#include "tools/config/keys_markdown.hpp"
#include "tools/config/report_keys.hpp"

namespace moesim {

Action setup_keys(CLI::App& command) {
  struct KeysOptions {
    std::string wanted;
    bool schema = false, markdown = false;
  };
  const auto options = std::make_shared<KeysOptions>();
  command.add_option(
      "NAME", options->wanted,
      "one key of an experiment, one extension point, one policy, sweep, or report: what comes out "
      "(default: all of an experiment)");
  command.add_flag("--schema", options->schema,
                   "a JSON Schema of experiments instead, for editors; of sweeps if NAME is sweep");
  command.add_flag("--markdown", options->markdown,
                   "all keys as one page of Markdown, by section, those of sweeps and reports too");
  return [options] {
    const PolicyRows policies = Policies().rows();
    const std::string& wanted = options->wanted;
    if (options->markdown) {
      if (!wanted.empty() || options->schema)
        throw ConfigError("keys: --markdown prints all keys; leave out NAME and --schema");
      print(keys_markdown(policies));
      return 0;
    }
    if (!options->schema && wanted == "report") {
      print(report_keys_text());
      return 0;
    }
    if (!options->schema) {
      print(keys_text(policies, wanted));
      return 0;
    }
    if (!wanted.empty() && wanted != "sweep") {
      throw ConfigError("keys: --schema is of a whole file: give no NAME, or sweep");
    }
    print((wanted.empty() ? experiment_schema(policies) : sweep_schema(policies)).dump(1) + "\n");
    return 0;
  };
}

}  // namespace moesim
