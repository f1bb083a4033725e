// SPDX-License-Identifier: Apache-2.0
#include "hardware/kernels/compressed_attention.hpp"

#include <algorithm>

#include "hardware/sums.hpp"

namespace moesim {

namespace {

// The sum over t = 1 .. n of min(t, most).
double capped_triangle(std::int64_t n, std::int64_t most) {
  const double rising = static_cast<double>(std::min(n, most));
  return rising * (rising + 1) / 2 +
         static_cast<double>(std::max<std::int64_t>(0, n - most)) * static_cast<double>(most);
}

// The sum over t = 1 .. n of floor(t / ratio).
double entries_before(std::int64_t n, std::int64_t ratio) {
  const std::int64_t whole = n / ratio;
  return static_cast<double>(ratio) * static_cast<double>(whole) * static_cast<double>(whole - 1) /
             2 +
         static_cast<double>(whole) * static_cast<double>(n - whole * ratio + 1);
}

// The sum over t = 1 .. n of min(floor(t / ratio), top).
double capped_entries(std::int64_t n, std::int64_t ratio, std::int64_t top) {
  const std::int64_t full = top * ratio;  // from here on, as many as may be
  if (top == 0 || n <= full) return entries_before(n, ratio);
  return entries_before(full, ratio) + static_cast<double>(n - full) * static_cast<double>(top);
}

}  // namespace

EntriesSeen& EntriesSeen::operator+=(const EntriesSeen& other) {
  return add_members<&EntriesSeen::pairs, &EntriesSeen::read, &EntriesSeen::scored,
                     &EntriesSeen::keys>(*this, other);
}

EntriesSeen entries_seen(std::int64_t first, std::int64_t end, int window, int ratio, int top) {
  const auto between = [&](auto sum) { return sum(end) - sum(first); };
  EntriesSeen seen;
  seen.pairs = between([&](std::int64_t n) { return capped_triangle(n, window); });
  seen.read = static_cast<double>(std::min(end, end - first + window - 1));
  if (ratio == 0) return seen;
  seen.keys = static_cast<double>(end / ratio);
  seen.read += seen.keys;
  seen.pairs += between([&](std::int64_t n) { return capped_entries(n, ratio, top); });
  if (top > 0) seen.scored = between([&](std::int64_t n) { return entries_before(n, ratio); });
  return seen;
}

// Queries and the output by way of ranks, the output's in groups. Keys and gates of what is
// compressed, twice where windows overlap, which they do where an indexer picks.
double projections(const CompressedShape& s) {
  const double queries = s.hidden * s.q_lora + s.q_lora * s.heads * s.dim;
  const double outputs = s.heads * s.dim * s.o_lora + s.groups * s.o_lora * s.hidden;
  const double compressor = s.ratio == 0 ? 0 : s.hidden * 2 * (s.thinned() ? 2 : 1) * s.dim;
  const double indexer = s.thinned() ? s.q_lora * s.index_heads * s.index_dim +
                                           s.hidden * (s.index_heads + 4 * s.index_dim)
                                     : 0;
  return queries + s.hidden * s.dim + outputs + compressor + indexer;
}

BlockWork work_of(const CompressedShape& s, const CompressedLoad& load) {
  constexpr double fp32 = 4, bf16 = 2;
  // Entries that an indexer picks are gathered for each query.
  const double entries = s.thinned() ? load.seen.pairs : load.seen.read;
  const double rows = load.queries * s.heads * 2 * s.dim * bf16;
  return {.weights = projections(s),
          .flops = 4 * s.heads * s.dim * load.seen.pairs +
                   2 * s.index_heads * s.index_dim * load.seen.scored,
          .cached = entries * s.entry_bytes + (s.thinned() ? load.seen.keys * s.key_bytes : 0),
          .moved = rows + load.seen.scored * 2 * fp32};
}

namespace {

// The models that the source runs, by the heads of a layer (ai-dynamo/aiconfigurator,
// DeepSeek-V4-Flash and -Pro; their config.json).
CompressedShape compressed_shape(const TableRow& row) {
  constexpr double entry_bytes = 584, key_bytes = 132;  // fp8 with bf16 positions and scales
  const double heads = row.number("q_heads"), tp = row.number("tp");
  const bool pro = heads * tp > 64;
  const int ratio = static_cast<int>(row.number("compress_ratio"));
  const bool thinned = ratio < 128;
  return {.hidden = pro ? 7168.0 : 4096.0,
          .heads = heads,
          .q_lora = pro ? 1536.0 : 1024.0,
          .dim = 512,
          .groups = (pro ? 16.0 : 8.0) / tp,
          .o_lora = 1024,
          .window = 128,
          .ratio = ratio,
          .top = thinned ? (pro ? 1024 : 512) : 0,
          .index_heads = thinned ? 64.0 : 0,
          .index_dim = thinned ? 128.0 : 0,
          .entry_bytes = entry_bytes,
          .key_bytes = key_bytes};
}

template <bool decode>
std::vector<Sample> compressed_samples(const TableRow& row, const GpuSpec& gpu,
                                       const EngineVersion&) {
  AttentionBlockCall call = block_call_of(row, decode);
  const CompressedShape shape = compressed_shape(row);
  call.hidden = shape.hidden;
  const auto end = static_cast<std::int64_t>(call.context);
  const EntriesSeen one = entries_seen(end - static_cast<std::int64_t>(call.queries), end,
                                       shape.window, shape.ratio, shape.top);
  const EntriesSeen all{one.pairs * call.batch, one.read * call.batch, one.scored * call.batch,
                        one.keys * call.batch};
  call.work = work_of(
      shape, {decode, call.batch, call.batch * call.queries, call.batch * call.context, all});
  return {block_sample(row, call, gpu)};
}

constexpr MeasuredTable csa_decode_table =
    block_table(true, "dsv4_csa_decode_module", compressed_samples<true>, true);
constexpr MeasuredTable csa_prefill_table =
    block_table(false, "dsv4_csa_prefill_module", compressed_samples<false>, true);
constexpr MeasuredTable hca_decode_table =
    block_table(true, "dsv4_hca_decode_module", compressed_samples<true>, true);
constexpr MeasuredTable hca_prefill_table =
    block_table(false, "dsv4_hca_prefill_module", compressed_samples<false>, true);

}  // namespace

constinit const Kernel csa_decode_kernel = block_kernel(
    csa_decode_table, "few queries of each sequence in a block of compressed sparse attention");
constinit const Kernel csa_prefill_kernel = block_kernel(
    csa_prefill_table, "prompts in a block of compressed sparse attention, projections included");
constinit const Kernel hca_decode_kernel = block_kernel(
    hca_decode_table, "few queries of each sequence in a block of heavily compressed attention");
constinit const Kernel hca_prefill_kernel = block_kernel(
    hca_prefill_table, "prompts in a block of heavily compressed attention, projections included");

std::optional<Cost> compressed_block(const CompressedShape& shape, const CompressedLoad& load,
                                     Precision kv_cache, Precision weights, Precision activations,
                                     const GpuSpec& gpu) {
  if (load.sequences <= 0) return std::nullopt;
  const Kernel& kernel = shape.thinned() ? (load.decode ? csa_decode_kernel : csa_prefill_kernel)
                                         : (load.decode ? hca_decode_kernel : hca_prefill_kernel);
  return attention_block(kernel, block_call(shape, load, work_of(shape, load), kv_cache), weights,
                         activations, gpu);
}

}  // namespace moesim
