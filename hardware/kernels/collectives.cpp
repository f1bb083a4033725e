// SPDX-License-Identifier: Apache-2.0
#include "hardware/kernels/collectives.hpp"

#include "hardware/kernels/rough.hpp"

namespace moesim {

namespace {

Located locate(const CollectiveCall& c, const GpuSpec& gpu) {
  constexpr double engine_launch_us = 3, library_launch_us = 8;
  const double passes = c.op == "all_reduce" ? 2 : 1;
  const double moved = passes * c.bytes * (c.gpus - 1) / c.gpus;
  const double launch = c.engine ? engine_launch_us : library_launch_us;
  return {.at = {log_of(c.bytes), 8 * log_of(c.gpus)},
          .rough_us = launch + link_us(moved, gpu) / 0.75};
}

template <bool by_engine>
std::vector<Sample> collective_samples(const TableRow& row, const GpuSpec& gpu,
                                       const EngineVersion&) {
  const std::string op(by_engine ? "all_reduce" : row.text("op"));
  const CollectiveCall call{by_engine, op, row.number("gpus"), row.number("bytes")};
  return {sample(op, row, locate(call, gpu))};
}

}  // namespace

const MeasuredKernel& all_reduce_table() {
  static const MeasuredKernel table{"all_reduce", 2, {1}, {0}, "bytes", collective_samples<true>};
  return table;
}

const MeasuredKernel& collectives_table() {
  static const MeasuredKernel table{"collectives", 2, {1}, {0}, "bytes", collective_samples<false>};
  return table;
}

Question ask(const CollectiveCall& call, const GpuSpec& gpu) {
  return {call.engine ? all_reduce_table() : collectives_table(),
          {std::string(call.op)},
          locate(call, gpu)};
}

}  // namespace moesim
