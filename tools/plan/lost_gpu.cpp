// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/lost_gpu.hpp"

#include <fmt/format.h>

#include "hardware/find_value.hpp"
#include "hardware/text.hpp"
#include "sim/report/report.hpp"
#include "sim/serving/simulator.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/serving_question.hpp"
#include "tools/cli/table.hpp"
#include "tools/sweep/slo_search.hpp"

namespace moesim {

int lost_gpu_of(const std::string& option) {
  constexpr std::string_view key = "gpu=";
  const auto gpu =
      option.starts_with(key) ? try_number<int>(option.substr(key.size())) : std::nullopt;
  if (!gpu || *gpu < 0)
    throw ConfigError(
        "--fail {}: expected gpu=N, a GPU of the first group that decodes, e.g. gpu=1", option);
  return *gpu;
}

namespace {

// Enough for the share within the limits, and few enough to price each token several times.
constexpr std::int64_t requests_of_a_run = 600;

// The deployment without the GPU. It stops as the run begins.
Json without(Json config, int gpu) {
  const Json failures{{"events", {{{"at", "0 s"}, {"gpu", gpu}}}}};
  if (config.contains("pools")) {
    config["pools"]["decode"]["failures"] = failures;
  } else {
    config["failures"] = failures;
  }
  config["fidelity"] = "exact";
  config["workload"]["requests"] = requests_of_a_run;
  return config;
}

}  // namespace

LostGpu without_gpu(const Json& config, const std::filesystem::path& folder, int gpu,
                    double per_second, double attainment, TraceLibrary& traces) {
  LostGpu lost{.pool = config.contains("pools") ? "decode" : "", .gpu = gpu};
  Json changed = without(config, gpu);
  // True if the limits are met under this share of the load.
  const auto meets = [&](double share) {
    changed[Json::json_pointer(rate_pointer)] = fmt::format("{} /s", share * per_second);
    const Experiment experiment =
        load_experiment(ConfigNode(changed, folder / experiment_file), traces);
    const Json report = Json::parse(run(experiment).document().dump());
    const double met = report.at("metrics").value("slo_attainment", 0.0);
    if (const Json* stopped = find_value(report, "/failures/0")) {
      lost.stopped_seconds = stopped->at("stopped_seconds");
      lost.experts_lost = stopped->at("experts_lost");
    }
    if (met < attainment || report.at("measurement").at("state") != "stable") return false;
    lost.attainment = met;
    lost.per_second = share * per_second;
    return true;
  };
  constexpr double grain = .02;
  try {
    double sustained = 0, missed = 1 + grain;
    while (missed - sustained > grain) {
      const double share = (sustained + missed) / 2;
      (meets(share) ? sustained : missed) = share;
    }
  } catch (const ConfigError& error) {
    lost.refused = said_of_options(error.what());
  }
  return lost;
}

std::string lost_gpu_text(const LostGpu& lost, double before) {
  const std::string gpu =
      fmt::format("without GPU {}{}", lost.gpu, lost.pool.empty() ? "" : " of the decode pool");
  if (!lost.refused.empty())
    return paragraph("{} the deployment cannot run: {}", gpu, lost.refused);
  return paragraph(
      "{}: {} req/s within the limits for {} of the requests ({:+.0f} %). The engine stops for "
      "{:.2f} s when the GPU is lost; other GPUs load {:.0f} slots of experts",
      gpu, number_text(lost.per_second), percent(lost.attainment, 0),
      100 * (lost.per_second / before - 1), lost.stopped_seconds, lost.experts_lost);
}

OrderedJson lost_gpu_json(const LostGpu& lost) {
  if (!lost.refused.empty()) return {{"gpu", lost.gpu}, {"refused", lost.refused}};
  return {{"gpu", lost.gpu},
          {"rate", lost.per_second},
          {"slo_attainment", lost.attainment},
          {"stopped_seconds", lost.stopped_seconds},
          {"experts_lost", lost.experts_lost}};
}

}  // namespace moesim
