// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "hardware/gpu.hpp"
#include "hardware/kernels/kernel.hpp"
#include "hardware/shipped.hpp"

namespace moesim {

// hardware/families.json, built in.
namespace embedded {
std::string_view families();
}

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
  static constexpr KeyDefault absent = unset("not multiplied in it");
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
  static constexpr Key keys[] = {{"*", share, unset("that of the nearest precision"),
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
      {"flops", form::list(bound), unset("[0, 0]"), "[smallest, largest]"},
      {"precisions", form::list(precision), unset("none"), "precisions of the weights"}};
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

constexpr Form overlap_form = form::number(1, 64);
constexpr Form passes = form::number(0, 100);

std::span<const Key> precision_constant_keys() {
  static constexpr Key keys[] = {
      {"launch", form::time, required, "launch and drain of its kernels"},
      {"bandwidth_share", share, required, "share of the HBM bandwidth"},
      {"overlap", overlap_form, "16", "overlap of loads and arithmetic"},
      {"copies", passes, "0", "passes over the rows of an expert layer"},
      {"held_copies", passes, "0", "passes over all rows that the GPU holds"}};
  return keys;
}

std::span<const Key> by_precision_keys() {
  static constexpr Key keys[] = {{"*", form::object(precision_constant_keys), unset("the kernel's"),
                                  "constants of one precision", precision_names}};
  return keys;
}

std::map<Precision, PrecisionConstants> read_by_precision(const ConfigNode& node) {
  return read_object(node, by_precision_keys, [](ConfigReader& table) {
    std::map<Precision, PrecisionConstants> all;
    for (std::size_t i = 0; i < precision_names.size(); ++i) {
      if (!table.optional(precision_names[i])) continue;
      all[static_cast<Precision>(i)] = read_object(
          table.child(precision_names[i]), precision_constant_keys, [](ConfigReader& row) {
            return PrecisionConstants{row.quantity<Seconds>("launch"),
                                      row.number("bandwidth_share"), row.number("overlap"),
                                      row.number("copies"), row.number("held_copies")};
          });
    }
    return all;
  });
}

std::span<const Key> kernel_keys() {
  static constexpr Form by_precision = form::object(peak_share_keys);
  static constexpr Key keys[] = {
      {"launch", form::time, required, "launch and drain of the operation's kernels"},
      {"bandwidth_share", share, required, "share of the HBM bandwidth that the kernel reaches"},
      {"peak_share", share.or_a(by_precision), required,
       "share of the dense peak that the kernel reaches"},
      {"overlap", overlap_form, "16", "overlap of loads and arithmetic: 1 none, 16 nearly all"},
      {"tile_m", tile_side, required, "rows to which a GEMM pads its tokens"},
      {"tile_n", tile_side, required, "columns of an output tile"},
      {"copies", passes, "0", "passes over the rows of an expert layer"},
      {"held_copies", passes, "0", "passes over all rows that the GPU holds"},
      {"by_precision", form::object(by_precision_keys), "{}", "constants of single precisions"},
      {"source", form::text, required, "where these numbers come from"},
      {"calibration", form::object(calibration_keys), unset("not a fit"), "what they fit"}};
  return keys;
}

KernelConstants read_kernel(ConfigReader& reader) {
  return {.launch = reader.quantity<Seconds>("launch"),
          .bandwidth_share = reader.number("bandwidth_share"),
          .peak_share = read_peak_shares(reader.child("peak_share")),
          .overlap = reader.number("overlap"),
          .tile_m = static_cast<int>(reader.integer("tile_m")),
          .tile_n = static_cast<int>(reader.integer("tile_n")),
          .copies = reader.number("copies"),
          .held_copies = reader.number("held_copies"),
          .by_precision = read_by_precision(reader.child("by_precision")),
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
      {"calibration", form::object(calibration_keys), unset("not a fit"), "what they fit"}};
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

constexpr std::array<std::string_view, 3> draw_fill_names{"by_rank", "by_id", "by_id_of_none"};

std::span<const Key> draw_fill_keys() {
  static constexpr Form fill = form::choice(draw_fill_names);
  static constexpr Key keys[] = {{"sglang", fill, unset("as usual"), "rows of SGLang"},
                                 {"trtllm", fill, unset("as usual"), "rows of TensorRT-LLM"}};
  return keys;
}

std::map<std::string, DrawFill, std::less<>> read_draw_fill(const ConfigNode& node) {
  return read_object(node, draw_fill_keys, [](ConfigReader& reader) {
    std::map<std::string, DrawFill, std::less<>> fills;
    for (const Key& key : draw_fill_keys())
      if (reader.optional(key.name))
        fills.emplace(key.name, static_cast<DrawFill>(reader.choice(key.name)));
    return fills;
  });
}

std::span<const Key> power_constant_keys() {
  static constexpr Form weight = form::number(0, 1000);
  static constexpr Form error = form::number(non_negative);
  static constexpr Key keys[] = {
      {"floor", form::watts, required, "draw of a kernel that hardly loads the GPU"},
      {"loads", weight, required, "weight of the share of HBM's rate; exchanges: of NVLink's"},
      {"arithmetic", weight, "0", "weight of the share of the tensor cores' peak"},
      {"exponent", form::number(0.05, 20), required, "of the weighted sum of both"},
      {"points", form::integer(positive_count), unset("not a fit"), "measurements fitted on"},
      {"median_error", error, "0", "median of |predicted / measured - 1| over the points"},
      {"left_out_error", error, "0", "the same over a tenth of the shapes, left out"}};
  return keys;
}

PowerConstants read_power_constants(ConfigReader& reader) {
  PowerConstants c{.floor = reader.quantity<Watts>("floor"),
                   .loads = reader.number("loads"),
                   .arithmetic = reader.number("arithmetic"),
                   .exponent = reader.number("exponent")};
  const double error = reader.number("median_error"), left_out = reader.number("left_out_error");
  if (reader.optional("points"))
    c.calibration = {static_cast<int>(reader.integer("points")), error, left_out};
  return c;
}

std::span<const Key> power_kernel_keys() {
  static constexpr Form constants = form::object(power_constant_keys);
  static constexpr Key keys[] = {
      {"gemm", constants, required, "dense products"},
      {"experts", constants, required, "expert layers"},
      {"attention_decode", constants, required, "attention of decodes, blocks included"},
      {"attention_prefill", constants, required, "attention of prompts, blocks included"},
      {"memory", constants, required, "norms, permutes, quantisation, linear attention"},
      {"exchanges", constants, required, "collectives and exchanges of tokens"}};
  return keys;
}

std::span<const Key> power_keys() {
  static constexpr Key keys[] = {
      {"limit", form::watts, required, "the data sheet's limit of power"},
      {"as", form::file, unset("no GPU"), "GPU whose power this is, scaled by both limits"},
      {"idle", form::watts, unset("of the GPU under as"), "of a GPU that waits with clocks up"},
      {"kernels", form::object(power_kernel_keys), unset("of the GPU under as"),
       "what classes of kernels draw"},
      {"source", form::text, required, "where these numbers come from"}};
  return keys;
}

constexpr Key as_key{"as", form::file, unset("no GPU"),
                     "GPU whose constants apply to families that this file leaves out"};

/// Names of the kernels whose constants are of a law.
std::vector<std::string_view> names_of(Law law) {
  std::vector<std::string_view> names;
  for (const Kernel* kernel : kernels())
    if (kernel->has_own(law)) names.push_back(kernel->name);
  return names;
}

std::span<const Key> kernel_table_keys() {
  static const auto names = names_of(Law::roofline);
  static const Key keys[] = {as_key,
                             {"*", form::object(kernel_keys), unset("the kernel's default"),
                              "constants of one kernel", names}};
  return keys;
}

std::span<const Key> collective_table_keys() {
  static const auto names = names_of(Law::links);
  static const Key keys[] = {as_key,
                             {"*", form::object(collective_keys), unset("the kernel's default"),
                              "constants of one collective", names}};
  return keys;
}

/// Place of the constants of one law in a GPU file, and their form.
template <class Constants>
struct Section {
  Law law;
  KeyTable keys, kernel_keys;
  Constants (*read)(ConfigReader&);
  std::map<const Kernel*, Constants> GpuSpec::*of;
};
constexpr Section<KernelConstants> rooflines{Law::roofline, kernel_table_keys, kernel_keys,
                                             read_kernel, &GpuSpec::kernels};
constexpr Section<CollectiveConstants> links{Law::links, collective_table_keys, collective_keys,
                                             read_collective, &GpuSpec::collectives};

/// `take(kernel, constants)` is given what stands under the names of kernels.
template <class Constants, class Take>
void read_constants(ConfigReader& table, const Section<Constants>& section, Take take) {
  for (const Kernel* kernel : kernels()) {
    if (!kernel->has_own(section.law) || !table.optional(kernel->name)) continue;
    take(kernel, read_object(table.child(kernel->name), section.kernel_keys, section.read));
  }
}

// Folders of each <engine>-<version>, by name.
std::vector<Profile> read_profiles(const ConfigNode& node) {
  const auto folder = node.relative(node.text());
  std::error_code failed;
  std::vector<Profile> profiles;
  for (const auto& entry : std::filesystem::directory_iterator(folder, failed))
    if (entry.is_directory())
      profiles.push_back({engine_named(entry.path().filename().string()), entry.path()});
  if (profiles.empty())
    node.fail("{} holds no folder <engine>-<version> of tables", folder.string());
  std::ranges::sort(profiles, {}, &Profile::folder);
  return profiles;
}

std::span<const Key> family_keys() {
  static constexpr Key keys[] = {
      {"source", form::text, required, "where these numbers come from"},
      {"kernels", form::object(kernel_table_keys), required, "constants of every kernel"},
      {"collectives", form::object(collective_table_keys), required, "of every collective"}};
  return keys;
}

/// hardware/families.json, which is built in: a GPU's data sheet needs no file beside it.
GpuSpec read_families() {
  const ConfigNode node(Json::parse(embedded::families()), "hardware/families.json");
  return read_object(node, family_keys, [](ConfigReader& reader) {
    GpuSpec all;
    reader.text("source");
    const auto take = [&](std::string_view key, const auto& section) {
      read_object(reader.child(key), section.keys, [&](ConfigReader& table) {
        read_constants(table, section, [&](const Kernel* kernel, auto constants) {
          (all.*section.of)[kernel] = std::move(constants);
        });
      });
    };
    take("kernels", rooflines);
    take("collectives", links);
    return all;
  });
}

const GpuSpec& families() {
  static const GpuSpec all = read_families();
  return all;
}

/// Constants of another GPU, or of others, which are no fit of this one.
template <class Constants>
Constants as_of(std::string_view whose, Constants constants) {
  constants.source = fmt::format("{}; not measured on this GPU: {}", whose, constants.source);
  constants.calibration.reset();
  return constants;
}

constexpr std::string_view of_the_family = "family default";

}  // namespace

KernelConstants default_constants(const Kernel& kernel) {
  return as_of(of_the_family, families().kernel(kernel));
}

CollectiveConstants default_link_constants(const Kernel& kernel) {
  return as_of(of_the_family, families().collective(kernel));
}

std::span<const Key> gpu_keys() {
  static constexpr Key keys[] = {
      {"name", form::text, required, "the GPU's name in reports"},
      {"source", form::text, required, "where these numbers come from"},
      {"platform", form::choice(platform_names), "cuda", "software that engines must be built for"},
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
      {"kernels", form::object(kernel_table_keys), "{}", "constants of kernels"},
      {"collectives", form::object(collective_table_keys), "{}", "constants of collectives"},
      {"profiles", form::file, unset("none"),
       "folder of measured kernel times, <engine>-<version>/<table>.csv"},
      {"sibling", form::file, unset("none"),
       "GPU file whose tables, scaled by data sheets, replace missing tables"},
      {"sibling_time", form::number(0.1, 10), "1", "factor on times from the sibling's tables"},
      {"draw_fill", form::object(draw_fill_keys), unset("as usual for the engine's version"),
       "how uneven rows of an engine's expert tables were drawn"},
      {"price", form::object(price_keys), unset("no cost in reports"), "price of an hour"},
      {"power", form::object(power_keys), unset("no energy in reports"), "what the GPU draws"}};
  return keys;
}

namespace {

// A thousand times what any GPU has; blocks of it can be counted in 64 bits.
constexpr Bytes most_hbm(1e15);

/// Treatment of the GPUs that a file names: its sibling, and those that it is like.
enum class Others { read, left_out };

GpuSpec read_gpu(const ConfigNode& node, Others others);

// The GPUs that a sibling or a similar GPU names in turn are not asked.
std::shared_ptr<const GpuSpec> read_other(const ConfigNode& node) {
  const auto file = named_file(node, Shipped::gpu);
  if (std::filesystem::exists(file) && std::filesystem::equivalent(file, node.file()))
    node.fail("the GPU file names itself; name another GPU");
  return std::make_shared<const GpuSpec>(read_gpu(ConfigNode::from_file(file), Others::left_out));
}

// Constants of a file for one precision are next to those of the default for others.
void add_defaults(KernelConstants& constants, KernelConstants defaults) {
  constants.peak_share.merge(defaults.peak_share);
  if (!constants.by_precision.empty()) constants.by_precision.merge(defaults.by_precision);
}
void add_defaults(CollectiveConstants&, const CollectiveConstants&) {}

template <class Constants>
void read_section(const ConfigNode& node, const Section<Constants>& section, GpuSpec& gpu,
                  Others others) {
  auto& all = gpu.*section.of;
  for (const auto& [kernel, constants] : families().*section.of)
    all[kernel] = as_of(of_the_family, constants);
  read_object(node, section.keys, [&](ConfigReader& table) {
    if (table.optional("as") && others == Others::read) {
      const auto alike = read_other(table.child("as"));
      for (auto& [kernel, constants] : all)
        constants = as_of("as " + alike->name, (*alike.*section.of).at(kernel));
    }
    read_constants(table, section, [&](const Kernel* kernel, Constants constants) {
      add_defaults(constants, std::move(all[kernel]));
      add_defaults(constants, std::move(all[kernel]));
      all[kernel] = std::move(constants);
    });
  });
}

// Null where the GPU that the file names is not read either.
std::shared_ptr<const GpuPower> read_power(const ConfigNode& node, Others others) {
  return read_object(node, power_keys, [&](ConfigReader& reader) {
    const auto limit = positive<Watts>(reader, "limit");
    const std::string source = reader.text("source");
    std::shared_ptr<const GpuPower> power;
    if (reader.optional("as")) {
      if (reader.optional("idle") || reader.optional("kernels"))
        node.fail("has \"as\" and constants of its own; give one of both");
      if (others == Others::left_out) return power;
      const auto alike = read_other(reader.child("as"));
      if (!alike->power) reader.child("as").fail(alike->name + " has no measured power of its own");
      GpuPower own = scaled_to(limit, *alike->power);
      own.source = fmt::format("power by sibling, {}, scaled by limits: {}", alike->name, source);
      return std::make_shared<const GpuPower>(std::move(own));
    }
    GpuPower own{.limit = limit, .idle = reader.quantity<Watts>("idle"), .source = source};
    if (own.idle >= limit) reader.child("idle").fail("must be below the limit");
    read_object(reader.child("kernels"), power_kernel_keys, [&](ConfigReader& table) {
      for (std::size_t i = 0; i < own.classes.size(); ++i)
        own.classes[i] = read_object(table.child(power_class_names[i]), power_constant_keys,
                                     read_power_constants);
    });
    power = std::make_shared<const GpuPower>(std::move(own));
    return power;
  });
}

bool same_rates(const GpuSpec& a, const GpuSpec& b) {
  return a.hbm_bandwidth == b.hbm_bandwidth && a.l2_bandwidth == b.l2_bandwidth &&
         a.scale_up_bandwidth == b.scale_up_bandwidth && a.dense_peak == b.dense_peak;
}

// Tables of a shipped GPU, for a GPU of other rates, are carried over as a sibling's are.
void carry_over(GpuSpec& gpu, const std::filesystem::path& file) {
  if (gpu.profiles.empty()) return;
  const std::filesystem::path tables = gpu.profiles.front().folder.parent_path();
  const auto shipped = shipped_file(Shipped::gpu, tables.filename().string());
  std::error_code none;
  if (!shipped || std::filesystem::equivalent(*shipped, file, none)) return;
  auto measured =
      std::make_shared<const GpuSpec>(read_gpu(ConfigNode::from_file(*shipped), Others::left_out));
  const bool theirs =
      !measured->profiles.empty() &&
      std::filesystem::equivalent(measured->profiles.front().folder.parent_path(), tables, none);
  if (!theirs || same_rates(gpu, *measured)) return;
  gpu.profiles.clear();
  gpu.sibling = std::move(measured);
}

GpuSpec read_gpu(const ConfigNode& node, Others others) {
  return read_object(node, gpu_keys, [&](ConfigReader& reader) {
    GpuSpec gpu;
    gpu.name = reader.text("name");
    gpu.source = reader.text("source");
    gpu.platform = platform_names[reader.choice("platform")];
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
    read_section(reader.child("kernels"), rooflines, gpu, others);
    read_section(reader.child("collectives"), links, gpu, others);
    if (reader.optional("draw_fill")) gpu.draw_fill = read_draw_fill(reader.child("draw_fill"));
    if (reader.optional("price")) gpu.price = read_price(reader.child("price"));
    if (reader.optional("profiles")) gpu.profiles = read_profiles(reader.child("profiles"));
    gpu.sibling_time = reader.number("sibling_time");
    if (reader.optional("sibling") && others == Others::read)
      gpu.sibling = read_other(reader.child("sibling"));
    if (others == Others::read) carry_over(gpu, node.file());
    if (reader.optional("power")) gpu.power = read_power(reader.child("power"), others);
    return gpu;
  });
}

}  // namespace

GpuSpec read_gpu(const ConfigNode& node) { return read_gpu(node, Others::read); }

}  // namespace moesim
