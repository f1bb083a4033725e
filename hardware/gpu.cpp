// SPDX-License-Identifier: Apache-2.0
#include "hardware/gpu.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace moesim {

namespace {

constexpr Form share = form::number(0.001, 1);
constexpr Form tile_side = form::integer(1, 4096);

template <class Q>
Q positive(ConfigReader& reader, std::string_view key) {
  const Q quantity = reader.quantity<Q>(key);
  if (quantity <= Q(0)) reader.child(key).fail("must be more than zero");
  return quantity;
}

std::span<const Key> peak_keys() {
  static constexpr Standard absent = otherwise("not multiplied in it");
  static constexpr Key keys[] = {
      {"bf16", form::flops_per_second, required, "dense peak of the data sheet"},
      {"fp8", form::flops_per_second, absent, "the same"},
      {"nvfp4", form::flops_per_second, absent, "the same"}};
  return keys;
}

std::map<Precision, FlopsPerSecond> read_peaks(const ConfigNode& node) {
  return read_object(node, peak_keys, [](ConfigReader& reader) {
    std::map<Precision, FlopsPerSecond> peaks;
    peaks[Precision::bf16] = positive<FlopsPerSecond>(reader, "bf16");
    // Absent where the GPU does not multiply in this precision. Asking makes the key known.
    if (reader.optional("fp8")) peaks[Precision::fp8] = positive<FlopsPerSecond>(reader, "fp8");
    if (reader.optional("nvfp4"))
      peaks[Precision::nvfp4] = positive<FlopsPerSecond>(reader, "nvfp4");
    return peaks;
  });
}

std::span<const Key> peak_share_keys() {
  static constexpr Key keys[] = {{"*", share, otherwise("that of the nearest precision"),
                                  "share of the peak, by the precision of the weights",
                                  precision_names}};
  return keys;
}

PeakShares read_peak_shares(const ConfigNode& node) {
  if (!node.json().is_object()) return {{Precision::bf16, node.number()}};
  return read_object(node, peak_share_keys, [&](ConfigReader& reader) {
    PeakShares shares;
    for (std::size_t i = 0; i < precision_names.size(); ++i) {
      if (reader.optional(precision_names[i]))
        shares[static_cast<Precision>(i)] = reader.number(precision_names[i]);
    }
    if (shares.empty()) node.fail("names no precision; expected e.g. {\"bf16\": 0.5}");
    return shares;
  });
}

Interval read_interval(const ConfigNode& node) {
  if (!node.json().is_array() || node.json().size() != 2) node.fail("expected [smallest, largest]");
  return {node.element(0).number(), node.element(1).number()};
}

std::span<const Key> calibration_keys() {
  static constexpr Form bound = form::number(non_negative);
  static constexpr Form precision = form::choice(precision_names);
  static constexpr Key keys[] = {
      {"points", form::integer(positive_count), required, "measurements fitted on"},
      {"median_error", bound, required, "median of |predicted / measured - 1| over the points"},
      {"bytes", form::list(bound), required, "[smallest, largest]: HBM, or the busiest rank's"},
      {"flops", form::list(bound), otherwise("[0, 0]"), "[smallest, largest]"},
      {"precisions", form::list(precision), otherwise("none"), "precisions of the weights"}};
  return keys;
}

std::optional<Calibration> read_calibration(ConfigReader& reader) {
  if (!reader.optional("calibration")) return std::nullopt;
  return read_object(reader.child("calibration"), calibration_keys, [](ConfigReader& row) {
    Calibration c;
    c.points = static_cast<int>(row.integer("points"));
    c.median_error = row.number("median_error");
    c.bytes = read_interval(row.child("bytes"));
    if (row.optional("flops")) c.flops = read_interval(row.child("flops"));
    if (row.optional("precisions")) {
      for (const ConfigNode& name : row.child("precisions").list()) {
        c.precisions.push_back(static_cast<Precision>(name.choice()));
      }
    }
    return c;
  });
}

std::span<const Key> kernel_keys() {
  static constexpr Form by_precision = form::object(peak_share_keys);
  static constexpr Key keys[] = {
      {"launch", form::time, required, "launch and drain of the operation's kernels"},
      {"bandwidth_share", share, required, "share of the HBM bandwidth that the kernel reaches"},
      {"peak_share", share.or_a(by_precision), required,
       "share of the dense peak that the kernel reaches"},
      {"overlap", form::number(1, 64), "16",
       "overlap of loads and arithmetic: 1 none, 16 nearly all"},
      {"tile_m", tile_side, required, "rows to which a GEMM pads its tokens"},
      {"tile_n", tile_side, required, "columns of an output tile"},
      {"source", form::text, required, "where these numbers come from"},
      {"calibration", form::object(calibration_keys), otherwise("not a fit"), "what they fit"}};
  return keys;
}

KernelConstants read_kernel(ConfigReader& reader) {
  return {.launch = reader.quantity<Seconds>("launch"),
          .bandwidth_share = reader.number("bandwidth_share"),
          .peak_share = read_peak_shares(reader.child("peak_share")),
          .overlap = reader.number("overlap"),
          .tile_m = static_cast<int>(reader.integer("tile_m")),
          .tile_n = static_cast<int>(reader.integer("tile_n")),
          .source = reader.text("source"),
          .calibration = read_calibration(reader)};
}

std::span<const Key> collective_keys() {
  static constexpr Key keys[] = {
      {"launch", form::time, required, "what it would take with one GPU"},
      {"per_gpu", form::time, required, "what each further GPU of the NVLink domain adds"},
      {"bandwidth_share", share, required, "share of NVLink that large messages reach"},
      {"ramp", form::time, required, "filling the pipeline of chunks"},
      {"source", form::text, required, "where these numbers come from"},
      {"calibration", form::object(calibration_keys), otherwise("not a fit"), "what they fit"}};
  return keys;
}

CollectiveConstants read_collective(ConfigReader& reader) {
  return {.launch = reader.quantity<Seconds>("launch"),
          .per_gpu = reader.quantity<Seconds>("per_gpu"),
          .bandwidth_share = reader.number("bandwidth_share"),
          .ramp = reader.quantity<Seconds>("ramp"),
          .source = reader.text("source"),
          .calibration = read_calibration(reader)};
}

std::span<const Key> price_keys() {
  static constexpr Key keys[] = {
      {"dollars_per_hour", form::number(non_negative), required, "rent of one GPU"},
      {"source", form::text, required, "where it comes from"}};
  return keys;
}

Price read_price(const ConfigNode& node) {
  return read_object(node, price_keys, [](ConfigReader& reader) {
    return Price{reader.number("dollars_per_hour"), reader.text("source")};
  });
}

std::span<const Key> kernel_table_keys() {
  static constexpr Key keys[] = {{"*", form::object(kernel_keys), otherwise("the family's default"),
                                  "constants of one kernel family", kernel_family_names}};
  return keys;
}

std::span<const Key> collective_table_keys() {
  static constexpr Key keys[] = {{"*", form::object(collective_keys),
                                  otherwise("the family's default"), "constants of one collective",
                                  collective_names}};
  return keys;
}

// One folder for each <engine>-<version>, by name.
std::vector<Profile> read_profiles(const ConfigNode& node) {
  const auto folder = node.relative(node.text());
  std::error_code failed;
  std::vector<Profile> profiles;
  for (const auto& entry : std::filesystem::directory_iterator(folder, failed))
    if (entry.is_directory())
      profiles.push_back({engine_named(entry.path().filename().string()), entry.path()});
  if (profiles.empty())
    node.fail(fmt::format("{} holds no folder <engine>-<version> of tables", folder.string()));
  std::ranges::sort(profiles, {}, &Profile::folder);
  return profiles;
}

/// `read(row, index)` is given the object of every name that is there.
template <std::size_t N, class Read>
void read_named_rows(const ConfigNode& node, KeyTable keys, KeyTable row_keys,
                     const std::array<std::string_view, N>& names, Read read) {
  read_object(node, keys, [&](ConfigReader& table) {
    for (std::size_t i = 0; i < N; ++i) {
      if (table.optional(names[i]))
        read_object(table.child(names[i]), row_keys, [&](ConfigReader& row) { read(row, i); });
    }
  });
}

/// Bits that a multiplication must carry for values stored like this.
int bits(Precision precision) {
  switch (precision) {
    case Precision::bf16: return 16;
    case Precision::fp8:
    case Precision::fp8_block: return 8;
    case Precision::mxfp4:
    case Precision::nvfp4:
    case Precision::int4: return 4;
  }
  return 16;
}

}  // namespace

double bytes_per_element(Precision precision) {
  switch (precision) {
    case Precision::bf16: return 2;
    case Precision::fp8: return 1;
    case Precision::fp8_block: return 1 + 4.0 / (128 * 128);
    case Precision::mxfp4: return 0.5 + 1.0 / 32;
    case Precision::nvfp4: return 0.5 + 1.0 / 16;
    case Precision::int4: return 0.5 + 2.0 / 128;
  }
  return 2;
}

FlopsPerSecond GpuSpec::peak(Precision weights, Precision activations) const {
  // The wider operand decides; what the GPU cannot multiply is widened once more.
  const int needed = std::max(bits(weights), bits(activations));
  if (needed <= 4) {
    if (const auto found = dense_peak.find(Precision::nvfp4); found != dense_peak.end())
      return found->second;
  }
  if (needed <= 8) {
    if (const auto found = dense_peak.find(Precision::fp8); found != dense_peak.end())
      return found->second;
  }
  return dense_peak.at(Precision::bf16);
}

double KernelConstants::peak_share_of(Precision weights) const {
  const auto share_of = [&](Precision precision) {
    const auto found = peak_share.find(precision);
    return found == peak_share.end() ? 0.0 : found->second;
  };
  const bool eight_bits = weights == Precision::fp8 || weights == Precision::fp8_block;
  const Precision sibling = weights == Precision::fp8 ? Precision::fp8_block : Precision::fp8;
  for (const double found :
       {share_of(weights), eight_bits ? share_of(sibling) : 0.0, share_of(Precision::bf16)})
    if (found > 0) return found;
  return peak_share.begin()->second;
}

Reach KernelConstants::reach(Precision weights) const {
  if (!calibration) return {};
  const std::vector<Precision>& known = calibration->precisions;
  if (std::find(known.begin(), known.end(), weights) == known.end())
    return {.beyond = Evidence::extrapolated};
  return {calibration->bytes.max, calibration->flops.max, Evidence::extrapolated};
}

Evidence CollectiveConstants::evidence_for(double bytes) const {
  if (!calibration) return Evidence::unmeasured;
  return bytes <= calibration->bytes.max ? Evidence::calibrated : Evidence::extrapolated;
}

const KernelConstants& GpuSpec::kernel(KernelFamily family) const { return kernels.at(family); }

const CollectiveConstants& GpuSpec::collective(Collective kind) const {
  return collectives[static_cast<std::size_t>(kind)];
}

KernelConstants family_default(KernelFamily family) {
  struct Row {
    KernelFamily family;
    double launch_us, bandwidth_share;
    PeakShares peak_share;
    double overlap;
    int tile_m, tile_n;
    const char* of;
  };
  using enum Precision;
  const std::array<Row, kernel_family_names.size()> rows{{
      {KernelFamily::grouped_gemm,
       27,
       0.9,
       {{bf16, 0.5}, {fp8, 0.4}, {fp8_block, 0.29}, {mxfp4, 0.15}, {nvfp4, 0.23}, {int4, 0.07}},
       1.5,
       128,
       128,
       "H100 SXM"},
      {KernelFamily::masked_grouped_gemm, 26, 0.84, {{fp8_block, 0.67}}, 2.6, 128, 128, "H100 SXM"},
      {KernelFamily::gemm, 4.3, 0.84, {{bf16, 0.83}, {fp8_block, 0.64}}, 7, 128, 256, "H100 SXM"},
      {KernelFamily::attention_decode, 10.4, 0.9, {{bf16, 0.6}}, 6, 1, 1, "H100 SXM"},
      {KernelFamily::attention_prefill, 5.6, 0.7, {{bf16, 0.6}}, 1.5, 1, 1, "H100 SXM"},
      {KernelFamily::mla_decode, 18, 0.91, {{bf16, 0.98}}, 2, 1, 1, "H100 SXM"},
      {KernelFamily::memory,
       3,
       0.8,
       {{bf16, 1}},
       16,
       1,
       1,
       "every GPU (ai-dynamo/aiconfigurator@095f58a times memory operations at 3 us and 0.8 HBM)"},
  }};
  const Row& row = rows[static_cast<std::size_t>(family)];
  return {.launch = Seconds(row.launch_us * 1e-6),
          .bandwidth_share = row.bandwidth_share,
          .peak_share = row.peak_share,
          .overlap = row.overlap,
          .tile_m = row.tile_m,
          .tile_n = row.tile_n,
          .source = fmt::format("family default, as {}; not measured on this GPU", row.of)};
}

CollectiveConstants family_default(Collective kind) {
  struct Row {
    double launch_us, per_gpu_us, bandwidth_share, ramp_us;
  };
  constexpr std::array<Row, collective_names.size()> rows{{
      {4.8, 1.52, 0.853, 12.5},
      {4.8, 0.78, 0.784, 12.6},
      {4.9, 0.76, 0.732, 5.9},
      {7.2, 0.08, 0.776, 11.9},
      {13.4, 0, 0.52, 0},
      {13.4, 0, 0.52, 0},
      {2.4, 0.175, 0.456, 0.26},
  }};
  const Row& row = rows[static_cast<std::size_t>(kind)];
  return {.launch = Seconds(row.launch_us * 1e-6),
          .per_gpu = Seconds(row.per_gpu_us * 1e-6),
          .bandwidth_share = row.bandwidth_share,
          .ramp = Seconds(row.ramp_us * 1e-6),
          .source = "family default, as H100 SXM; not measured on this GPU"};
}

std::span<const Key> gpu_keys() {
  static constexpr Key keys[] = {
      {"name", form::text, required, "the GPU's name in reports"},
      {"source", form::text, required, "where these numbers come from"},
      {"sms", form::integer(1, 100000), required, "streaming multiprocessors"},
      {"hbm_capacity", form::bytes, required,
       "as nvidia-smi reports HBM: an 80 GB H100 has 81559 MiB"},
      {"hbm_bandwidth", form::bytes_per_second, required, "HBM bandwidth of the data sheet"},
      {"l2_capacity", form::bytes, required, "L2 cache"},
      {"l2_bandwidth", form::bytes_per_second, required, "bandwidth of the L2 cache"},
      {"smem_per_sm", form::bytes, required, "shared memory of one SM"},
      {"smem_bandwidth", form::bytes_per_second, required,
       "bandwidth of all SMs' shared memory together"},
      {"scale_up_bandwidth", form::bytes_per_second, required, "NVLink bandwidth of one direction"},
      {"host_bandwidth", form::bytes_per_second, required,
       "bandwidth to the host's memory, one direction"},
      {"dense_peak", form::object(peak_keys), required, "tensor-core peaks by precision"},
      {"kernels", form::object(kernel_table_keys), "{}", "constants of kernel families"},
      {"collectives", form::object(collective_table_keys), "{}", "constants of collectives"},
      {"profiles", form::file, otherwise("none"),
       "folder of measured kernel times, <engine>-<version>/<table>.csv"},
      {"sibling", form::file, otherwise("none"),
       "GPU file whose tables, scaled by data sheets, replace missing tables"},
      {"price", form::object(price_keys), otherwise("no cost in reports"), "price of an hour"}};
  return keys;
}

namespace {

// A thousand times what any GPU has; blocks of it can be counted in 64 bits.
constexpr Bytes most_hbm(1e15);

GpuSpec read_gpu(const ConfigNode& node, bool with_sibling);

// A sibling's own sibling is not asked.
std::shared_ptr<const GpuSpec> read_sibling(const ConfigNode& node) {
  const auto file = node.relative(node.text());
  if (std::filesystem::exists(file) && std::filesystem::equivalent(file, node.file()))
    node.fail("a GPU cannot be its own sibling");
  return std::make_shared<const GpuSpec>(read_gpu(ConfigNode::from_file(file), false));
}

GpuSpec read_gpu(const ConfigNode& node, bool with_sibling) {
  return read_object(node, gpu_keys, [&](ConfigReader& reader) {
    GpuSpec gpu;
    gpu.name = reader.text("name");
    gpu.source = reader.text("source");
    gpu.sms = static_cast<int>(reader.integer("sms"));
    gpu.hbm_capacity = positive<Bytes>(reader, "hbm_capacity");
    if (gpu.hbm_capacity > most_hbm) reader.child("hbm_capacity").fail("expected at most 1 PB");
    gpu.hbm_bandwidth = positive<BytesPerSecond>(reader, "hbm_bandwidth");
    gpu.l2_capacity = positive<Bytes>(reader, "l2_capacity");
    gpu.l2_bandwidth = positive<BytesPerSecond>(reader, "l2_bandwidth");
    gpu.smem_per_sm = positive<Bytes>(reader, "smem_per_sm");
    gpu.smem_bandwidth = positive<BytesPerSecond>(reader, "smem_bandwidth");
    gpu.scale_up_bandwidth = positive<BytesPerSecond>(reader, "scale_up_bandwidth");
    gpu.host_bandwidth = positive<BytesPerSecond>(reader, "host_bandwidth");
    gpu.dense_peak = read_peaks(reader.child("dense_peak"));
    for (std::size_t i = 0; i < kernel_family_names.size(); ++i) {
      const auto family = static_cast<KernelFamily>(i);
      gpu.kernels[family] = family_default(family);
    }
    for (std::size_t i = 0; i < collective_names.size(); ++i)
      gpu.collectives[i] = family_default(static_cast<Collective>(i));
    read_named_rows(reader.child("kernels"), kernel_table_keys, kernel_keys, kernel_family_names,
                    [&](ConfigReader& row, std::size_t i) {
                      KernelConstants& constants = gpu.kernels[static_cast<KernelFamily>(i)];
                      PeakShares defaults = std::move(constants.peak_share);
                      constants = read_kernel(row);
                      constants.peak_share.merge(defaults);
                    });
    read_named_rows(
        reader.child("collectives"), collective_table_keys, collective_keys, collective_names,
        [&](ConfigReader& row, std::size_t i) { gpu.collectives[i] = read_collective(row); });
    if (reader.optional("price")) gpu.price = read_price(reader.child("price"));
    if (reader.optional("profiles")) gpu.profiles = read_profiles(reader.child("profiles"));
    if (reader.optional("sibling") && with_sibling)
      gpu.sibling = read_sibling(reader.child("sibling"));
    return gpu;
  });
}

}  // namespace

GpuSpec read_gpu(const ConfigNode& node) { return read_gpu(node, true); }

}  // namespace moesim
