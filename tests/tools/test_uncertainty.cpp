// SPDX-License-Identifier: Apache-2.0
// Does a prediction say what it rests on, and how far it might be off?
#include <numeric>
#include <set>

#include <tbb/global_control.h>

#include "hardware/kernels/gemm.hpp"
#include "sim/serving/simulator.hpp"
#include "sim/serving/typical_step.hpp"
#include "tests/support.hpp"
#include "tools/cli/trust.hpp"
#include "tools/run/intervals.hpp"

namespace moesim::test_uncertainty {

using namespace moesim::test;

namespace {

ConfigNode tiny(const std::string& gpu = "h100") {
  const auto file = source_dir() / "tests/tiny.json";
  Json json = ConfigNode::from_file(file).json();
  Json cluster = ConfigNode::from_file(source_dir() / "hardware/clusters/h100x8.json").json();
  cluster["gpu"] = (source_dir() / "hardware/gpus" / (gpu + ".json")).string();
  json["cluster"] = std::move(cluster);
  return {std::move(json), file};
}

Experiment experiment(const ConfigNode& config) {
  TraceLibrary traces;
  return load_experiment(config, traces);
}

double seconds(const ExplainedStep& step, Evidence evidence) {
  double sum = 0;
  for (const auto& part : step.cost.by_evidence) sum += part[static_cast<std::size_t>(evidence)];
  return sum;
}

}  // namespace

TEST_CASE("a step's time stands on its grounds to the last nanosecond, as its rows do") {
  for (const std::string gpu : {"h100", "rtx_pro_6000"}) {
    const ExplainedStep step = explain_step(experiment(tiny(gpu)), decode_step(8, 1024));
    double all = 0;
    for (std::size_t g = 0; g < evidence_names.size(); ++g) {
      const auto evidence = static_cast<Evidence>(g);
      double rows = 0;
      for (const ExplainedOperation& op : step.operations)
        if (op.evidence == evidence) rows += op.seconds;
      CHECK_THAT(seconds(step, evidence), WithinRel(rows, 1e-9) || WithinAbs(0, 1e-15));
      all += rows;
    }
    CHECK_THAT(all, WithinRel(step.cost.total.count(), 1e-9));
  }
}

TEST_CASE("gaps, the host and decisions are no kernels, and rest on no measurement of the GPU") {
  const std::set<std::string_view> charges{"kernel_gaps", "eager_launches", "rank_waits",
                                           "host_overhead", "token_routing"};
  for (const std::string gpu : {"h100", "h200", "mi300x"}) {
    for (const ExplainedOperation& op :
         explain_step(experiment(tiny(gpu)), decode_step(8, 1024)).operations) {
      INFO(gpu << " " << op.name);
      CHECK((op.evidence == Evidence::charged) == charges.contains(op.name));
    }
  }
}

TEST_CASE("trust: what a data sheet alone says rests on no measurement, and shares add up") {
  const auto report_of = [](const std::string& gpu) {
    return run(experiment(tiny(gpu))).document();
  };
  const auto share = [](const OrderedJson& breakdown, const char* name) {
    return breakdown.value(name, 0.0);
  };
  const OrderedJson bare = report_of("mi300x")["breakdown"];
  CHECK_THAT(share(bare, "unmeasured_share") + share(bare, "extrapolated_share") +
                 share(bare, "charged_share"),
             WithinAbs(1, 1e-9));
  CHECK_THAT(trust_line({{"breakdown", Json(bare)}}, Json::object()),
             Catch::Matchers::Contains("of the time 0 % rests on measurements of this GPU"));
  const ConfigNode bare_h200 = tiny("h200");
  Json served = bare_h200.json();
  served["engine"] = {{"name", "vllm"}};
  const OrderedJson known =
      run(experiment(ConfigNode(served, bare_h200.file()))).document()["breakdown"];
  CHECK(share(known, "charged_share") > 0);
}

TEST_CASE("trust: a model, a GPU or pools that no constant was fitted on are named") {
  const Json report{{"breakdown", {{"charged_share", 1.0}}}};
  const auto line_of = [&](const char* model, const char* cluster, const char* engine) {
    return trust_line(report, {{"model", model}, {"cluster", cluster}, {"engine", engine}});
  };
  const auto has = [](const std::string& line, const std::string& text) {
    std::string flat = line;  // lines are wrapped
    for (std::size_t at = 0; (at = flat.find("\n  ", at)) != std::string::npos;)
      flat.replace(at, 3, " ");
    INFO(flat);
    return flat.find(text) != std::string::npos;
  };
  CHECK_FALSE(has(line_of("glm_5", "b200x8", "sglang"), "no constant of"));
  CHECK(has(line_of("glm_5", "b200x8", "vllm"),
            "no constant of vllm was fitted on runs of this model"));
  CHECK(has(line_of("deepseek_v3", "a100_80g_x8", "sglang"),
            "no constant of sglang was fitted on runs of this GPU"));
  CHECK(has(line_of("mixtral_8x7b", "a100_80g_x8", "trtllm"),
            "no constant of trtllm was fitted on runs of this model or of this GPU"));
  Json pools{
      {"model", "kimi_k2_5"}, {"cluster", "b200x8"}, {"engine", "vllm"}, {"pools", Json::object()}};
  CHECK(has(trust_line(report, pools), "no constant of vllm was fitted on such runs"));
}

TEST_CASE("a GPU that nobody measured rests on nothing that was calibrated on it") {
  const ExplainedStep calibrated = explain_step(experiment(tiny()), decode_step(8, 1024));
  const ExplainedStep unmeasured = explain_step(experiment(tiny("mi300x")), decode_step(8, 1024));
  CHECK(seconds(calibrated, Evidence::calibrated) > seconds(calibrated, Evidence::unmeasured));
  for (const ExplainedOperation& op : unmeasured.operations) {
    const bool charge = op.name == "token_routing" || op.name == "host_overhead";
    CHECK((op.evidence == Evidence::unmeasured) == !charge);
  }
}

TEST_CASE("without an engine kernels are measured where the GPU has tables") {
  Json json = tiny().json();
  json.erase("engine");
  const ExplainedStep step =
      explain_step(experiment({json, source_dir() / "tests/tiny.json"}), decode_step(8, 1024));
  const auto evidence_of = [&](std::string_view name) {
    return std::ranges::find(step.operations, name, &ExplainedOperation::name)->evidence;
  };
  for (const char* kernel : {"qkv_proj", "attention_decode", "expert_ffn"}) {
    CAPTURE(kernel);
    CHECK((evidence_of(kernel) == Evidence::measured ||
           evidence_of(kernel) == Evidence::interpolated));
  }
}

TEST_CASE("every operation is set against the peak of its own precision, and none exceeds it") {
  Json json = tiny().json();
  json["precision"] = {{"experts", "fp8_block"}, {"attention", "bf16"}};
  const ExplainedStep step =
      explain_step(experiment({json, source_dir() / "tests/tiny.json"}), decode_step(8, 1024));
  for (const ExplainedOperation& op : step.operations) {
    INFO(op.name);
    CHECK(op.flops <= op.peak_flops);
    if (op.flops > 0 && op.name != "expert_ffn")
      CHECK_THAT(op.peak_flops / op.seconds, WithinRel(989.5e12, 1e-9));
  }
}

TEST_CASE("tokens cost what all GPUs cost while they are made") {
  const Json metrics = run(experiment(tiny())).document().at("metrics");
  // Four H100 at 3.99 dollars an hour.
  CHECK_THAT(
      metrics.at("cost_per_million_output_tokens").get<double>(),
      WithinRel(4 * 3.99 / 3600 * 1e6 / metrics.at("output_throughput").get<double>(), 1e-9));
  CHECK(run(experiment(tiny("rtx_pro_6000")))
            .document()
            .at("metrics")
            .at("cost_per_million_output_tokens")
            .is_null());
}

TEST_CASE("intervals hold their median, and are the same on any number of threads", "[threads]") {
  const auto bands = [](std::size_t threads) {
    const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
    return intervals(tiny(), 6, [](int) {});
  };
  const OrderedJson one = bands(1);
  CHECK(one == bands(2));
  CHECK(one.at("runs") == 6);
  for (const auto& [name, band] : one.at("metrics").items()) {
    CHECK(band.at("low") < band.at("median"));
    CHECK(band.at("median") < band.at("high"));
  }
}

TEST_CASE("constants are drawn again within physics, another draw gives others") {
  const ExperimentSpec base = read_spec(tiny());
  const auto drawn_gpu = [&](int draw) {
    PoolSpec pool = base.pools.front();
    resample_hardware(pool, draw);
    return pool.cluster.gpu;
  };
  for (int draw = 0; draw < 20; ++draw) {
    const GpuSpec gpu = drawn_gpu(draw);
    for (const auto& [family, kernel] : gpu.kernels) {
      CHECK(kernel.bandwidth_share <= 1);
      for (const auto& [precision, share] : kernel.peak_share) CHECK(share <= 1);
    }
  }
  const auto launch = [&](int draw) { return drawn_gpu(draw).kernel(gemm_kernel).launch; };
  CHECK(launch(1) == launch(1));
  CHECK(launch(1) != launch(2));
}

TEST_CASE("what follows from constants follows from those that were drawn") {
  ConfigNode config = tiny();
  Json json = config.json();
  json["pools"] = {{"prefill", Json::object()}, {"decode", Json::object()}};
  json["token_routing"] = {{"prefill", "even"}, {"decode", "hybrid"}};
  json["dispatch"]["decode"] = "ids_all_gather";
  const ExperimentSpec spec = read_spec({json, config.file()});
  TraceLibrary library;
  const Traces traces = library.open(spec);
  const auto crossing = [](const Fabric& fabric) {
    TrafficMatrix matrix(8);
    matrix.at(0, 4) = 1e6;
    return fabric.all_to_all(matrix).time;
  };
  const auto link = [&](const Experiment& e) { return crossing(e.kv_link->fabric); };
  const auto expert = [](const Experiment& e) {
    return e.decode().rules.of(StepKind::decode).router->objective()->weight_time;
  };
  ExperimentSpec off = spec;
  for (PoolSpec& pool : off.pools) resample_hardware(pool, 1);
  const Experiment base = deploy(spec, traces), drawn = deploy(off, traces);
  CHECK(link(drawn) != link(base));
  CHECK(link(drawn) == crossing(Fabric(drawn.decode().cluster)));
  CHECK(expert(drawn) != expert(base));
  CHECK(expert(drawn) == expert_time(drawn.decode()).weight_time);
}

TEST_CASE("a placement is fitted on the requests that were drawn") {
  const ConfigNode config = tiny();
  Json json = config.json();
  json["placement"] = {{"type", "eplb"}, {"replication", 1.5}};
  const ExperimentSpec spec = read_spec({json, config.file()});
  TraceLibrary library;
  Traces traces = library.open(spec);
  const RoutingTrace& made = traces.decode;
  // As if it were recorded: what is generated is not drawn again.
  TraceMeta meta = made.meta();
  meta.synthetic = false;
  std::vector<std::uint16_t> ids;
  made.visit([&](auto all) { ids.assign(all.begin(), all.end()); });
  traces.decode = RoutingTrace(meta, {made.workloads().begin(), made.workloads().end()},
                               {made.requests().begin(), made.requests().end()}, ids);
  const Deployment base = deploy(spec, traces).decode();
  const Deployment drawn = deploy(spec, resampled(traces, 1, 1)).decode();
  CHECK(drawn.seen != base.seen);
  CHECK(drawn.placement != base.placement);
}

}  // namespace moesim::test_uncertainty
