// SPDX-License-Identifier: Apache-2.0
#include "tools/policies/verb_trace_import.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "sim/placement/files/placement_file.hpp"
#include "tools/cli/named_files.hpp"
#include "tools/cli/option_checks.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/remarks.hpp"
#include "tools/policies/new_trace.hpp"
#include "traces/import/import.hpp"
#include "traces/npy.hpp"

namespace moesim {

namespace {

struct ImportCommand {
  std::string form, model, output, placement, requests;
  int gpus = 0;
  std::vector<std::string> paths;
};

const ImportForm& form_named(const std::string& name) {
  std::vector<std::string_view> names;
  for (const ImportForm& form : import_forms()) {
    if (form.name == name) return form;
    names.push_back(form.name);
  }
  throw ConfigError("--from {}: unknown; one of: {}", name, join_names(names));
}

// Which expert each slot of each layer with experts holds.
std::vector<std::vector<int>> slots_of(const ImportCommand& command, const MoeModel& model) {
  const PlacementRows placement =
      read_placement_rows(std::filesystem::path(command.placement), {.gpus = command.gpus});
  const TakenRows taken = take_rows(command.placement, placement,
                                    {.moe_layers = model.moe_layer_numbers(),
                                     .model_layers = model.numbered_layers,
                                     .draft_layers = model.draft_layers});
  Remarks().say(taken.remark);
  std::vector<std::vector<int>> slots;
  for (const std::size_t row : taken.rows) {
    const LayerPlacement& layer = placement.layers[row];
    slots.emplace_back();
    for (int slot = 0; slot < layer.slots(); ++slot)
      slots.back().push_back(layer.expert_of_slot(slot));
  }
  return slots;
}

// Writes whole numbers where all are; else means and shares as they stand.
void write_counts(const Array& counts, const std::filesystem::path& directory) {
  const std::filesystem::path file = directory / "expert_counts.npy";
  if (!std::ranges::all_of(counts.values, [](double n) { return n == std::floor(n); })) {
    write_file(file, npy_bytes<double>(counts.shape, std::span<const double>(counts.values)));
    return;
  }
  std::vector<std::int64_t> tokens(counts.values.size());
  std::transform(counts.values.begin(), counts.values.end(), tokens.begin(),
                 [](double value) { return static_cast<std::int64_t>(value); });
  write_file(file, npy_bytes<std::int64_t>(counts.shape, std::span<const std::int64_t>(tokens)));
}

void report_trace(const RoutingTrace& trace, const std::string& output) {
  std::int64_t prompt = 0;
  for (const TraceRequest& request : trace.requests()) prompt += request.prompt_rows;
  print(
      fmt::format("{}: {} tokens of {} requests ({} of prompts), {} layers, top-{} of {} experts\n",
                  output, trace.tokens(), trace.requests().size(), prompt, trace.layers(),
                  trace.experts_per_token(), trace.num_experts()));
}

void run_import(const ImportCommand& command) {
  const ImportForm& form = form_named(command.form);
  const MoeModel model = read_model(named_model(command.model));
  check_new_directory(command.output);
  ImportOptions options;
  if (!command.requests.empty()) options.notes = read_request_notes(command.requests);
  if (!command.placement.empty()) options.logical_of_physical = slots_of(command, model);
  const std::vector<std::filesystem::path> paths(command.paths.begin(), command.paths.end());
  const Imported imported = import_trace(form, paths, model, std::move(options));
  if (imported.trace) {
    write_new_trace(*imported.trace, command.output);
    report_trace(*imported.trace, command.output);
  }
  if (!imported.counts.shape.empty()) {
    write_counts(imported.counts, command.output);
    print(
        fmt::format("{}/expert_counts.npy: tokens of each expert in {} steps and {} layers, for "
                    "place --load; counts alone are not routing that run or replay could take\n",
                    command.output, imported.counts.extent(0), imported.counts.extent(1)));
  }
  for (const std::string& remark : imported.remarks) print(remark + "\n");
}

}  // namespace

void add_trace_import(CLI::App& trace, const std::shared_ptr<Action>& chosen) {
  const auto command = std::make_shared<ImportCommand>();
  CLI::App* read = trace.add_subcommand("import", "make a trace of what an engine recorded");
  std::string forms;
  for (const ImportForm& form : import_forms())
    forms += fmt::format("\n{}: {}", form.name, form.summary);
  option(*read, "--from", command->form, "form of the recording:" + forms, mandatory);
  option(*read, "PATHS", command->paths, "files, or folders of them", mandatory);
  option(*read, "--model", command->model, model_option, mandatory);
  read->add_option("--placement", command->placement,
                   "placement file: the recording's ids are its slots");
  option(*read, "--gpus", command->gpus, "GPUs that hold the placement's slots", at_least_one())
      ->needs("--placement");
  read->add_option("--requests", command->requests,
                   "JSON lines, one for each request: prompt_tokens, workload, file");
  option(*read, "-o,--output", command->output, "directory to write", mandatory);
  read->callback([command, chosen] {
    *chosen = [command] {
      run_import(*command);
      return 0;
    };
  });
}

}  // namespace moesim
