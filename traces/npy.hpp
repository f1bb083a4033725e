// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hardware/units.hpp"
#include "traces/mapped_file.hpp"

namespace moesim {

/// Type of an element of an .npy file, by numpy's names.
enum class NpyType { b1, u1, u2, u4, u8, i1, i2, i4, i8, f2, f4, f8 };
inline constexpr std::array<std::string_view, 12> npy_type_names{
    "b1", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"};
std::size_t bytes_of(NpyType);
/// True of integers and truth values.
constexpr bool is_whole(NpyType type) { return type < NpyType::f2; }

/// The NpyType of a C++ type. b1 and f2 have none: read them with to_doubles().
template <class T>
inline constexpr NpyType npy_type = T::no_such_npy_type;
template <>
inline constexpr NpyType npy_type<std::uint8_t> = NpyType::u1;
template <>
inline constexpr NpyType npy_type<std::uint16_t> = NpyType::u2;
template <>
inline constexpr NpyType npy_type<std::int16_t> = NpyType::i2;
template <>
inline constexpr NpyType npy_type<std::uint32_t> = NpyType::u4;
template <>
inline constexpr NpyType npy_type<std::uint64_t> = NpyType::u8;
template <>
inline constexpr NpyType npy_type<std::int8_t> = NpyType::i1;
template <>
inline constexpr NpyType npy_type<std::int32_t> = NpyType::i4;
template <>
inline constexpr NpyType npy_type<std::int64_t> = NpyType::i8;
template <>
inline constexpr NpyType npy_type<float> = NpyType::f4;
template <>
inline constexpr NpyType npy_type<double> = NpyType::f8;

/// An array in an .npy file (format versions 1 to 3), memory-mapped; in memory, as little-endian
/// and in C order, if the file is not so. Copies share the storage. Format: numpy.lib.format,
/// NEP 1.
class NpyArray {
 public:
  /// Throws ConfigError if the file is no such array, or is not exactly as long as its header says.
  static NpyArray open(const std::filesystem::path& file);
  /// The array in the bytes of such a file; `place` stands in for its name.
  static NpyArray parse(std::string bytes, const std::string& place);

  NpyType type() const { return type_; }
  std::span<const std::int64_t> shape() const { return shape_; }
  std::int64_t elements() const { return elements_; }

  /// The elements, flat. T must be of type(): a mismatch is a bug of the caller.
  template <class T>
  std::span<const T> as() const {
    check(npy_type<T> == type_, "an .npy array was read as another type than its own");
    return {reinterpret_cast<const T*>(data_), at(elements_)};
  }
  /// The elements of any type, flat, converted.
  std::vector<double> to_doubles() const;
  /// Keeps the mapping alive.
  std::shared_ptr<const void> storage() const { return storage_; }

 private:
  NpyArray(std::shared_ptr<const void> storage, std::string_view bytes, const std::string& place);

  std::shared_ptr<const void> storage_;
  NpyType type_ = NpyType::u1;
  std::vector<std::int64_t> shape_;
  std::int64_t elements_ = 0;
  const std::byte* data_ = nullptr;
};

/// The number that IEEE 754 binary16 stands for.
double from_half(std::uint16_t bits);

/// The content of an .npy file, version 1.0, C order.
std::string npy_bytes(NpyType type, std::span<const std::int64_t> shape,
                      std::span<const std::byte> elements);
template <class T>
std::string npy_bytes(std::span<const std::int64_t> shape, std::span<const T> elements) {
  return npy_bytes(npy_type<T>, shape, std::as_bytes(elements));
}

/// Writes an .npy file, version 1.0, C order. Throws ConfigError if the file cannot be written.
void write_npy(const std::filesystem::path& file, NpyType type, std::span<const std::int64_t> shape,
               std::span<const std::byte> elements);
template <class T>
void write_npy(const std::filesystem::path& file, std::span<const std::int64_t> shape,
               std::span<const T> elements) {
  write_npy(file, npy_type<T>, shape, std::as_bytes(elements));
}

}  // namespace moesim
