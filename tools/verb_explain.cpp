// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "sim/simulator.hpp"
#include "tools/experiment_options.hpp"
#include "tools/output.hpp"
#include "tools/table.hpp"
#include "tools/verbs.hpp"

namespace moesim {

namespace {

struct Options {
  ExperimentOptions experiment;
  std::string kind = "decode";
  int sequences = 0;
  int context = 1024;
  int prefill_tokens = 0;
  bool json = false;
};

OrderedJson to_json(const ExplainedStep& step) {
  OrderedJson json{{"kind", step_kind_names[static_cast<std::size_t>(step.summary.kind)]},
                   {"total_ms", step.cost.total.count() * 1e3},
                   {"operations", OrderedJson::array()}};
  for (const ExplainedOperation& op : step.operations) {
    json["operations"].push_back({{"operation", op.name},
                                  {"part", part_names[static_cast<std::size_t>(op.part)]},
                                  {"bound", resource_names[static_cast<std::size_t>(op.bound)]},
                                  {"calls", op.calls},
                                  {"seconds", op.seconds},
                                  {"flops", op.flops},
                                  {"hbm_bytes", op.hbm_bytes},
                                  {"link_bytes", op.link_bytes}});
  }
  return json;
}

std::string to_text(const ExplainedStep& step, const GpuSpec& gpu) {
  Table table({"operation", "calls", "ms", "share", "bound by", "GFLOP", "HBM MB", "link MB",
               "flop/B", "% HBM"});
  for (const ExplainedOperation& op : step.operations) {
    const auto or_dash = [](double value, const char* format) {
      return value > 0 ? fmt::format(fmt::runtime(format), value) : std::string("-");
    };
    table.add({std::string(op.name), fmt::format("{}", op.calls),
               fmt::format("{:.3f}", op.seconds * 1e3),
               fmt::format("{:.1f} %", 100 * op.seconds / step.cost.total.count()),
               std::string(resource_names[static_cast<std::size_t>(op.bound)]),
               or_dash(op.flops * 1e-9, "{:.2f}"), or_dash(op.hbm_bytes * 1e-6, "{:.2f}"),
               or_dash(op.link_bytes * 1e-6, "{:.2f}"),
               or_dash(op.hbm_bytes > 0 ? op.flops / op.hbm_bytes : 0, "{:.1f}"),
               or_dash(100 * op.hbm_bytes / op.seconds / gpu.hbm_bandwidth.value(), "{:.0f}")});
  }
  const double machine_balance =
      gpu.peak(Precision::bf16, Precision::bf16).value() / gpu.hbm_bandwidth.value();
  return fmt::format(
      "one {} step, on the slowest rank at each barrier: {:.3f} ms\n{} balances at {:.0f} flop/B "
      "(bf16)\n\n{}",
      step_kind_names[static_cast<std::size_t>(step.summary.kind)], step.cost.total.count() * 1e3,
      gpu.name, machine_balance, table.text());
}

}  // namespace

Action setup_explain(CLI::App& command) {
  const auto options = std::make_shared<Options>();
  options->experiment.add_to(command);
  command.add_option("--step", options->kind, "decode, prefill or mixed (default: decode)")
      ->check(CLI::IsMember({"decode", "prefill", "mixed"}));
  command
      .add_option("--sequences", options->sequences,
                  "decode sequences per rank (default: max_num_seqs)")
      ->check(CLI::Range(1, 1 << 16));
  command
      .add_option("--context", options->context, "tokens in the KV cache of each (default: 1024)")
      ->check(CLI::Range(0, 1 << 24));
  command
      .add_option("--prefill-tokens", options->prefill_tokens,
                  "prompt tokens per rank (default: max_num_batched_tokens)")
      ->check(CLI::Range(1, 1 << 20));
  command.add_flag("--json", options->json, "print JSON instead of a table");
  return [options] {
    TraceLibrary traces;
    const Experiment e = load_experiment(options->experiment.read(), traces);
    const int sequences = options->sequences > 0 ? options->sequences : e.scheduler->max_num_seqs();
    const int tokens = options->prefill_tokens > 0 ? options->prefill_tokens
                                                   : e.scheduler->max_num_batched_tokens();
    const StepKind kind = options->kind == "decode"    ? StepKind::decode
                          : options->kind == "prefill" ? StepKind::prefill
                                                       : StepKind::mixed;
    const ExplainedStep step = explain_step(e, kind, sequences, options->context, tokens);
    print(options->json ? to_json(step).dump(1) + "\n" : to_text(step, e.cluster.gpu));
    return 0;
  };
}

}  // namespace moesim
