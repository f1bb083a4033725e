// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/scaling.hpp"

#include <fmt/format.h>

#include "sim/experiment/experiment.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/serving_question.hpp"
#include "tools/plan/plan.hpp"

namespace moesim {

namespace {

// GPUs that decode, and what each of them holds.
struct DecodeGpus {
  int count = 0;
  double kv_gb = 0;
  double sequences = 0;  // that decode at a time, in the mean
};

DecodeGpus decode_gpus_of(const ScaledRun& of) {
  TraceLibrary traces(TraceLibrary::Holds::outlines);
  const Experiment experiment =
      load_experiment(ConfigNode(of.run->config, of.folder / experiment_file), traces);
  const Deployment& decode = experiment.decode();
  const Json& metrics = of.run->report.at("metrics");
  const double decodes_ms = metrics.value("mean_e2el_ms", 0.0) - metrics.value("mean_ttft_ms", 0.0);
  const int count = decode.instances * decode.parallel.gpus();
  return {.count = count,
          .kv_gb = decode.memory.kv.value() / 1e9,
          .sequences = of.run->per_second() * decodes_ms / 1e3 / count};
}

}  // namespace

std::string superlinear_text(const ScaledRun& fewer, const ScaledRun& more) {
  const double gain = more.run->per_second() / fewer.run->per_second();
  constexpr double step = 1.0165;  // loads of the search are 1.6 % apart
  if (more.gpus <= fewer.gpus || gain * fewer.gpus < step * more.gpus) return "";
  const DecodeGpus before = decode_gpus_of(fewer), now = decode_gpus_of(more);
  const auto grew = [](double from, double to) { return to > 1.01 * from; };
  std::string why;
  if (grew(before.kv_gb, now.kv_gb)) {
    why += fmt::format(" weights leave {:.0f} GB of a decode GPU to its KV cache, not {:.0f} GB;",
                       now.kv_gb, before.kv_gb);
  }
  if (now.count * fewer.gpus != before.count * more.gpus) {
    why += fmt::format(" {} of {} GPUs decode, not {} of {};", now.count, more.gpus, before.count,
                       fewer.gpus);
  }
  why += fmt::format(" {:.0f} sequences decode on a GPU, {}{:.0f}", now.sequences,
                     grew(before.sequences, now.sequences) ? "not " : "before ", before.sequences);
  return wrapped(fmt::format("{} sustain {:.2f} times as much as {}:{}", more.cluster, gain,
                             fewer.cluster, why)) +
         "\n";
}

}  // namespace moesim
