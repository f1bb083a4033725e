// SPDX-License-Identifier: Apache-2.0
#include "hardware/kernel_tables.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <shared_mutex>

#include <fmt/format.h>

#include "hardware/tables/table_file.hpp"

namespace moesim {

namespace {

// Releases count more the further to the left they differ.
double distance(std::string_view one, std::string_view other) {
  const auto a = numbers_of(one), b = numbers_of(other);
  double apart = 0;
  for (std::size_t i = 0; i < a.size(); ++i) apart = apart * 1000 + (a[i] - b[i]);
  return std::abs(apart);
}

}  // namespace

std::vector<Profile> by_nearness(std::vector<Profile> profiles, const EngineVersion& engine) {
  const auto farther = [&](const Profile& profile) {
    if (profile.engine.name != engine.name) return std::pair(1, 0.0);
    // No version at all asks for the newest.
    if (engine.version.empty()) return std::pair(0, -distance(profile.engine.version, "0"));
    return std::pair(0, distance(profile.engine.version, engine.version));
  };
  std::ranges::stable_sort(profiles, {}, farther);
  return profiles;
}

// --- reading -------------------------------------------------------------------------------------

namespace {

// Farther than this from any measured point a prediction is an extrapolation: two octaves on one
// axis.
constexpr double far_away = 2;
// Coordinates are kept as floats: a row meets itself within this.
constexpr double same_point = 1e-4;

/// The maps of one family in one profile, by group and kernel.
struct Maps {
  std::map<std::string, std::map<std::string, Scattered>, std::less<>> of_group;
};

/// One profile, on the GPU that it was measured on.
struct ProfileTables {
  EngineVersion engine;
  std::filesystem::path folder;
  std::shared_ptr<const GpuSpec> measured_on;
  mutable std::array<std::once_flag, table_family_names.size()> once;
  mutable std::array<Maps, table_family_names.size()> maps;

  const Maps& of(TableFamily family) const {
    const auto index = static_cast<std::size_t>(family);
    std::call_once(once[index], [&] {
      const auto file = folder / (std::string(table_family_names[index]) + ".csv");
      if (!std::filesystem::exists(file)) return;
      read_table(file, [&](const TableRow& row) {
        for (const Sample& sample : samples_of(family, row, *measured_on, engine)) {
          auto& kernels = maps[index].of_group[sample.group];
          kernels.try_emplace(sample.kernel, axes_of(family))
              .first->second.add(sample.place.at, sample.value());
        }
      });
    });
    return maps[index];
  }
};

/// What a table's shares were taken of. Tables of one folder differ by it.
std::string rates_of(const GpuSpec& gpu) {
  std::string facts = fmt::format("{} {} {}", gpu.hbm_bandwidth.value(), gpu.l2_bandwidth.value(),
                                  gpu.scale_up_bandwidth.value());
  for (const auto& [precision, peak] : gpu.dense_peak) facts += fmt::format(" {}", peak.value());
  return facts;
}

/// A profile's tables, which every experiment of the process shares. The oldest are forgotten once
/// many GPUs that were made up have had theirs.
std::shared_ptr<const ProfileTables> tables_of(const Profile& profile,
                                               std::shared_ptr<const GpuSpec> measured_on) {
  constexpr std::size_t most = 128;
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const ProfileTables>> known;
  const std::string key = rates_of(*measured_on) + " " + profile.folder.string();
  const std::lock_guard lock(mutex);
  if (known.size() >= most && !known.contains(key)) known.clear();
  std::shared_ptr<const ProfileTables>& tables = known[key];
  if (!tables) {
    auto unread = std::make_shared<ProfileTables>();
    unread->engine = profile.engine;
    unread->folder = profile.folder;
    unread->measured_on = std::move(measured_on);
    tables = std::move(unread);
  }
  return tables;
}

/// What errors.csv beside a GPU's profiles says, by table.
std::map<std::string, double> errors_beside(const GpuSpec& gpu, Evidence evidence) {
  std::map<std::string, double> errors;
  if (gpu.profiles.empty()) return errors;
  const auto file = gpu.profiles.front().folder.parent_path() / "errors.csv";
  if (!std::filesystem::exists(file)) return errors;
  const std::string_view wanted = evidence_names[static_cast<std::size_t>(evidence)];
  read_table(file, [&](const TableRow& row) {
    if (row.text("evidence") == wanted)
      errors[std::string(row.text("table"))] = row.number("median");
  });
  return errors;
}

/// The kernels that one question may be answered by.
struct Found {
  std::vector<Scattered> kernels;
  bool sibling = false;
  /// The fastest kernel's share, of those that were measured about as near to here as any.
  Scattered::Guess at(const Coordinates& place) const {
    constexpr double octave = 1;
    std::vector<Scattered::Guess> guesses;
    for (const Scattered& kernel : kernels) guesses.push_back(kernel.at(place));
    const double nearest = std::ranges::min(guesses, {}, &Scattered::Guess::nearest).nearest;
    std::erase_if(guesses, [&](const auto& guess) { return guess.nearest > nearest + octave; });
    return std::ranges::min(guesses, {}, &Scattered::Guess::value);
  }
};

/// One shape's share of the data sheet's time, over what steps vary.
struct Curve {
  std::optional<LazyGrid> grid;
  bool sibling = false;
};

}  // namespace

/// What was read, and what was made of it so far.
struct KernelTables::State {
  State(const GpuSpec&, const EngineVersion&, KernelChoice);
  Found find(TableFamily, const std::vector<std::string>& groups, const Coordinates& like,
             std::span<const int> matters) const;
  std::string wanted_kernel(TableFamily) const;
  bool has_kernel(TableFamily, std::string_view group, const std::string& part) const;
  const Curve* curve(TableFamily, const std::vector<std::string>& groups, const Coordinates& shape,
                     std::span<const int> fixed, std::span<const int> free) const;
  template <class Call>
  std::optional<TableTime> timed(TableFamily, const std::vector<std::string>& groups, const Call&,
                                 std::span<const int> fixed, std::span<const int> free) const;
  std::optional<TableTime> time(const AttentionCall&) const;

  struct Source {
    std::shared_ptr<const ProfileTables> tables;
    std::string engine;
    bool sibling;
  };
  GpuSpec facts;  // without tables
  KernelChoice choice;
  std::vector<Source> sources;
  std::map<std::string, double> errors, carried_errors;  // by table
  mutable std::shared_mutex mutex;
  mutable std::map<std::pair<std::string, Coordinates>, std::unique_ptr<const Curve>> curves;
};

KernelTables::State::State(const GpuSpec& gpu, const EngineVersion& engine, KernelChoice kernels)
    : facts(gpu), choice(std::move(kernels)) {
  facts.tables = nullptr;
  const auto add = [&](const GpuSpec& measured_on, bool sibling) {
    const auto spec = std::make_shared<const GpuSpec>(measured_on);
    for (const Profile& profile : by_nearness(measured_on.profiles, engine))
      sources.push_back({tables_of(profile, spec), profile.engine.name, sibling});
  };
  add(facts, false);
  errors = errors_beside(facts, Evidence::interpolated);
  if (!gpu.sibling) return;
  add(*gpu.sibling, true);
  // What is carried over is interpolated first.
  carried_errors = errors_beside(*gpu.sibling, Evidence::carried_over);
  for (const auto& [table, error] : errors_beside(*gpu.sibling, Evidence::interpolated))
    if (const auto carried = carried_errors.find(table); carried != carried_errors.end())
      carried->second = std::max(carried->second, error);
}

KernelTables::KernelTables(const GpuSpec& gpu, const EngineVersion& engine, KernelChoice choice)
    : state_(std::make_shared<const State>(gpu, engine, std::move(choice))) {}

double KernelTables::error(TableFamily family, Evidence evidence) const {
  // The same run twice differs by 0.8 % (measured set); a table without errors.csv is as good as
  // those that ship, and a sibling as bad as a family's constants on another GPU.
  constexpr double of_measured = 0.01, of_interpolated = 0.05, of_others = 0.15;
  if (evidence == Evidence::measured) return of_measured;
  const bool carried = evidence == Evidence::carried_over;
  const auto& errors = carried ? state_->carried_errors : state_->errors;
  const double otherwise = evidence == Evidence::interpolated ? of_interpolated : of_others;
  if (!carried && evidence != Evidence::interpolated) return otherwise;
  const auto found = errors.find(std::string(table_family_names[static_cast<std::size_t>(family)]));
  return found == errors.end() ? otherwise : found->second;
}

std::shared_ptr<const KernelTables> scaled(const KernelTables& tables,
                                           const TableFactors& factors) {
  auto other = std::make_shared<KernelTables>(tables);
  other->factors_ = factors;
  return other;
}

Found KernelTables::State::find(TableFamily family, const std::vector<std::string>& groups,
                                const Coordinates& like, std::span<const int> matters) const {
  // A shape's own points and those of the shapes around it.
  constexpr std::size_t most = 2500;
  const std::string wanted = wanted_kernel(family);
  const bool any_engine = choice.contains("engines");
  const bool has_wanted = std::ranges::any_of(
      groups, [&](const std::string& group) { return has_kernel(family, group, wanted); });
  Found found;
  for (const std::string& group : groups) {
    std::set<std::string> engines;
    for (const auto& [tables, engine, sibling] : sources) {
      const bool enough = !any_engine || sibling != found.sibling;
      if (!found.kernels.empty() && enough) break;
      const Maps& maps = tables->of(family);
      const auto kernels = maps.of_group.find(group);
      if (kernels == maps.of_group.end()) continue;
      // Of each engine the nearest version that has such kernels.
      if (!engines.insert(engine).second) continue;
      for (const auto& [kernel, map] : kernels->second) {
        if (has_wanted && kernel.find(wanted) == std::string::npos) continue;
        Scattered near = map.around(like, matters, most);
        // FFNs without a gate are other layers, of other models.
        const bool other_layer = kernel.find("nongated") != std::string::npos;
        if (other_layer && (kernels->second.size() > 1 && near.apart(like, matters) > 1e-6))
          continue;
        found.kernels.push_back(std::move(near));
        found.sibling = sibling;
      }
    }
    if (!found.kernels.empty()) return found;
  }
  return found;
}

std::string KernelTables::State::wanted_kernel(TableFamily family) const {
  const auto wanted = choice.find(table_family_names[static_cast<std::size_t>(family)]);
  return wanted == choice.end() ? std::string() : wanted->second;
}

bool KernelTables::State::has_kernel(TableFamily family, std::string_view group,
                                     const std::string& part) const {
  return !part.empty() && std::ranges::any_of(sources, [&](const Source& source) {
    const auto& groups = source.tables->of(family).of_group;
    const auto kernels = groups.find(group);
    return kernels != groups.end() && std::ranges::any_of(kernels->second, [&](const auto& entry) {
             return entry.first.find(part) != std::string::npos;
           });
  });
}

const Curve* KernelTables::State::curve(TableFamily family, const std::vector<std::string>& groups,
                                        const Coordinates& shape, std::span<const int> fixed,
                                        std::span<const int> free) const {
  Coordinates key{};
  for (const int axis : fixed)
    key[static_cast<std::size_t>(axis)] = shape[static_cast<std::size_t>(axis)];
  const std::pair name(
      std::string(table_family_names[static_cast<std::size_t>(family)]) + groups.front(), key);
  {
    const std::shared_lock lock(mutex);
    const auto known = curves.find(name);
    if (known != curves.end()) return known->second.get();
  }
  const auto found = std::make_shared<const Found>(find(family, groups, key, fixed));
  auto made = std::make_unique<Curve>();
  if (!found->kernels.empty()) {
    made->sibling = found->sibling;
    std::array<std::vector<double>, 3> nodes;
    for (std::size_t i = 0; i < free.size(); ++i) {
      for (const Scattered& kernel : found->kernels) {
        const std::vector<double> ticks = kernel.ticks(free[i]);
        nodes[i].insert(nodes[i].end(), ticks.begin(), ticks.end());
      }
      std::ranges::sort(nodes[i]);
      nodes[i].erase(std::unique(nodes[i].begin(), nodes[i].end()), nodes[i].end());
    }
    const std::vector<int> axes(free.begin(), free.end());
    made->grid.emplace(std::move(nodes), [found, key, axes](const LazyGrid::Place& place) {
      Coordinates at = key;
      for (std::size_t i = 0; i < axes.size(); ++i)
        at[static_cast<std::size_t>(axes[i])] = place[i];
      return found->at(at);
    });
  }
  const std::unique_lock lock(mutex);
  return curves.try_emplace(name, std::move(made)).first->second.get();
}

namespace {

Evidence evidence_of(bool sibling, double nearest) {
  if (sibling) return Evidence::carried_over;
  if (nearest < same_point) return Evidence::measured;
  return nearest <= far_away ? Evidence::interpolated : Evidence::extrapolated;
}

}  // namespace

template <class Call>
std::optional<TableTime> KernelTables::State::timed(TableFamily family,
                                                    const std::vector<std::string>& groups,
                                                    const Call& call, std::span<const int> fixed,
                                                    std::span<const int> free) const {
  const Located place = locate(call, facts);
  const Curve* shape = curve(family, groups, place.at, fixed, free);
  if (!shape->grid) return std::nullopt;
  LazyGrid::Place at{};
  for (std::size_t i = 0; i < free.size(); ++i) at[i] = place.at[static_cast<std::size_t>(free[i])];
  const Scattered::Guess share = shape->grid->at(at);
  return TableTime{Seconds(place.rough_us * std::exp(share.value) * 1e-6),
                   evidence_of(shape->sibling, share.nearest)};
}

// --- questions -----------------------------------------------------------------------------------

std::optional<TableTime> KernelTables::scaled_by_family(TableFamily family,
                                                        std::optional<TableTime> time) const {
  if (time) time->time *= factors_.at(family, time->evidence);
  return time;
}

std::optional<TableTime> KernelTables::time(const GemmCall& call) const {
  static constexpr std::array fixed{1, 2};
  static constexpr std::array free{0};
  return scaled_by_family(
      TableFamily::gemm,
      state_->timed(TableFamily::gemm, {std::string(call.precision)}, call, fixed, free));
}

namespace {

TableFamily table_of(const AttentionCall& call) {
  if (!call.mla)
    return call.decode ? TableFamily::attention_decode : TableFamily::attention_prefill;
  if (call.block.empty()) return call.decode ? TableFamily::mla_decode : TableFamily::mla_prefill;
  return call.decode ? TableFamily::mla_decode_module : TableFamily::mla_prefill_module;
}

}  // namespace

std::optional<TableTime> KernelTables::time(const AttentionCall& call) const {
  return scaled_by_family(table_of(call), state_->time(call));
}

std::optional<TableTime> KernelTables::State::time(const AttentionCall& call) const {
  static constexpr std::array gqa{2, 3, 4, 5};
  static constexpr std::array mla{2, 3};
  static constexpr std::array mla_prefill{2};
  static constexpr std::array two{0, 1};
  static constexpr std::array with_context{0, 1, 3};
  const std::string kv = call.kv_bytes < 2 ? "fp8" : "bfloat16";
  const std::string other = call.kv_bytes < 2 ? "bfloat16" : "fp8";
  const TableFamily family = table_of(call);
  if (!call.mla) {
    const auto groups = [](const std::string& cache, std::string_view window) {
      return std::vector{fmt::format("{} bfloat16{}", cache, window),
                         fmt::format("{} fp8{}", cache, window)};
    };
    if (call.window > 0) {
      if (const auto windowed = timed(family, groups(kv, " window"), call, gqa, two))
        return windowed;
      AttentionCall whole = call;
      whole.window = 0;
      if (call.decode) whole.context = std::min(call.context, call.window + call.queries - 1);
      if (!call.decode) return std::nullopt;
      return timed(family, groups(kv, ""), whole, gqa, two);
    }
    return timed(family, groups(kv, ""), call, gqa, two);
  }
  const bool block = !call.block.empty();
  std::vector<std::string> groups;
  for (const std::string& cache : {kv, other})
    for (const std::string_view multiplied : {"bfloat16", "fp8"})
      groups.push_back(block ? fmt::format("{} {} {}", cache, multiplied, call.block)
                             : fmt::format("{} {}", cache, multiplied));
  if (call.decode) return timed(family, groups, call, mla, two);
  return timed(family, groups, call, mla_prefill, with_context);
}

std::optional<TableTime> KernelTables::time(const BmmCall& call, bool keys) const {
  static constexpr std::array fixed{1};
  static constexpr std::array free{0};
  const std::string op = keys ? "mla_gen_pre bfloat16" : "mla_gen_post bfloat16";
  return scaled_by_family(TableFamily::mla_bmm,
                          state_->timed(TableFamily::mla_bmm, {op}, call, fixed, free));
}

std::optional<TableTime> KernelTables::time(const QuantizeCall& call) const {
  static constexpr std::array fixed{1};
  static constexpr std::array free{0};
  return scaled_by_family(TableFamily::quantize,
                          state_->timed(TableFamily::quantize, {"fp8"}, call, fixed, free));
}

std::optional<TableTime> KernelTables::time(const CollectiveCall& call) const {
  static constexpr std::array fixed{1};
  static constexpr std::array free{0};
  const auto family = call.engine ? TableFamily::all_reduce : TableFamily::collectives;
  return scaled_by_family(family, state_->timed(family, {std::string(call.op)}, call, fixed, free));
}

std::optional<TableTime> KernelTables::time(const ExchangeCall& call) const {
  static constexpr std::array fixed{1, 2, 3, 4, 5};
  static constexpr std::array free{0};
  const auto family = call.low_latency ? TableFamily::low_latency : TableFamily::normal;
  const std::string way = call.combine ? "combine" : "dispatch";
  return scaled_by_family(family, state_->timed(family, {way}, call, fixed, free));
}

// --- experts -------------------------------------------------------------------------------------

namespace {

// Half octaves from 1 to 2^top.
std::vector<double> half_octaves(int top) {
  std::vector<double> nodes;
  for (int i = 0; i <= 2 * top; ++i) nodes.push_back(i / 2.0);
  return nodes;
}

/// The ascending values nearest to the guesses, which count by distance^-3 (pool adjacent
/// violators): what was measured beside a place outweighs what is far from any point.
std::vector<Scattered::Guess> ascending(const std::vector<Scattered::Guess>& guesses) {
  struct Pool {
    double weighted = 0, weight = 0;
    std::size_t size = 0;
    double mean() const { return weighted / weight; }
  };
  std::vector<Pool> pools;
  for (const Scattered::Guess& guess : guesses) {
    const double weight = std::pow(std::max(guess.nearest, 0.1), -3);
    pools.push_back({weight * guess.value, weight, 1});
    while (pools.size() > 1 && pools.back().mean() < pools[pools.size() - 2].mean()) {
      const Pool last = pools.back();
      pools.pop_back();
      pools.back().weighted += last.weighted;
      pools.back().weight += last.weight;
      pools.back().size += last.size;
    }
  }
  std::vector<Scattered::Guess> values;
  for (const Pool& pool : pools)
    for (std::size_t i = 0; i < pool.size; ++i)
      values.push_back({pool.mean(), guesses[values.size()].nearest});
  return values;
}

}  // namespace

std::shared_ptr<const ExpertTables> KernelTables::experts(double hidden, double width, double top_k,
                                                          double experts, Precision weights,
                                                          Precision activations) const {
  const std::string wanted = state_->wanted_kernel(TableFamily::experts);
  const auto names = table_names(weights, activations);
  // TensorRT-LLM's kernels are generated for all narrow formats alike: where one was measured in
  // another format only, it takes the share of the data sheet's time that it takes there.
  std::vector<std::string_view> groups = names;
  groups.push_back("nvfp4");
  for (const std::string_view group : groups) {
    if (state_->has_kernel(TableFamily::experts, group, wanted))
      return this->experts({names.front(), hidden, width, top_k, experts}, group);
  }
  for (const std::string_view name : names) {
    auto layer = this->experts({name, hidden, width, top_k, experts});
    if (layer) return layer;
  }
  return nullptr;
}

std::shared_ptr<const ExpertTables> KernelTables::experts(const ExpertsCall& call) const {
  return experts(call, call.precision);
}

std::shared_ptr<const ExpertTables> KernelTables::experts(const ExpertsCall& call,
                                                          std::string_view group) const {
  static constexpr std::array shape{3, 4, 5, 6};
  ExpertsCall any = call;
  any.tokens = any.rows = any.active = 1;
  const auto found = std::make_shared<const Found>(state_->find(
      TableFamily::experts, {std::string(group)}, locate(any, state_->facts).at, shape));
  if (found->kernels.empty()) return nullptr;
  auto layer = std::make_shared<ExpertTables>();
  layer->precision_ = call.precision;
  layer->shape_ = call;
  layer->shape_.precision = layer->precision_;
  layer->facts_ = state_->facts;
  layer->factors_ = factors_;
  if (found->sibling) layer->best_ = Evidence::carried_over;
  std::vector<double> tokens;
  for (const Scattered& kernel : found->kernels) {
    const std::vector<double> ticks = kernel.ticks(2);
    tokens.insert(tokens.end(), ticks.begin(), ticks.end());
  }
  std::ranges::sort(tokens);
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  const std::array<std::vector<double>, 3> nodes{tokens, half_octaves(20), half_octaves(10)};
  const ExpertTables& self = *layer;
  layer->raw_ = std::make_unique<LazyGrid>(nodes, [found, &self](const LazyGrid::Place& at) {
    ExpertsCall c = self.shape_;
    c.tokens = std::exp2(at[0]);
    c.rows = std::exp2(at[1]);
    c.active = std::min(std::exp2(at[2]), c.rows);
    const Located place = locate(c, self.facts_);
    const Scattered::Guess share = found->at(place.at);
    return Scattered::Guess{share.value + std::log(place.rough_us), share.nearest};
  });
  // More experts never take less time, however the measured points scatter.
  layer->monotone_ = std::make_unique<LazyGrid>(nodes, [&self](const LazyGrid::Place& at) {
    const double most = std::log2(std::max(1.0, std::min(self.shape_.experts, std::exp2(at[1]))));
    std::vector<Scattered::Guess> column;
    for (double active = 0; active <= std::max(most, at[2]); active += 0.5)
      column.push_back(self.raw_->at({at[0], at[1], active}));
    return ascending(column)[static_cast<std::size_t>(2 * at[2])];
  });
  return layer;
}

TableTime ExpertTables::time(double tokens, double rows, double active) const {
  const Scattered::Guess log_time =
      monotone_->at({std::log2(std::max(1.0, tokens)), std::log2(std::max(1.0, rows)),
                     std::log2(std::max(1.0, active))});
  const Evidence evidence = best_ == Evidence::carried_over
                                ? best_
                                : evidence_of(false, std::max(log_time.nearest, same_point));
  return {Seconds(std::exp(log_time.value) * 1e-6) * factors_.at(TableFamily::experts, evidence),
          evidence};
}

// --- prices --------------------------------------------------------------------------------------

namespace {

KernelFamily family_of(const AttentionShape& shape) {
  if (!shape.decode) return KernelFamily::attention_prefill;
  return shape.mla ? KernelFamily::mla_decode : KernelFamily::attention_decode;
}

AttentionCall call_of(const AttentionShape& shape, const AttentionLoad& load) {
  const double batch = std::max(1.0, load.sequences);
  return {.decode = shape.decode,
          .mla = shape.mla,
          .block = {},
          .kv_bytes = shape.kv_cache == Precision::bf16 ? 2.0 : 1.0,
          .q_heads = shape.q_heads,
          .kv_heads = shape.kv_heads,
          .head_dim = shape.head_dim,
          .window = static_cast<double>(shape.window),
          .batch = batch,
          .queries = load.queries / batch,
          .context = load.context / batch};
}

// What tables' answers depend on: the GPU's facts and where its tables stand.
std::string facts_of(const GpuSpec& gpu) {
  std::string facts = fmt::format(
      "{} {} {} {} {} {} {} {} {}", gpu.name, gpu.sms, gpu.hbm_capacity.value(),
      gpu.hbm_bandwidth.value(), gpu.l2_capacity.value(), gpu.l2_bandwidth.value(),
      gpu.smem_per_sm.value(), gpu.smem_bandwidth.value(), gpu.scale_up_bandwidth.value());
  for (const auto& [precision, peak] : gpu.dense_peak)
    facts += fmt::format(" {} {}", static_cast<int>(precision), peak.value());
  for (const Profile& profile : gpu.profiles) facts += " " + profile.folder.string();
  return gpu.sibling ? facts + " beside " + facts_of(*gpu.sibling) : facts;
}

// Tables are read and interpolated once for all experiments of a process that are under way.
std::shared_ptr<const KernelTables> shared_tables(const GpuSpec& gpu, const EngineVersion& engine,
                                                  const KernelChoice& choice) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<const KernelTables>> all;
  std::string name = fmt::format("{} {} {}", engine.name, engine.version, facts_of(gpu));
  for (const auto& [family, kernel] : choice) name += " " + family + "=" + kernel;
  const std::lock_guard lock(mutex);
  auto tables = all[name].lock();
  if (!tables) all[name] = tables = std::make_shared<const KernelTables>(gpu, engine, choice);
  return tables;
}

}  // namespace

GpuSpec with_engine(GpuSpec gpu, const EngineVersion& engine, const KernelChoice& choice) {
  gpu.tables = nullptr;
  if (gpu.profiles.empty() && !gpu.sibling) return gpu;
  gpu.tables = shared_tables(gpu, engine, choice);
  return gpu;
}

Cost priced(Cost cost, const TableTime& measured, Seconds loads, Seconds arithmetic) {
  const Seconds bound = std::max(loads, arithmetic);
  cost.time = std::max(measured.time, bound);
  cost.evidence = measured.evidence;
  const Resource busier = loads > arithmetic ? Resource::hbm : Resource::tensor_core;
  cost.bound = bound * 2 < cost.time ? Resource::launch : busier;
  return cost;
}

Cost attention(const AttentionShape& shape, const AttentionLoad& load, const GpuSpec& gpu) {
  const Cost cost = roofline(load.work, {}, family_of(shape), gpu);
  if (!gpu.tables || load.sequences <= 0) return cost;
  const auto measured = gpu.tables->time(call_of(shape, load));
  // Kernels may multiply a cache of eight bits as such.
  const FlopsPerSecond peak = gpu.peak(shape.kv_cache, shape.kv_cache);
  return measured
             ? priced(cost, *measured, load.work.hbm / gpu.hbm_bandwidth, load.work.flops / peak)
             : cost;
}

std::optional<Cost> mla_block(const AttentionShape& shape, const AttentionLoad& load,
                              Precision projections, const GpuSpec& gpu) {
  if (!gpu.tables || load.sequences <= 0) return std::nullopt;
  AttentionCall call = call_of(shape, load);
  for (const std::string_view name : table_names(projections, Precision::bf16)) {
    call.block = name;
    const auto measured = gpu.tables->time(call);
    if (!measured) continue;
    const FlopsPerSecond peak = gpu.peak(projections, projections);
    return priced({.work = load.work, .peak = peak}, *measured, load.work.hbm / gpu.hbm_bandwidth,
                  load.work.flops / peak);
  }
  return std::nullopt;
}

Cost quantise(double m, double k, Precision precision, const GpuSpec& gpu) {
  const Cost cost = memory_op(Bytes(m * k * (2 + bytes_per_element(precision))), gpu);
  const auto measured = gpu.tables ? gpu.tables->time(QuantizeCall{m, k}) : std::nullopt;
  return measured ? priced(cost, *measured, cost.work.hbm / gpu.hbm_bandwidth, {}) : cost;
}

}  // namespace moesim
