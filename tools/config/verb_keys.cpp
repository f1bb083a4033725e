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
    bool all = false, schema = false, markdown = false;
  };
  const auto options = std::make_shared<KeysOptions>();
  command.add_option("WORD", options->wanted,
                     "a key of an experiment, a pointer as /workload/arrivals/rate, an extension "
                     "point, a policy, sweep, or report (what comes out). Any other word is "
                     "searched in names and texts (default: the basic keys)");
  command.add_flag("--all", options->all, "every key of experiments, policies and sweeps");
  command.add_flag("--schema", options->schema,
                   "a JSON Schema of experiments instead, for editors; of sweeps if WORD is sweep");
  command.add_flag("--markdown", options->markdown,
                   "all keys as a page of Markdown; those of a report if WORD is report");
  return [options] {
    const PolicyRows policies = Policies().rows();
    const std::string& wanted = options->wanted;
    if (options->all && (!wanted.empty() || options->schema || options->markdown))
      throw ConfigError("keys: --all prints every key; leave out WORD, --schema and --markdown");
    if (options->markdown) {
      if ((!wanted.empty() && wanted != "report") || options->schema)
        throw ConfigError("keys: --markdown is of a whole page: give no WORD, or report");
      print(wanted.empty() ? keys_markdown(policies) : report_keys_markdown());
      return 0;
    }
    if (!options->schema && wanted == "report") {
      print(report_keys_text());
      return 0;
    }
    if (!options->schema) {
      const bool basic = wanted.empty() && !options->all;
      print(basic ? basic_keys_text() : keys_text(policies, wanted));
      return 0;
    }
    if (!wanted.empty() && wanted != "sweep") {
      throw ConfigError("keys: --schema is of a whole file: give no WORD, or sweep");
    }
    print((wanted.empty() ? experiment_schema(policies) : sweep_schema(policies)).dump(1) + "\n");
    return 0;
  };
}

}  // namespace moesim
