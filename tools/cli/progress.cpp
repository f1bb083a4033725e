// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/progress.hpp"

#include <cmath>
#include <cstdio>

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "hardware/at.hpp"

namespace moesim {

namespace {

using namespace std::chrono_literals;

constexpr auto silent_at_first = 1s, silent_in_a_file = 5s;
constexpr auto between_bars = 100ms;
constexpr auto between_lines = 30s;
constexpr std::int64_t bar_width = 30;

std::string duration_text(double seconds) {
  const long s = std::lround(seconds);
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {} s", s / 60, s % 60);
  return fmt::format("{} h {} min", s / 3600, s % 3600 / 60);
}

}  // namespace

void ProgressBar::update(std::int64_t done, std::int64_t total) {
  if (watcher) return watcher(what_, done, total);
  const auto now = Clock::now();
  if (done == 0) start_ = now;  // what was before is not this work
  const bool terminal = ::isatty(STDERR_FILENO) != 0;
  if (now - start_ < (terminal ? silent_at_first : silent_in_a_file)) return;
  const bool ended = done == total;
  const std::int64_t tenths = total > 0 ? done * 10 / total : 0;
  const bool due =
      terminal ? now - last_ >= between_bars : now - last_ >= between_lines || tenths > tenths_;
  if (!due && !ended) return;
  last_ = now;
  tenths_ = tenths;

  const double elapsed = std::chrono::duration<double>(now - start_).count();
  std::string state = fmt::format("{} {}", done, what_);
  if (total > 0) {
    state = fmt::format("{} of {} {}, ", done, total, what_);
    state += ended ? fmt::format("{} taken", duration_text(elapsed))
                   : fmt::format("{} left",
                                 duration_text(elapsed / double(done) * double(total - done)));
  }
  if (!terminal) {
    spdlog::info("{}", state);
    return;
  }
  std::string bar;
  if (total > 0) {
    const auto full = at(bar_width * done / total);
    bar = fmt::format("[{}{}] ", std::string(full, '#'), std::string(at(bar_width) - full, '.'));
  } else {
    state += fmt::format(", {} taken", duration_text(elapsed));
  }
  fmt::print(stderr, "\r{}{}\033[K", bar, state);
  std::fflush(stderr);
  bar_open_ = true;
}

void ProgressBar::finish() {
  if (bar_open_) fmt::print(stderr, "\n");
  bar_open_ = false;
}

}  // namespace moesim
