// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace moesim {

/// Says on stderr how far long work is and how long it will take. On a terminal it is a bar that is
/// drawn over, elsewhere a plain line for every tenth and every half minute. Work that takes less
/// than a second, elsewhere less than five, is not mentioned. Not for several threads at a time.
class ProgressBar {
 public:
  /// `what` is counted: "points".
  explicit ProgressBar(std::string what) : what_(std::move(what)) {}
  ~ProgressBar() { finish(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Told of all work in the place of bars: what, done, total. Set by a program that shows progress
  /// itself. What it throws ends the work where update() is called by the thread that asked for it.
  static inline std::function<void(const std::string&, std::int64_t, std::int64_t)> watcher{};

  /// So many of `total` are done; a total of 0 is unknown.
  void update(std::int64_t done, std::int64_t total);
  /// The same, for work that tells how far it is. The bar outlives it.
  auto hook() {
    return [this](auto done, auto total) {
      update(static_cast<std::int64_t>(done), static_cast<std::int64_t>(total));
    };
  }
  /// Leaves the line of the bar, so that others can write.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;

  std::string what_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_ = start_;
  std::int64_t tenths_ = 0;
  bool bar_open_ = false;
};

}  // namespace moesim
