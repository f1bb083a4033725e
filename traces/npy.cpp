// SPDX-License-Identifier: Apache-2.0
#include "traces/npy.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "hardware/config.hpp"

static_assert(std::endian::native == std::endian::little, ".npy files are mapped as they lie");

namespace moesim {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view magic = "\x93NUMPY"sv;

/// Without a place: open() adds the file.
[[noreturn]] void refuse(const std::string& what) { throw ConfigError(what); }

struct Header {
  std::string_view type;
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
};

/// Reads the one Python literal that numpy writes: {'descr': '<u1', 'fortran_order': False,
/// 'shape': (2, 3), }.
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text) : rest_(text) {}

  Header parse() {
    std::optional<std::string_view> type;
    std::optional<bool> fortran_order;
    std::optional<std::vector<std::int64_t>> shape;
    expect('{');
    while (!accept('}')) {
      const std::string_view key = quoted();
      expect(':');
      if (key == "descr" && !type)
        type = descr();
      else if (key == "fortran_order" && !fortran_order)
        fortran_order = boolean();
      else if (key == "shape" && !shape)
        shape = tuple();
      else
        refuse(fmt::format("has the key '{}' in its header, twice or unknown", key));
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (!rest_.empty()) refuse("has text after its header");
    if (!type || !fortran_order || !shape)
      refuse("has a header without descr, fortran_order or shape");
    return {*type, *fortran_order, std::move(*shape)};
  }

 private:
  void skip_space() {
    const std::size_t end = rest_.find_first_not_of(" \n");
    rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end);
  }
  bool accept(char c) {
    skip_space();
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!accept(c)) refuse(fmt::format("has a malformed header: '{}' expected", c));
  }
  std::string_view quoted() {
    skip_space();
    if (rest_.empty() || (rest_[0] != '\'' && rest_[0] != '"'))
      refuse("has a malformed header: a string expected");
    const std::size_t end = rest_.find(rest_[0], 1);
    if (end == std::string_view::npos) refuse("has an unfinished string in its header");
    const std::string_view text = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    return text;
  }
  std::string_view descr() {
    skip_space();
    if (rest_.starts_with('[')) refuse("holds structured records; save a plain array");
    return quoted();
  }
  bool boolean() {
    skip_space();
    for (const auto& [word, value] : {std::pair{"True"sv, true}, std::pair{"False"sv, false}}) {
      if (!rest_.starts_with(word)) continue;
      rest_.remove_prefix(word.size());
      return value;
    }
    refuse("has a malformed header: True or False expected");
  }
  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> values;
    expect('(');
    while (!accept(')')) {
      std::int64_t value = 0;
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
      if (error != std::errc() || value < 0) refuse("has a malformed shape");
      rest_.remove_prefix(at(end - rest_.data()));
      values.push_back(value);
      const bool comma = accept(',');
      if (!comma && values.size() == 1) refuse("has a malformed shape");
      if (comma) continue;
      expect(')');
      break;
    }
    return values;
  }

  std::string_view rest_;
};

NpyType parse_type(std::string_view descr) {
  const std::string_view name = descr.substr(std::min<std::size_t>(1, descr.size()));
  const auto found = std::find(npy_type_names.begin(), npy_type_names.end(), name);
  const bool no_order = name.ends_with('1') && descr[0] == '|';
  if (found == npy_type_names.end() || !(descr[0] == '<' || descr[0] == '>' || no_order))
    refuse(fmt::format("has elements of type '{}'; can be read: {}", descr,
                       fmt::join(npy_type_names, " ")));
  return static_cast<NpyType>(found - npy_type_names.begin());
}

// Elements of another order as little-endian ones in C order, where the last index runs fastest.
std::string reordered(std::string_view elements, std::span<const std::int64_t> shape,
                      std::size_t size, bool fortran_order, bool big_endian) {
  std::string out(elements.size(), '\0');
  std::vector<std::size_t> strides(shape.size(), 1);  // of each index in the file
  for (std::size_t i = 1; i < shape.size(); ++i)
    strides[i] = strides[i - 1] * static_cast<std::size_t>(shape[i - 1]);
  for (std::size_t element = 0; element * size < out.size(); ++element) {
    std::size_t from = element;
    if (fortran_order) {
      from = 0;
      for (std::size_t i = shape.size(), rest = element; i-- > 0;) {
        const auto extent = static_cast<std::size_t>(shape[i]);
        from += rest % extent * strides[i];
        rest /= extent;
      }
    }
    char* to = &out[element * size];
    std::copy_n(&elements[from * size], size, to);
    if (big_endian) std::reverse(to, to + size);
  }
  return out;
}

std::int64_t checked_elements(std::span<const std::int64_t> shape, std::size_t element_bytes) {
  const std::int64_t limit =
      std::numeric_limits<std::int64_t>::max() / static_cast<std::int64_t>(element_bytes);
  std::int64_t elements = 1;
  for (const std::int64_t extent : shape)
    if (__builtin_mul_overflow(elements, extent, &elements) || elements > limit)
      refuse(fmt::format("has a shape ({}) too large for any file", fmt::join(shape, ", ")));
  return elements;
}

struct Layout {
  std::string_view header;
  std::size_t data_offset;
};

/// magic, major, minor, header length (u16 in version 1, u32 in 2 and 3), header, data.
Layout find_header(std::string_view file) {
  if (!file.starts_with(magic)) refuse("is not an .npy file (no \\x93NUMPY at its start)");
  const auto byte = [&](std::size_t at) {
    if (at >= file.size()) refuse("ends inside its header");
    return std::size_t{static_cast<unsigned char>(file[at])};
  };
  const std::size_t version = byte(6);
  if (version < 1 || version > 3)
    refuse(fmt::format("has .npy format version {}; 1 to 3 can be read", version));
  const std::size_t length_bytes = version == 1 ? 2 : 4;
  std::size_t length = 0;
  for (std::size_t i = 0; i < length_bytes; ++i) length |= byte(8 + i) << (8 * i);
  const std::size_t start = 8 + length_bytes;
  if (length > file.size() - start) refuse("ends inside its header");
  return {file.substr(start, length), start + length};
}

/// Everything before the elements, of which there must be as many bytes as the shape says.
std::string npy_start(NpyType type, std::span<const std::int64_t> shape, std::size_t bytes) {
  const std::size_t expected = at(checked_elements(shape, bytes_of(type))) * bytes_of(type);
  check(bytes == expected, "an .npy array was written with another shape than its own");
  std::string header =
      fmt::format("{{'descr': '{}{}', 'fortran_order': False, 'shape': ({}{}), }}",
                  bytes_of(type) == 1 ? '|' : '<', npy_type_names[static_cast<std::size_t>(type)],
                  fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
  // The data starts at a multiple of 64 bytes; the header ends with a newline.
  constexpr std::size_t prefix = 10;
  header.append(63 - (prefix + header.size()) % 64, ' ');
  header += '\n';
  std::string start(magic);
  start +=
      {'\1', '\0', static_cast<char>(header.size() & 255), static_cast<char>(header.size() >> 8)};
  start += header;
  return start;
}

}  // namespace

std::size_t bytes_of(NpyType type) {
  constexpr std::array<std::size_t, npy_type_names.size()> sizes{1, 1, 2, 4, 8, 1,
                                                                 2, 4, 8, 2, 4, 8};
  return sizes[static_cast<std::size_t>(type)];
}

double from_half(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 31)
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  return exponent == 0 ? sign * std::ldexp(fraction, -24)
                       : sign * std::ldexp(1024 + fraction, exponent - 25);
}

NpyArray::NpyArray(std::shared_ptr<const void> storage, std::string_view bytes,
                   const std::string& place)
    : storage_(std::move(storage)) {
  try {
    const auto [literal, offset] = find_header(bytes);
    const Header header = HeaderParser(literal).parse();
    type_ = parse_type(header.type);
    shape_ = header.shape;
    const std::size_t element_bytes = bytes_of(type_);
    elements_ = checked_elements(shape_, element_bytes);
    const std::size_t expected = at(elements_) * element_bytes;
    if (bytes.size() - offset != expected)
      refuse(fmt::format("holds {} bytes of data, but its shape ({}) of {} needs {}",
                         bytes.size() - offset, fmt::join(shape_, ", "), header.type, expected));
    if (offset % element_bytes != 0)
      refuse("has data that is not aligned to its elements; save it again with numpy");
    data_ = reinterpret_cast<const std::byte*>(bytes.data()) + offset;
    const bool big_endian = header.type.starts_with('>') && element_bytes > 1;
    if (header.fortran_order || big_endian) {
      const auto own = std::make_shared<const std::string>(
          reordered(bytes.substr(offset), shape_, element_bytes, header.fortran_order, big_endian));
      data_ = reinterpret_cast<const std::byte*>(own->data());
      storage_ = own;
    }
  } catch (const ConfigError& error) {
    throw ConfigError("{}: {}", place, error.what());
  }
}

NpyArray NpyArray::open(const std::filesystem::path& file) {
  const MappedFile mapped(file);
  return {mapped.storage(), mapped.text(), file.string()};
}

NpyArray NpyArray::parse(std::string bytes, const std::string& place) {
  const auto held = std::make_shared<const std::string>(std::move(bytes));
  return {held, *held, place};
}

std::vector<double> NpyArray::to_doubles() const {
  const auto convert = [&]<class T>(const T*) {
    const auto values = as<T>();
    return std::vector<double>(values.begin(), values.end());
  };
  switch (type_) {
    case NpyType::b1: break;
    case NpyType::u1: return convert(static_cast<const std::uint8_t*>(nullptr));
    case NpyType::u2: return convert(static_cast<const std::uint16_t*>(nullptr));
    case NpyType::u4: return convert(static_cast<const std::uint32_t*>(nullptr));
    case NpyType::u8: return convert(static_cast<const std::uint64_t*>(nullptr));
    case NpyType::i1: return convert(static_cast<const std::int8_t*>(nullptr));
    case NpyType::i2: return convert(static_cast<const std::int16_t*>(nullptr));
    case NpyType::i4: return convert(static_cast<const std::int32_t*>(nullptr));
    case NpyType::i8: return convert(static_cast<const std::int64_t*>(nullptr));
    case NpyType::f4: return convert(static_cast<const float*>(nullptr));
    case NpyType::f8: return convert(static_cast<const double*>(nullptr));
    case NpyType::f2: break;
  }
  std::vector<double> values(static_cast<std::size_t>(elements_));
  if (type_ == NpyType::b1) {
    std::transform(data_, data_ + elements_, values.begin(),
                   [](std::byte truth) { return truth == std::byte{0} ? 0.0 : 1.0; });
    return values;
  }
  const std::span bits(reinterpret_cast<const std::uint16_t*>(data_), values.size());
  std::transform(bits.begin(), bits.end(), values.begin(), from_half);
  return values;
}

std::string npy_bytes(NpyType type, std::span<const std::int64_t> shape,
                      std::span<const std::byte> elements) {
  std::string bytes = npy_start(type, shape, elements.size());
  bytes.append(reinterpret_cast<const char*>(elements.data()), elements.size());
  return bytes;
}

void write_npy(const std::filesystem::path& file, NpyType type, std::span<const std::int64_t> shape,
               std::span<const std::byte> elements) {
  const std::string start = npy_start(type, shape, elements.size());
  std::FILE* out = std::fopen(file.c_str(), "wb");
  const bool written = out != nullptr &&
                       std::fwrite(start.data(), 1, start.size(), out) == start.size() &&
                       std::fwrite(elements.data(), 1, elements.size(), out) == elements.size();
  const bool closed = out != nullptr && std::fclose(out) == 0;
  if (!written || !closed)
    throw ConfigError("{}: cannot be written: {}", file.string(), std::strerror(errno));
}

}  // namespace moesim
