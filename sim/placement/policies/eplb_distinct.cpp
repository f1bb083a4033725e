// SPDX-License-Identifier: Apache-2.0
#include "sim/placement/placers.hpp"
#include "sim/placement/replicas.hpp"

namespace moesim {

namespace {

// EPLB over all GPUs at once, with the two rules that it lacks. An expert has no more copies than
// GPUs, and no two on one GPU. There the second would serve no token that the first does not
// (FlashLB of vllm-ascend has the second rule). In double precision.
//
// {"failure_domains": D}: the GPUs are D blocks in order, e.g. nodes (balanced_over_domains).
class EplbDistinct final : public Placer {
 public:
  explicit EplbDistinct(int failure_domains) : failure_domains_(failure_domains) {}

  LayerPlacement place(const PlacementProblem& problem, const LayerStatistics& seen,
                       int) const override {
    require_sound(problem, seen.load);
    return {problem.experts,
            balanced_over_domains(copies_by_load(problem, seen.load), seen.load, problem.gpus,
                                  failure_domains_, "eplb_distinct")};
  }

  bool uses_load() const override { return true; }

 private:
  int failure_domains_;
};

}  // namespace

std::span<const Key> eplb_distinct_placement_keys() {
  static constexpr Key keys[] = {{"failure_domains", form::integer(1, 1 << 20), "1",
                                  "groups of GPUs that copies of an expert are spread over"}};
  return keys;
}

std::unique_ptr<Placer> make_eplb_distinct(ConfigReader& options) {
  return std::make_unique<EplbDistinct>(static_cast<int>(options.integer("failure_domains")));
}

}  // namespace moesim
