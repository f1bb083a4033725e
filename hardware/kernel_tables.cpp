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

using Kernels = std::map<std::string, Scattered>;  // by name

/// The maps of one family in one profile, by group.
struct Maps {
  std::map<std::string, Kernels, std::less<>> of_group;
  std::size_t points(std::string_view group) const {
    std::size_t sum = 0;
    if (const auto kernels = of_group.find(group); kernels != of_group.end())
      for (const auto& [name, shares] : kernels->second) sum += shares.size();
    return sum;
  }
};

// FFNs without a gate are other layers, of other models.
bool is_other_layer(std::string_view kernel) { return kernel.find("nongated") != kernel.npos; }

/// One profile, on the GPU that it was measured on.
struct ProfileTables {
  EngineVersion engine;
  std::filesystem::path folder;
  std::shared_ptr<const GpuSpec> measured_on;
  mutable std::array<std::once_flag, table_family_names.size()> once;
  mutable std::array<Maps, table_family_names.size()> maps;

  std::filesystem::path file_of(TableFamily family) const {
    return folder / (std::string(table_family_names[static_cast<std::size_t>(family)]) + ".csv");
  }
  bool has(TableFamily family) const { return std::filesystem::exists(file_of(family)); }

  const Maps& of(TableFamily family) const {
    const auto index = static_cast<std::size_t>(family);
    std::call_once(once[index], [&] {
      const auto file = file_of(family);
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

/// A profile's tables, which every experiment of the process shares. All are forgotten, and read
/// anew when next asked for, once many GPUs that were made up have had theirs.
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

/// The fastest kernel's share, of those that were measured about as near as any.
Scattered::Guess fastest(std::vector<Scattered::Guess> kernels) {
  constexpr double octave = 1;
  const double nearest = std::ranges::min(kernels, {}, &Scattered::Guess::nearest).nearest;
  std::erase_if(kernels, [&](const auto& guess) { return guess.nearest > nearest + octave; });
  return std::ranges::min(kernels, {}, &Scattered::Guess::value);
}

/// One kernel's shares, and how they differ in a version of which only a few were measured.
struct Kernel {
  Scattered shares;
  std::shared_ptr<const Scattered> change;  // null: it is the version itself

  Scattered::Guess at(const Coordinates& place) const {
    // Four octaves from any point of the other version half of its change is left. Chosen by
    // leaving out models, batches and lengths of such points.
    constexpr double half_left = 4;
    Scattered::Guess guess = shares.at(place);
    if (!change) return guess;
    const Scattered::Guess changed = change->at(place);
    guess.value += changed.value / (1 + std::pow(changed.nearest / half_left, 2));
    guess.nearest = std::max(guess.nearest, 2 * same_point);  // not what was measured
    return guess;
  }
};

/// How the shares of a version of which few points were measured differ from those of another.
std::shared_ptr<const Scattered> change_between(const Kernels& few, const Kernels& full, int axes) {
  auto change = std::make_shared<Scattered>(axes);
  for (const auto& [name, shares] : few) {
    for (std::size_t i = 0; i < shares.size(); ++i) {
      const Coordinates place = shares.place(i);
      std::vector<Scattered::Guess> guesses;
      for (const auto& [other, known] : full)
        if (full.size() == 1 || !is_other_layer(other)) guesses.push_back(known.at(place));
      change->add(place, shares.value(i) - fastest(std::move(guesses)).value);
    }
  }
  return change;
}

/// The kernels that one question may be answered by.
struct Found {
  std::vector<Kernel> kernels;
  bool sibling = false;
  Scattered::Guess at(const Coordinates& place) const {
    std::vector<Scattered::Guess> guesses;
    for (const Kernel& kernel : kernels) guesses.push_back(kernel.at(place));
    return fastest(std::move(guesses));
  }
  /// The coordinates at which any kernel was measured on an axis, ascending.
  std::vector<double> ticks(int axis) const {
    std::set<double> all;
    for (const Kernel& kernel : kernels) {
      const std::vector<double> own = kernel.shares.ticks(axis);
      all.insert(own.begin(), own.end());
    }
    return {all.begin(), all.end()};
  }
};

/// One shape's share of the data sheet's time, over what steps vary.
struct Curve {
  std::optional<LazyGrid> grid;
  bool sibling = false;
};

}  // namespace

struct ExpertCurve {
  std::string precision;
  ExpertsCall shape;
  GpuSpec facts;  // without tables
  bool sibling = false;
  std::optional<LazyGrid> raw, monotone;  // of log time: tokens, rows, active
};

/// What was read, and what was made of it so far.
struct KernelTables::State {
  State(const GpuSpec&, const EngineVersion&, KernelChoice);
  Found find(TableFamily, const std::vector<std::string>& groups, const Coordinates& like,
             std::span<const int> matters) const;
  std::vector<const ProfileTables*> versions_of(std::string_view engine, TableFamily,
                                                bool sibling) const;
  std::shared_ptr<const Scattered> change(TableFamily, const std::vector<std::string>& groups,
                                          const ProfileTables& from, bool sibling) const;
  std::string wanted_kernel(TableFamily) const;
  bool has_kernel(TableFamily, std::string_view group, const std::string& part) const;
  std::shared_ptr<const ExpertCurve> expert_curve(const ExpertsCall&, std::string_view group) const;
  const Curve* curve(TableFamily, const std::vector<std::string>& groups, const Coordinates& shape,
                     std::span<const int> fixed, std::span<const int> free) const;
  template <class Call>
  std::optional<TableTime> timed(TableFamily, const std::vector<std::string>& groups, const Call&,
                                 std::span<const int> fixed, std::span<const int> free) const;
  std::optional<TableTime> time(const AttentionCall&) const;

  struct Source {
    std::shared_ptr<const ProfileTables> tables;
    bool sibling;
  };
  GpuSpec facts;      // without tables
  std::string asked;  // the engine
  KernelChoice choice;
  std::vector<Source> sources;
  std::map<std::string, double> errors, carried_errors;  // by table
  mutable std::shared_mutex mutex;
  mutable std::map<std::pair<std::string, Coordinates>, std::unique_ptr<const Curve>> curves;
  mutable std::map<std::pair<std::string, Coordinates>, std::shared_ptr<const ExpertCurve>> experts;
};

KernelTables::State::State(const GpuSpec& gpu, const EngineVersion& engine, KernelChoice kernels)
    : facts(gpu), asked(engine.name), choice(std::move(kernels)) {
  facts.tables = nullptr;
  const auto add = [&](const GpuSpec& measured_on, bool sibling) {
    const auto spec = std::make_shared<const GpuSpec>(measured_on);
    for (const Profile& profile : by_nearness(measured_on.profiles, engine))
      sources.push_back({tables_of(profile, spec), sibling});
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

bool KernelTables::fuses(std::string_view operation) const {
  const auto fused = state_->choice.find("fused");
  return fused != state_->choice.end() && fused->second.find(operation) != std::string::npos;
}

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

namespace {

/// The versions of one engine on one GPU that have a group, the nearest first: the first with many
/// points, and one with few before it.
struct Versions {
  const ProfileTables *full = nullptr, *few = nullptr;
};

Versions versions_with(std::string_view group, TableFamily family,
                       std::span<const ProfileTables* const> versions) {
  constexpr std::size_t times = 10;  // as many points make few of what a nearer version has
  Versions found;
  for (std::size_t i = 0; i < versions.size() && !found.full; ++i) {
    const std::size_t points = versions[i]->of(family).points(group);
    if (points == 0) continue;
    const bool is_few = std::ranges::any_of(versions.subspan(i + 1), [&](const auto* farther) {
      return farther->of(family).points(group) >= times * points;
    });
    if (!is_few) {
      found.full = versions[i];
    } else if (!found.few) {
      found.few = versions[i];
    }
  }
  return found;
}

}  // namespace

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
    for (const auto& [nearest, sibling] : sources) {
      const bool enough = !any_engine || sibling != found.sibling;
      if (!found.kernels.empty() && enough) break;
      // Of each engine the nearest version that has such kernels.
      const std::string& engine = nearest->engine.name;
      if (engines.contains(engine)) continue;
      const Versions versions = versions_with(group, family, versions_of(engine, family, sibling));
      if (!versions.full) continue;
      engines.insert(engine);
      const Kernels& kernels = versions.full->of(family).of_group.find(group)->second;
      const auto changed = change(family, groups, *versions.full, sibling);
      for (const auto& [kernel, shares] : kernels) {
        if (has_wanted && kernel.find(wanted) == std::string::npos) continue;
        Scattered near = shares.around(like, matters, most);
        if (is_other_layer(kernel) && kernels.size() > 1 && near.apart(like, matters) > 1e-6)
          continue;
        found.kernels.push_back({std::move(near), changed});
        found.sibling = sibling;
      }
    }
    if (!found.kernels.empty()) return found;
  }
  return found;
}

std::vector<const ProfileTables*> KernelTables::State::versions_of(std::string_view engine,
                                                                   TableFamily family,
                                                                   bool sibling) const {
  std::vector<const ProfileTables*> versions;
  for (const Source& source : sources) {
    if (source.sibling == sibling && source.tables->engine.name == engine &&
        source.tables->has(family))
      versions.push_back(source.tables.get());
  }
  return versions;
}

// How the version that was asked for differs from this one, by few points of the former: of any of
// the groups, the foremost first, as measured here or between the same two versions on the sibling.
std::shared_ptr<const Scattered> KernelTables::State::change(TableFamily family,
                                                             const std::vector<std::string>& groups,
                                                             const ProfileTables& from,
                                                             bool sibling) const {
  if (from.engine.name != asked) return nullptr;
  for (const bool there : {sibling, true}) {
    const auto versions = versions_of(from.engine.name, family, there);
    if (versions.size() < 2 || versions.front()->engine.version == from.engine.version) continue;
    for (const std::string& group : groups) {
      const auto [full, few] = versions_with(group, family, versions);
      if (!few || full->engine.version != from.engine.version) continue;
      return change_between(few->of(family).of_group.find(group)->second,
                            full->of(family).of_group.find(group)->second, axes_of(family));
    }
  }
  return nullptr;
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
    for (std::size_t i = 0; i < free.size(); ++i) nodes[i] = found->ticks(free[i]);
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
  const double us = std::max(place.rough_us * std::exp(share.value), place.least_us);
  return TableTime{Seconds(us * 1e-6), evidence_of(shape->sibling, share.nearest)};
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
  // Points of caches as large come first, in every precision; then points of smaller caches.
  const auto like = [&](std::vector<std::string> groups) {
    if (!reads_from_hbm(call, facts)) return groups;
    std::vector<std::string> large;
    large.reserve(2 * groups.size());
    for (const std::string& group : groups) large.push_back(from_hbm(group));
    large.insert(large.end(), groups.begin(), groups.end());
    return large;
  };
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
      return time(whole);
    }
    return timed(family, like(groups(kv, "")), call, gqa, two);
  }
  const bool block = !call.block.empty();
  std::vector<std::string> groups;
  for (const std::string& cache : {kv, other})
    for (const std::string_view multiplied : {"bfloat16", "fp8"})
      groups.push_back(block ? fmt::format("{} {} {}", cache, multiplied, call.block)
                             : fmt::format("{} {}", cache, multiplied));
  if (call.decode) return timed(family, like(groups), call, mla, two);
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
  const auto of_group = [&](std::string_view group) {
    return this->experts({names.front(), hidden, width, top_k, experts}, group);
  };
  for (const std::string_view name : names)
    if (state_->has_kernel(TableFamily::experts, name, wanted)) return of_group(name);
  std::shared_ptr<const ExpertTables> own;
  for (const std::string_view name : names) {
    own = this->experts({name, hidden, width, top_k, experts});
    if (own) break;
  }
  // TensorRT-LLM's kernels are generated for all narrow formats alike: where one was measured in
  // another format only, it takes the share of the data sheet's time that it takes there; but no
  // longer than kernels of this format, beside which engines choose it.
  if (!state_->has_kernel(TableFamily::experts, "nvfp4", wanted)) return own;
  const auto borrowed = of_group("nvfp4");
  if (!borrowed) return own;
  borrowed->own_format_ = own;
  return borrowed;
}

std::shared_ptr<const ExpertTables> KernelTables::experts(const ExpertsCall& call) const {
  return experts(call, call.precision);
}

std::shared_ptr<ExpertTables> KernelTables::experts(const ExpertsCall& call,
                                                    std::string_view group) const {
  auto curve = state_->expert_curve(call, group);
  if (!curve) return nullptr;
  auto layer = std::make_shared<ExpertTables>();
  layer->curve_ = std::move(curve);
  layer->factors_ = factors_;
  return layer;
}

std::shared_ptr<const ExpertCurve> KernelTables::State::expert_curve(const ExpertsCall& call,
                                                                     std::string_view group) const {
  static constexpr std::array<int, 4> fixed{3, 4, 5, 6};
  ExpertsCall any = call;
  any.tokens = any.rows = any.active = 1;
  const Coordinates like = locate(any, facts).at;
  const std::pair name(fmt::format("{} by {}", call.precision, group),
                       Coordinates{call.hidden, call.width, call.top_k, call.experts});
  const std::unique_lock lock(mutex);
  const auto [place, unseen] = experts.try_emplace(name);
  if (!unseen) return place->second;
  const auto found =
      std::make_shared<const Found>(find(TableFamily::experts, {std::string(group)}, like, fixed));
  if (found->kernels.empty()) return nullptr;
  auto made = std::make_shared<ExpertCurve>();
  place->second = made;
  made->precision = call.precision;
  made->shape = call;
  made->shape.precision = made->precision;
  made->facts = facts;
  made->sibling = found->sibling;
  const std::array<std::vector<double>, 3> nodes{found->ticks(2), half_octaves(20),
                                                 half_octaves(10)};
  const ExpertCurve& self = *made;
  made->raw.emplace(nodes, [found, &self](const LazyGrid::Place& at) {
    ExpertsCall c = self.shape;
    c.tokens = std::exp2(at[0]);
    c.rows = std::exp2(at[1]);
    c.active = std::min(std::exp2(at[2]), c.rows);
    const Located located = locate(c, self.facts);
    const Scattered::Guess share = found->at(located.at);
    return Scattered::Guess{share.value + std::log(located.rough_us), share.nearest};
  });
  // More experts never take less time, however the measured points scatter.
  made->monotone.emplace(nodes, [&self](const LazyGrid::Place& at) {
    const double most = std::log2(std::max(1.0, std::min(self.shape.experts, std::exp2(at[1]))));
    std::vector<Scattered::Guess> column;
    for (double active = 0; active <= std::max(most, at[2]); active += 0.5)
      column.push_back(self.raw->at({at[0], at[1], active}));
    return ascending(column)[static_cast<std::size_t>(2 * at[2])];
  });
  return made;
}

TableTime ExpertTables::time(double tokens, double rows, double active) const {
  const TableTime here = own_time(tokens, rows, active);
  if (!own_format_) return here;
  const TableTime there = own_format_->time(tokens, rows, active);
  return there.time < here.time ? there : here;
}

TableTime ExpertTables::own_time(double tokens, double rows, double active) const {
  const Scattered::Guess log_time =
      curve_->monotone->at({std::log2(std::max(1.0, tokens)), std::log2(std::max(1.0, rows)),
                            std::log2(std::max(1.0, active))});
  // Between grid points nothing was measured.
  const Evidence evidence = evidence_of(curve_->sibling, std::max(log_time.nearest, same_point));
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
  for (const auto& [family, kernel] : choice) name += fmt::format(" {}={}", family, kernel);
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
