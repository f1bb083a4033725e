// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/study/regimes.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

namespace moesim {

namespace {

std::vector<double> difference(std::vector<double> of, const std::vector<double>& against) {
  for (std::size_t i = 0; i < of.size(); ++i) of[i] -= against[i];
  return of;
}

// Key of rows that are priced on the same batches.
auto batch_of(const RegimeRow& row) { return std::tuple(row.place.of_case, row.kind, row.batch); }
auto cell_of(const RegimeRow& row) {
  return std::tuple(row.place.of_case, row.place.constants, row.kind, row.batch);
}

using Rows = std::vector<const RegimeRow*>;

// Rows that stand one after the other and are alike by `key`, in order.
template <class Key>
std::vector<Rows> groups_of(const Rows& rows, Key&& key) {
  std::vector<Rows> groups;
  for (const RegimeRow* row : rows) {
    if (groups.empty() || key(*groups.back().front()) != key(*row)) groups.emplace_back();
    groups.back().push_back(row);
  }
  return groups;
}

Rows pointers_to(const std::vector<RegimeRow>& rows) {
  Rows all;
  for (const RegimeRow& row : rows) all.push_back(&row);
  return all;
}

// Null where no row is asked for.
template <class Asked>
const RegimeRow* fastest_of(const Rows& rows, Asked&& asked) {
  const RegimeRow* fastest = nullptr;
  for (const RegimeRow* row : rows) {
    if (asked(*row) && (fastest == nullptr || mean_of(row->ms) < mean_of(fastest->ms)))
      fastest = row;
  }
  return fastest;
}

bool is_reference(const RegimeRow& row) { return row.place.policy == 0; }
bool fits(const RegimeRow& row) { return row.fits; }

// P below which one does not count on a step being shorter.
constexpr double unlikely = 0.05;

RegimeCell cell_from(const RegimeStudy& study, const Worlds& worlds, const Rows& rows) {
  RegimeCell cell;
  cell.reference = fastest_of(rows, is_reference);
  cell.fastest = fastest_of(rows, fits);
  cell.metro = fastest_of(rows, [&](const RegimeRow& row) {
    return row.fits && study.policies[row.place.policy].first.starts_with("metro");
  });
  if (cell.fastest == nullptr) return cell;
  for (const RegimeRow* row : rows) {
    const bool more_kv = cell.cheapest == nullptr || row->kv_tokens > cell.cheapest->kv_tokens;
    if (row->fits && more_kv &&
        (row == cell.fastest ||
         worlds.percent(row->steps(), cell.fastest->steps()).p_less >= unlikely))
      cell.cheapest = row;
  }
  return cell;
}

}  // namespace

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::vector<RegimeRow> regime_rows(const RegimeStudy& study, const StoredSweep& stored) {
  std::map<std::string, const StoredPoint*> by_hash;
  for (const StoredPoint& point : stored.points) by_hash[point.config_hash] = &point;
  std::vector<RegimeRow> rows;
  for_each_regime(study, [&](const RegimePlace& place, const SweepPoint& point) {
    const auto found = by_hash.find(point.config_hash);
    if (found == by_hash.end() || found->second->status != PointStatus::done) return;
    const Json& report = found->second->report;
    if (!report.contains("steps") || !report.at("steps").at(0).contains("off_ms"))
      throw ConfigError(
          "an older moesim wrote the store; name a new file, or remove the old one and run the "
          "study again");
    for (const Json& step : report.at("steps"))
      rows.push_back({place, static_cast<StepKind>(step.at("kind").get<int>()),
                      report.at("replication"), step.at("batch"), step.at("x"), step.at("ms"),
                      step.at("activated"), step.at("read_mb"), step.at("free_ms"),
                      step.at("published_ms"), step.at("fast_ms"), step.at("off_ms"),
                      report.at("kv_tokens"), step.at("fits"), report.at("layers")});
  });
  std::ranges::stable_sort(rows, {}, cell_of);
  return rows;
}

Worlds worlds_of(const RegimeStudy& study) {
  return Worlds(static_cast<std::size_t>(study.samples), static_cast<std::size_t>(study.deals));
}

std::vector<RegimeCell> regime_map(const RegimeStudy& study, const std::vector<RegimeRow>& rows) {
  std::vector<RegimeCell> cells;
  const Worlds worlds = worlds_of(study);
  for (const Rows& group : groups_of(pointers_to(rows), cell_of)) {
    const RegimeCell cell = cell_from(study, worlds, group);
    if (cell.reference != nullptr && cell.fastest != nullptr) cells.push_back(cell);
  }
  return cells;
}

namespace {

// Prices are off for a charge as they are without it.
double p_shorter(const Worlds& worlds, const RegimeRow& policy, const std::vector<double>& charged,
                 const RegimeRow& rival) {
  std::vector<double> off = policy.off_ms;
  for (std::size_t i = 0; i < off.size(); ++i) off[i] += charged[i] - policy.ms[i];
  return worlds.percent({charged, off}, rival.steps()).p_less;
}

BreakEven break_even_of(const Worlds& worlds, const RegimeRow& policy, const RegimeRow& rival) {
  return {&policy, &rival, 1e3 * mean_of(difference(rival.ms, policy.free_ms)) / policy.layers,
          p_shorter(worlds, policy, policy.published_ms, rival),
          p_shorter(worlds, policy, policy.fast_ms, rival)};
}

void add_break_even(const RegimeStudy& study, const Worlds& worlds, const Rows& cell,
                    const RegimeRow& rival, std::vector<BreakEven>& all) {
  for (std::size_t policy = 0; policy < study.policies.size(); ++policy) {
    std::optional<BreakEven> best;
    for (const RegimeRow* row : cell) {
      if (!row->fits || !row->by_global_counts() || row->place.policy != policy) continue;
      const BreakEven one = break_even_of(worlds, *row, rival);
      if (!best || one.us > best->us) best = one;
    }
    if (best) all.push_back(*best);
  }
}

}  // namespace

std::vector<BreakEven> break_even(const RegimeStudy& study, const std::vector<RegimeRow>& rows) {
  std::vector<BreakEven> all;
  const Worlds worlds = worlds_of(study);
  for (const Rows& group : groups_of(pointers_to(rows), cell_of)) {
    const auto undecided = [](const RegimeRow& row) { return row.fits && !row.by_global_counts(); };
    const RegimeRow* reference = fastest_of(
        group, [&](const RegimeRow& row) { return undecided(row) && is_reference(row); });
    const RegimeRow* fastest = fastest_of(group, undecided);
    if (reference != nullptr) add_break_even(study, worlds, group, *reference, all);
    if (fastest != nullptr && fastest != reference)
      add_break_even(study, worlds, group, *fastest, all);
  }
  return all;
}

namespace {

std::set<std::size_t> policies_of(const Rows& rows) {
  std::set<std::size_t> all;
  for (const RegimeRow* row : rows) all.insert(row->place.policy);
  return all;
}

std::map<std::string, double> chances(const RegimeStudy& study, const Worlds& worlds,
                                      const Rows& rows) {
  std::map<std::string, std::vector<double>> shortest;  // by family, in each world
  for (const RegimeRow* row : rows) {
    if (!row->fits) continue;
    const std::vector<double> ms = worlds.means(row->steps());
    std::vector<double>& least = shortest.try_emplace(family_of(study, *row), ms).first->second;
    std::ranges::transform(least, ms, least.begin(),
                           [](double a, double b) { return std::min(a, b); });
  }
  std::map<std::string, double> p;
  const std::size_t count = shortest.begin()->second.size();
  for (std::size_t world = 0; world < count; ++world) {
    std::vector<std::string_view> first;
    double least = 0;
    for (const auto& [family, ms] : shortest) {
      if (first.empty() || ms[world] < least) first.clear(), least = ms[world];
      if (ms[world] == least) first.push_back(family);
    }
    for (const std::string_view family : first)
      p[std::string(family)] += 1 / static_cast<double>(first.size());
  }
  for (auto& [family, worlds_won] : p) worlds_won /= static_cast<double>(count);
  return p;
}

// Nothing where no policy's batch fits, or the reference is not among the rows.
std::optional<RegimeView> view_of(const RegimeStudy& study, const Worlds& worlds, const Rows& rows,
                                  std::optional<std::size_t> exchange) {
  RegimeView view{rows.front()->place.constants,
                  exchange,
                  fastest_of(rows, fits),
                  fastest_of(rows, is_reference),
                  {}};
  if (view.fastest == nullptr || view.reference == nullptr) return std::nullopt;
  view.p_fastest = chances(study, worlds, rows);
  return view;
}

// Adds views of one cell: each policy behind its best exchange, and all behind each common one.
void add_views(const RegimeStudy& study, const Worlds& worlds, const Rows& cell,
               std::vector<RegimeView>& views) {
  const auto add = [&](const Rows& rows, std::optional<std::size_t> exchange) {
    if (const std::optional<RegimeView> view = view_of(study, worlds, rows, exchange))
      views.push_back(*view);
  };
  add(cell, std::nullopt);
  for (std::size_t exchange = 0; study.exchanges.size() > 1 && exchange < study.exchanges.size();
       ++exchange) {
    Rows behind;
    std::ranges::copy_if(cell, std::back_inserter(behind),
                         [&](const RegimeRow* row) { return row->place.exchange == exchange; });
    if (policies_of(behind) == policies_of(cell)) add(behind, exchange);
  }
}

}  // namespace

std::string family_of(const RegimeStudy& study, const RegimeRow& row) {
  const std::string& name = study.policies[row.place.policy].first;
  return name.substr(0, name.find(' '));
}

FastestFamily fastest_family(const std::vector<RegimeView>& views) {
  FastestFamily best;
  for (const auto& [family, p] : views.front().p_fastest) {
    double least = p;
    for (const RegimeView& view : views) {
      const auto found = view.p_fastest.find(family);
      least = std::min(least, found == view.p_fastest.end() ? 0 : found->second);
    }
    if (best.family.empty() || least > best.p) best = {family, least};
  }
  return best;
}

std::vector<std::vector<RegimeView>> regime_views(const RegimeStudy& study,
                                                  const std::vector<RegimeRow>& rows) {
  Rows by_batch = pointers_to(rows);
  std::ranges::stable_sort(by_batch, {}, [](const RegimeRow* row) { return batch_of(*row); });
  const Worlds worlds = worlds_of(study);
  std::vector<std::vector<RegimeView>> all;
  for (const Rows& batch : groups_of(by_batch, batch_of)) {
    std::vector<RegimeView> views;
    for (const Rows& cell : groups_of(batch, cell_of)) add_views(study, worlds, cell, views);
    if (!views.empty()) all.push_back(std::move(views));
  }
  return all;
}

}  // namespace moesim
