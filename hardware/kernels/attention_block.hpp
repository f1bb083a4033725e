// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hardware/kernels/attention.hpp"

namespace moesim {

/// Work of a whole block of attention of a layer on one GPU, summed over its sequences. It has
/// projections, an indexer if there is one, and attention itself.
struct BlockWork {
  double weights = 0;  ///< numbers of the projections; every query is multiplied with each
  double flops = 0;    ///< of queries and keys, an indexer's included
  double cached = 0;   ///< bytes of the KV cache that are read, index keys included
  double moved = 0;    ///< other bytes that pass through HBM, e.g. scores
};

/// A call of such a block, of equal sequences, as engines' tables time it.
struct AttentionBlockCall {
  bool decode = true;
  double kv_bytes = 1;            ///< of a cached number
  double heads = 0, hidden = 0;   ///< of this GPU's slice; of the model
  double batch = 0, queries = 0;  ///< sequences, and new tokens of each
  double context = 0;             ///< tokens of each, new ones included
  BlockWork work;
};

/// The table of blocks of one kind. By tokens of the step, length and context.
constexpr MeasuredTable block_table(bool decode, std::string_view name,
                                    decltype(MeasuredTable::samples) samples,
                                    bool by_model = false) {
  return {.name = name,
          .axes = {{{decode ? "sequences" : "tokens"},
                    {"context"},
                    {"queries"},
                    {"heads", TableAxis::by_shape},
                    {"hidden", TableAxis::by_shape}}},
          .along = decode ? "step" : "isl",
          .samples = samples,
          .model = {by_model ? "model" : ""}};
}
/// The kernel that such a table prices.
constexpr Kernel block_kernel(const MeasuredTable& table, std::string_view summary) {
  return {.name = table.name,
          .summary = summary,
          .table = &table,
          .power =
              table.along == "step" ? PowerClass::attention_decode : PowerClass::attention_prefill};
}

/// Finds the place of a call whose projections have a format of that name.
Located locate(const AttentionBlockCall&, std::string_view format, const GpuSpec&);
/// The sample of a row of such a table, which says the format in its column "gemm_type".
Sample block_sample(const TableRow&, const AttentionBlockCall&, const GpuSpec&);
/// The call that a row measured, without its work and the model's hidden size. Throws ConfigError.
AttentionBlockCall block_call_of(const TableRow&, bool decode);

/// A block of that shape and work as its table is asked for it: sequences as many equal ones.
template <class Shape, class Load>
AttentionBlockCall block_call(const Shape& shape, const Load& load, const BlockWork& work,
                              Precision kv_cache) {
  return {.decode = load.decode,
          .kv_bytes = kv_cache == Precision::bf16 ? 2.0 : 1.0,
          .heads = shape.heads,
          .hidden = shape.hidden,
          .batch = load.sequences,
          .queries = load.queries / load.sequences,
          .context = load.context / load.sequences,
          .work = work};
}

/// The block's time by the kernel's table; nothing where no table has it. `kind` is what the names
/// of the groups end with, where a table holds blocks of several kinds.
std::optional<Cost> attention_block(const Kernel&, const AttentionBlockCall&, Precision projections,
                                    Precision activations, const GpuSpec&,
                                    std::string_view kind = {});

}  // namespace moesim
