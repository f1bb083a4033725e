// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace moesim {

/// Coordinates on up to eight axes; what a map does not use is 0.
using Coordinates = std::array<double, 8>;

/// Values known at scattered places, and a guess at any other. The guess is a line through the
/// nearest ones, which count by distance^-3 (local linear regression, slopes held by a small
/// ridge). At a place that is known it gives the value known there, the mean where there are
/// several. A guess stays near the range of the values that it was made from.
class Scattered {
 public:
  explicit Scattered(int axes) : at_(static_cast<std::size_t>(axes)) {}
  void add(const Coordinates&, double value);
  bool empty() const { return values_.empty(); }
  std::size_t size() const { return values_.size(); }
  /// A known place and the value there, in the order in which they were added.
  Coordinates place(std::size_t) const;
  double value(std::size_t index) const { return values_[index]; }
  /// `nearest` is how far the nearest known place is. There must be one.
  struct Guess {
    double value = 0, nearest = 0;
  };
  Guess at(const Coordinates&) const;
  /// Returns the map of the `most` places that are nearest to `like` on the axes that `matters`
  /// marks. It also has all others that are as near as the farthest among these.
  Scattered around(const Coordinates& like, std::span<const int> matters, std::size_t most) const;
  /// How far the nearest place is on the axes that `matters` marks.
  double apart(const Coordinates& like, std::span<const int> matters) const;
  /// The coordinates that occur on an axis, ascending.
  std::vector<double> ticks(int axis) const;

 private:
  std::vector<std::vector<float>> at_;  // [axes, places]
  std::vector<double> values_;
};

/// A function of up to three coordinates, remembered at the nodes of a grid and linear between
/// them. Beyond the first and last node it stays as it is there. A node is computed when it is
/// first needed; safe to ask from several threads, with the same answers in any order.
class LazyGrid {
 public:
  using Place = std::array<double, 3>;
  /// An axis without nodes does not matter.
  LazyGrid(std::array<std::vector<double>, 3> nodes,
           std::function<Scattered::Guess(const Place&)> function);
  /// Between nodes `nearest` is more than 0.
  Scattered::Guess at(const Place& place) const {
    return at_spots({spot(0, place[0]), spot(1, place[1]), spot(2, place[2])});
  }
  /// Place of a coordinate on its axis: a node, and the share of the way to the next one.
  struct Spot {
    std::size_t below = 0;
    double share = 0;
  };
  /// Who asks for the same coordinates again and again keeps their spots.
  Spot spot(std::size_t axis, double coordinate) const;
  Scattered::Guess at_spots(const std::array<Spot, 3>&) const;

 private:
  Scattered::Guess node(std::size_t place) const;
  std::array<std::vector<double>, 3> nodes_;
  std::array<std::size_t, 3> stride_{};  // from one node of an axis to the next
  std::function<Scattered::Guess(const Place&)> function_;
  struct Node {
    std::atomic<double> value, nearest;  // NaN: not yet
  };
  mutable std::vector<Node> known_;
};

}  // namespace moesim
