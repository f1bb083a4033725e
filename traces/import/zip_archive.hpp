// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>

namespace moesim {

/// Members of a .zip file, which .npz and torch's .pt files are. Claims of a hostile file are
/// checked before any of it is unpacked. Members that overlap, that are encrypted, or that unpack
/// to far more than they are (a bomb) are refused.
class ZipArchive {
 public:
  struct Member {
    std::uint64_t bytes = 0;   ///< unpacked
    std::uint64_t packed = 0;  ///< bytes in the file
    std::uint64_t entry = 0;   ///< offset of its entry in the directory
    std::uint64_t index = 0;
  };

  /// Throws ConfigError "file: ..." if it is no such file.
  explicit ZipArchive(const std::filesystem::path& file);

  const std::map<std::string, Member, std::less<>>& members() const { return members_; }
  bool has(std::string_view name) const { return members_.contains(name); }
  /// A member's content, unpacked, its checksum checked. Throws ConfigError.
  std::string read(std::string_view name) const;

 private:
  [[noreturn]] void refuse(std::string_view what) const;
  void list_members(std::uint64_t file_bytes);

  std::filesystem::path file_;
  std::shared_ptr<void> handle_;
  std::map<std::string, Member, std::less<>> members_;
};

}  // namespace moesim
