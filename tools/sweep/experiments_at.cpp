// SPDX-License-Identifier: Apache-2.0
#include "tools/sweep/experiments_at.hpp"

#include <memory>

#include "sim/serving/simulator.hpp"
#include "tools/cli/remarks.hpp"

namespace moesim {

PointRunner experiments_at(const std::filesystem::path& base_file, const Policies& policies) {
  struct Shared {
    std::filesystem::path base_file;
    Policies policies;
    TraceLibrary traces{};
    Remarks remarks{};

    Experiment load(const Json& config) {
      return remarks.say_of(load_experiment(ConfigNode(config, base_file), traces, policies));
    }
  };
  const auto shared = std::shared_ptr<Shared>(new Shared{base_file, policies});
  return {[shared](const Json& config) { shared->load(config); },
          [shared](const Json& config) {
            const Experiment experiment = shared->load(config);
            const Report report = run(experiment);
            shared->remarks.say(remark_on_recordings(recordings_of(experiment.decode()), report));
            return report.document().dump();
          }};
}

}  // namespace moesim
