// SPDX-License-Identifier: Apache-2.0

#include <fmt/format.h>

#include "hardware/kernels/attention_block.hpp"
#include "hardware/kernels/cached_context.hpp"
#include "hardware/kernels/gemm.hpp"
#include "hardware/kernels/rough.hpp"
#include "hardware/tables/kernel_tables.hpp"

namespace moesim {

namespace {

// Tables give heads but no other dimensions: theirs are DeepSeek-V3's (arXiv:2412.19437, section
// 4.2), of the only model that their source runs (ai-dynamo/aiconfigurator, collect_mla.py). A
// table may give others in columns of these names.
struct MeasuredDimensions {
  double kv_lora = 512, qk_nope = 128, qk_rope = 64, v_dim = 128, q_lora = 1536, hidden = 7168;
};

// True if no row has such heads: of decode only the latent matters, which all heads share.
bool is_other(const LatentAttentionCall& c) {
  constexpr MeasuredDimensions usual;
  const bool latent = c.kv_lora != usual.kv_lora || c.qk_rope != usual.qk_rope;
  return latent || (!c.decode && (c.qk_nope != usual.qk_nope || c.v_dim != usual.v_dim));
}

// Prefill multiplies keys and values of full size, which were just computed.
double cached_bytes(const LatentAttentionCall& c) {
  return c.decode ? c.batch * c.context * (c.kv_lora + c.qk_rope) * c.kv_bytes : 0;
}

bool is_from_hbm(const LatentAttentionCall& c, const GpuSpec& gpu) {
  return c.decode && reads_from_hbm(cached_bytes(c), gpu);
}

Located locate(const LatentAttentionCall& c, const GpuSpec& gpu) {
  const double queries = c.batch * c.queries;
  // Numbers of a head: query and output, or key and value.
  const double per_head =
      c.decode ? c.kv_lora + c.qk_rope + c.kv_lora : c.qk_nope + c.qk_rope + c.v_dim;
  double bytes = cached_bytes(c) + queries * c.heads * per_head * 2;
  if (!c.decode) bytes += c.batch * c.context * c.heads * per_head * 2;
  const double flops = 2 * c.heads * per_head * c.batch * c.pairs;
  Located place{.at = {log_of(c.batch), log_of(c.decode ? c.context : length_of(c.pairs)),
                       log_of(c.heads), c.decode ? log_of(c.queries) : log_of(c.context)},
                .least_us = attention_least_us(cached_bytes(c), flops, c.kv_bytes, gpu),
                .other_dimensions = is_other(c)};
  if (!c.block.empty()) {
    constexpr MeasuredDimensions usual;
    // A dozen kernels, with their launches.
    constexpr double launches_us = 35;
    const Format f = format_of(c.block);
    const double weights = usual.hidden * (usual.q_lora + c.kv_lora + c.qk_rope) +
                           c.heads * (usual.q_lora * (c.qk_nope + c.qk_rope) +
                                      c.kv_lora * (c.qk_nope + c.v_dim) + c.v_dim * usual.hidden);
    bytes += weights * f.weights;
    place.rough_us += launches_us + flops_us(2 * queries * weights, f.multiplied, gpu) / 0.6;
  }
  place.rough_us += attention_rough_us(bytes, flops, gpu);
  return place;
}

std::string group_of(std::string_view cache, std::string_view multiplied, std::string_view block) {
  std::string group = std::string(cache) + ' ';  // asked for in every step: no format is parsed
  group += multiplied;
  if (!block.empty()) (group += ' ') += block;
  return group;
}

template <bool decode>
std::vector<Sample> latent_samples(const TableRow& row, const GpuSpec& gpu, const EngineVersion&) {
  const LatentAttentionCall c = latent_attention_of(row, decode);
  const std::string group =
      group_of(table_name(row.text("kv_precision")), table_name(row.text("precision")), c.block);
  return {sample(is_from_hbm(c, gpu) ? from_hbm(group) : group, row, locate(c, gpu))};
}

Located locate(const AbsorptionCall& c, const GpuSpec& gpu) {
  constexpr double launch_us = 3;
  const double bytes =
      c.heads * c.kv_lora * c.head_dim * 2 + c.queries * c.heads * (c.kv_lora + c.head_dim) * 2;
  const double flops = 2 * c.queries * c.heads * c.kv_lora * c.head_dim;
  constexpr MeasuredDimensions usual;
  const double usual_dim = c.keys ? usual.qk_nope : usual.v_dim;
  return {
      .at = {log_of(c.queries), log_of(c.heads)},
      .rough_us = launch_us + loads_us(bytes, gpu) + flops_us(flops, Precision::bf16, gpu) / 0.6,
      .other_dimensions = c.kv_lora != usual.kv_lora || c.head_dim != usual_dim};
}

constexpr std::string_view keys_op = "mla_gen_pre", values_op = "mla_gen_post";

std::vector<Sample> absorption_samples(const TableRow& row, const GpuSpec& gpu,
                                       const EngineVersion&) {
  constexpr MeasuredDimensions usual;
  const std::string_view op = row.text("op");
  const bool keys = op == keys_op;
  const AbsorptionCall call{.keys = keys,
                            .queries = row.number("tokens"),
                            .heads = row.number("heads"),
                            .kv_lora = usual.kv_lora,
                            .head_dim = keys ? usual.qk_nope : usual.v_dim};
  return {
      sample(fmt::format("{} {}", op, table_name(row.text("precision"))), row, locate(call, gpu))};
}

LatentAttentionCall call_of(const LatentAttentionShape& shape, const AttentionLoad& load) {
  const double batch = std::max(1.0, load.sequences);
  return {.decode = shape.decode,
          .block = {},
          .kv_bytes = shape.kv_cache == Precision::bf16 ? 2.0 : 1.0,
          .heads = shape.heads,
          .kv_lora = shape.kv_lora,
          .qk_nope = shape.qk_nope,
          .qk_rope = shape.qk_rope,
          .v_dim = shape.v_dim,
          .batch = batch,
          .queries = load.queries / batch,
          .context = load.context / batch,
          .pairs = load.pairs / batch};
}

}  // namespace

LatentAttentionCall latent_attention_of(const TableRow& row, bool decode) {
  constexpr MeasuredDimensions usual;
  LatentAttentionCall c{.decode = decode,
                        .block = row.text_or_none("gemm_type"),
                        .kv_bytes = cache_bytes(row.text("kv_precision")),
                        .heads = row.number("q_heads"),
                        .kv_lora = row.number("kv_lora", usual.kv_lora),
                        .qk_nope = row.number("qk_nope", usual.qk_nope),
                        .qk_rope = row.number("qk_rope", usual.qk_rope),
                        .v_dim = row.number("v_dim", usual.v_dim),
                        .batch = row.number("batch"),
                        .queries = row.number("isl")};
  c.context = row.number("step") + c.queries;
  c.pairs = causal_pairs(c.queries, c.context, 0);
  return c;
}

namespace {

template <bool decode>
std::optional<RooflineCall> latent_call(const TableRow& row, const GpuSpec&, const EngineVersion&) {
  if (!multiplies_bf16(row)) return std::nullopt;
  const LatentAttentionCall c = latent_attention_of(row, decode);
  const double latent = c.kv_lora + c.qk_rope;
  const double per_head = decode ? latent + c.kv_lora : c.qk_nope + c.qk_rope + c.v_dim;
  const double cached = decode ? latent * c.kv_bytes : c.heads * per_head * 2;
  return untiled(
      !decode, fmt::format("latent {}", c.heads),
      {.flops = Flops(2 * c.heads * per_head * c.batch * c.pairs),
       .hbm = Bytes(c.batch * (c.context * cached + c.queries * c.heads * per_head * 2))});
}

constexpr MeasuredTable decode_table(std::string_view name) {
  return {.name = name,
          .axes = {{{"sequences"},
                    {"context"},
                    {"heads", TableAxis::by_shape},
                    {"queries", TableAxis::by_shape}}},
          .along = "step",
          .samples = latent_samples<true>};
}
constexpr MeasuredTable prefill_table(std::string_view name) {
  return {.name = name,
          .axes = {{{"sequences"}, {"length"}, {"heads", TableAxis::by_shape}, {"context"}}},
          .along = "isl",
          .samples = latent_samples<false>};
}
constexpr MeasuredTable mla_decode_table = decode_table("mla_decode");
constexpr MeasuredTable mla_prefill_table = prefill_table("mla_prefill");
constexpr MeasuredTable mla_decode_module_table = decode_table("mla_decode_module");
constexpr MeasuredTable mla_prefill_module_table = prefill_table("mla_prefill_module");
constexpr MeasuredTable mla_bmm_table{.name = "mla_bmm",
                                      .axes = {{{"queries"}, {"heads", TableAxis::by_shape}}},
                                      .along = "tokens",
                                      .samples = absorption_samples};

}  // namespace

constinit const Kernel mla_decode_kernel{
    .name = "mla_decode",
    .summary = "few queries of each sequence against its cached latents, absorbed form",
    .law = Law::roofline,
    .table = &mla_decode_table,
    .points = {"attn_decode", "MLA"},
    .power = PowerClass::attention_decode,
    .roofline_call = latent_call<true>,
};

constinit const Kernel mla_prefill_kernel{
    .name = "mla_prefill",
    .summary = "prompts of latent attention, expanded to keys and values of every head",
    .law = Law::roofline,
    .constants_of = &attention_prefill_kernel,
    .table = &mla_prefill_table,
    .power = PowerClass::attention_prefill,
    .roofline_call = latent_call<false>,
};

constinit const Kernel mla_decode_module_kernel =
    block_kernel(mla_decode_module_table, "mla_decode with the projections before and after");
constinit const Kernel mla_prefill_module_kernel =
    block_kernel(mla_prefill_module_table, "mla_prefill with the projections before and after");

constinit const Kernel mla_bmm_kernel{
    .name = "mla_bmm",
    .summary = "products that absorb the latent's projections, batched over heads",
    .law = Law::roofline,
    .constants_of = &gemm_kernel,
    .table = &mla_bmm_table,
    .power = PowerClass::gemm,
};

namespace {

GroupNames latent_groups(bool fp8, bool large, std::string_view block) {
  GroupNames groups;
  for (const std::string_view cache : {fp8 ? "fp8" : "bfloat16", fp8 ? "bfloat16" : "fp8"})
    for (const std::string_view multiplied : {"bfloat16", "fp8"})
      groups.names.push_back(group_of(cache, multiplied, block));
  if (large) put_from_hbm_first(groups.names);
  return groups;
}

}  // namespace

Question ask(const LatentAttentionCall& call, const GpuSpec& gpu) {
  const bool fp8 = call.kv_bytes < 2, large = is_from_hbm(call, gpu);
  if (!call.block.empty()) {
    return {call.decode ? mla_decode_module_table : mla_prefill_module_table,
            latent_groups(fp8, large, call.block), locate(call, gpu)};
  }
  static const std::array<GroupNames, 4> all{
      latent_groups(false, false, {}), latent_groups(false, true, {}),
      latent_groups(true, false, {}), latent_groups(true, true, {})};
  return {call.decode ? mla_decode_table : mla_prefill_table,
          Groups(&all[(fp8 ? 2U : 0U) + (large ? 1U : 0U)]), locate(call, gpu)};
}

Question ask(const AbsorptionCall& call, const GpuSpec& gpu) {
  const std::string_view op = call.keys ? keys_op : values_op;
  return {mla_bmm_table, {std::string(op) + " bfloat16"}, locate(call, gpu)};
}

Cost latent_attention(const LatentAttentionShape& shape, const AttentionLoad& load,
                      const GpuSpec& gpu) {
  const Kernel& kernel = shape.decode ? mla_decode_kernel : mla_prefill_kernel;
  std::optional<Cost> measured;
  // Kernels may multiply a cache of eight bits as such.
  if (gpu.tables && load.sequences > 0)
    measured = by_tables(ask(call_of(shape, load), gpu), unpriced(load.work, {}, gpu),
                         gpu.peak(shape.kv_cache, shape.kv_cache), kernel, gpu);
  return measured ? *measured : roofline(load.work, {}, kernel, gpu);
}

Cost absorption(bool keys, double queries, const LatentAttentionShape& shape, const GpuSpec& gpu) {
  if (queries <= 0) return {};
  const double head_dim = keys ? shape.qk_nope : shape.v_dim;
  const double weights = shape.heads * shape.kv_lora * head_dim;
  const double rows = queries * shape.heads * (shape.kv_lora + head_dim);
  const Work work{.flops = Flops(2 * queries * weights), .hbm = Bytes(2 * (weights + rows))};
  const Cost cost = roofline(work, {}, mla_bmm_kernel, gpu);
  if (!gpu.tables) return cost;
  return by_tables(ask(AbsorptionCall{keys, queries, shape.heads, shape.kv_lora, head_dim}, gpu),
                   cost, cost.peak, mla_bmm_kernel, gpu)
      .value_or(cost);
}

std::optional<Cost> latent_attention_block(const LatentAttentionShape& shape,
                                           const AttentionLoad& load, Precision projections,
                                           const GpuSpec& gpu) {
  if (!gpu.tables || load.sequences <= 0) return std::nullopt;
  LatentAttentionCall call = call_of(shape, load);
  for (const std::string_view name : table_names(projections, Precision::bf16)) {
    call.block = name;
    const FlopsPerSecond peak = gpu.peak(projections, projections);
    const Kernel& kernel = shape.decode ? mla_decode_module_kernel : mla_prefill_module_kernel;
    if (auto cost = by_tables(ask(call, gpu), {.work = load.work, .peak = peak}, peak, kernel, gpu))
      return cost;
  }
  return std::nullopt;
}

}  // namespace moesim
