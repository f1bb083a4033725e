// SPDX-License-Identifier: Apache-2.0
#include "hardware/tables/scattered.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <Eigen/Cholesky>

namespace moesim {

namespace {

constexpr std::size_t neighbours = 24;
constexpr double ridge = 0.02;
constexpr double same_place = 1e-9;  // of a squared distance
constexpr int most_axes = 8;

// The nearest points, ascending. Ties by place in the table, so that the answer is the same
// everywhere. Few of many are wanted, and most of them are further than all that were kept so far.
std::vector<std::uint32_t> nearest_of(const std::vector<float>& apart) {
  std::vector<std::uint32_t> kept;
  kept.reserve(neighbours + 1);
  for (std::uint32_t i = 0; i < apart.size(); ++i) {
    if (kept.size() == neighbours && !(apart[i] < apart[kept.back()])) continue;
    const auto further = [&](float here, std::uint32_t other) { return here < apart[other]; };
    kept.insert(std::upper_bound(kept.begin(), kept.end(), apart[i], further), i);
    if (kept.size() > neighbours) kept.pop_back();
  }
  return kept;
}

}  // namespace

void Scattered::add(const Coordinates& at, double value) {
  for (std::size_t axis = 0; axis < at_.size(); ++axis)
    at_[axis].push_back(static_cast<float>(at[axis]));
  values_.push_back(value);
}

Coordinates Scattered::place(std::size_t index) const {
  Coordinates place{};
  for (std::size_t axis = 0; axis < at_.size(); ++axis) place[axis] = at_[axis][index];
  return place;
}

Scattered::Guess Scattered::at(const Coordinates& place) const {
  const std::size_t n = values_.size(), axes = at_.size();
  std::vector<float> apart(n);
  for (std::size_t axis = 0; axis < at_.size(); ++axis) {
    const auto here = static_cast<float>(place[axis]);
    const float* const there = at_[axis].data();
    for (std::size_t i = 0; i < n; ++i) apart[i] += (there[i] - here) * (there[i] - here);
  }
  const std::vector<std::uint32_t> order = nearest_of(apart);
  const double nearest = std::sqrt(static_cast<double>(apart[order.front()]));
  if (nearest * nearest < same_place) {
    double sum = 0, same = 0;
    for (const std::uint32_t i : order) {
      if (apart[i] >= same_place) break;
      sum += values_[i];
      same += 1;
    }
    return {sum / same, 0};
  }
  const auto unknowns = static_cast<Eigen::Index>(axes + 1);
  constexpr int most = most_axes + 1;
  using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, 0, most, most>;
  using Vector = Eigen::Matrix<double, Eigen::Dynamic, 1, 0, most, 1>;
  Matrix m = Matrix::Zero(unknowns, unknowns);
  Vector right = Vector::Zero(unknowns), row = Vector::Ones(unknowns);
  double weights = 0, least = values_[order.front()], greatest = least;
  for (const std::uint32_t i : order) {
    const double weight = std::pow(nearest * nearest / apart[i], 1.5);
    for (std::size_t axis = 0; axis < axes; ++axis)
      row[static_cast<Eigen::Index>(axis) + 1] = at_[axis][i] - place[axis];
    m.selfadjointView<Eigen::Lower>().rankUpdate(row, weight);
    right += weight * values_[i] * row;
    weights += weight;
    least = std::min(least, values_[i]);
    greatest = std::max(greatest, values_[i]);
  }
  m.diagonal().tail(unknowns - 1).array() += ridge * weights;
  const double value = m.selfadjointView<Eigen::Lower>().llt().solve(right)[0];
  constexpr double beyond = 0.5;
  return {std::clamp(value, least - beyond, greatest + beyond), nearest};
}

Scattered Scattered::around(const Coordinates& like, std::span<const int> matters,
                            std::size_t most) const {
  const std::size_t n = values_.size();
  std::vector<float> apart(n);
  for (const int axis : matters) {
    const auto here = static_cast<float>(like[static_cast<std::size_t>(axis)]);
    const std::vector<float>& there = at_[static_cast<std::size_t>(axis)];
    for (std::size_t i = 0; i < n; ++i) apart[i] += (there[i] - here) * (there[i] - here);
  }
  std::vector<float> sorted = apart;
  const std::size_t last = std::min(most, n) - 1;
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(last),
                   sorted.end());
  Scattered some(static_cast<int>(at_.size()));
  for (std::size_t i = 0; i < n; ++i) {
    if (apart[i] > sorted[last]) continue;
    for (std::size_t axis = 0; axis < at_.size(); ++axis) some.at_[axis].push_back(at_[axis][i]);
    some.values_.push_back(values_[i]);
  }
  return some;
}

double Scattered::apart(const Coordinates& like, std::span<const int> matters) const {
  double nearest = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < values_.size(); ++i) {
    double squares = 0;
    for (const int axis : matters) {
      const double d = at_[static_cast<std::size_t>(axis)][i] -
                       static_cast<float>(like[static_cast<std::size_t>(axis)]);
      squares += d * d;
    }
    nearest = std::min(nearest, squares);
  }
  return std::sqrt(nearest);
}

std::vector<double> Scattered::ticks(int axis) const {
  const std::vector<float>& at = at_[static_cast<std::size_t>(axis)];
  std::vector<double> ticks(at.begin(), at.end());
  std::sort(ticks.begin(), ticks.end());
  ticks.erase(std::unique(ticks.begin(), ticks.end()), ticks.end());
  return ticks;
}

LazyGrid::LazyGrid(std::array<std::vector<double>, 3> nodes,
                   std::function<Scattered::Guess(const Place&)> function)
    : nodes_(std::move(nodes)), function_(std::move(function)) {
  std::size_t size = 1;
  for (std::size_t axis = 3; axis-- > 0;) {
    if (nodes_[axis].empty()) nodes_[axis].push_back(0);
    stride_[axis] = size;
    size *= nodes_[axis].size();
  }
  known_ = std::vector<Node>(size);
  for (Node& node : known_)
    node.value.store(std::numeric_limits<double>::quiet_NaN(), std::memory_order_relaxed);
}

Scattered::Guess LazyGrid::node(std::size_t place) const {
  Node& known = known_[place];
  Scattered::Guess guess{known.value.load(std::memory_order_acquire), 0};
  if (std::isnan(guess.value)) {
    guess = function_({nodes_[0][place / stride_[0]], nodes_[1][place % stride_[0] / stride_[1]],
                       nodes_[2][place % stride_[1]]});
    known.nearest.store(guess.nearest, std::memory_order_relaxed);
    known.value.store(guess.value, std::memory_order_release);
  } else {
    guess.nearest = known.nearest.load(std::memory_order_relaxed);
  }
  return guess;
}

LazyGrid::Spot LazyGrid::spot(std::size_t axis, double coordinate) const {
  constexpr double rounding = 1e-5;
  const std::vector<double>& nodes = nodes_[axis];
  const auto above = std::upper_bound(nodes.begin(), nodes.end(), coordinate);
  if (above == nodes.begin()) return {};  // before the first
  const auto index = static_cast<std::size_t>(above - nodes.begin()) - 1;
  if (index + 1 == nodes.size()) return {index, 0};
  // Nodes are kept as floats: a place is on a node if it is there but for the rounding.
  if (nodes[index + 1] - coordinate < rounding) return {index, 1};
  if (coordinate - nodes[index] < rounding) return {index, 0};
  return {index, (coordinate - nodes[index]) / (nodes[index + 1] - nodes[index])};
}

Scattered::Guess LazyGrid::at_spots(const std::array<Spot, 3>& spots) const {
  const std::size_t first =
      spots[0].below * stride_[0] + spots[1].below * stride_[1] + spots[2].below;
  Scattered::Guess sum;
  bool on_node = false;
  // Corners without weight are passed by axis: most places are on a node of one axis at least.
  const auto along = [&](std::size_t axis, auto&& corner) {
    const double share = spots[axis].share;
    if (share < 1) corner(1 - share, std::size_t{0});
    if (share > 0) corner(share, stride_[axis]);
  };
  along(2, [&](double z, std::size_t up_z) {
    along(1, [&](double y, std::size_t up_y) {
      along(0, [&](double x, std::size_t up_x) {
        const double weight = x * y * z;
        const Scattered::Guess known = node(first + up_x + up_y + up_z);
        on_node = weight == 1;
        sum.value += weight * known.value;
        sum.nearest += weight * known.nearest;
      });
    });
  });
  // Farther than two rows of one point are apart, so that nothing takes this for a row.
  constexpr double between = 2e-4;
  if (!on_node) sum.nearest = std::max(sum.nearest, between);
  return sum;
}

}  // namespace moesim
