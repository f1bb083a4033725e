// SPDX-License-Identifier: Apache-2.0
#include "traces/import/safetensors.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "hardware/parse_json.hpp"

namespace moesim {

namespace {

constexpr std::array<std::string_view, 11> type_names{"BOOL", "U8",  "I8",   "U16", "I16", "I32",
                                                      "I64",  "F16", "BF16", "F32", "F64"};

Safetensors::Tensor read_tensor(ConfigReader& reader, std::string_view elements) {
  constexpr Range bytes{0, 9e15};
  Safetensors::Tensor tensor;
  tensor.type = static_cast<ElementType>(reader.choice("dtype", type_names));
  for (const ConfigNode& extent : reader.child("shape").list())
    tensor.shape.push_back(extent.integer(bytes));
  const std::vector<ConfigNode> offsets = reader.child("data_offsets").list();
  if (offsets.size() != 2)
    reader.child("data_offsets").fail("does not give a first and a last byte");
  tensor.first = at(offsets[0].integer(bytes));
  tensor.last = at(offsets[1].integer(bytes));
  const std::int64_t expected = elements_of(tensor.shape, std::ssize(elements));
  if (tensor.first > tensor.last || tensor.last > elements.size() || expected < 0 ||
      tensor.last - tensor.first != at(expected) * bytes_of(tensor.type))
    reader.node().fail("bytes {} to {} of {} do not hold its shape", tensor.first, tensor.last,
                       elements.size());
  return tensor;
}

}  // namespace

Safetensors::Safetensors(const std::filesystem::path& file) : file_(file) {
  const std::string_view text = file_.text();
  std::uint64_t length = 0;
  if (text.size() >= sizeof length) std::memcpy(&length, text.data(), sizeof length);
  if (text.size() < sizeof length || length > text.size() - sizeof length || length == 0)
    throw ConfigError(file.string() + ": is not a .safetensors file, or ends inside its header");
  elements_ = text.substr(sizeof length + length);
  Json header;
  try {
    header = parse_json(text.substr(sizeof length, length));
  } catch (const ConfigError& error) {
    throw ConfigError("{}: its header {}", file.string(), error.what());
  }
  ConfigReader reader(ConfigNode(std::move(header), file));
  for (const std::string& name : reader.all_keys())
    if (name != "__metadata__")
      tensors_.emplace(name, read_object(reader.child(name), [&](ConfigReader& tensor) {
                         return read_tensor(tensor, elements_);
                       }));
  refuse_shared_bytes(file);
}

// The format has this rule. Else a small file could ask for any amount of memory.
void Safetensors::refuse_shared_bytes(const std::filesystem::path& file) const {
  using Named = std::pair<const std::string, Tensor>;
  std::vector<const Named*> by_place;
  for (const Named& tensor : tensors_)
    if (tensor.second.first < tensor.second.last) by_place.push_back(&tensor);
  std::ranges::sort(by_place, {}, [](const Named* tensor) { return tensor->second.first; });
  for (std::size_t i = 1; i < by_place.size(); ++i)
    if (by_place[i]->second.first < by_place[i - 1]->second.last)
      throw ConfigError("{}: the tensors \"{}\" and \"{}\" share bytes", file.string(),
                        by_place[i - 1]->first, by_place[i]->first);
}

Array Safetensors::read(const Tensor& tensor) const {
  return {tensor.shape,
          decode(tensor.type, elements_.substr(tensor.first, tensor.last - tensor.first))};
}

}  // namespace moesim
