// SPDX-License-Identifier: Apache-2.0
#include "sim/step/cut_anew.hpp"

#include <algorithm>

namespace moesim {

namespace {

struct Share {
  double begin = 0, end = 0;
};

double overlap(Share a, Share b) {
  return std::max(0.0, std::min(a.end, b.end) - std::max(a.begin, b.begin));
}

Share nth_of(int n, int parts) { return {double(n) / parts, double(n + 1) / parts}; }

// The share of all weights that a GPU of one plan has and a GPU of the other one is to have.
double common(const ParallelPlan& from, int sender, const ParallelPlan& to, int receiver) {
  const auto experts = [](const ParallelPlan& plan, int gpu) {
    return nth_of(gpu / plan.moe_tp(), plan.ep);
  };
  const auto width = [](const ParallelPlan& plan, int gpu) {
    return nth_of(gpu % plan.moe_tp(), plan.moe_tp());
  };
  return overlap(experts(from, sender), experts(to, receiver)) *
         overlap(width(from, sender), width(to, receiver));
}

}  // namespace

CollectiveCost cut_anew(const Fabric& fabric, const ParallelPlan& from, const ParallelPlan& to,
                        Bytes weights) {
  const int gpus = from.expert_gpus();
  TrafficMatrix sent(gpus);
  for (int sender = 0; sender < gpus; ++sender) {
    for (int receiver = 0; receiver < gpus; ++receiver) {
      if (sender != receiver)
        sent.at(sender, receiver) = weights.value() * common(from, sender, to, receiver);
    }
  }
  return fabric.all_to_all(sent);
}

}  // namespace moesim
