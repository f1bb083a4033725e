// SPDX-License-Identifier: Apache-2.0
#include "hardware/kernels/cached_context.hpp"

#include <algorithm>
#include <cmath>

#include "hardware/kernels/rough.hpp"

namespace moesim {

double cache_bytes(std::string_view precision) {
  return table_name(precision) == "bfloat16" ? 2 : 1;
}

bool reads_from_hbm(double cached_bytes, const GpuSpec& gpu) {
  constexpr double times = 4;
  return cached_bytes > times * gpu.l2_capacity.value();
}

std::string from_hbm(std::string_view group) {
  std::string name(group);  // asked for in every step: nothing is parsed
  return name += " from HBM";
}

void put_from_hbm_first(std::vector<std::string>& groups) {
  std::vector<std::string> large;
  large.reserve(2 * groups.size());
  for (const std::string& group : groups) large.push_back(from_hbm(group));
  large.insert(large.end(), groups.begin(), groups.end());
  groups = std::move(large);
}

double length_of(double pairs) { return std::sqrt(2 * pairs); }

double attention_rough_us(double bytes, double flops, const GpuSpec& gpu) {
  // Chosen by leaving out points and shapes of the tables.
  constexpr double launch_us = 5, share_of_peak = 0.6;
  return launch_us + loads_us(bytes, gpu) + flops_us(flops, Precision::bf16, gpu) / share_of_peak;
}

double attention_least_us(double cached_bytes, double flops, double kv_bytes, const GpuSpec& gpu) {
  const Precision narrowest = kv_bytes < 2 ? Precision::fp8 : Precision::bf16;
  const double not_in_l2 = std::max(0.0, cached_bytes - gpu.l2_capacity.value());
  return std::max(flops_us(flops, narrowest, gpu), hbm_us(not_in_l2, gpu));
}

bool multiplies_bf16(const TableRow& row) {
  return table_name(row.text("precision")) == "bfloat16";
}

RooflineCall untiled(bool prefill, std::string shape, const Work& work) {
  return {.operands = {},
          .prefill = prefill,
          .shape = std::move(shape),
          .work = {work, work.flops.value()}};
}

}  // namespace moesim
