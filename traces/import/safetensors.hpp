// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "hardware/config.hpp"
#include "traces/import/array.hpp"
#include "traces/mapped_file.hpp"

namespace moesim {

/// The tensors of a .safetensors file: the length of a JSON header, the header, and the elements.
class Safetensors {
 public:
  struct Tensor {
    ElementType type = ElementType::u8;
    std::vector<std::int64_t> shape;
    std::size_t first = 0, last = 0;  ///< bytes, from the end of the header on
  };

  /// Throws ConfigError "file: ..." if it is no such file or a tensor is not where it is said to
  /// be, or shares bytes with another.
  explicit Safetensors(const std::filesystem::path& file);

  const std::map<std::string, Tensor, std::less<>>& tensors() const { return tensors_; }
  Array read(const Tensor&) const;

 private:
  void refuse_shared_bytes(const std::filesystem::path& file) const;

  MappedFile file_;
  std::string_view elements_;
  std::map<std::string, Tensor, std::less<>> tensors_;
};

}  // namespace moesim
