// SPDX-License-Identifier: Apache-2.0
#include "traces/import/torch_file.hpp"

#include <fmt/format.h>

namespace moesim {

namespace {

constexpr std::string_view pickle_name = "/data.pkl";

// Elements of a row-major tensor, in whatever order they stand in its storage.
void gather(const PyTensor& tensor, std::size_t dimension, std::int64_t at,
            std::span<const double> storage, std::vector<double>& out) {
  if (dimension == tensor.shape.size()) {
    out.push_back(storage[static_cast<std::size_t>(at)]);
    return;
  }
  for (std::int64_t i = 0; i < tensor.shape[dimension]; ++i)
    gather(tensor, dimension + 1, at + i * tensor.stride[dimension], storage, out);
}

// Elements of the storage from a tensor's first to its last; -1 where one lies beyond it.
std::int64_t extent_of(const PyTensor& tensor) {
  std::int64_t last = tensor.offset;
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(tensor.shape[d] - 1, tensor.stride[d], &reach) ||
        __builtin_add_overflow(last, reach, &last))
      return -1;
  }
  return last < tensor.storage_elements ? last - tensor.offset + 1 : -1;
}

}  // namespace

TorchFile::TorchFile(const std::filesystem::path& file) : file_(file), zip_(file) {
  for (const auto& member : zip_.members())
    if (member.first.ends_with(pickle_name) &&
        member.first.find('/') == member.first.size() - pickle_name.size())
      folder_ = member.first.substr(0, member.first.size() - pickle_name.size() + 1);
  if (folder_.empty()) refuse("has no data.pkl: torch.save() did not write it");
  if (zip_.has(folder_ + "byteorder") && zip_.read(folder_ + "byteorder") != "little")
    refuse("is big-endian");
  bytes_ = zip_.read(folder_ + "data.pkl");
  try {
    pickle_ = std::make_unique<Pickle>(bytes_);
  } catch (const ConfigError& error) {
    refuse(error.what());
  }
  // A dump's tensors are its own; a map may be in it twice, and a part of a tensor again.
  constexpr std::uint64_t most_often = 8;
  for (const auto& member : zip_.members()) left_ += most_often * member.second.bytes;
}

void TorchFile::refuse(std::string_view what) const {
  throw ConfigError("{}: {}", file_.string(), what);
}

const PyTensor* TorchFile::tensor_named(std::string_view name) const {
  const auto* dict = std::get_if<const PyDict*>(&value());
  const PyValue* found = dict == nullptr ? nullptr : (*dict)->find(name);
  const auto* tensor = found == nullptr ? nullptr : std::get_if<const PyTensor*>(found);
  return tensor == nullptr ? nullptr : *tensor;
}

Array TorchFile::read(const PyTensor& tensor) {
  constexpr std::size_t most_dimensions = 8;
  const std::int64_t elements = elements_of(tensor.shape, tensor.storage_elements);
  const std::int64_t extent =
      elements > 0 && tensor.shape.size() <= most_dimensions ? extent_of(tensor) : 0;
  if (tensor.shape.size() > most_dimensions || elements < 0 || extent < 0)
    refuse(fmt::format("has a tensor beyond its storage of {} elements", tensor.storage_elements));
  // Reads are paid for in bytes: a member as it is unpacked, elements as they are decoded.
  const auto pay = [&](std::uint64_t bytes) {
    if (bytes > left_) refuse("has too many tensors that share one storage");
    left_ -= bytes;
  };
  if (storage_name_ != tensor.storage) {
    storage_ = zip_.read(folder_ + "data/" + std::string(tensor.storage));
    storage_name_ = tensor.storage;
    pay(storage_.size());
  }
  const std::size_t size = bytes_of(tensor.type);
  if (storage_.size() / size < at(tensor.storage_elements))
    refuse(fmt::format("its storage {} has {} bytes; {} elements of {} are expected",
                       tensor.storage, storage_.size(), tensor.storage_elements, size));
  // Several tensors may be views of one storage: each is decoded by itself.
  const auto bytes = static_cast<std::size_t>(extent) * size;
  pay(bytes);
  Array array{tensor.shape, {}};
  array.values.reserve(at(elements));
  if (elements > 0)
    gather(tensor, 0, 0,
           decode(tensor.type, std::string_view(storage_).substr(
                                   static_cast<std::size_t>(tensor.offset) * size, bytes)),
           array.values);
  return array;
}

}  // namespace moesim
