// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <memory>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "tools/cli/output.hpp"
#include "tools/cli/verbs.hpp"
#include "tools/report/page.hpp"

namespace moesim {

namespace {

struct ReportOptions {
  std::string store, output;
  PageOptions page;
};

int run(const ReportOptions& options) {
  require_writable(options.output);
  const StorePage page = store_page(options.store, options.page);
  write_file(options.output, page.html);
  spdlog::info("{}: {} points, {:.1f} MB; open it in a browser", options.output, page.points,
               double(page.html.size()) / 1e6);
  return 0;
}

}  // namespace

Action setup_report(CLI::App& command) {
  const auto options = std::make_shared<ReportOptions>();
  command.add_option("STORE", options->store, "store that `moesim sweep` wrote")->required();
  command.add_option("-o,--output", options->output, "the page, HTML")->required();
  command
      .add_option("--x", options->page.axes.x,
                  "first x axis of the chart: a pointer into the report")
      ->capture_default_str();
  options->page.axes.y.clear();
  command.add_option(
      "--y", options->page.axes.y,
      "first y axis of the chart: a pointer into the report (default: goodput where points "
      "have an SLO, else output throughput per GPU)");
  command
      .add_option("--by", options->page.axes.by,
                  "a curve for each value of this; repeatable (default: what the sweep varies, but "
                  "load, batch, plan and seed)")
      ->allow_extra_args(false);
  command.add_option("--base", options->page.base,
                     "the experiment as the page's commands name it (default: as the sweep does)");
  command.footer(
      "The page is one HTML file and needs no network. Pointers are as in `moesim pareto`.");
  return [options] { return run(*options); };
}

}  // namespace moesim
