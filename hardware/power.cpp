// SPDX-License-Identifier: Apache-2.0
#include "hardware/power.hpp"

#include <algorithm>
#include <cmath>

namespace moesim {

Watts GpuPower::draw(PowerClass kind, double loads, double arithmetic) const {
  const PowerConstants& c = of(kind);
  const double load = c.loads * std::min(1.0, loads) + c.arithmetic * std::min(1.0, arithmetic);
  if (load <= 0) return c.floor;
  if (load >= 1) return limit;
  // Single precision takes a third of the time, and constants have three digits.
  return c.floor + (limit - c.floor) *
                       double{std::pow(static_cast<float>(load), static_cast<float>(c.exponent))};
}

GpuPower scaled_to(Watts limit, const GpuPower& sibling) {
  GpuPower own = sibling;
  own.limit = limit;
  own.idle = sibling.idle * (limit / sibling.limit);
  const double room = (own.limit - own.idle) / (sibling.limit - sibling.idle);
  for (PowerConstants& c : own.classes) {
    c.floor = own.idle + (c.floor - sibling.idle) * room;
    c.calibration.reset();
  }
  own.by_sibling = true;
  return own;
}

}  // namespace moesim
