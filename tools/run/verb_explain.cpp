// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "hardware/text.hpp"
#include "sim/serving/simulator.hpp"
#include "tools/cli/experiment_options.hpp"
#include "tools/cli/option_checks.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/remarks.hpp"
#include "tools/cli/verbs.hpp"
#include "tools/run/step_text.hpp"

namespace moesim {

namespace {

struct ExplainOptions {
  ExperimentOptions experiment;
  std::string kind = "decode";
  std::optional<int> sequences, context;
  int prefill_tokens = 0;
  std::vector<std::string> prompts;  // "1000@29000"
  std::string steps;                 // a file
  int samples = 16;
  bool json = false;
};

constexpr Range tokens_of_prompt{1, 1 << 20}, tokens_in_cache{0, 1 << 24};

/// "1000@29000": 1000 tokens of a prompt of which 29000 were computed before. Nothing if it is
/// malformed.
std::optional<StepContent::Prompt> prompt_of(std::string_view text) {
  const auto number = [](std::string_view digits, const Range& range) -> std::optional<int> {
    const auto value = try_number<int>(digits);
    return value && *value >= range.min && *value <= range.max ? value : std::nullopt;
  };
  const std::size_t sign = text.find('@');
  const auto tokens = number(text.substr(0, sign), tokens_of_prompt);
  const auto prefix = sign == text.npos ? 0 : number(text.substr(sign + 1), tokens_in_cache);
  if (!tokens || !prefix) return std::nullopt;
  return StepContent::Prompt{*tokens, *prefix};
}

std::string refuse_prompt(const std::string& text) {
  if (prompt_of(text)) return "";
  return fmt::format("\"{}\" is not a prompt; expected tokens, or tokens@prefix, as 1000@29000",
                     text);
}

std::span<const Key> prompt_keys() {
  static constexpr Key keys[] = {
      {"tokens", form::integer(tokens_of_prompt), required, "that the step computes"},
      {"prefix", form::integer(tokens_in_cache), "0", "tokens of the prompt computed before"}};
  return keys;
}

std::span<const Key> step_keys() {
  static constexpr Form prompt = form::object(prompt_keys);
  static constexpr Key keys[] = {
      {"sequences", form::integer(0, 1 << 16), "0", "that decode, per rank"},
      {"context", form::integer(tokens_in_cache), "1024", "tokens in the KV cache of each"},
      {"prompts", form::list(prompt), "[]", "of each rank"}};
  return keys;
}

StepContent read_step(const ConfigNode& node) {
  return read_object(node, step_keys, [&](ConfigReader& reader) {
    StepContent content{.sequences = static_cast<int>(reader.integer("sequences")),
                        .context = static_cast<int>(reader.integer("context"))};
    for (const ConfigNode& prompt : reader.child("prompts").list()) {
      content.prompts.push_back(read_object(prompt, prompt_keys, [](ConfigReader& of_prompt) {
        return StepContent::Prompt{static_cast<int>(of_prompt.integer("tokens")),
                                   static_cast<int>(of_prompt.integer("prefix"))};
      }));
    }
    if (content.sequences == 0 && content.prompts.empty())
      node.fail("the step is empty; give sequences or prompts");
    return content;
  });
}

// Tokens of the experiment's own load, summed over its first requests.
struct OwnRequests {
  double prompts = 0, outputs = 0;
  int requests = 0;
};

OwnRequests own_requests(const Deployment& e) {
  constexpr int sample = 512;
  const auto source = e.workload.make(e.seed, e.ranks());
  OwnRequests own;
  for (; own.requests < sample; ++own.requests) {
    const auto next = source->next();
    if (!next) break;
    own.prompts += next->request.prompt_tokens;
    own.outputs += next->request.output_tokens;
    // Later turns follow replies.
    if (e.workload.sessions) source->completed(own.requests, Outcome::finished, next->arrival);
  }
  return own;
}

// Tokens in the KV cache of a request, half of its output generated.
int mean_context(const Deployment& e) {
  const OwnRequests own = own_requests(e);
  return own.requests == 0 ? 0 : static_cast<int>((own.prompts + own.outputs / 2) / own.requests);
}

// Tokens of a prompt beside so many sequences: the mean prompt, cut to what they leave of a step.
int mean_chunk(const Deployment& e, int sequences) {
  const OwnRequests own = own_requests(e);
  const int left = e.scheduler->max_num_batched_tokens() - sequences * (1 + e.speculation.tokens);
  const double mean = own.requests == 0 ? left : std::round(own.prompts / own.requests);
  return std::max(static_cast<int>(std::min<double>(mean, left)), 1);
}

// The experiment, in which MoE layers are drawn from steps alike where that can be.
Experiment quick_experiment(const ConfigNode& config, TraceLibrary& traces) {
  constexpr std::int64_t most = 20'000;
  Json json = config.json();
  Json& requests = json["workload"]["requests"];
  if (requests.is_number_integer()) requests = std::min(requests.get<std::int64_t>(), most);
  if (requests.is_null()) json["workload"].erase("requests");
  try {
    Json sampled = json;
    sampled["fidelity"] = "sampled";
    return load_experiment({std::move(sampled), config.file()}, traces);
  } catch (const ConfigError&) {
    return load_experiment({std::move(json), config.file()}, traces);
  }
}

// Decodes of a rank and step under the experiment's own load; those that fit, at most.
int mean_batch(const ConfigNode& config, TraceLibrary& traces, int context) {
  const Experiment quick = quick_experiment(config, traces);
  const Report report = moesim::run(quick);
  const int most = most_sequences(quick.decode(), context);
  double decodes = 0, steps = 0;
  for (const auto& [kind, of_kind] : report.pool.steps.by_kind) {
    if (kind == "prefill") continue;
    decodes += of_kind.mean_decode_tokens_per_rank * double(of_kind.steps);
    steps += double(of_kind.steps);
  }
  if (steps == 0) return most;
  // A sequence computes its drafts beside its own token.
  const int tokens = 1 + quick.decode().speculation.tokens;
  return std::clamp(static_cast<int>(std::lround(decodes / steps / tokens)), 1, most);
}

// True if the step is the mean batch of the experiment's own load: one is asked for, of no size.
bool of_own_load(const ExplainOptions& options) {
  return options.steps.empty() && !options.sequences && options.kind == "decode";
}

StepContent step_of(const ExplainOptions& options, const ConfigNode& config, TraceLibrary& traces,
                    const Deployment& e) {
  const bool decodes = options.kind != "prefill";
  StepContent content;
  if (decodes) {
    content.context = options.context ? *options.context : mean_context(e);
    content.sequences =
        options.sequences ? *options.sequences : mean_batch(config, traces, content.context);
  }
  if (options.kind == "decode") return content;
  // Without decodes the given context is what prompts continue.
  const int prefix = decodes ? 0 : options.context.value_or(0);
  for (const std::string& text : options.prompts) {
    StepContent::Prompt prompt = *prompt_of(text);
    if (text.find('@') == text.npos) prompt.prefix = prefix;
    content.prompts.push_back(prompt);
  }
  if (content.prompts.empty()) {
    const int tokens = options.prefill_tokens > 0 ? options.prefill_tokens
                       : decodes                  ? mean_chunk(e, content.sequences)
                                                  : e.scheduler->max_num_batched_tokens();
    content.prompts = {{tokens, prefix}};
  }
  return content;
}

std::vector<StepContent> steps_of(const ExplainOptions& options, const ConfigNode& config,
                                  TraceLibrary& traces, const Deployment& e) {
  if (options.steps.empty()) return {step_of(options, config, traces, e)};
  std::vector<StepContent> steps;
  for (const ConfigNode& step : ConfigNode::from_file(options.steps).list())
    steps.push_back(read_step(step));
  return steps;
}

// The pool that computes such steps.
const Deployment& pool_of(const Experiment& experiment, bool prompts, bool decodes) {
  const bool apart = experiment.pools.size() > 1;
  if (apart && prompts && decodes) {
    throw ConfigError(
        "prefill and decode have pools of their own, and no step has both; give --step prefill or "
        "--step decode");
  }
  return apart && prompts ? experiment.pools.front() : experiment.decode();
}

// A remark on a batch that the KV cache cannot hold.
std::string room_text(const StepContent& content, const Deployment& e) {
  if (content.sequences == 0) return "";
  const int most = most_sequences(e, content.context);
  if (content.sequences <= most) return "";
  return paragraph(
      "this step cannot run: {} sequences of {} tokens are more than the KV cache and max_num_seqs "
      "allow; {} at most",
      content.sequences, content.context, most);
}

int explain_steps(const ExplainOptions& options) {
  TraceLibrary traces;
  const ConfigNode config = options.experiment.read();
  const Experiment experiment = Remarks().say_of(load_experiment(config, traces));
  const Deployment& asked =
      pool_of(experiment, options.kind != "decode", options.kind != "prefill");
  if (!options.prompts.empty() && options.kind == "decode")
    throw ConfigError(
        "--prompts: a decode step has no prompts; give --step prefill or --step mixed");
  OrderedJson all = OrderedJson::array();
  std::string text;
  for (const StepContent& content : steps_of(options, config, traces, asked)) {
    const Deployment& e = pool_of(experiment, !content.prompts.empty(), content.sequences > 0);
    const ExplainedStep step = explain_step(e, content, options.samples);
    if (options.json) {
      all.push_back(step_json(step, e));
    } else {
      text += (text.empty() ? "" : "\n\n") + room_text(content, e) +
              step_text(step, e, of_own_load(options));
    }
  }
  if (options.json) text = (options.steps.empty() ? all.at(0) : all).dump(1) + "\n";
  print(text);
  return 0;
}

}  // namespace

Action setup_explain(CLI::App& command) {
  const auto options = std::make_shared<ExplainOptions>();
  options->experiment.add_with_deployment(command);
  CLI::Option* const kind =
      option(command, "--step", options->kind, "decode, prefill or mixed (default: decode)",
             CLI::IsMember({"decode", "prefill", "mixed"}));
  CLI::Option* const sequences =
      option(command, "--sequences", options->sequences,
             "decode sequences per rank (default: the mean batch of the config's own load)",
             CLI::Range(1, 1 << 16));
  CLI::Option* const context =
      option(command, "--context", options->context,
             "tokens in the KV cache of each (default: the mean of the config's own load); in a "
             "prefill step, tokens computed before of each prompt (default: 0)",
             CLI::Range(0, 1 << 24));
  CLI::Option* const tokens =
      option(command, "--prefill-tokens", options->prefill_tokens,
             "prompt tokens per rank (default: max_num_batched_tokens; in a mixed step the mean "
             "prompt of the config's own load, at most what decodes leave)",
             CLI::Range(1, 1 << 20));
  CLI::Option* const prompts =
      option(
          command, "--prompts", options->prompts,
          "several prompts of each rank, e.g. 7168,1000@29000: 1000 tokens after a prefix of 29000",
          comma_separated, refuse_prompt)
          ->excludes(tokens);
  option(command, "--steps", options->steps,
         "JSON file, a list of steps to explain: [{\"sequences\": 16, \"context\": 1024, "
         "\"prompts\": [{\"tokens\": 1000, \"prefix\": 29000}]}]")
      ->excludes(kind, sequences, context, tokens, prompts);
  option(command, "--samples", options->samples,
         "similar steps to price for the mean and its interval (default: 16)",
         CLI::Range(1, 1 << 16));
  command.add_flag("--json", options->json, "print JSON instead of a table");
  command.footer(
      "bound by: what takes most of the time. hbm and tensor_core: the bytes or the flops, at the "
      "rates that a kernel reaches. launch: neither of them accounts for half of a kernel's time. "
      "The rest is launch, drain and a GPU that a small batch does not fill. Such a time hardly "
      "falls with fewer bytes or flops.\n"
      "CONFIG's keys, with units and defaults: moesim keys; for editors: moesim keys --schema");
  return [options] { return explain_steps(*options); };
}

}  // namespace moesim
