// SPDX-License-Identifier: Apache-2.0
#include "hardware/kernels/rough.hpp"

#include <algorithm>
#include <iterator>

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

std::vector<std::string_view> table_names(Precision weights, Precision activations) {
  switch (weights) {
    case Precision::bf16: return {"bfloat16"};
    case Precision::fp8: return {"fp8", "fp8_static", "fp8_block"};
    case Precision::fp8_block: return {"fp8_block", "fp8", "fp8_static"};
    case Precision::nvfp4: return {"nvfp4"};
    case Precision::mxfp4:
      if (activations != Precision::bf16) return {"w4a8_mxfp4_mxfp8", "w4a16_mxfp4", "nvfp4"};
      return {"w4a16_mxfp4"};
    case Precision::int4: return {"int4_wo"};
  }
  return {};
}

std::optional<Operands> operands_of(std::string_view format) {
  struct Row {
    std::string_view name;
    Operands operands;
  };
  using enum Precision;
  static constexpr Row rows[] = {
      {"bfloat16", {bf16, bf16}},         {"fp8", {fp8, fp8}},
      {"fp8_static", {fp8, fp8}},         {"fp8_block", {fp8_block, fp8_block}},
      {"nvfp4", {nvfp4, nvfp4}},          {"w4a16_mxfp4", {mxfp4, bf16}},
      {"w4a8_mxfp4_mxfp8", {mxfp4, fp8}}, {"int4_wo", {int4, bf16}}};
  const auto found = std::ranges::find(rows, format, &Row::name);
  if (found == std::end(rows)) return std::nullopt;
  return found->operands;
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
  const std::string_view kernel = row.text("kernel");
  return kernel.empty() ? "default" : kernel;
}

Sample sample(std::string group, const TableRow& row, const Located& place) {
  return {std::move(group), std::string(kernel_of(row)), place, row.number("us")};
}

}  // namespace moesim
