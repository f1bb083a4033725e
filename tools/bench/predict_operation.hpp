// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <variant>

#include "hardware/fabric.hpp"
#include "tools/bench/point_names.hpp"

namespace moesim {

/// Answer of the simulator for a measured point, in the point's unit.
struct Prediction {
  double value = 0;
  std::string breakdown;      ///< what it is made of and what bound it
  bool extrapolated = false;  ///< outside what its constants were fitted on
  double bytes = 0;           ///< HBM of a kernel; NVLink of the busiest rank of a collective
  double flops = 0;
  Evidence evidence = Evidence::unmeasured;  ///< what the time rests on
};

/// Why a point cannot be modelled.
struct Skipped {
  std::string reason;
};

using Predicted = std::variant<Prediction, Skipped>;

/// Predicts points of single operations (every category but e2e and prefill). `root` is the folder
/// that holds hardware/ and models/. Reads files once; give each thread its own.
class OperationPredictor {
 public:
  explicit OperationPredictor(std::filesystem::path root) : root_(std::move(root)) {}
  Predicted predict(const MeasuredPoint&);
  /// Predicts a point on a GPU whose constants are being fitted.
  Predicted predict(const MeasuredPoint&, const GpuSpec&) const;
  const GpuSpec& gpu(const std::string& file);
  /// Points of the GPU of this name are predicted on this one, whatever file is meant for it.
  void use(const std::string& name, GpuSpec gpu) { given_[name] = std::move(gpu); }
  /// A GPU by the name that points give it, with an engine's tables.
  const GpuSpec& gpu_of(const std::string& name, const EngineVersion& engine,
                        const std::string& expert_kernel);

 private:
  Predicted expert_layer(const MeasuredPoint&, const GpuSpec&) const;
  Predicted collective(const MeasuredPoint&, const GpuSpec&) const;
  Predicted token_exchange(const MeasuredPoint&, const GpuSpec&) const;

  std::filesystem::path root_;
  std::map<std::string, GpuSpec> gpus_, given_, engines_;
};

}  // namespace moesim
