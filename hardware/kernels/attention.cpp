// SPDX-License-Identifier: Apache-2.0
#include "hardware/kernels/attention.hpp"

#include <fmt/format.h>

#include "hardware/kernels/cached_context.hpp"
#include "hardware/kernels/rough.hpp"
#include "hardware/tables/kernel_tables.hpp"

namespace moesim {

namespace {

double cached_bytes(const AttentionCall& c) {
  const double seen = c.window > 0 ? std::min(c.context, c.window + c.queries - 1) : c.context;
  return c.batch * seen * 2 * c.kv_heads * c.head_dim * c.kv_bytes;
}

bool is_from_hbm(const AttentionCall& c, const GpuSpec& gpu) {
  return c.decode && c.window <= 0 && reads_from_hbm(cached_bytes(c), gpu);
}

double flops_of(const AttentionCall& c) { return 4 * c.q_heads * c.head_dim * c.batch * c.pairs; }

Located locate(const AttentionCall& c, const GpuSpec& gpu) {
  const double bytes = cached_bytes(c) + c.batch * c.queries * 2 * c.q_heads * c.head_dim * 2;
  const double flops = flops_of(c);
  // Kernels split a batch's KV heads over the SMs, and are chosen by how many queries share one.
  return {.at = {log_of(c.batch * c.kv_heads),
                 log_of(c.decode || c.window > 0 ? c.context : length_of(c.pairs)),
                 2 * log_of(c.q_heads / c.kv_heads), log_of(c.kv_heads) / 2, log_of(c.head_dim),
                 log_of(std::max(1.0, c.window))},
          .rough_us = attention_rough_us(bytes, flops, gpu),
          .least_us = attention_least_us(cached_bytes(c), flops, c.kv_bytes, gpu)};
}

// "fp8 bfloat16 window": precisions of the KV cache and of the multiplication.
std::string group_of(std::string_view cache, std::string_view multiplied, bool window) {
  return fmt::format("{} {}{}", cache, multiplied, window ? " window" : "");
}

template <bool decode>
std::vector<Sample> attention_samples(const TableRow& row, const GpuSpec& gpu,
                                      const EngineVersion&) {
  const AttentionCall c = attention_of(row, decode);
  const std::string group = group_of(table_name(row.text("kv_precision")),
                                     table_name(row.text("precision")), c.window > 0);
  return {sample(is_from_hbm(c, gpu) ? from_hbm(group) : group, row, locate(c, gpu))};
}

AttentionCall call_of(const AttentionShape& shape, const AttentionLoad& load) {
  const double batch = std::max(1.0, load.sequences);
  return {.decode = shape.decode,
          .kv_bytes = shape.kv_cache == Precision::bf16 ? 2.0 : 1.0,
          .q_heads = shape.q_heads,
          .kv_heads = shape.kv_heads,
          .head_dim = (shape.key_dim + shape.value_dim) / 2,
          .window = static_cast<double>(shape.window),
          .batch = batch,
          .queries = load.queries / batch,
          .context = load.context / batch,
          .pairs = load.pairs / batch};
}

}  // namespace

AttentionCall attention_of(const TableRow& row, bool decode) {
  AttentionCall c{.decode = decode,
                  .kv_bytes = cache_bytes(row.text("kv_precision")),
                  .q_heads = row.number("q_heads"),
                  .kv_heads = row.number("kv_heads"),
                  .head_dim = row.number("head_dim"),
                  .window = row.number("window", 0),
                  .batch = row.number("batch"),
                  .queries = decode ? 1 : row.number("isl")};
  c.context = decode ? row.number("ctx") + 1 : c.queries + row.number("prefix", 0);
  c.pairs = causal_pairs(c.queries, c.context, c.window);
  return c;
}

namespace {

template <bool decode>
std::optional<RooflineCall> attention_call(const TableRow& row, const GpuSpec&,
                                           const EngineVersion&) {
  if (!multiplies_bf16(row)) return std::nullopt;
  const AttentionCall c = attention_of(row, decode);
  // Some kernels read what the window hides.
  if (c.window > 0) return std::nullopt;
  const double bytes = c.batch * (c.context * 2 * c.kv_heads * c.head_dim * c.kv_bytes +
                                  c.queries * 2 * c.q_heads * c.head_dim * 2);
  return untiled(!decode, fmt::format("{} {} {}", c.q_heads, c.kv_heads, c.head_dim),
                 {.flops = Flops(flops_of(c)), .hbm = Bytes(bytes)});
}

constexpr std::array<TableAxis, 8> attention_axes{
    {{"sequences x KV heads"},
     {"context"},
     {"query heads of a KV head", TableAxis::by_shape},
     {"KV heads", TableAxis::by_shape},
     {"head dimension", TableAxis::by_shape},
     {"window", TableAxis::by_shape}}};
constexpr MeasuredTable attention_decode_table{.name = "attention_decode",
                                               .axes = attention_axes,
                                               .along = "ctx",
                                               .samples = attention_samples<true>};
constexpr MeasuredTable attention_prefill_table{.name = "attention_prefill",
                                                .axes = attention_axes,
                                                .along = "isl",
                                                .samples = attention_samples<false>};

}  // namespace

constinit const Kernel attention_decode_kernel{
    .name = "attention_decode",
    .summary = "few queries of each sequence against its KV cache, keys and values by KV head",
    .law = Law::roofline,
    .table = &attention_decode_table,
    .points = {"attn_decode"},
    .power = PowerClass::attention_decode,
    .roofline_call = attention_call<true>,
};

constinit const Kernel attention_prefill_kernel{
    .name = "attention_prefill",
    .summary = "prompts against their own and cached tokens, keys and values by KV head",
    .law = Law::roofline,
    .table = &attention_prefill_table,
    .points = {"attn_prefill"},
    .power = PowerClass::attention_prefill,
    .roofline_call = attention_call<false>,
};

double causal_pairs(double queries, double context, double window) {
  const double pairs = queries * (context - queries) + queries * (queries + 1) / 2;
  return window > 0 && context > window ? std::min(pairs, queries * window) : pairs;
}

namespace {

GroupNames groups_of_call(bool fp8, bool window, bool large) {
  GroupNames groups;
  for (const std::string_view multiplied : {"bfloat16", "fp8"})
    groups.names.push_back(group_of(fp8 ? "fp8" : "bfloat16", multiplied, window));
  if (!large) return groups;
  put_from_hbm_first(groups.names);
  // TensorRT-LLM's rows of large caches are left out: they are faster than HBM. Among themselves
  // they read caches of eight bits at 1.06 to 1.14 times the rate of those of 16 bits (H100,
  // H200). FlashAttention 3, which answers for them, takes .62 to .85 times its own rate.
  if (fp8) groups.stand_in = from_hbm(group_of("bfloat16", "bfloat16", window));
  return groups;
}

}  // namespace

Question ask(const AttentionCall& call, const GpuSpec& gpu) {
  static const auto all = [] {
    std::array<GroupNames, 8> made;
    for (std::size_t i = 0; i < made.size(); ++i)
      made[i] = groups_of_call((i & 4) != 0, (i & 2) != 0, (i & 1) != 0);
    return made;
  }();
  const std::size_t which = (call.kv_bytes < 2 ? 4U : 0U) + (call.window > 0 ? 2U : 0U) +
                            (is_from_hbm(call, gpu) ? 1U : 0U);
  Question question{call.decode ? attention_decode_table : attention_prefill_table,
                    Groups(&all[which]), locate(call, gpu)};
  const FlopsPerSecond rate = gpu.tables ? gpu.tables->prompt_attention() : FlopsPerSecond{};
  if (rate > FlopsPerSecond{} && !call.decode) {
    const Seconds least = Flops(flops_of(call)) / rate;
    question.place.least_us = std::max(question.place.least_us, 1e6 * least.count());
  }
  return question;
}

Cost attention(const AttentionShape& shape, const AttentionLoad& load, const GpuSpec& gpu) {
  const Kernel& kernel = shape.decode ? attention_decode_kernel : attention_prefill_kernel;
  if (!gpu.tables || load.sequences <= 0) return roofline(load.work, {}, kernel, gpu);
  AttentionCall call = call_of(shape, load);
  // Kernels may multiply a cache of eight bits as such.
  const auto time = [&] {
    return by_tables(ask(call, gpu), unpriced(load.work, {}, gpu),
                     gpu.peak(shape.kv_cache, shape.kv_cache), kernel, gpu);
  };
  auto measured = time();
  if (!measured && call.window > 0 && call.decode) {
    // A kernel without windows, of the keys that the window leaves.
    call.context = std::min(call.context, call.window + call.queries - 1);
    call.window = 0;
    measured = time();
  }
  return measured ? *measured : roofline(load.work, {}, kernel, gpu);
}

}  // namespace moesim
