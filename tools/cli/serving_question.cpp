// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/serving_question.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "hardware/fabric.hpp"
#include "hardware/shipped.hpp"
#include "models/checkpoints.hpp"
#include "sim/engines/serving_engine.hpp"
#include "sim/experiment/spelled_out.hpp"

namespace moesim {

namespace {

// Nodes of eight GPUs behind NVSwitch, one 400 Gb/s NIC each: what a GPU without a cluster file is
// taken to stand in.
constexpr const char* common_node = "h200x8";

ConfigNode shipped_cluster(const std::string& name) {
  return ConfigNode::from_file(*shipped_file(Shipped::cluster, name));
}

std::string gpu_named_in(const ConfigNode& cluster) {
  const Json& gpu = cluster.json().at("gpu");
  return gpu.is_string() ? std::filesystem::path(gpu.get<std::string>()).stem().string() : "";
}

// Returns as many of the nodes of a cluster as hold the GPUs.
Json resized(const ConfigNode& like, const std::string& gpu, int gpus) {
  Json cluster = like.json();
  const int per_node = std::min(gpus, cluster.at("gpus_per_node").get<int>());
  if (gpus % per_node != 0) {
    throw ConfigError("{} GPUs: a node holds {} {}; use a multiple of {}", gpus, per_node, gpu,
                      per_node);
  }
  const bool rack = cluster.at("scale_up_domain") > cluster.at("gpus_per_node");
  cluster["name"] = fmt::format("{} x {}", gpus, std::filesystem::path(gpu).stem().string());
  cluster["gpu"] = gpu;
  cluster["gpus_per_node"] = per_node;
  cluster["nodes"] = gpus / per_node;
  cluster["scale_up_domain"] =
      rack ? std::min(gpus, cluster.at("scale_up_domain").get<int>()) : per_node;
  return cluster;
}

}  // namespace

Json cluster_of(const std::string& gpu, int gpus, std::string& remark) {
  const ConfigNode named(gpu, experiment_file, "/gpu");
  const auto known = shipped_file(Shipped::gpu, gpu);
  if (!known) named_or_inline(named, Shipped::gpu);  // a file; or says what there is
  const std::string name =
      known ? known->stem().string() : std::filesystem::absolute(gpu).lexically_normal().string();
  std::optional<ConfigNode> like;
  for (const std::string& cluster : shipped_names(Shipped::cluster)) {
    const ConfigNode file = shipped_cluster(cluster);
    if (gpu_named_in(file) != name) continue;
    if (read_cluster(file).gpus() == gpus) return cluster;
    if (!like) like = file;
  }
  if (!like) {
    remark = fmt::format(
        "no cluster of {} comes along: nodes of 8 with one 400 Gb/s NIC per GPU are taken; "
        "--cluster FILE says otherwise",
        name);
  }
  return resized(like ? *like : shipped_cluster(common_node), name, gpus);
}

Json engine_dispatch(const std::string& engine) {
  if (find_engine(engine) != nullptr) return {};
  return {{"prefill", "all_gather"}, {"decode", "all_gather"}};
}

namespace {

Json gating_of(const ServingQuestion& question, const MoeModel& model) {
  if (!question.trace.empty()) return {{"type", "recorded"}, {"trace", question.trace}};
  return gating_of_family(model);
}

// A value of engines' own --kv-cache-dtype as the precision that has its size (CacheDType of
// vllm/config/cache.py, and SGLang's server_args.py); others as they are.
std::string_view named_by_engines(std::string_view dtype) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 5> names{
      {{"fp8_e4m3", "fp8"},
       {"fp8_e5m2", "fp8"},
       {"fp8_inc", "fp8"},
       {"bfloat16", "bf16"},
       {"float16", "bf16"}}};
  const auto* const found =
      std::ranges::find(names, dtype, &std::pair<std::string_view, std::string_view>::first);
  return found == names.end() ? dtype : found->second;
}

// The precisions that the question names; null where it leaves all to the model's files.
Json precision_of(const ServingQuestion& question, const MoeModel& model,
                  const std::optional<StoredPrecision>& stored) {
  Json precision;
  const auto of_option = [](const char* option, auto&& read) {
    try {
      return read();
    } catch (const ConfigError& error) {
      throw ConfigError("{}: {}", option, error.what());
    }
  };
  if (!question.precision.empty()) {
    precision = of_option("--precision",
                          [&] { return precision_object(question.precision, model, stored); });
  }
  const std::string_view kv = named_by_engines(question.kv_cache_dtype);
  if (!kv.empty() && kv != "auto") {
    of_option("--kv-cache-dtype", [&] { return precision_named(kv); });
    precision["kv_cache"] = kv;
  }
  return precision;
}

}  // namespace

Json base_deployment(const ServingQuestion& question, const MoeModel& model,
                     const std::optional<StoredPrecision>& stored) {
  Json config{
      {"cluster", question.cluster},
      {"model", question.model},
      {"token_routing", {{"prefill", "even"}, {"decode", "even"}}},
      {"workload",
       {{"arrivals", {{"type", "poisson"}, {"rate", question.rate}}},
        {"lengths", {{"type", "fixed"}, {"prompt", question.prompt}, {"output", question.output}}},
        {"gating", gating_of(question, model)},
        {"requests", 1000}}},
      {"measurement", {{"warmup", .1}, {"expert_counts", false}}},
      {"seed", question.seed}};
  const ServingEngine* engine = find_engine(question.engine);
  config["scheduling"] = {{"type", engine == nullptr ? "chunked_prefill" : engine->scheduler()},
                          {"max_num_batched_tokens", usual_chunk},
                          {"max_num_seqs", usual_sequences}};
  config["engine"] = {{"name", question.engine}};
  // Engines' routers do so. The default balances tokens. If all requests are as long, a rank on
  // which many end at a time gets as many tokens anew, in more requests. These end together too.
  config["request_routing"] = "round_robin";
  if (Json dispatch = engine_dispatch(question.engine); !dispatch.is_null())
    config["dispatch"] = std::move(dispatch);
  if (model.experts > 0) {
    config["placement"] = {
        {"type", "eplb"}, {"replication", 1.0}, {"load", {{"from", "trace"}, {"disjoint", true}}}};
  }
  if (Json precision = precision_of(question, model, stored); !precision.is_null())
    config["precision"] = std::move(precision);
  if (question.prefix > 0) {
    // A request is a session of one turn: what sessions share is found in KV caches.
    config["workload"].erase("lengths");
    config["workload"]["sessions"] = {
        {"type", "generated"},       {"turns", 1},
        {"first", question.prompt},  {"new", 1},
        {"output", question.output}, {"shared_prefix", question.prefix}};
    config["kv_cache"]["prefix_caching"] = true;
  }
  if (!question.max_model_len.empty())
    config["max_model_len"] = tokens_of_option("--max-model-len", question.max_model_len);
  if (!question.ttft.empty()) config["slo"]["ttft"] = question.ttft;
  if (!question.tpot.empty()) config["slo"]["tpot"] = question.tpot;
  return config;
}

std::string settle_checkpoint(ServingQuestion& question) {
  using enum Precision;
  const auto name_of = [](Precision p) { return std::string(precision_names[at(p)]); };
  const auto zoo = [](const std::string& name) {
    return read_checkpoints(ConfigNode::from_file(*shipped_file(Shipped::model, name)));
  };
  if (!question.model.is_string()) return {};
  const auto named = question.model.get<std::string>();
  const auto take = [&](const std::string& model, Precision precision) {
    question.model = model;
    if (question.precision.empty()) question.precision = name_of(precision);
    return fmt::format("{} is {} in {}", named, model, question.precision);
  };
  if (!shipped_file(Shipped::model, named)) {
    for (const std::string& model : shipped_names(Shipped::model)) {
      for (const auto& [precision, id] : zoo(model)) {
        if (id == named) return take(model, precision);
      }
    }
    // Others' ids end in a precision: "nvidia/DeepSeek-R1-0528-NVFP4". Authors of models scale FP8
    // by block, ModelOpt by tensor.
    const Precision eight = named.starts_with("nvidia/") ? fp8 : fp8_block;
    const std::pair<std::string_view, Precision> endings[] = {{"-NVFP4-v2", nvfp4},
                                                              {"-NVFP4", nvfp4},
                                                              {"-FP4", nvfp4},
                                                              {"-MXFP4", mxfp4},
                                                              {"-FP8", eight}};
    for (const auto& [ending, precision] : endings) {
      if (!named.ends_with(ending)) continue;
      const auto file = shipped_file(Shipped::model, named.substr(0, named.size() - ending.size()));
      if (file) return take(file->stem().string(), precision);
    }
    return {};
  }
  const Checkpoints known = zoo(named);
  constexpr std::pair<Precision, Precision> published[] = {{fp8, fp8_block}, {int4, int4_g32}};
  for (const auto& [asked, kept] : published) {
    const auto weights = known.find(kept);
    if (question.precision != name_of(asked) || known.contains(asked) || weights == known.end())
      continue;
    question.precision = name_of(kept);
    return fmt::format("--precision {}: the known weights, {}, are in {}", name_of(asked),
                       weights->second, name_of(kept));
  }
  return {};
}

int tokens_of_option(const std::string& option, const std::string& text) {
  constexpr int most = 1 << 24, k = 1 << 10, m = 1 << 20;
  const bool thousands = text.ends_with('k') || text.ends_with('K');
  const bool millions = text.ends_with('m') || text.ends_with('M');
  const std::string number = text.substr(0, text.size() - (thousands || millions ? 1 : 0));
  double value = 0;
  try {
    std::size_t read = 0;
    value = std::stod(number, &read) * (thousands ? k : millions ? m : 1);
    if (read != number.size()) value = 0;
  } catch (const std::logic_error&) {
    value = 0;
  }
  if (!(value >= 1 && value <= most) || value != std::floor(value)) {
    throw ConfigError("{}: {} is not a number of tokens; expected 1 to {}, or e.g. 4k for 4096",
                      option, text, most);
  }
  return static_cast<int>(value);
}

std::string said_of_options(const std::string& message) {
  const std::size_t file = message.find(":/"), pointer = file + 1, text = message.find(": ");
  if (file == std::string::npos || text == std::string::npos || text < file) return message;
  if (std::filesystem::path(message.substr(0, file)).filename() != experiment_file) return message;
  struct Made {
    std::string_view key, option;
  };
  static constexpr Made made[] = {{"/model", "--model"},
                                  {"/cluster", "--cluster"},
                                  {"/gpu", "--gpu"},
                                  {"/engine", "--engine"},
                                  {"/anchor", "--anchor"},
                                  {"/workload/gating", "--trace"},
                                  {"/workload/lengths/prompt", "--isl"},
                                  {"/workload/lengths/output", "--osl"},
                                  {"/workload/arrivals/concurrency", "--concurrency"},
                                  {"/workload/arrivals/rate", "--rate"},
                                  {"/precision/kv_cache", "--kv-cache-dtype"},
                                  {"/precision", "--precision"}};
  const auto of = std::ranges::find_if(made, [&](const Made& option) {
    return std::string_view(message).substr(pointer, text - pointer).starts_with(option.key);
  });
  std::string said = message.substr(text + 2);
  constexpr std::string_view key = "\"max_model_len\": ";
  if (const std::size_t at = said.find(key); at != said.npos)
    said.replace(at, key.size(), "--max-model-len ");
  if (of != std::end(made)) return fmt::format("{}: {}", of->option, said);
  // Sizes of options stand in what is said of layout and lengths; other keys are those of --set.
  const std::string place = message.substr(pointer, text - pointer);
  const bool of_sizes = place == "/workload/lengths" || place.starts_with("/parallel");
  return place == "/" || of_sizes ? said : fmt::format("{}: {}", place, said);
}

Json one_deployment(const ServingQuestion& question, const ParallelPlan& plan, int concurrency) {
  const ConfigNode named =
      named_or_inline(ConfigNode(question.model, experiment_file, "/model"), Shipped::model);
  const MoeModel model = read_model(named);
  Json config = base_deployment(question, model, read_stored_precision(named, model));
  config["parallel"] = {{"dp", plan.dp}, {"tp", plan.tp}, {"ep", plan.ep}, {"pp", plan.pp}};
  if (find_engine(question.engine) != nullptr) {  // which chooses by sizes
    config["scheduling"].erase("max_num_batched_tokens");
    config["scheduling"].erase("max_num_seqs");
  }
  if (concurrency > 0) {
    // Ten waves of requests, as benchmarks send.
    constexpr int waves = 10, least = 100;
    config["workload"]["arrivals"] = {{"type", "closed_loop"}, {"concurrency", concurrency}};
    config["workload"]["requests"] = std::max(least, waves * concurrency);
  }
  return config;
}

}  // namespace moesim
