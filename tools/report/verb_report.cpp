// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include <spdlog/spdlog.h>

#include "tools/cli/option_checks.hpp"
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
  option(command, "STORE", options->store, "store that `moesim sweep` wrote", mandatory);
  option(command, "-o,--output", options->output, "the page, HTML", mandatory);
  option(command, "--x", options->page.axes.x,
         "first x axis of the chart: a pointer into the report", default_shown);
  options->page.axes.y.clear();
  command.add_option("--y", options->page.axes.y,
                     "first y axis of the chart: a pointer into the report (default: goodput where "
                     "points have an SLO, else output throughput per GPU)");
  option(command, "--by", options->page.axes.by,
         "a curve for each value of this; repeatable (default: what the sweep varies, but load, "
         "batch, plan and seed)",
         repeatable);
  command.add_option("--base", options->page.base,
                     "the experiment as the page's commands name it (default: as the sweep does)");
  command.footer(
      "The page is one HTML file and needs no network. Pointers are as in `moesim pareto`.");
  return [options] { return run(*options); };
}

}  // namespace moesim
