// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/validation/table_laws.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>

#include "hardware/at.hpp"
#include "hardware/kernels/experts.hpp"
#include "sim/report/statistics.hpp"

namespace moesim {

namespace {

using Indices = std::vector<std::size_t>;

// Decode steps of a rank: reading weights is most of the time.
constexpr double few_tokens = 64;
// Fewer pairs of rows than this are no evidence against a kernel.
constexpr std::size_t enough = 8;

/// The coordinates of a row on some axes.
Coordinates on(const MeasuredTable& table, TableAxis::Varies varies, const LawRow& row) {
  Coordinates place{};
  for (const int axis : table.axes_that_vary(varies))
    place[at(axis)] = row.sample.place.at[at(axis)];
  return place;
}

int axis_named(const MeasuredTable& table, std::string_view name) {
  return static_cast<int>(std::ranges::find(table.axes, name, &TableAxis::name) -
                          table.axes.begin());
}

double tokens_of(const MeasuredTable& table, const LawRow& row) {
  return std::exp2(row.sample.place.at[at(axis_named(table, "tokens"))]);
}

std::map<std::pair<std::string, std::string>, Indices> by_kernel(std::span<const LawRow> rows) {
  std::map<std::pair<std::string, std::string>, Indices> kernels;
  for (std::size_t i = 0; i < rows.size(); ++i)
    kernels[{rows[i].sample.group, rows[i].sample.kernel}].push_back(i);
  return kernels;
}

/// Times of a shape at equal tokens, whole and cut; rows differ by how tokens were drawn.
struct WholeAndCut {
  std::vector<double> whole, cut;
};

double least(const std::vector<double>& times) { return std::ranges::min(times); }
double middle(const std::vector<double>& times) { return median(times); }

/// True if a kernel's layers take `most` of the time or more when cut over eight ranks. That is the
/// median over calls of `first` to `last` tokens. `of_draws` says which of a cut layer's times
/// count. They differ by how many rows its rank got.
bool takes_as_long(const MeasuredTable& table, std::span<const LawRow> rows, const Indices& kernel,
                   double first, double last, double (*of_draws)(const std::vector<double>&),
                   double most) {
  constexpr double ranks = 8;
  std::map<std::pair<Coordinates, double>, WholeAndCut> calls;
  for (const std::size_t i : kernel) {
    const double tokens = tokens_of(table, rows[i]);
    if (tokens < first - 0.5 || tokens > last + 0.5) continue;
    WholeAndCut& times = calls[{on(table, TableAxis::by_shape, rows[i]), tokens}];
    if (rows[i].cut == 1) times.whole.push_back(rows[i].sample.us);
    if (rows[i].cut == ranks) times.cut.push_back(rows[i].sample.us);
  }
  std::vector<double> ratios;
  for (const auto& [call, times] : calls)
    if (!times.whole.empty() && !times.cut.empty())
      ratios.push_back(of_draws(times.cut) / median(times.whole));
  return ratios.size() >= enough && median(std::move(ratios)) >= most;
}

/// Rows of cut layers of kernels that take as long as uncut.
Indices not_cut(const MeasuredTable& table, std::span<const LawRow> rows) {
  constexpr double many = 2048, most_tokens = 16384;
  Indices broken;
  for (const auto& [name, kernel] : by_kernel(rows)) {
    if (!takes_as_long(table, rows, kernel, 0, few_tokens, middle, 0.9) &&
        !takes_as_long(table, rows, kernel, many, most_tokens, least, 0.8))
      continue;
    for (const std::size_t i : kernel)
      if (rows[i].cut > 1) broken.push_back(i);
  }
  return broken;
}

/// All rows of kernels that multiply narrow weights, but take longer than bf16's.
Indices heavier_than_bf16(const MeasuredTable& table, std::span<const LawRow> rows) {
  constexpr std::size_t looked_at = 100;
  constexpr double most = 1.25;
  constexpr std::string_view wide = "bfloat16";
  Scattered reference(table.axis_count());
  for (const LawRow& row : rows)
    if (row.sample.group == wide && !table.is_other_layer(row.sample.kernel) &&
        tokens_of(table, row) < 2 * few_tokens)
      reference.add(row.sample.place.at, std::log(row.sample.us));
  Indices broken;
  if (reference.empty()) return broken;
  for (const auto& [name, kernel] : by_kernel(rows)) {
    if (name.first == wide || table.is_other_layer(name.second)) continue;
    Indices few;
    for (const std::size_t i : kernel)
      if (tokens_of(table, rows[i]) < few_tokens + 0.5) few.push_back(i);
    std::vector<double> ratios;
    for (std::size_t i = 0; i < few.size(); i += few.size() / looked_at + 1) {
      const Sample& sample = rows[few[i]].sample;
      ratios.push_back(std::log(sample.us) - reference.at(sample.place.at).value);
    }
    if (ratios.size() >= enough && median(std::move(ratios)) > std::log(most))
      broken.insert(broken.end(), kernel.begin(), kernel.end());
  }
  return broken;
}

/// Rows that take more than twice the time of rows with more work. Of those in conflict the row
/// with the most conflicts goes first.
Indices out_of_order(const MeasuredTable& table, std::span<const LawRow> rows) {
  constexpr double most = 2, rounding = 1e-2;  // tables keep loads to three digits
  const std::vector<int> loads = table.axes_that_vary(TableAxis::with_load);
  std::map<std::tuple<std::string, std::string, Coordinates, double>, Indices> shapes;
  for (std::size_t i = 0; i < rows.size(); ++i)
    shapes[{rows[i].sample.group, rows[i].sample.kernel, on(table, TableAxis::by_shape, rows[i]),
            rows[i].cut}]
        .push_back(i);
  const auto has_less = [&](const Coordinates& a, const Coordinates& b) {
    return std::ranges::all_of(loads,
                               [&](int axis) { return a[at(axis)] <= b[at(axis)] + rounding; });
  };
  Indices broken;
  for (const auto& [shape, own] : shapes) {
    std::map<std::size_t, Indices> conflicts;
    for (const std::size_t slow : own) {
      for (const std::size_t fast : own) {
        const Sample &s = rows[slow].sample, &f = rows[fast].sample;
        if (s.us <= most * f.us || !has_less(s.place.at, f.place.at)) continue;
        conflicts[slow].push_back(fast);
        conflicts[fast].push_back(slow);
      }
    }
    while (!conflicts.empty()) {
      const auto worst = std::ranges::max_element(
          conflicts, {}, [](const auto& entry) { return entry.second.size(); });
      const std::size_t row = worst->first;
      for (const std::size_t other : worst->second) {
        Indices& left = conflicts.at(other);
        std::erase(left, row);
        if (left.empty()) conflicts.erase(other);
      }
      conflicts.erase(row);
      broken.push_back(row);
    }
  }
  std::ranges::sort(broken);
  return broken;
}

}  // namespace

double ranks_of_layer(const TableRow& row) {
  return row.text_or_none("experts").empty() || row.text_or_none("top_k").empty()
             ? 1
             : row.number("experts") / experts_held(row);
}

bool is_stalled(const MeasuredTable& table, const Sample& sample, double limit) {
  constexpr double most = 16, much = 6, little_above = 1.4;
  const bool prefill = table.axes[0].name == "tokens" && table.axes[2].name == "queries";
  const double times = sample.us / sample.place.rough_us;
  return prefill && (times > most || (times > much && sample.us < little_above * limit));
}

BrokenLaws broken_laws(const MeasuredTable& table, std::span<const LawRow> rows) {
  BrokenLaws broken;
  if (axis_named(table, "active experts") == static_cast<int>(table.axes.size())) return broken;
  broken[at(TableLaw::cut)] = not_cut(table, rows);
  broken[at(TableLaw::bytes)] = heavier_than_bf16(table, rows);
  broken[at(TableLaw::order)] = out_of_order(table, rows);
  return broken;
}

}  // namespace moesim
