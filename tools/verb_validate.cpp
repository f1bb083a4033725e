// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/output.hpp"
#include "tools/source_tree.hpp"
#include "tools/table.hpp"
#include "tools/validation.hpp"
#include "tools/verbs.hpp"

namespace moesim {

namespace {

struct Options {
  std::string points, csv;
  std::vector<std::string> only;
  std::filesystem::path root = source_tree();
  bool json = false;
};

OrderedJson to_json(const std::map<std::string, CategoryErrors>& categories) {
  OrderedJson json{{"categories", OrderedJson::object()}};
  for (const auto& [name, c] : categories) {
    json["categories"][name] = {{"n", c.n},
                                {"median_abs_pct_error", c.median_abs_pct},
                                {"p90_abs_pct_error", c.p90_abs_pct},
                                {"bias_pct", c.bias_pct},
                                {"skipped", c.skipped},
                                {"failed", c.failed},
                                {"extrapolated", c.extrapolated}};
  }
  return json;
}

std::string to_text(const std::vector<ValidatedPoint>& points,
                    const std::map<std::string, CategoryErrors>& categories) {
  Table table({"category", "points", "median error", "p90 error", "bias", "extrapolated", "failed",
               "skipped"});
  for (const auto& [name, c] : categories) {
    table.add({name, fmt::format("{}", c.n), fmt::format("{:.1f} %", c.median_abs_pct),
               fmt::format("{:.1f} %", c.p90_abs_pct), fmt::format("{:+.1f} %", c.bias_pct),
               fmt::format("{}", c.extrapolated), fmt::format("{}", c.failed),
               fmt::format("{}", c.skipped)});
  }
  std::map<std::string, std::vector<std::string>> reasons;
  for (const ValidatedPoint& p : points) {
    if (p.skipped())
      reasons["skipped: " + std::get<Skipped>(p.predicted).reason].push_back(p.point.id);
    if (!p.failure.empty()) reasons["failed: " + p.failure].push_back(p.point.id);
  }
  std::string text = table.text() +
                     "error: |predicted / measured - 1|; bias: the median with its sign; "
                     "extrapolated: outside what\nconstants were fitted on\n";
  for (const auto& [reason, ids] : reasons)
    text += wrapped(fmt::format("{}: {}", reason, fmt::join(ids, ", ")), 100, 2) + "\n";
  return text;
}

/// RFC 4180.
std::string csv_field(std::string_view field) {
  std::string text = "\"";
  for (const char c : field) text += c == '"' ? std::string("\"\"") : std::string(1, c);
  return text + "\"";
}

std::string to_csv(const std::vector<ValidatedPoint>& points) {
  std::string text =
      "id,category,gpu,model,op,precision,metric,measured,predicted,error_pct,extrapolated,"
      "breakdown\n";
  for (const ValidatedPoint& p : points) {
    std::string predicted, error, extrapolated, breakdown;
    if (p.skipped()) {
      breakdown = "skipped: " + std::get<Skipped>(p.predicted).reason;
    } else if (!p.failure.empty()) {
      breakdown = "failed: " + p.failure;
    } else {
      const auto& prediction = std::get<Prediction>(p.predicted);
      predicted = fmt::format("{:.5g}", prediction.value);
      error = fmt::format("{:.1f}", p.error_pct());
      extrapolated = prediction.extrapolated ? "yes" : "no";
      breakdown = prediction.breakdown;
    }
    text += fmt::format("{},{},{},{},{},{},{},{:.5g},{},{},{},{}\n", p.point.id, p.point.category,
                        csv_field(p.point.gpu), csv_field(p.point.model),
                        csv_field(p.point.operation), csv_field(p.point.precision), p.point.metric,
                        p.point.value, predicted, error, extrapolated, csv_field(breakdown));
  }
  return text;
}

}  // namespace

Action setup_validate(CLI::App& command) {
  const auto options = std::make_shared<Options>();
  command.add_option("--points", options->points, "measured points, CSV")->required();
  command.add_option("--csv", options->csv, "every point with its prediction, to this file");
  command.add_option("--category", options->only, "only these, comma-separated")->delimiter(',');
  command.add_option("--root", options->root, "folder that holds hardware/ and models/");
  command.add_flag("--json", options->json, "print JSON instead of a table");
  return [options] {
    if (!options->csv.empty()) require_writable(options->csv);
    std::vector<MeasuredPoint> points = read_points(options->points);
    const auto unwanted = [&](const MeasuredPoint& point) {
      const std::vector<std::string>& only = options->only;
      return !only.empty() && std::find(only.begin(), only.end(), point.category) == only.end();
    };
    std::erase_if(points, unwanted);
    const std::vector<ValidatedPoint> validated = validate(points, options->root);
    const auto categories = errors_by_category(validated);
    if (!options->csv.empty()) write_file(options->csv, to_csv(validated));
    print(options->json ? to_json(categories).dump(1) + "\n" : to_text(validated, categories));
    return 0;
  };
}

}  // namespace moesim
