// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "traces/import/array.hpp"

namespace moesim {

struct PyList;
struct PyDict;
struct PyTensor;

/// A Python value out of a pickle; std::monostate is None. Lists and what else is behind a pointer
/// belong to the Pickle.
using PyValue = std::variant<std::monostate, bool, std::int64_t, double, std::string_view,
                             const PyList*, const PyDict*, const PyTensor*>;

/// A list or a tuple.
struct PyList {
  std::vector<PyValue> items;
};

struct PyDict {
  std::vector<std::pair<PyValue, PyValue>> items;

  /// The value under a text, or nothing; of the last such key, as in Python.
  const PyValue* find(std::string_view key) const;
};

/// A tensor whose elements stand elsewhere, in a storage.
struct PyTensor {
  std::string_view storage;  ///< its name
  ElementType type = ElementType::u8;
  std::int64_t storage_elements = 0;
  std::int64_t offset = 0;
  std::vector<std::int64_t> shape, stride;
};

/// Pickles of torch.save(): dictionaries, lists, numbers, texts and tensors. Nothing is executed:
/// opcodes and names are read by a list of those known. A file that asks for anything else, as
/// every pickle with code in it does, is refused.
class Pickle {
 public:
  /// `bytes` must outlive the pickle. Throws ConfigError without a place.
  explicit Pickle(std::string_view bytes);

  const PyValue& value() const { return value_; }

 private:
  friend class PickleMachine;
  // Deques: what is in them stays where it is.
  std::deque<PyList> lists_;
  std::deque<PyDict> dicts_;
  std::deque<PyTensor> tensors_;
  PyValue value_;
};

}  // namespace moesim
