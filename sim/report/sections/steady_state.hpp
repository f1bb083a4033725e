// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/report/measurement.hpp"

namespace moesim {

/// Attainment along a run, of its requests in order of arrival: whether it lasts, and how far
/// chance may move it.
struct AttainmentAlong {
  double first_half = 0, second_half = 0;
  double standard_error = 0;
  double whole_run = 0;
};

struct MeasurementStats {
  std::string window, state;
  double begin_s = 0, end_s = 0;
  std::optional<double> offered_request_rate;
  double served_request_rate = 0;
  double ttft_growth = 0, tpot_growth = 0;    ///< s/s
  std::optional<AttainmentAlong> attainment;  ///< where there are objectives and enough requests
};

/// Says which part of the run was measured, and whether it is a steady state.
MeasurementStats steady_state_of(const Deployment&, Measurement::Window, const Totals&,
                                 std::span<const RequestLife>);

Fields<MeasurementStats> rows_of(const MeasurementStats*);

}  // namespace moesim
