// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>

#include "sim/experiment/experiment.hpp"
#include "sim/report/observer.hpp"
#include "sim/report/report.hpp"

namespace moesim {

/// Called now and then with (requests finished, requests expected); expected is 0 when unknown.
using Progress = std::function<void(std::int64_t, std::int64_t)>;

/// Simulates an experiment to its last request. Same experiment, same report, byte for byte, on any
/// number of threads. The observers are called in the order given.
Report run(const Experiment&, const Progress& progress = {},
           std::span<RunObserver* const> observers = {});

}  // namespace moesim
