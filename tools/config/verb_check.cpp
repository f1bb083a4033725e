// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "models/quantization.hpp"
#include "sim/experiment/experiment.hpp"
#include "sim/experiment/pools.hpp"
#include "sim/experiment/shared_cluster.hpp"
#include "tools/cli/experiment_options.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/remarks.hpp"
#include "tools/cli/verbs.hpp"
#include "tools/plan/session_plan.hpp"
#include "traces/requests/lengths.hpp"

namespace moesim {

namespace {

// With AFD what the other GPUs hold, else nothing.
std::string ffn_text(const Deployment& e) {
  if (!e.ffn_memory) return "";
  const auto gb = [](Bytes bytes) { return bytes.value() / 1e9; };
  const MemoryBudget& memory = *e.ffn_memory;
  return wrapped(fmt::format(
      "the above is of each of {} GPUs for attention; each of {} GPUs for experts has {:.1f} GB of "
      "weights: experts {:.1f}, replicas {:.1f}{}; {:.1f} GB are free\n",
      e.parallel.attention_gpus(), e.parallel.ffn_gpus,
      gb(memory.experts + memory.replicas + memory.weights), gb(memory.experts),
      gb(memory.replicas),
      memory.weights > Bytes(0) ? fmt::format(", shared experts {:.1f}", gb(memory.weights)) : "",
      gb(memory.kv)));
}

// With DCP who holds the tokens of a block, else nothing.
std::string stripes_text(const ParallelPlan& plan) {
  return plan.dcp == 1 ? "" : fmt::format(", striped over {} GPUs", plan.dcp);
}

// "tier host: 81.2 GB per rank, 51234 blocks; 53.6 GB/s to HBM and 53.6 GB/s from HBM per GPU"
std::string tiers_of(const Deployment& e) {
  std::string text, above = "HBM";
  std::int64_t per_rank_above = e.memory.kv_blocks;
  for (const KvTierPlan& tier : e.kv_cache.tiers) {
    const int ranks = std::min(ranks_of_tier(e, tier), e.instances * e.parallel.dp);
    const std::int64_t blocks = tier_blocks(e, tier, ranks);
    const double bytes = e.kv_layout.block.value() * e.parallel.rank_gpus();
    text += fmt::format(
        "tier {}: {:.1f} GB per {}, {} blocks; {:.3g} GB/s to HBM and {:.3g} GB/s from {} per "
        "GPU\n",
        tier.name, double(blocks) * bytes / 1e9, tier_scope_names[std::size_t(tier.per)], blocks,
        tier.bandwidth.value() / 1e9, tier.write_bandwidth.value() / 1e9, above);
    if (tier.write->when_there && blocks <= ranks * per_rank_above)
      text += fmt::format(
          "  a write-through tier no larger than {} adds almost no hits; give the tier more "
          "capacity, or \"write_back\"\n",
          above);
    above = tier.name;
    per_rank_above = blocks / ranks;
  }
  return text;
}

std::string decode_cut_text(const ParallelPlan& plan) {
  if (plan.decode_ep == 0) return "";
  const bool twice = plan.decode_weights == DecodeWeights::twice;
  return fmt::format("decode steps have ep {}, other steps {}; {}\n", plan.decode_ep, plan.ep,
                     twice ? "the weights of experts are in HBM twice"
                           : "the weights of experts move between such steps");
}

std::string roles_text(const Experiment& e) {
  if (!e.roles) return "";
  const RoleChangeOptions& options = e.roles->options;
  return fmt::format("{} groups prefill and {} decode at first; one may change every {:.4g} s\n",
                     e.pools.front().instances, e.decode().instances, options.interval.count());
}

// "16 GPUs of 16 x H200", and those of experts where they have a cluster of their own.
std::string gpus_text(const ServedModel& pool) {
  std::string text = fmt::format("{} GPUs of {}", gpus_in_cluster(pool), pool.cluster.name);
  if (pool.ffn_cluster)
    text += fmt::format(" and, for experts, {} of {}", gpus_of(pool) - gpus_in_cluster(pool),
                        pool.ffn_cluster->name);
  return text;
}

// The same of each pool where pools have clusters of their own.
std::string gpus_text(const Experiment& experiment) {
  const ServedModel &prefill = experiment.pools.front(), &decode = experiment.decode();
  if (experiment.pools.size() == 1) return gpus_text(decode);
  if (prefill.cluster.name == decode.cluster.name && !prefill.ffn_cluster && !decode.ffn_cluster)
    return fmt::format("{} GPUs of {}", gpus_of(experiment), decode.cluster.name);
  return fmt::format("{} for prefill; {} for decode", gpus_text(prefill), gpus_text(decode));
}

std::string text_of(const Experiment& experiment, bool precision_given) {
  const Deployment& e = experiment.decode();
  const int slots = e.placement.empty() ? 0 : e.placement.front().whole_slots();
  const ParameterCount parameters = count_parameters(e.model);
  const auto gb = [](Bytes bytes) { return bytes.value() / 1e9; };
  return wrapped(fmt::format("{}, {:.1f} B parameters, {:.1f} B active, on {}\n", e.model.name,
                             parameters.total / 1e9, parameters.active / 1e9,
                             gpus_text(experiment))) +
         wrapped(fmt::format("precision: {} ({})\n", precision_text(e.precision),
                             precision_given ? "as given" : "as the model's files say")) +
         fmt::format(
             "{} slots per layer ({:.4g}x)\n"
             "weights {:.1f} GB per GPU: experts {:.1f}, replicas {:.1f}, others {:.1f}\n"
             "KV cache {:.1f} GB per GPU, {} blocks of {} tokens per rank{}\n",
             slots, e.replication_effective,
             gb(e.memory.weights) + gb(e.memory.experts) + gb(e.memory.replicas),
             gb(e.memory.experts), gb(e.memory.replicas), gb(e.memory.weights), gb(e.memory.kv),
             e.memory.kv_blocks, e.kv_layout.block_tokens, stripes_text(e.parallel)) +
         ffn_text(e) + decode_cut_text(e.parallel) + tiers_of(e) + roles_text(experiment) +
         (e.workload.sessions ? too_long_text(turn_means(experiment), e) : "");
}

// Contents of a GPU of a pool, in bytes.
OrderedJson pool_json(const Deployment& e) {
  const auto bytes = [](Bytes of) { return std::llround(of.value()); };
  OrderedJson json{{"slots_per_layer", e.placement.empty() ? 0 : e.placement.front().slots()},
                   {"replication", e.replication_effective}};
  json["bytes_per_gpu"] = {{"experts", bytes(e.memory.experts)},
                           {"replicas", bytes(e.memory.replicas)},
                           {"other_weights", bytes(e.memory.weights)},
                           {"buffers", bytes(e.memory.buffers)},
                           {"kv_cache", bytes(e.memory.kv)}};
  json["kv_blocks_per_rank"] = e.memory.kv_blocks;
  json["kv_block_tokens"] = e.kv_layout.block_tokens;
  return json;
}

// Remark on a KV cache that is too small for the longest request of the load, or for one of
// "max_model_len" tokens.
std::string remark_on_room(const Deployment& e, bool limit_is_given) {
  const Request longest = e.workload.lengths->longest();
  const std::int64_t chunk = e.scheduler->max_num_batched_tokens();
  const auto blocks = [&](std::int64_t tokens) {
    return e.kv_layout.blocks_at_most(tokens, chunk);
  };
  const auto text = [&](std::string_view what, std::int64_t tokens, std::string_view then) {
    return fmt::format("{} of {} tokens needs {} KV blocks, a rank has {}: {}", what, tokens,
                       blocks(tokens), e.memory.kv_blocks, then);
  };
  const std::int64_t computed =
      std::int64_t{longest.prompt_tokens} +
      (e.prefill_only ? 0 : longest.output_tokens - 1 + e.speculation.tokens);
  if (longest.prompt_tokens > 0 && blocks(computed) > e.memory.kv_blocks)
    return text("the longest request", computed,
                "such a request is rejected; use more GPUs or shorter lengths");
  if (limit_is_given && e.engine.starts_with("vllm") &&
      blocks(e.max_model_len) > e.memory.kv_blocks)
    return text("a request", e.max_model_len,
                "vLLM does not start so; give a shorter \"max_model_len\"");
  return "";
}

OrderedJson to_json(const Experiment& experiment) {
  const Deployment& e = experiment.decode();
  const ParameterCount parameters = count_parameters(e.model);
  OrderedJson json{{"model", e.model.name},
                   {"parameters", std::llround(parameters.total)},
                   {"active_parameters", std::llround(parameters.active)},
                   {"gpus", gpus_of(experiment)},
                   {"cluster", e.cluster.name},
                   {"layout", layout_of(experiment)},
                   {"precision", precision_text(e.precision)}};
  if (experiment.apart()) json["prefill"] = pool_json(experiment.pools.front());
  json[experiment.apart() ? "decode" : "pool"] = pool_json(e);
  return json;
}

}  // namespace

Action setup_check(CLI::App& command) {
  struct CheckOptions {
    ExperimentOptions experiment;
    std::string output;
    bool json = false;
  };
  const auto options = std::make_shared<CheckOptions>();
  options->experiment.add_with_deployment(command);
  command.add_option("-o,--output", options->output,
                     "write the experiment, with all changes of the command line, JSON");
  command.add_flag("--json", options->json, "print JSON instead of text");
  return [options] {
    require_writable(options->output);
    require_different({{"CONFIG", options->experiment.config}, {"-o", options->output}});
    TraceLibrary traces(TraceLibrary::Holds::outlines);
    Remarks remarks;
    const ConfigNode config = options->experiment.read();
    std::string text = fmt::format("{}: valid\n", config.file().string());
    OrderedJson json{{"file", config.file().string()}, {"valid", true}};
    const auto check_one = [&](const ConfigNode& one) {
      const Experiment experiment = remarks.say_of(load_experiment(one, traces));
      for (const Deployment& pool : experiment.pools)
        remarks.say(remark_on_room(pool, one.json().contains("max_model_len")));
      text += text_of(experiment, one.json().contains("precision"));
      return to_json(experiment);
    };
    if (is_shared(config)) {
      for (const Tenant& tenant : read_shared_cluster(config).tenants) {
        text += fmt::format("\n{}, GPUs {} to {}\n", tenant.name, tenant.first_gpu,
                            tenant.first_gpu + tenant.gpus - 1);
        json["deployments"][tenant.name] = check_one(tenant.experiment);
      }
    } else {
      json.update(check_one(config));
    }
    if (!options->output.empty()) write_file(options->output, config.json().dump(1) + "\n");
    print(options->json ? json.dump(1) + "\n" : text);
    return 0;
  };
}

}  // namespace moesim
