// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cmath>
#include <compare>
#include <cstdint>
#include <ratio>
#include <stdexcept>

#include "hardware/at.hpp"

namespace moesim {

/// A physical quantity with its unit in its type: doubles underneath, so integers are exact below
/// 2^53 (9 PB). Built explicitly from numbers, added to its like, scaled by numbers; the ratio of
/// two is a number.
template <class Tag>
class Quantity {
 public:
  constexpr Quantity() = default;
  constexpr explicit Quantity(double value) : value_(value) {}
  [[nodiscard]] constexpr double value() const { return value_; }

  constexpr auto operator<=>(const Quantity&) const = default;
  constexpr Quantity& operator+=(Quantity other) { return value_ += other.value_, *this; }
  constexpr Quantity& operator-=(Quantity other) { return value_ -= other.value_, *this; }
  friend constexpr Quantity operator+(Quantity a, Quantity b) {
    return Quantity(a.value_ + b.value_);
  }
  friend constexpr Quantity operator-(Quantity a, Quantity b) {
    return Quantity(a.value_ - b.value_);
  }
  friend constexpr Quantity operator*(Quantity a, double s) { return Quantity(a.value_ * s); }
  friend constexpr Quantity operator*(double s, Quantity a) { return Quantity(s * a.value_); }
  friend constexpr Quantity operator/(Quantity a, double s) { return Quantity(a.value_ / s); }
  friend constexpr double operator/(Quantity a, Quantity b) { return a.value_ / b.value_; }

 private:
  double value_ = 0;
};

using Bytes = Quantity<struct BytesTag>;
using Flops = Quantity<struct FlopsTag>;
using BytesPerSecond = Quantity<struct BytesPerSecondTag>;
using FlopsPerSecond = Quantity<struct FlopsPerSecondTag>;
using PerSecond = Quantity<struct PerSecondTag>;
using Watts = Quantity<struct WattsTag>;

/// Seconds that cost models return. Never the event clock: see to_duration().
using Seconds = std::chrono::duration<double>;

constexpr Seconds operator/(Bytes bytes, BytesPerSecond rate) {
  return Seconds(bytes.value() / rate.value());
}
constexpr Seconds operator/(Flops flops, FlopsPerSecond rate) {
  return Seconds(flops.value() / rate.value());
}

/// The simulated clock: whole picoseconds since the start of the run, 106 days of range.
struct SimClock {
  using rep = std::int64_t;
  using period = std::pico;
  using duration = std::chrono::duration<rep, period>;
  using time_point = std::chrono::time_point<SimClock>;
  static constexpr bool is_steady = true;
};
using Duration = SimClock::duration;
using Time = SimClock::time_point;

/// An always-on assertion for what only a bug can break. Throws std::logic_error.
inline void check(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

/// The one door from cost models into the event clock: rounds to the nearest picosecond.
/// Throws std::logic_error on NaN, infinity, a negative time or one beyond the clock's range.
inline Duration to_duration(Seconds seconds) {
  const double ticks = seconds.count() * 1e12;
  check(std::isfinite(ticks) && ticks >= 0 && ticks < 9e18,
        "a cost model returned a time that is no time");
  return Duration(static_cast<std::int64_t>(std::llround(ticks)));
}

constexpr Seconds to_seconds(Duration duration) {
  return std::chrono::duration_cast<Seconds>(duration);
}
constexpr Seconds to_seconds(Time time) { return to_seconds(time.time_since_epoch()); }

}  // namespace moesim
