// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <string>
#include <vector>

#include <tbb/parallel_for.h>

#include "tools/lab/reproduce/measure_kinds.hpp"
#include "tools/lab/study/regimes.hpp"

namespace moesim {

namespace {

StoredSweep price_all(const RegimeStudy& study, TraceLibrary& traces) {
  const Sweep sweep = points_of(study);
  check_first(study, sweep, traces);
  StoredSweep priced;
  priced.points.resize(sweep.points.size());
  tbb::parallel_for(std::size_t{0}, priced.points.size(), [&](std::size_t i) {
    StoredPoint& point = priced.points[i];
    point.config_hash = sweep.points[i].config_hash;
    try {
      point.report = Json::parse(price_regime(sweep.points[i].config, study.base_file, traces));
      point.status = PointStatus::done;
    } catch (const ConfigError& error) {  // a policy that this exchange or width cannot have
      point.status = PointStatus::infeasible;
      point.error = error.what();
    }
  });
  return priced;
}

double free_ms(const RegimeRow& row) {
  return mean_of(row.by_global_counts() ? row.free_ms : row.ms);
}

// JSON of a step that takes `ms`, next to one of the reference's.
Json step_json(const RegimeRow& row, double ms, double reference_ms) {
  return {{"us", 1e3 * ms},
          {"change", 100 * (ms / reference_ms - 1)},
          {"saved_us", 1e3 * (reference_ms - ms) / row.layers}};
}

}  // namespace

Json measure_regimes(const ConfigNode& node, TraceLibrary& traces) {
  const RegimeStudy study = read_regime_study(node);
  const std::vector<RegimeRow> rows = regime_rows(study, price_all(study, traces));
  // Least row of each policy, behind each exchange and behind any, by case, constants and batch.
  using Cell = std::map<std::string, std::map<std::string, const RegimeRow*>>;
  std::map<std::vector<std::string>, Cell> cells;
  for (const RegimeRow& row : rows) {
    if (!row.fits) continue;
    Cell& cell = cells[{study.cases[row.place.of_case].first,
                        study.constants[row.place.constants].first, std::to_string(row.batch)}];
    for (const std::string& exchange :
         {study.exchanges[row.place.exchange].first, std::string("best")}) {
      const RegimeRow*& least = cell[exchange][study.policies[row.place.policy].first];
      if (least == nullptr || free_ms(row) < free_ms(*least)) least = &row;
    }
  }
  Json answer;
  for (const auto& [place, cell] : cells) {
    Json& of_cell = answer[place[0]][place[1]][place[2]];
    for (const auto& [exchange, policies] : cell) {
      const auto reference = policies.find(study.policies.front().first);
      if (reference == policies.end()) continue;
      for (const auto& [policy, row] : policies)
        of_cell[policy][exchange] = step_json(*row, free_ms(*row), free_ms(*reference->second));
    }
  }
  return answer;
}

}  // namespace moesim
