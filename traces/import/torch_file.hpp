// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "hardware/config.hpp"
#include "traces/import/pickle.hpp"
#include "traces/import/zip_archive.hpp"

namespace moesim {

/// A file of torch.save(), read without torch: a zip of a pickle, data.pkl, and of the bytes of
/// each storage.
class TorchFile {
 public:
  /// Throws ConfigError if it is none, or asks for more than data.
  explicit TorchFile(const std::filesystem::path& file);

  const PyValue& value() const { return pickle_->value(); }
  /// The tensor of a name in its dictionary; null where there is none.
  const PyTensor* tensor_named(std::string_view name) const;
  /// Elements of one of its tensors. Throws ConfigError if they are not in the file. Throws if what
  /// was read is many times the file (tensors that share one storage over and over).
  Array read(const PyTensor&);

  [[noreturn]] void refuse(std::string_view what) const;

 private:
  std::filesystem::path file_;
  ZipArchive zip_;
  std::string folder_;  // in the zip, that everything stands in
  std::string bytes_;   // of the pickle
  std::unique_ptr<Pickle> pickle_;
  std::string storage_name_, storage_;  // the last one read
  std::uint64_t left_ = 0;              // elements that may still be read
};

}  // namespace moesim
