// SPDX-License-Identifier: Apache-2.0
#include "hardware/kernels/rough.hpp"

#include <algorithm>
#include <array>
#include <iterator>

#include "hardware/tables/kernel_tables.hpp"

namespace moesim {

Format format_of(std::string_view name) {
  struct Row {
    std::string_view name;
    Format format;
  };
  static constexpr Row rows[] = {{"bfloat16", {2, 2, Precision::bf16}},
                                 {"fp8", {1, 1, Precision::fp8}},
                                 {"fp8_static", {1, 1, Precision::fp8}},
                                 {"fp8_block", {1, 1, Precision::fp8}},
                                 {"nvfp4", {0.5625, 0.5625, Precision::nvfp4}},
                                 {"w4a16_mxfp4", {0.53125, 2, Precision::bf16}},
                                 {"w4a8_mxfp4_mxfp8", {0.53125, 1, Precision::fp8}},
                                 {"w4afp8", {0.515625, 1, Precision::fp8}},
                                 {"int4_wo", {0.515625, 2, Precision::bf16}},
                                 {"int8_wo", {1, 2, Precision::bf16}},
                                 {"sq", {1, 1, Precision::fp8}}};
  const auto found = std::ranges::find(rows, name, &Row::name);
  return found == std::end(rows) ? Format{1, 1, Precision::fp8} : found->format;
}

namespace {

using enum Precision;

/// The formats that may multiply such operands, the most fitting first.
struct Formats {
  Operands operands;
  std::array<std::string_view, 3> names;
};
constexpr Formats all_formats[] = {{{bf16, bf16}, {"bfloat16"}},
                                   {{fp8, fp8}, {"fp8", "fp8_static", "fp8_block"}},
                                   {{fp8_block, fp8_block}, {"fp8_block", "fp8", "fp8_static"}},
                                   {{nvfp4, nvfp4}, {"nvfp4"}},
                                   {{mxfp4, fp8}, {"w4a8_mxfp4_mxfp8", "w4a16_mxfp4", "nvfp4"}},
                                   {{mxfp4, bf16}, {"w4a16_mxfp4"}},
                                   {{int4, bf16}, {"int4_wo"}},
                                   {{int4_g32, bf16}, {"int4_wo"}},
                                   {{int4_g64, bf16}, {"int4_wo"}}};

std::span<const std::string_view> names_of(const Formats& formats) {
  const auto end = std::ranges::find(formats.names, std::string_view());
  return {formats.names.begin(), end};
}

}  // namespace

std::span<const std::string_view> table_names(Precision weights, Precision activations) {
  const Formats* found = nullptr;
  for (const Formats& row : all_formats) {
    if (row.operands.weights != weights) continue;
    const bool fits = (row.operands.activations == bf16) == (activations == bf16);
    if (found == nullptr || fits) found = &row;
  }
  return found == nullptr ? std::span<const std::string_view>() : names_of(*found);
}

std::optional<Operands> operands_of(std::string_view format) {
  // Operands of which it is the most fitting.
  std::optional<Operands> found;
  std::ptrdiff_t least = std::ssize(all_formats->names);
  for (const Formats& row : all_formats) {
    const std::ptrdiff_t place = std::ranges::find(row.names, format) - row.names.begin();
    if (place >= least || format.empty()) continue;
    least = place;
    found = row.operands;
  }
  return found;
}

std::string_view table_name(std::string_view precision) {
  struct Row {
    std::string_view name, table;
  };
  static constexpr Row rows[] = {{"bf16", "bfloat16"}, {"float16", "bfloat16"},
                                 {"fp16", "bfloat16"}, {"half", "bfloat16"},
                                 {"fp4", "nvfp4"},     {"int4", "int4_wo"},
                                 {"int8", "int8_wo"},  {"mxfp4", "w4a16_mxfp4"}};
  const auto found = std::ranges::find(rows, precision, &Row::name);
  return found == std::end(rows) ? precision : found->table;
}

std::string_view kernel_of(const TableRow& row) {
  const std::string_view kernel = row.text_or_none("kernel");
  return kernel.empty() ? "default" : kernel;
}

Sample sample(std::string group, const TableRow& row, const Located& place) {
  return {std::move(group), std::string(kernel_of(row)), place, row.number("us")};
}

std::optional<Cost> by_tables(const Question& question, const Cost& cost, FlopsPerSecond peak,
                              const Kernel& kernel, const GpuSpec& gpu) {
  const auto measured = gpu.tables ? gpu.tables->time(question) : std::nullopt;
  if (!measured) return std::nullopt;
  return drawing(priced(cost, *measured, cost.work.hbm / gpu.hbm_bandwidth, cost.work.flops / peak),
                 kernel, gpu);
}

}  // namespace moesim
