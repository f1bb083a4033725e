// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "hardware/config.hpp"

namespace moesim::fuzz {

inline std::string_view text(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// A file in memory whose content is replaced by each input.
class File {
 public:
  File() : fd_(::memfd_create("fuzz", 0)) { check(fd_ >= 0, "no memory file"); }

  std::filesystem::path holding(std::string_view content) const {
    check(::ftruncate(fd_, 0) == 0 &&
              ::pwrite(fd_, content.data(), content.size(), 0) == std::ssize(content),
          "a memory file could not be written");
    return fmt::format("/proc/self/fd/{}", fd_);
  }

 private:
  int fd_;
};

/// Runs what reads an input. To refuse it with a ConfigError of one line is the only other way to
/// end.
template <class Read>
int reads(Read&& read) {
  try {
    read();
  } catch (const ConfigError& error) {
    const std::string_view message = error.what();
    check(!message.empty(), "an input was refused without a word");
  }
  return 0;
}

}  // namespace moesim::fuzz
