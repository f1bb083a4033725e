// SPDX-License-Identifier: Apache-2.0
#include "traces/import/zip_archive.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <unzip.h>

#include "hardware/config.hpp"
#include "traces/mapped_file.hpp"

namespace moesim {

namespace {

constexpr std::uint64_t long_member = 64 << 20;
constexpr std::uint64_t most_packed = 100;  // ids of real routing pack 2 to 10 times

}  // namespace

ZipArchive::ZipArchive(const std::filesystem::path& file) : file_(file) {
  const MappedFile mapped(file);  // says what is missing, empty or a folder
  handle_.reset(unzOpen64(file.c_str()), [](void* handle) {
    if (handle != nullptr) unzClose(handle);
  });
  if (handle_ == nullptr) refuse("is not a zip file, or ends before its directory");
  list_members(mapped.bytes().size());
}

void ZipArchive::refuse(std::string_view what) const {
  throw ConfigError("{}: {}", file_.string(), what);
}

void ZipArchive::list_members(std::uint64_t file_bytes) {
  constexpr int stored = 0, deflated = 8, encrypted = 1;
  unz_file_info64 info;
  std::array<char, 1024> name{};
  std::uint64_t packed = 0;
  for (int more = unzGoToFirstFile(handle_.get()); more != UNZ_END_OF_LIST_OF_FILE;
       more = unzGoToNextFile(handle_.get())) {
    unz64_file_pos position{};
    if (more != UNZ_OK ||
        unzGetCurrentFileInfo64(handle_.get(), &info, name.data(), name.size() - 1, nullptr, 0,
                                nullptr, 0) != UNZ_OK ||
        unzGetFilePos64(handle_.get(), &position) != UNZ_OK)
      refuse("has a damaged directory");
    if (info.size_filename >= name.size()) refuse("has a member with a name of 1 kB and more");
    name[info.size_filename] = '\0';
    if ((info.flag & encrypted) != 0 ||
        (info.compression_method != stored && info.compression_method != deflated))
      refuse(fmt::format("its member {} is encrypted, or packed by other means than deflate",
                         name.data()));
    const Member member{info.uncompressed_size, info.compressed_size, position.pos_in_zip_directory,
                        position.num_of_file};
    if (__builtin_add_overflow(packed, member.packed, &packed) || packed > file_bytes)
      refuse("has members that overlap, or are longer than the file");
    const bool bomb =
        info.compression_method == stored
            ? member.bytes != member.packed
            : member.bytes > long_member && member.bytes / most_packed > member.packed;
    if (bomb)
      refuse(fmt::format("its member {} of {} bytes would unpack to {}", name.data(), member.packed,
                         member.bytes));
    if (!members_.emplace(name.data(), member).second)
      refuse(fmt::format("has the member {} twice", name.data()));
  }
}

std::string ZipArchive::read(std::string_view name) const {
  const auto found = members_.find(name);
  if (found == members_.end()) refuse(fmt::format("has no member {}", name));
  unz64_file_pos position{found->second.entry, found->second.index};
  if (unzGoToFilePos64(handle_.get(), &position) != UNZ_OK ||
      unzOpenCurrentFile(handle_.get()) != UNZ_OK)
    refuse(fmt::format("its member {} is damaged", name));
  std::string content(found->second.bytes, '\0');
  std::size_t done = 0;
  int more = 1;
  while (done < content.size() && more > 0) {
    const auto piece = std::min<std::size_t>(content.size() - done, 1 << 30);
    more = unzReadCurrentFile(handle_.get(), content.data() + done, static_cast<unsigned>(piece));
    if (more > 0) done += at(more);
  }
  const bool whole = unzCloseCurrentFile(handle_.get()) == UNZ_OK && done == content.size();
  if (!whole) refuse(fmt::format("its member {} is damaged, or shorter than it says", name));
  return content;
}

}  // namespace moesim
