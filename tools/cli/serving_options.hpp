// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <spdlog/spdlog.h>

#include "sim/engines/serving_engine.hpp"
#include "tools/cli/named_files.hpp"
#include "tools/cli/option_checks.hpp"
#include "tools/cli/serving_question.hpp"

namespace moesim {

inline void add_length_options(CLI::App& command, std::string& prompt, std::string& output) {
  option(command, "--isl", prompt, "tokens of a prompt; 4k: 4096", default_shown);
  option(command, "--osl", output, "tokens of an output", default_shown);
}

/// The options that say how the model is run.
inline void add_engine_options(CLI::App& command, ServingQuestion& question) {
  std::vector<std::string> engines(engine_names().begin(), engine_names().end());
  engines.emplace_back("none");
  option(command, "--engine", question.engine,
         "engine whose defaults are used, on measured kernels; or none", CLI::IsMember(engines),
         default_shown);
  command.add_option("--precision", question.precision,
                     "of weights, e.g. fp8; nvfp4/fp8: of experts, then of all others (default: as "
                     "the model's files store them)");
  command.add_option("--kv-cache-dtype", question.kv_cache_dtype,
                     "precision of the KV cache, e.g. fp8 (default: the engine's)");
  command.add_option("--max-model-len", question.max_model_len,
                     "tokens of the longest request, e.g. 64k (default: the model's positions)");
  command.add_option("--trace", question.trace,
                     "a routing trace of the model (default: synthetic gating)");
}

/// A deployment and its load on the command line, instead of an experiment's file.
struct ServingOptions {
  ServingQuestion question;
  ParallelPlan plan;
  std::string model, gpu, cluster, prompt = "1000", output = "200", rate;
  int concurrency = 0;

  void add_to(CLI::App& command) {
    const std::size_t before = command.get_options().size();
    command.add_option("--model", model, model_option);
    command.add_option("--gpu", gpu, "a name of moesim list gpus; dp x tp x pp of them are used");
    command.add_option("--cluster", cluster,
                       "instead of --gpu: a file, or a name of moesim list clusters");
    constexpr int most = 1024;
    option(command, "--tp", plan.tp, "tensor-parallel GPUs of a rank", default_shown);
    option(command, "--dp", plan.dp, "data-parallel ranks", default_shown);
    option(command, "--ep", plan.ep, "GPUs over which whole experts are dealt; 1: all are cut",
           default_shown);
    option(command, "--pp", plan.pp, "pipeline stages", default_shown);
    for (const char* size : {"--tp", "--dp", "--ep", "--pp"})
      command.get_option(size)->check(CLI::Range(1, most));
    add_length_options(command, prompt, output);
    option(command, "--concurrency", concurrency, "requests in flight", at_least_one());
    option(command, "--rate", rate, "instead of --concurrency: Poisson arrivals, e.g. 5/s")
        ->excludes("--concurrency");
    add_engine_options(command, question);
    const auto all = command.get_options([](CLI::Option*) { return true; });
    for (CLI::Option* option : std::span(all).subspan(before)) option->group("Instead of CONFIG");
  }

  /// The experiment that the options say. Throws ConfigError.
  ConfigNode experiment() const {
    require_all();
    ServingQuestion asked = question;
    asked.model = anywhere(model);
    std::string remark;
    if (const std::string taken = settle_checkpoint(asked); !taken.empty())
      spdlog::info("{}", taken);
    asked.cluster =
        gpu.empty() ? anywhere(cluster) : cluster_of(gpu, plan.attention_gpus() * plan.pp, remark);
    asked.prompt = tokens_of_option("--isl", prompt);
    asked.output = tokens_of_option("--osl", output);
    if (!rate.empty()) asked.rate = rate;
    if (!asked.trace.empty()) asked.trace = std::filesystem::absolute(asked.trace).string();
    if (!remark.empty()) spdlog::warn("{}", remark);
    return {one_deployment(asked, plan, concurrency), experiment_file};
  }

 private:
  void require_all() const {
    const bool no_gpus = gpu.empty() && cluster.empty(), no_load = concurrency == 0 && rate.empty();
    if (!gpu.empty() && !cluster.empty())
      throw ConfigError("--gpu, --cluster: give one of them, not both");
    if (model.empty() && no_gpus && no_load) {
      throw ConfigError(
          "give CONFIG, or --model M --gpu G --tp N --isl N --osl N --concurrency N (or --rate R)");
    }
    for (const auto& [missing, names] :
         {std::pair{model.empty(), "--model"}, std::pair{no_gpus, "--gpu or --cluster"},
          std::pair{no_load, "--concurrency or --rate"}}) {
      if (missing)
        throw ConfigError(
            "{} is missing; without CONFIG an experiment needs a model, GPUs and a load", names);
    }
  }
};

}  // namespace moesim
