// SPDX-License-Identifier: Apache-2.0
#include "hardware/tables/kernel_tables.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <tuple>

#include <fmt/format.h>

#include "hardware/config.hpp"
#include "hardware/tables/profile_tables.hpp"

namespace moesim {

std::vector<Profile> by_nearness(std::vector<Profile> profiles, const EngineVersion& engine) {
  const auto farther = [&](const Profile& profile) {
    // No version at all asks for the newest, as of other engines.
    const bool own = profile.engine.name == engine.name;
    const bool newest = !own || engine.version.empty();
    return std::pair(own ? 0 : 1, newest ? -distance(profile.engine.version, "0")
                                         : distance(profile.engine.version, engine.version));
  };
  std::ranges::stable_sort(profiles, {}, farther);
  return profiles;
}

// --- which kernels may answer --------------------------------------------------------------------

namespace {

// Coordinates are octaves, mostly.

// Farther than this from any measured point a prediction is an extrapolation.
constexpr double far_away = 2;
// Coordinates are kept as floats: a row meets itself within this.
constexpr double same_point = 1e-4;
// Shapes this near to the asked one are measured as well as the nearest. Another head dimension,
// twice or half, is not, nor twice the hidden size, which is half an octave of its axis. Chosen by
// leaving out points of the tables, with the two below.
constexpr double near_shape = 0.49;
// A kernel is left out where it was measured so much farther away than another ...
constexpr double much_farther = 2;
// ... and until then it is taken for slower, by this for each octave, than what is guessed of it.
constexpr double distance_penalty = 0.1;

/// Errors by table in errors.csv next to a GPU's profiles.
std::map<std::string, double, std::less<>> errors_beside(const GpuSpec& gpu, Evidence evidence) {
  std::map<std::string, double, std::less<>> errors;
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

/// The fastest of several kernels, of those that were measured about as near as any.
Scattered::Guess fastest(std::vector<Scattered::Guess> kernels) {
  const double nearest = std::ranges::min(kernels, {}, &Scattered::Guess::nearest).nearest;
  std::erase_if(kernels, [&](const auto& guess) { return guess.nearest > nearest + much_farther; });
  return std::ranges::min(kernels, {}, [](const Scattered::Guess& guess) {
    return guess.value + distance_penalty * guess.nearest;
  });
}

/// How the shares of a version of which few points were measured differ from those of another.
std::shared_ptr<const Scattered> change_between(const std::map<std::string, Scattered>& few,
                                                const std::map<std::string, Scattered>& full,
                                                const MeasuredTable& table) {
  auto change = std::make_shared<Scattered>(table.axis_count());
  for (const auto& [name, shares] : few) {
    for (std::size_t i = 0; i < shares.size(); ++i) {
      const Coordinates place = shares.place(i);
      std::vector<Scattered::Guess> guesses;
      for (const auto& [other, known] : full)
        if (full.size() == 1 || !table.is_other_layer(other)) guesses.push_back(known.at(place));
      change->add(place, shares.value(i) - fastest(std::move(guesses)).value);
    }
  }
  return change;
}

/// Share of one shape of the data sheet's time, over what steps vary.
struct Curve {
  std::optional<LazyGrid> grid;  // none: no table has it
  bool of_sibling = false;
};

}  // namespace

Scattered::Guess Candidates::Kernel::at(const Coordinates& place) const {
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

Scattered::Guess Candidates::at(const Coordinates& place) const {
  std::vector<Scattered::Guess> guesses;
  guesses.reserve(kernels_.size());
  for (const Kernel& kernel : kernels_) guesses.push_back(kernel.at(place));
  return fastest(std::move(guesses));
}

std::vector<double> Candidates::ticks(int axis) const {
  std::set<double> all;
  for (const Kernel& kernel : kernels_) {
    const std::vector<double> own = kernel.shares.ticks(axis);
    all.insert(own.begin(), own.end());
  }
  return {all.begin(), all.end()};
}

namespace {

/// Key of a curve: asked with a view, kept with a text.
template <class Text>
struct CurveName {
  const MeasuredTable* table;
  Text group;
  Coordinates shape;
};

template <class A, class B>
bool operator<(const CurveName<A>& a, const CurveName<B>& b) {
  const auto order = [](const auto& name) {
    return std::tuple(name.shape, std::string_view(name.group), name.table->name);
  };
  return order(a) < order(b);
}

}  // namespace

/// Tables that were read, and what was made of them so far.
struct KernelTables::State {
  State(const GpuSpec&, const EngineVersion&, KernelChoice);
  using Versions = std::vector<const ProfileTables*>;

  Candidates find(const MeasuredTable&, const std::vector<std::string>& groups,
                  const Coordinates& shape) const;
  std::vector<Candidates::Kernel> kernels_of(const MeasuredTable&, const std::string& engine,
                                             bool sibling, std::size_t group,
                                             const std::vector<std::string>& groups,
                                             const Coordinates& shape, bool has_wanted) const;
  Versions versions_of(std::string_view engine, const MeasuredTable&, bool sibling) const;
  bool lacks_own(const MeasuredTable&, const std::vector<std::string>& groups) const;
  std::shared_ptr<const Scattered> change(const MeasuredTable&,
                                          const std::vector<std::string>& groups,
                                          const ProfileTables& from, bool sibling) const;
  std::string wanted_kernel(const MeasuredTable&) const;
  bool has_kernel(const MeasuredTable&, std::string_view group, const std::string& part) const;
  const Curve& curve(const Question&) const;

  struct Source {
    std::shared_ptr<const ProfileTables> tables;
    bool sibling;
  };
  GpuSpec facts;      // without tables
  std::string asked;  // the engine
  KernelChoice choice;
  FlopsPerSecond prompt_gemms{}, prompt_attention{};  // 0: as tables say
  std::vector<Source> sources;
  std::map<std::string, double, std::less<>> errors, carried_errors;  // by table
  mutable std::shared_mutex mutex;
  using Curves = std::map<CurveName<std::string>, std::unique_ptr<const Curve>, std::less<>>;
  mutable Curves curves;
  // Number of the state among all that a process ever has.
  const std::uint64_t number = [] {
    static std::atomic<std::uint64_t> states = 0;
    return ++states;
  }();
  mutable std::map<std::string, std::shared_ptr<const void>> made;
};

KernelTables::State::State(const GpuSpec& gpu, const EngineVersion& engine, KernelChoice kernels)
    : facts(gpu), asked(engine.name), choice(std::move(kernels)) {
  facts.tables = nullptr;
  const auto read_rate = [&](std::string_view name, FlopsPerSecond& rate) {
    if (const auto said = choice.find(name); said != choice.end())
      rate = parse_quantity<FlopsPerSecond>(said->second);
  };
  read_rate("prompt_gemms", prompt_gemms);
  read_rate("prompt_attention", prompt_attention);
  const auto add = [&](const GpuSpec& measured_on, bool sibling) {
    const auto spec = std::make_shared<const GpuSpec>(measured_on);
    for (const Profile& profile : by_nearness(measured_on.profiles, engine))
      sources.push_back({tables_of(profile, spec), sibling});
  };
  add(facts, false);
  errors = errors_beside(facts, Evidence::interpolated);
  if (!gpu.sibling) return;
  add(*gpu.sibling, true);
  // The carried-over part is interpolated first.
  carried_errors = errors_beside(*gpu.sibling, Evidence::carried_over);
  for (const auto& [table, error] : errors_beside(*gpu.sibling, Evidence::interpolated))
    if (const auto carried = carried_errors.find(table); carried != carried_errors.end())
      carried->second = std::max(carried->second, error);
}

namespace {

/// Versions of one engine on one GPU that may answer. One has many points. Another has few and is
/// nearer to what was asked for.
struct Answering {
  const ProfileTables *full = nullptr, *few = nullptr;
};

/// Finds the first of the versions, sorted by nearness, that has about the shape, else the one
/// whose shapes are the nearest. A version with a tenth of the points of a farther one is no full
/// one.
Answering answering(const MeasuredTable& table, std::string_view group, const Coordinates& shape,
                    std::span<const ProfileTables* const> versions) {
  constexpr std::size_t times = 10;
  const std::vector<int> fixed = table.axes_that_vary(TableAxis::by_shape);
  Answering found;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < versions.size() && least > near_shape; ++i) {
    const std::size_t points = versions[i]->points(table, group);
    if (points == 0) continue;
    const bool is_few = std::ranges::any_of(versions.subspan(i + 1), [&](const auto* farther) {
      return farther->points(table, group) >= times * points;
    });
    if (is_few) {
      if (!found.few && !found.full) found.few = versions[i];
      continue;
    }
    double apart = std::numeric_limits<double>::infinity();
    for (const auto& [name, shares] : versions[i]->of(table).find(group)->second)
      apart = std::min(apart, shares.apart(shape, fixed));
    if (found.full && apart > least - near_shape) continue;
    found.full = versions[i];
    least = apart;
  }
  return found;
}

}  // namespace

std::vector<Candidates::Kernel> KernelTables::State::kernels_of(
    const MeasuredTable& table, const std::string& engine, bool sibling, std::size_t group,
    const std::vector<std::string>& groups, const Coordinates& shape, bool has_wanted) const {
  // A shape's own points and those of the shapes around it.
  constexpr std::size_t most = 2500;
  const std::vector<int> fixed = table.axes_that_vary(TableAxis::by_shape);
  std::vector<Candidates::Kernel> found;
  const Answering versions =
      answering(table, groups[group], shape, versions_of(engine, table, sibling));
  if (!versions.full) return found;
  const auto& kernels = versions.full->of(table).find(groups[group])->second;
  const auto changed = change(table, groups, *versions.full, sibling);
  const std::string wanted = wanted_kernel(table);
  for (const auto& [name, shares] : kernels) {
    if (has_wanted && name.find(wanted) == std::string::npos) continue;
    const double apart = shares.apart(shape, fixed);
    if (table.is_other_layer(name) && kernels.size() > 1 && apart > 1e-6) continue;
    found.push_back({shares.around(shape, fixed, most), apart, changed});
  }
  return found;
}

Candidates KernelTables::State::find(const MeasuredTable& table,
                                     const std::vector<std::string>& groups,
                                     const Coordinates& shape) const {
  const std::string wanted = wanted_kernel(table);
  const bool any_engine = choice.contains("engines");
  const bool has_wanted = std::ranges::any_of(
      groups, [&](const std::string& group) { return has_kernel(table, group, wanted); });
  Candidates found;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    // The asked engine here and on the sibling, then others here and there. The same engine on a
    // sibling is nearer than another engine on the GPU: by 7 to 14 % against 14 to 27 % in the
    // median, over all kernels of H100, H200 and the four Blackwell GPUs with one engine hidden.
    for (const auto& [own, sibling] :
         {std::pair(true, false), {true, true}, {false, false}, {false, true}}) {
      std::vector<std::string> engines;  // in the order of nearness
      for (const Source& source : sources) {
        const std::string& name = source.tables->engine().name;
        if (source.sibling == sibling && std::ranges::find(engines, name) == engines.end())
          engines.push_back(name);
      }
      const auto from = [&, sibling = sibling](const std::string& engine) {
        return kernels_of(table, engine, sibling, group, groups, shape, has_wanted);
      };
      std::vector<Candidates::Kernel> own_kernels = from(asked);
      if (own && own_kernels.empty()) continue;
      found.kernels_ = std::move(own_kernels);
      for (const std::string& engine : engines) {
        if (engine == asked || (!found.kernels_.empty() && !any_engine)) continue;
        std::ranges::move(from(engine), std::back_inserter(found.kernels_));
      }
      if (found.kernels_.empty()) continue;
      found.of_sibling_ = sibling;
      const double nearest = std::ranges::min(found.kernels_, {}, &Candidates::Kernel::apart).apart;
      std::erase_if(found.kernels_,
                    [&](const auto& other) { return other.apart > nearest + near_shape; });
      return found;
    }
  }
  return found;
}

KernelTables::State::Versions KernelTables::State::versions_of(std::string_view engine,
                                                               const MeasuredTable& table,
                                                               bool sibling) const {
  Versions versions;
  for (const Source& source : sources) {
    if (source.sibling == sibling && source.tables->engine().name == engine &&
        source.tables->has(table))
      versions.push_back(source.tables.get());
  }
  return versions;
}

// True if the asked engine was measured, here or on the sibling, in some of the groups, but not in
// the foremost.
bool KernelTables::State::lacks_own(const MeasuredTable& table,
                                    const std::vector<std::string>& groups) const {
  const auto has = [&](std::string_view group) {
    return std::ranges::any_of(std::array{false, true}, [&](bool sibling) {
      return std::ranges::any_of(versions_of(asked, table, sibling), [&](const auto* version) {
        return version->points(table, group) > 0;
      });
    });
  };
  return !has(groups.front()) && std::ranges::any_of(groups, has);
}

// Difference of the version that was asked for from this one, by few points of the former. It is of
// any of the groups, the foremost first, measured here or between these versions on the sibling.
std::shared_ptr<const Scattered> KernelTables::State::change(const MeasuredTable& table,
                                                             const std::vector<std::string>& groups,
                                                             const ProfileTables& from,
                                                             bool sibling) const {
  if (from.engine().name != asked) return nullptr;
  for (const bool there : {sibling, true}) {
    const Versions versions = versions_of(asked, table, there);
    if (versions.size() < 2 || versions.front()->engine().version == from.engine().version)
      continue;
    for (const std::string& group : groups) {
      const ProfileTables* few = nullptr;
      const ProfileTables* full = nullptr;
      for (const ProfileTables* version : versions) {
        const std::size_t points = version->points(table, group);
        if (points == 0) continue;
        if (version->engine().version == from.engine().version) {
          full = version;
          break;
        }
        if (!few) few = version;
      }
      if (!few || !full || few->points(table, group) * 10 > full->points(table, group)) continue;
      return change_between(few->of(table).find(group)->second, full->of(table).find(group)->second,
                            table);
    }
  }
  return nullptr;
}

std::string KernelTables::State::wanted_kernel(const MeasuredTable& table) const {
  const auto wanted = choice.find(table.name);
  return wanted == choice.end() ? std::string() : wanted->second;
}

bool KernelTables::State::has_kernel(const MeasuredTable& table, std::string_view group,
                                     const std::string& part) const {
  return !part.empty() && std::ranges::any_of(sources, [&](const Source& source) {
    const KernelMaps& maps = source.tables->of(table);
    const auto kernels = maps.find(group);
    return kernels != maps.end() && std::ranges::any_of(kernels->second, [&](const auto& entry) {
             return entry.first.find(part) != std::string::npos;
           });
  });
}

const Curve& KernelTables::State::curve(const Question& question) const {
  const MeasuredTable& table = question.table;
  Coordinates shape{};
  for (std::size_t axis = 0; axis < table.axes.size(); ++axis)
    if (table.axes[axis].varies == TableAxis::by_shape) shape[axis] = question.place.at[axis];
  // Every price of a step comes here: nothing is copied, and what this thread has asked of the
  // table before needs no lock.
  struct Asked {
    std::uint64_t state = 0;
    const Curves::value_type* curve = nullptr;
  };
  static thread_local std::array<Asked, 16> asked_before;
  constexpr std::size_t of_table = 64;  // bytes, at least
  Asked& last = asked_before[std::hash<const void*>{}(&table) / of_table % asked_before.size()];
  std::vector<std::string> groups;
  const std::string& front = question.groups->names.front();
  if (last.state == number) {
    const auto& [name, curve] = *last.curve;
    if (name.table == &table && name.shape == shape && name.group == front) return *curve;
  }
  {
    const CurveName<std::string_view> name{&table, front, shape};
    const std::shared_lock lock(mutex);
    const auto known = curves.find(name);
    if (known != curves.end()) {
      last = {number, &*known};
      return *known->second;
    }
    groups = question.groups->names;
  }
  CurveName<std::string> name{&table, groups.front(), shape};
  if (!question.groups->stand_in.empty() && lacks_own(table, groups))
    groups.insert(groups.begin(), question.groups->stand_in);
  const auto found = std::make_shared<const Candidates>(find(table, groups, shape));
  auto made_curve = std::make_unique<Curve>();
  if (!found->empty()) {
    made_curve->of_sibling = found->of_sibling();
    std::array<std::vector<double>, 3> nodes;
    const std::vector<int> axes = table.axes_that_vary(TableAxis::with_load);
    for (std::size_t i = 0; i < axes.size(); ++i) nodes[i] = found->ticks(axes[i]);
    made_curve->grid.emplace(std::move(nodes), [found, shape, axes](const LazyGrid::Place& place) {
      Coordinates at = shape;
      for (std::size_t i = 0; i < axes.size(); ++i)
        at[static_cast<std::size_t>(axes[i])] = place[i];
      return found->at(at);
    });
  }
  const std::unique_lock lock(mutex);
  return *curves.try_emplace(std::move(name), std::move(made_curve)).first->second;
}

// --- answers -------------------------------------------------------------------------------------

KernelTables::KernelTables(const GpuSpec& gpu, const EngineVersion& engine, KernelChoice choice)
    : state_(std::make_shared<const State>(gpu, engine, std::move(choice))) {}

const GpuSpec& KernelTables::gpu() const { return state_->facts; }

Evidence KernelTables::evidence_of(bool of_sibling, double nearest) {
  if (of_sibling) return Evidence::carried_over;
  if (nearest < same_point) return Evidence::measured;
  return nearest <= far_away ? Evidence::interpolated : Evidence::extrapolated;
}

TableTime KernelTables::scaled_time(const MeasuredTable& table, TableTime time) const {
  if (factors_.empty()) return time;
  if (const auto factors = factors_.find(table.name); factors != factors_.end())
    time.time *= factors->second[static_cast<std::size_t>(time.evidence)];
  return time;
}

std::optional<TableTime> KernelTables::time(const Question& question) const {
  const Curve& shape = state_->curve(question);
  if (!shape.grid) return std::nullopt;
  const Located& place = question.place;
  const auto& axes = question.table.axes;
  LazyGrid::Place at{};
  for (std::size_t axis = 0, i = 0; axis < axes.size() && !axes[axis].name.empty(); ++axis)
    if (axes[axis].varies == TableAxis::with_load) at[i++] = place.at[axis];
  const Scattered::Guess share = shape.grid->at(at);
  const double factor = shape.of_sibling ? gpu().sibling_time : 1;
  const double us = std::max(place.rough_us * std::exp(share.value) * factor, place.least_us);
  const bool carried = shape.of_sibling || place.other_dimensions;
  return scaled_time(question.table, {Seconds(us * 1e-6), evidence_of(carried, share.nearest)});
}

Candidates KernelTables::candidates(const MeasuredTable& table,
                                    const std::vector<std::string>& groups,
                                    const Coordinates& shape) const {
  return state_->find(table, groups, shape);
}

bool KernelTables::has_wanted(const MeasuredTable& table, std::string_view group) const {
  return state_->has_kernel(table, group, state_->wanted_kernel(table));
}

std::shared_ptr<const void> KernelTables::remember(
    const std::string& name, const std::function<std::shared_ptr<const void>()>& make) const {
  {
    const std::shared_lock lock(state_->mutex);
    const auto known = state_->made.find(name);
    if (known != state_->made.end()) return known->second;
  }
  auto made = make();
  const std::unique_lock lock(state_->mutex);
  return state_->made.try_emplace(name, std::move(made)).first->second;
}

FlopsPerSecond KernelTables::prompt_gemms() const { return state_->prompt_gemms; }
FlopsPerSecond KernelTables::prompt_attention() const { return state_->prompt_attention; }

bool KernelTables::fuses(std::string_view operation) const {
  const auto fused = state_->choice.find("fused");
  return fused != state_->choice.end() && fused->second.find(operation) != std::string::npos;
}

double KernelTables::error(const MeasuredTable& table, Evidence evidence) const {
  // Runs that are repeated differ by 0.8 % (measured set). A table without errors.csv is as good as
  // those that ship, and a sibling as bad as a family's constants on another GPU.
  constexpr double of_measured = 0.01, of_interpolated = 0.05, of_others = 0.15;
  if (evidence == Evidence::measured) return of_measured;
  const bool carried = evidence == Evidence::carried_over;
  const auto& errors = carried ? state_->carried_errors : state_->errors;
  const double otherwise = evidence == Evidence::interpolated ? of_interpolated : of_others;
  if (!carried && evidence != Evidence::interpolated) return otherwise;
  const auto found = errors.find(table.name);
  return found == errors.end() ? otherwise : found->second;
}

std::shared_ptr<const KernelTables> scaled(const KernelTables& tables,
                                           const TableFactors& factors) {
  auto other = std::make_shared<KernelTables>(tables);
  other->factors_ = factors;
  return other;
}

namespace {

// Facts that tables' answers depend on: the GPU's, and where its tables are.
std::string facts_of(const GpuSpec& gpu) {
  std::string facts = fmt::format(
      "{} {} {} {} {} {} {} {} {}", gpu.name, gpu.sms, gpu.hbm_capacity.value(),
      gpu.hbm_bandwidth.value(), gpu.l2_capacity.value(), gpu.l2_bandwidth.value(),
      gpu.smem_per_sm.value(), gpu.smem_bandwidth.value(), gpu.scale_up_bandwidth.value());
  for (const auto& [precision, peak] : gpu.dense_peak)
    facts += fmt::format(" {} {}", static_cast<int>(precision), peak.value());
  for (const Profile& profile : gpu.profiles) facts += fmt::format(" {}", profile.folder.string());
  if (!gpu.sibling) return facts;
  return fmt::format("{} and {} times {}", facts, gpu.sibling_time, facts_of(*gpu.sibling));
}

// Tables are read and interpolated once for all experiments of a process that are under way, and
// for those that follow. The last tables that were asked for are kept.
std::shared_ptr<const KernelTables> shared_tables(const GpuSpec& gpu, const EngineVersion& engine,
                                                  const KernelChoice& choice) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<const KernelTables>> all;
  static std::deque<std::shared_ptr<const KernelTables>> last;  // the latest first
  constexpr std::size_t most_kept = 16;
  std::string name = fmt::format("{} {} {}", engine.name, engine.version, facts_of(gpu));
  for (const auto& [family, kernel] : choice) name += fmt::format(" {}={}", family, kernel);
  const std::lock_guard lock(mutex);
  auto tables = all[name].lock();
  if (!tables) all[name] = tables = std::make_shared<const KernelTables>(gpu, engine, choice);
  std::erase(last, tables);
  last.push_front(tables);
  if (last.size() > most_kept) last.pop_back();
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

}  // namespace moesim
