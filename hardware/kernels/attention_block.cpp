// SPDX-License-Identifier: Apache-2.0
#include "hardware/kernels/attention_block.hpp"

#include "hardware/kernels/cached_context.hpp"
#include "hardware/kernels/rough.hpp"
#include "hardware/tables/kernel_tables.hpp"

namespace moesim {

namespace {

std::string group_of(double kv_bytes, std::string_view format, std::string_view kind = {}) {
  std::string group = kv_bytes < 2 ? "fp8 " : "bfloat16 ";
  group += format;
  return group += kind;
}

}  // namespace

Located locate(const AttentionBlockCall& c, std::string_view format, const GpuSpec& gpu) {
  // A dozen kernels and more, with their launches.
  constexpr double launches_us = 50, share_of_peak = 0.6;
  const Format f = format_of(format);
  const double tokens = c.batch * c.queries;
  const double products = 2 * tokens * c.work.weights;
  const double bytes = c.work.weights * f.weights + c.work.cached + c.work.moved;
  return {.at = {log_of(c.decode ? c.batch : tokens), log_of(c.context), log_of(c.queries),
                 log_of(c.heads), log_of(c.hidden)},
          .rough_us = launches_us + flops_us(products, f.multiplied, gpu) / share_of_peak +
                      attention_rough_us(bytes, c.work.flops, gpu),
          .least_us = flops_us(products, Precision::fp8, gpu) +
                      attention_least_us(0, c.work.flops, c.kv_bytes, gpu)};
}

Sample block_sample(const TableRow& row, const AttentionBlockCall& call, const GpuSpec& gpu) {
  const std::string_view format = table_name(row.text("gemm_type"));
  return sample(group_of(call.kv_bytes, format), row, locate(call, format, gpu));
}

AttentionBlockCall block_call_of(const TableRow& row, bool decode) {
  AttentionBlockCall call{.decode = decode,
                          .kv_bytes = cache_bytes(row.text("kv_precision")),
                          .heads = row.number("q_heads"),
                          .batch = row.number("batch"),
                          .queries = row.number("isl"),
                          .work = {}};
  call.context = row.number("step") + call.queries;
  return call;
}

std::optional<Cost> attention_block(const Kernel& kernel, const AttentionBlockCall& call,
                                    Precision projections, Precision activations,
                                    const GpuSpec& gpu, std::string_view kind) {
  if (!gpu.tables || call.batch <= 0) return std::nullopt;
  const double tokens = call.batch * call.queries;
  const FlopsPerSecond peak = gpu.peak(projections, activations);
  Cost cost{.work = {.flops = Flops(2 * tokens * call.work.weights + call.work.flops),
                     .hbm = Bytes(call.work.weights * bytes_per_element(projections) +
                                  call.work.cached + call.work.moved)},
            .peak = peak};
  for (const std::string_view format : table_names(projections, activations)) {
    const double kept = call.kv_bytes;
    const Question question{*kernel.table,
                            {group_of(kept, format, kind), group_of(3 - kept, format, kind)},
                            locate(call, format, gpu)};
    if (auto measured = by_tables(question, cost, peak, kernel, gpu)) return measured;
  }
  return std::nullopt;
}

}  // namespace moesim
