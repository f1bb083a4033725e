// SPDX-License-Identifier: Apache-2.0
#include "traces/mapped_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hardware/config.hpp"
#include "hardware/text_file.hpp"

namespace moesim {
namespace {

struct Descriptor {
  int fd;
  explicit Descriptor(int opened) : fd(opened) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& file) {
  const auto fail = [&](std::string_view what) {
    throw ConfigError("{}: {}", file.string(), what);
  };
  // Without O_NONBLOCK, opening a pipe without a writer would wait for ever.
  const Descriptor opened(::open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (opened.fd < 0) fail(std::strerror(errno));
  struct stat status {};
  if (::fstat(opened.fd, &status) != 0) fail(std::strerror(errno));
  if (!S_ISREG(status.st_mode)) fail("is not a regular file");
  if (status.st_size == 0) fail("is empty");
  size_ = at(status.st_size);
  void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, opened.fd, 0);
  if (mapped == MAP_FAILED) fail(fmt::format("cannot be mapped: {}", std::strerror(errno)));
  data_ = {static_cast<const std::byte*>(mapped),
           [mapped, size = size_](const std::byte*) { ::munmap(mapped, size); }};
  if (const char* const why = unreadable(text())) fail(why);
  // A byte order mark, with which spreadsheets begin a text, is no part of it; no other format
  // that is read begins so.
  if (constexpr std::string_view mark = "\xEF\xBB\xBF"; text().starts_with(mark)) {
    data_ = std::shared_ptr<const std::byte>(data_, data_.get() + mark.size());
    size_ -= mark.size();
    if (size_ == 0) fail("is empty");
  }
}

void refuse_long_line(const std::filesystem::path& file, std::size_t number) {
  throw ConfigError("{}:{}: is longer than 1 GiB", file.string(), number);
}

std::string first_line(const std::filesystem::path& file) {
  const MappedFile mapped(file);
  const std::string_view text = mapped.text();
  const std::size_t begins = text.find_first_not_of(" \t\r\n");
  if (begins == std::string_view::npos) return {};
  const std::string_view blank = text.substr(0, text.substr(0, begins).rfind('\n') + 1);
  std::string_view line = text.substr(blank.size(), largest_text + 1);
  const std::size_t end = line.find('\n');
  if (end == std::string_view::npos && line.size() > largest_text)
    refuse_long_line(file, 1 + at(std::ranges::count(blank, '\n')));
  line = line.substr(0, end);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return std::string(line);
}

void MappedFile::forget(std::span<const std::byte> bytes) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto within = reinterpret_cast<std::uintptr_t>(bytes.data()) % page;
  ::madvise(const_cast<std::byte*>(bytes.data()) - within, within + bytes.size(), MADV_DONTNEED);
}

}  // namespace moesim
