// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/scaling.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "sim/experiment/experiment.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/serving_question.hpp"
#include "tools/cli/table.hpp"
#include "tools/plan/request_answer.hpp"

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
  if (more.gpus <= fewer.gpus || gain * fewer.gpus < load_step * more.gpus) return "";
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

std::string scaling_text(std::span<const ScaledPlan> plans) {
  Table table({"GPUs", "req/s", "per GPU", "$/M out", "shape"});
  std::map<std::string, ScaledRun> by_kind;  // the latest of each
  std::string reasons;
  for (const auto& [search, plan] : plans) {
    const ClusterSpec& cluster = search.cluster;
    if (plan.best.empty()) {
      table.add({gpus_text(cluster), "-", "-", "-", "none meets the limits"});
      continue;
    }
    const SloRun& best = plan.best.front();
    table.add({gpus_text(cluster), number_text(best.per_second()),
               number_text(best.per_second() / cluster.gpus()), cost_text(best, cluster),
               choices_of(best).shape()});
    const ScaledRun more{&best, gpus_text(cluster), cluster.gpus(), search.folder};
    if (auto& fewer = by_kind[cluster.gpu.name]; fewer.run != nullptr)
      reasons += superlinear_text(std::exchange(fewer, more), more);
    else
      fewer = more;
  }
  const auto price_of = [](const ScaledPlan& one) { return one.search.cluster.gpu.price; };
  const bool sources = std::ranges::any_of(plans, [&](const ScaledPlan& one) {
    const auto price = price_of(one), first = price_of(plans.front());
    return price && first && price->source != first->source;
  });
  return "\n" + table.text() + reasons +
         (sources ? "prices are of unlike providers; --price sets one price for all\n" : "");
}

}  // namespace moesim
