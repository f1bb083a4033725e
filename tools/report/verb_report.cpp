// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <memory>

#include <spdlog/spdlog.h>

#include "tools/cli/output.hpp"
#include "tools/cli/verbs.hpp"
#include "tools/report/page.hpp"

namespace moesim {

namespace {

struct Options {
  std::string store, output;
  PageOptions page;
};

int run(Options options) {
  require_writable(options.output);
  const StoredSweep sweep = Store::open(options.store).read();
  if (options.page.axes.by.empty()) options.page.axes.by = default_groups(sweep);
  options.page.store = std::filesystem::path(options.store).filename().string();
  const std::string page = report_page(page_data(sweep, options.page));
  write_file(options.output, page);
  spdlog::info("{}: {} of {} points, {:.1f} MB; open it in a browser", options.output,
               count_by_status(sweep.points), sweep.points.size(), double(page.size()) / 1e6);
  return 0;
}

}  // namespace

Action setup_report(CLI::App& command) {
  const auto options = std::make_shared<Options>();
  command.add_option("STORE", options->store, "what `moesim sweep` wrote")->required();
  command.add_option("-o,--output", options->output, "the page, HTML")->required();
  command.add_option("--x", options->page.axes.x, "shown first across; a pointer into the report")
      ->capture_default_str();
  command.add_option("--y", options->page.axes.y, "shown first upwards; a pointer into the report")
      ->capture_default_str();
  command
      .add_option("--by", options->page.axes.by,
                  "a curve for each value of this; repeatable (default: what the sweep varies, but "
                  "load, batch, plan and seed)")
      ->allow_extra_args(false);
  command.add_option("--base", options->page.base,
                     "the experiment as the page's commands name it (default: as the sweep does)");
  command.footer(
      "One HTML file that needs no other and no network. Pointers as in `moesim pareto`.");
  return [options] { return run(*options); };
}

}  // namespace moesim
