// SPDX-License-Identifier: Apache-2.0
#include "hardware/tables/profile_tables.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace moesim {

double Sample::value() const { return std::log(us / place.rough_us); }

std::vector<int> MeasuredTable::axes_that_vary(TableAxis::Varies varies) const {
  std::vector<int> some;
  for (int axis = 0; axis < axis_count(); ++axis)
    if (axes[at(axis)].varies == varies) some.push_back(axis);
  return some;
}

int MeasuredTable::axis_count() const {
  return static_cast<int>(std::ranges::find(axes, std::string_view(), &TableAxis::name) -
                          axes.begin());
}

namespace {

bool is_usable(const Sample& sample) {
  const auto finite = [](double x) { return std::isfinite(x); };
  return sample.us > 0 && sample.place.rough_us > 0 && finite(sample.place.rough_us) &&
         std::ranges::all_of(sample.place.at, finite);
}

// "gemm" of gemm.csv and gemm.csv.gz; empty of other files.
std::string table_in(const std::filesystem::path& file) {
  std::filesystem::path name = file.filename();
  if (name.extension() == ".gz") name = name.stem();
  return name.extension() == ".csv" ? name.stem().string() : "";
}

// Rates that a table's shares were taken of. Tables of one folder differ by them.
std::string rates_of(const GpuSpec& gpu) {
  std::string facts = fmt::format("{} {} {}", gpu.hbm_bandwidth.value(), gpu.l2_bandwidth.value(),
                                  gpu.scale_up_bandwidth.value());
  for (const auto& [precision, peak] : gpu.dense_peak) facts += fmt::format(" {}", peak.value());
  return facts;
}

}  // namespace

std::vector<Sample> samples_of(const MeasuredTable& table, const TableRow& row,
                               const GpuSpec& measured_on, const EngineVersion& engine) {
  std::vector<Sample> samples = table.samples(row, measured_on, engine);
  for (const Sample& sample : samples) {
    if (is_usable(sample)) continue;
    throw ConfigError("{}: {} us for sizes that are not a kernel's; expected all of them above 0",
                      row.place(), sample.us);
  }
  return samples;
}

ProfileTables::ProfileTables(Profile profile, std::shared_ptr<const GpuSpec> measured_on)
    : profile_(std::move(profile)), measured_on_(std::move(measured_on)) {
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(profile_.folder, none)) {
    const std::string name = table_in(entry.path());
    if (name.empty()) continue;
    auto table = std::make_unique<Table>();
    table->file = entry.path();
    tables_[name] = std::move(table);
  }
}

const KernelMaps& ProfileTables::of(const MeasuredTable& table) const {
  static const KernelMaps nothing;
  const auto found = tables_.find(table.name);
  if (found == tables_.end()) return nothing;
  Table& read = *found->second;
  std::call_once(read.once, [&] {
    bool empty = true;
    read_table(read.file, [&](const TableRow& row) {
      empty = false;
      for (const Sample& sample : samples_of(table, row, *measured_on_, profile_.engine)) {
        read.maps[sample.group]
            .try_emplace(sample.kernel, table.axis_count())
            .first->second.add(sample.place.at, sample.value());
      }
    });
    if (empty) throw ConfigError("{}: no row under its header", read.file.string());
  });
  return read.maps;
}

std::size_t ProfileTables::points(const MeasuredTable& table, std::string_view group) const {
  const KernelMaps& maps = of(table);
  std::size_t sum = 0;
  if (const auto kernels = maps.find(group); kernels != maps.end())
    for (const auto& [name, shares] : kernels->second) sum += shares.size();
  return sum;
}

std::shared_ptr<const ProfileTables> tables_of(const Profile& profile,
                                               const std::shared_ptr<const GpuSpec>& measured_on) {
  constexpr std::size_t most = 128;
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const ProfileTables>> known;
  const std::string key = rates_of(*measured_on) + " " + profile.folder.string();
  const std::lock_guard lock(mutex);
  if (known.size() >= most && !known.contains(key)) known.clear();
  std::shared_ptr<const ProfileTables>& tables = known[key];
  if (!tables) tables = std::make_shared<const ProfileTables>(profile, measured_on);
  return tables;
}

}  // namespace moesim
