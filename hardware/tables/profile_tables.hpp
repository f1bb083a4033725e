// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "hardware/tables/measured_table.hpp"

namespace moesim {

/// The samples of one table in one profile: a map of every kernel, by group and name.
using KernelMaps = std::map<std::string, std::map<std::string, Scattered>, std::less<>>;

/// The tables of one profile, on the GPU that they were measured on. A table is read when it is
/// first asked for. Safe to ask from several threads.
class ProfileTables {
 public:
  ProfileTables(Profile profile, std::shared_ptr<const GpuSpec> measured_on);
  const EngineVersion& engine() const { return profile_.engine; }
  bool has(const MeasuredTable& table) const { return tables_.contains(table.name); }
  /// Empty where the profile has no such table. Throws ConfigError if the table is malformed.
  const KernelMaps& of(const MeasuredTable&) const;
  /// How many samples of a group the profile has.
  std::size_t points(const MeasuredTable&, std::string_view group) const;

 private:
  struct Table {
    std::filesystem::path file;
    std::once_flag once;
    KernelMaps maps;
  };
  Profile profile_;
  std::shared_ptr<const GpuSpec> measured_on_;
  std::map<std::string, std::unique_ptr<Table>, std::less<>> tables_;  // by name
};

/// The profile's tables, which every experiment of the process shares. All are forgotten, and read
/// anew when next asked for, once many GPUs that were made up have had theirs.
std::shared_ptr<const ProfileTables> tables_of(const Profile&,
                                               const std::shared_ptr<const GpuSpec>& measured_on);

}  // namespace moesim
