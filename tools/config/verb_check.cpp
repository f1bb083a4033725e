// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "sim/experiment/experiment.hpp"
#include "tools/cli/experiment_options.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/verbs.hpp"

namespace moesim {

Action setup_check(CLI::App& command) {
  const auto options = std::make_shared<ExperimentOptions>();
  options->add_to(command);
  return [options] {
    TraceLibrary traces;
    const Experiment e = load_experiment(options->read(), traces);
    const int slots = e.placement.empty() ? 0 : e.placement.front().slots();
    print(fmt::format(
        "{}: good\n{} on {} GPUs of {}\n{} slots per layer ({:.4g}x)\n"
        "KV cache {:.1f} GB per GPU, {} blocks of {} tokens per rank\n",
        options->config, e.model.name, gpus_of(e), e.cluster.name, slots, e.replication_effective,
        e.memory.kv.value() / 1e9, e.memory.kv_blocks, e.kv_layout.block_tokens));
    return 0;
  };
}

}  // namespace moesim
