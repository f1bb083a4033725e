// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "sim/experiment/anchor.hpp"
#include "tools/bench/validation.hpp"

namespace moesim {

/// A run as it was measured and as it was predicted.
struct AnchorRun {
  ServingLoad load;
  double measured = 0, predicted = 0;
};

/// Throws ConfigError, "place: ..", if a time was surely measured in another unit than it was
/// predicted in.
void require_ms(std::string_view place, std::string_view figure, double measured, double predicted);

/// Fits log(measured / predicted) by its mean. From three runs on it also has slopes in the
/// logarithms of concurrency, prompt and output. They come by ridge regression of strength 2, which
/// runs of other deployments chose. No runs give no correction. Pure.
AnchorFit fit_anchor(std::span<const AnchorRun>);

/// The corrections of every deployment (model, GPU, engine with version, precision) of these
/// points, from those of its points that were predicted.
std::map<std::string, Anchor> anchors_of(const std::vector<ValidatedPoint>&);

/// The corrections that a file of measured runs (read_points) gives, which are of one deployment.
/// Throws ConfigError, "file:line: ..", for a row that does not say what was run, or that cannot be
/// predicted: none is left out.
Anchor anchor_of_serving(const std::filesystem::path& file, const std::filesystem::path& root);

/// The points with `count` runs of each deployment, drawn at random but the same ones on every
/// call, taken out as anchors for the others. Deployments of no more runs are left out.
std::vector<ValidatedPoint> with_anchors(const std::vector<ValidatedPoint>&, int count);

/// The points whose deployment the anchor names, corrected.
void correct(std::vector<ValidatedPoint>&, const Anchor&);

}  // namespace moesim
