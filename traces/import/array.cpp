// SPDX-License-Identifier: Apache-2.0
#include "traces/import/array.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "traces/npy.hpp"

namespace moesim {

namespace {

template <class T>
T raw(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

double element(ElementType type, const char* bytes) {
  switch (type) {
    case ElementType::boolean:
    case ElementType::u8: return raw<std::uint8_t>(bytes);
    case ElementType::i8: return raw<std::int8_t>(bytes);
    case ElementType::u16: return raw<std::uint16_t>(bytes);
    case ElementType::i16: return raw<std::int16_t>(bytes);
    case ElementType::i32: return raw<std::int32_t>(bytes);
    case ElementType::i64: return static_cast<double>(raw<std::int64_t>(bytes));
    case ElementType::f16: return from_half(raw<std::uint16_t>(bytes));
    // The upper half of a float.
    case ElementType::bf16:
      return std::bit_cast<float>(std::uint32_t{raw<std::uint16_t>(bytes)} << 16);
    case ElementType::f32: return raw<float>(bytes);
    case ElementType::f64: break;
  }
  return raw<double>(bytes);
}

}  // namespace

std::span<const double> Array::part(std::int64_t i) const {
  const std::size_t length = shape[0] == 0 ? 0 : values.size() / at(shape[0]);
  return std::span(values).subspan(at(i) * length, length);
}

Array array_of(const NpyArray& array) {
  return {{array.shape().begin(), array.shape().end()}, array.to_doubles()};
}

std::size_t bytes_of(ElementType type) {
  constexpr std::array<std::size_t, 11> sizes{1, 1, 1, 2, 2, 4, 8, 2, 2, 4, 8};
  return sizes[at(type)];
}

std::vector<double> decode(ElementType type, std::string_view elements) {
  const std::size_t size = bytes_of(type);
  std::vector<double> values(elements.size() / size);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = element(type, &elements[i * size]);
  return values;
}

std::int64_t elements_of(std::span<const std::int64_t> shape, std::int64_t limit) {
  if (std::ranges::count(shape, 0) > 0 && std::ranges::none_of(shape, [](auto n) { return n < 0; }))
    return 0;
  std::int64_t elements = 1;
  for (const std::int64_t extent : shape)
    if (extent < 0 || __builtin_mul_overflow(elements, extent, &elements) || elements > limit)
      return -1;
  return elements;
}

}  // namespace moesim
