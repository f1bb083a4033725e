// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/study/regimes.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

namespace moesim {

namespace {

// Half the 95 % interval of the mean of values; 0 for a single one.
double margin_of_mean(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  const double middle = mean_of(values);
  double squares = 0;
  for (const double value : values) squares += std::pow(value - middle, 2);
  return count > 1 ? 1.96 * std::sqrt(squares / (count - 1) / count) : 0;
}

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

bool as_fast(const RegimeRow& row, const RegimeRow& fastest) {
  if (&row == &fastest) return true;
  const PairedGain gap = paired_gain(row.ms, fastest.ms);
  return row.fits && gap.percent <= gap.margin;
}

RegimeCell cell_from(const RegimeStudy& study, const Rows& rows) {
  RegimeCell cell;
  cell.reference = fastest_of(rows, is_reference);
  cell.fastest = fastest_of(rows, fits);
  cell.metro = fastest_of(rows, [&](const RegimeRow& row) {
    return row.fits && study.policies[row.place.policy].first.starts_with("metro");
  });
  if (cell.fastest == nullptr) return cell;
  for (const RegimeRow* row : rows) {
    if (!as_fast(*row, *cell.fastest)) continue;
    if (cell.cheapest == nullptr || row->kv_tokens > cell.cheapest->kv_tokens) cell.cheapest = row;
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
    if (!report.contains("steps"))
      throw ConfigError(
          "an older moesim wrote the store; name a new file, or remove the old one and run the "
          "study again");
    for (const Json& step : report.at("steps"))
      rows.push_back({place, static_cast<StepKind>(step.at("kind").get<int>()),
                      report.at("replication"), step.at("batch"), step.at("x"), step.at("ms"),
                      step.at("activated"), step.at("read_mb"), step.at("free_ms"),
                      step.at("published_ms"), step.at("fast_ms"), report.at("kv_tokens"),
                      step.at("fits"), report.at("layers")});
  });
  std::ranges::stable_sort(rows, {}, cell_of);
  return rows;
}

PairedGain paired_gain(const std::vector<double>& of, const std::vector<double>& against) {
  const std::vector<double> differences = difference(of, against);
  const double percent = 100 / mean_of(against);
  return {percent * mean_of(differences), percent * margin_of_mean(differences)};
}

std::vector<RegimeCell> regime_map(const RegimeStudy& study, const std::vector<RegimeRow>& rows) {
  std::vector<RegimeCell> cells;
  for (const Rows& group : groups_of(pointers_to(rows), cell_of)) {
    const RegimeCell cell = cell_from(study, group);
    if (cell.reference != nullptr && cell.fastest != nullptr) cells.push_back(cell);
  }
  return cells;
}

std::optional<bool> BreakEven::pays() const {
  const auto [least, most] = std::minmax(published_us, fast_us);
  if (us - margin > most) return true;
  if (us + margin < least) return false;
  return std::nullopt;
}

namespace {

BreakEven break_even_of(const RegimeRow& policy, const RegimeRow& rival) {
  const auto us_of_layer = [&](const std::vector<double>& ms) {
    return 1e3 * mean_of(ms) / policy.layers;
  };
  const std::vector<double> left = difference(rival.ms, policy.free_ms);
  return {&policy,
          &rival,
          us_of_layer(left),
          1e3 * margin_of_mean(left) / policy.layers,
          us_of_layer(difference(policy.published_ms, policy.free_ms)),
          us_of_layer(difference(policy.fast_ms, policy.free_ms))};
}

void add_break_even(const RegimeStudy& study, const Rows& cell, const RegimeRow& rival,
                    std::vector<BreakEven>& all) {
  for (std::size_t policy = 0; policy < study.policies.size(); ++policy) {
    std::optional<BreakEven> best;
    for (const RegimeRow* row : cell) {
      if (!row->fits || !row->by_global_counts() || row->place.policy != policy) continue;
      const BreakEven one = break_even_of(*row, rival);
      if (!best || one.us > best->us) best = one;
    }
    if (best) all.push_back(*best);
  }
}

}  // namespace

std::vector<BreakEven> break_even(const RegimeStudy& study, const std::vector<RegimeRow>& rows) {
  std::vector<BreakEven> all;
  for (const Rows& group : groups_of(pointers_to(rows), cell_of)) {
    const auto undecided = [](const RegimeRow& row) { return row.fits && !row.by_global_counts(); };
    const RegimeRow* reference = fastest_of(
        group, [&](const RegimeRow& row) { return undecided(row) && is_reference(row); });
    const RegimeRow* fastest = fastest_of(group, undecided);
    if (reference != nullptr) add_break_even(study, group, *reference, all);
    if (fastest != nullptr && fastest != reference) add_break_even(study, group, *fastest, all);
  }
  return all;
}

namespace {

std::set<std::size_t> policies_of(const Rows& rows) {
  std::set<std::size_t> all;
  for (const RegimeRow* row : rows) all.insert(row->place.policy);
  return all;
}

constexpr double unnoticed_percent = 1;

// Nothing where no policy's batch fits, or the reference is not among the rows.
std::optional<RegimeView> view_of(const RegimeStudy& study, const Rows& rows,
                                  std::optional<std::size_t> exchange) {
  RegimeView view{rows.front()->place.constants,
                  exchange,
                  fastest_of(rows, fits),
                  fastest_of(rows, is_reference),
                  {}};
  if (view.fastest == nullptr || view.reference == nullptr) return std::nullopt;
  for (const RegimeRow* row : rows) {
    const std::string family = family_of(study, *row);
    const PairedGain gap = paired_gain(row->ms, view.fastest->ms);
    const bool level = row->fits && gap.percent <= std::max(gap.margin, unnoticed_percent);
    if (level && std::ranges::count(view.as_fast, family) == 0) view.as_fast.push_back(family);
  }
  return view;
}

// Adds views of one cell: each policy behind its best exchange, and all behind each common one.
void add_views(const RegimeStudy& study, const Rows& cell, std::vector<RegimeView>& views) {
  const auto add = [&](const Rows& rows, std::optional<std::size_t> exchange) {
    if (const std::optional<RegimeView> view = view_of(study, rows, exchange))
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

std::optional<std::string> family_of_all(const RegimeStudy& study,
                                         const std::vector<RegimeView>& views) {
  std::optional<std::string> best;
  std::ptrdiff_t most = -1;
  for (const std::string& family : views.front().as_fast) {
    const bool everywhere = std::ranges::all_of(views, [&](const RegimeView& view) {
      return std::ranges::count(view.as_fast, family) > 0;
    });
    if (!everywhere) continue;
    if (family == family_of(study, *views.front().reference)) return family;
    const std::ptrdiff_t fastest = std::ranges::count_if(
        views, [&](const RegimeView& view) { return family_of(study, *view.fastest) == family; });
    if (fastest <= most) continue;
    best = family;
    most = fastest;
  }
  return best;
}

}  // namespace

std::string family_of(const RegimeStudy& study, const RegimeRow& row) {
  const std::string& name = study.policies[row.place.policy].first;
  return name.substr(0, name.find(' '));
}

std::vector<RegimeVerdict> regime_verdicts(const RegimeStudy& study,
                                           const std::vector<RegimeRow>& rows) {
  Rows by_batch = pointers_to(rows);
  std::ranges::stable_sort(by_batch, {}, [](const RegimeRow* row) { return batch_of(*row); });
  std::vector<RegimeVerdict> verdicts;
  for (const Rows& batch : groups_of(by_batch, batch_of)) {
    RegimeVerdict verdict;
    for (const Rows& cell : groups_of(batch, cell_of)) add_views(study, cell, verdict.views);
    if (verdict.views.empty()) continue;
    verdict.family = family_of_all(study, verdict.views);
    verdicts.push_back(std::move(verdict));
  }
  return verdicts;
}

}  // namespace moesim
