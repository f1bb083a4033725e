// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <set>

#include <fmt/format.h>

#include "hardware/parse_json.hpp"
#include "hardware/rng.hpp"
#include "hardware/shipped.hpp"
#include "tools/sweep/sweep.hpp"

namespace moesim {

namespace {

constexpr std::uintmax_t mebibyte = 1 << 20;
constexpr std::uintmax_t pieces_of_large = 64;  // of a MiB each

// The content of a small file; of a large one evenly spread pieces, the first and the last too.
std::string file_content(const std::filesystem::path& file, std::uintmax_t size) {
  std::ifstream stream(file, std::ios::binary);
  const bool whole = size <= pieces_of_large * mebibyte;
  std::string content(whole ? size : pieces_of_large * mebibyte, '\0');
  const auto read = [&](std::uintmax_t from, std::uintmax_t to, std::uintmax_t bytes) {
    stream.seekg(static_cast<std::streamoff>(from));
    stream.read(content.data() + to, static_cast<std::streamsize>(bytes));
  };
  if (whole) {
    read(0, 0, size);
  } else {
    for (std::uintmax_t i = 0; i < pieces_of_large; ++i)
      read((size - mebibyte) / (pieces_of_large - 1) * i, i * mebibyte, mebibyte);
    read(size - mebibyte, (pieces_of_large - 1) * mebibyte, mebibyte);
  }
  return content;
}

}  // namespace

// Contents of the files that configs name, each read once. A JSON file's own files count too, and
// what a checkpoint has next to it. A routing trace is its three files, a GPU's tables are a
// folder. Of a file above 64 MiB pieces of that much in all count.
struct PointMaker::Files {
  /// 0 if the config names none. Every text that is the path of a file is taken for its name.
  std::uint64_t of(const Json& config, const std::filesystem::path& folder) {
    std::uint64_t all = 0;
    if (config.is_string()) return of_text(config.get<std::string>(), folder);
    if (!config.is_structured()) return 0;
    for (const auto& [key, value] : config.items()) {
      all = and_also(all, of(value, folder));
      if (key == "profiles" && value.is_string())
        all = and_also(all, of_tables(folder / value.get<std::string>()));
    }
    return all;
  }

 private:
  static std::uint64_t and_also(std::uint64_t all, std::uint64_t one) {
    if (one == 0) return all;
    return fnv1a(fmt::format("{:016x}", one), all == 0 ? fnv1a("") : all);
  }

  std::uint64_t of_text(const std::string& text, const std::filesystem::path& folder) {
    const auto [known, is_new] = of_texts_.try_emplace((folder / text).string(), 0);
    if (!is_new) return known->second;
    std::uint64_t print = of_path(folder / text);
    for (const Shipped which : {Shipped::gpu, Shipped::cluster, Shipped::model}) {
      if (print != 0) break;
      if (const auto file = shipped_file(which, text)) print = of_path(*file);
    }
    if (const auto file = file_of_class(text); !file.empty()) print = of_path(folder / file);
    return known->second = print;
  }

  std::uint64_t of_path(const std::filesystem::path& path) {
    const auto [known, is_new] = known_.try_emplace(path.string(), 0);
    std::error_code none;
    if (!is_new) return known->second;
    std::uint64_t print = 0;
    if (std::filesystem::is_regular_file(path, none)) {
      print = of_file(path);
      constexpr std::array<const char*, 2> quantised{"hf_quant_config.json", "quant_cfg.json"};
      if (std::ranges::find(quantised, path.filename().string()) == quantised.end())
        for (const char* name : quantised)
          if (const auto beside = path.parent_path() / name;
              std::filesystem::is_regular_file(beside, none))
            print = and_also(print, of_path(beside));
    }
    if (std::filesystem::is_regular_file(path / "config.json", none))
      print = of_path(path / "config.json");
    if (std::filesystem::is_regular_file(path / "meta.json", none)) {
      for (const char* name : {"meta.json", "requests.jsonl", "topk_ids.npy"})
        print = and_also(print, of_path(path / name));
    }
    return known_[path.string()] = print;
  }

  std::uint64_t of_tables(const std::filesystem::path& folder) {
    const auto [known, is_new] = known_.try_emplace(folder.string() + "/*", 0);
    if (!is_new) return known->second;
    std::error_code none;
    std::set<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder, none))
      if (entry.is_regular_file(none)) files.insert(entry.path());
    std::uint64_t print = 0;
    for (const std::filesystem::path& file : files) {
      const std::string content = file_content(file, std::filesystem::file_size(file, none));
      print = and_also(and_also(print, fnv1a(file.lexically_relative(folder).string())),
                       fnv1a(content));
    }
    return known->second = print;
  }

  std::uint64_t of_file(const std::filesystem::path& file) {
    std::error_code none;
    const std::uintmax_t size = std::filesystem::file_size(file, none);
    if (none) return 0;
    const std::string content = file_content(file, size);
    std::uint64_t print = fnv1a(content) ^ size;
    if (size > mebibyte) return print;  // no config is as long
    try {
      const Json json = json_or_text(content);
      if (json.is_structured()) print ^= of(json, file.parent_path());
    } catch (const ConfigError&) {  // a key twice: refused where the file is read
    }
    return print;
  }

  // Fingerprints by path, and by what a config says: a name of the zoo is looked for in many files.
  std::map<std::string, std::uint64_t> known_, of_texts_;
};

PointMaker::PointMaker(std::filesystem::path folder)
    : folder_(std::move(folder)), files_(std::make_unique<Files>()) {}
PointMaker::~PointMaker() = default;

SweepPoint PointMaker::of(Json config) {
  const std::uint64_t inputs = files_->of(config, folder_);
  return sweep_point(std::move(config), inputs);
}

}  // namespace moesim
