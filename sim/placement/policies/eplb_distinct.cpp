// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include "sim/placement/placers.hpp"
#include "sim/placement/replicas.hpp"

namespace moesim {

namespace {

// EPLB over all GPUs at once, with the two rules that it lacks: no more copies of an expert than
// GPUs, and no two on one GPU, where the second would serve no token that the first does not
// (FlashLB of vllm-ascend has the second rule). In double precision.
//
// {"failure_domains": D}: the GPUs are D blocks in order, e.g. nodes, and each block gets at most
// ceil(copies / D) of an expert, so that an expert with two copies survives the loss of any block.
// Copies are dealt to the blocks first, to the GPUs of each block then.
class EplbDistinct final : public Placer {
 public:
  explicit EplbDistinct(int failure_domains) : failure_domains_(failure_domains) {}

  LayerPlacement place(const PlacementProblem& problem, const LayerStatistics& seen,
                       int) const override {
    require_sound(problem, seen.load);
    if (problem.gpus % failure_domains_ != 0) {
      throw ConfigError(
          fmt::format("eplb_distinct: {} failure domains do not divide {} GPUs evenly",
                      failure_domains_, problem.gpus));
    }
    const std::vector<int> copies = copies_by_load(problem, seen.load);
    std::vector<double> share(seen.load.begin(), seen.load.end());
    for (std::size_t e = 0; e < share.size(); ++e) share[e] /= copies[e];

    std::vector<std::vector<int>> experts_on_gpu;
    for (const auto& in_domain : balanced_apart(copies, seen.load, failure_domains_)) {
      // Still by share descending, but for experts that were moved.
      std::vector<int> order = in_domain;
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
        return share[static_cast<std::size_t>(a)] > share[static_cast<std::size_t>(b)];
      });
      for (auto& gpu : deal_apart(order, share, problem.gpus / failure_domains_)) {
        experts_on_gpu.push_back(std::move(gpu));
      }
    }
    return {problem.experts, experts_on_gpu};
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
