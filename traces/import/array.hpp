// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace moesim {

class NpyArray;

/// Numbers of any type that an engine saves, row-major: expert ids, counts and logits alike (ids
/// and counts are exact below 2^53).
struct Array {
  std::vector<std::int64_t> shape;
  std::vector<double> values;

  std::int64_t extent(std::size_t dimension) const { return shape[dimension]; }
  /// The part [i] of the first dimension, flat.
  std::span<const double> part(std::int64_t i) const;
};

/// The numbers of an .npy file.
Array array_of(const NpyArray&);

/// Types of elements, little-endian, as torch and safetensors save them.
enum class ElementType { boolean, u8, i8, u16, i16, i32, i64, f16, bf16, f32, f64 };
std::size_t bytes_of(ElementType);
/// `elements` must be a multiple of bytes_of().
std::vector<double> decode(ElementType, std::string_view elements);

/// The product of the extents, or -1 where it is negative or beyond `limit`.
std::int64_t elements_of(std::span<const std::int64_t> shape, std::int64_t limit);

}  // namespace moesim
