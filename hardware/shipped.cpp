// SPDX-License-Identifier: Apache-2.0
#include "hardware/shipped.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <sstream>

#include <fmt/format.h>

#include "hardware/text.hpp"

namespace moesim {

namespace {

// Found by the address of this function: in a program of Python that is not the program's own file.
std::filesystem::path find_program_file() {
  const auto here = reinterpret_cast<std::uintptr_t>(&find_program_file);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    fields >> std::hex >> begin >> dash >> end;
    if (const std::size_t path = line.find('/'); begin <= here && here < end && path != line.npos)
      return line.substr(path);
  }
  return std::filesystem::read_symlink("/proc/self/exe");
}

}  // namespace

std::filesystem::path program_file() {
  static const std::filesystem::path file = find_program_file();
  return file;
}

std::filesystem::path data_folder() {
  if (const char* named = std::getenv("MOESIM_DATA"); named != nullptr && *named != '\0')
    return named;
  std::error_code none;
  auto installed = (program_file().parent_path() / MOESIM_INSTALLED_DATA).lexically_normal();
  if (std::filesystem::is_directory(installed / "hardware", none)) return installed;
  return MOESIM_SOURCE_DIR;
}

namespace {

struct Kind {
  const char* folder;
  const char* word;
  const char* list;  // what `moesim list` calls them
};
constexpr std::array<Kind, 3> kinds{{{"hardware/gpus", "GPU", "gpus"},
                                     {"hardware/clusters", "cluster", "clusters"},
                                     {"models/zoo", "model", "models"}}};
const Kind& kind(Shipped which) { return kinds[at(which)]; }

// "Qwen/Qwen3-30B-A3B" as file names are written: "qwen3_30b_a3b".
std::string short_name(std::string_view name) {
  while (name.ends_with('/')) name.remove_suffix(1);
  name.remove_prefix(name.rfind('/') + 1);
  return file_name_of(name);
}

// Paths are not taken for misspelt names.
bool is_path(std::string_view text) {
  return text.ends_with(".json") || text.starts_with('.') || text.starts_with('/');
}

// The members of a family, as "a100" is; else the nearest name, or one of which it is a longer
// form, as "deepseek_v3_0324" is.
std::vector<std::string_view> names_like(std::string_view wanted,
                                         const std::vector<std::string_view>& names) {
  std::vector<std::string_view> like;
  const auto take = [&](auto matches) {
    std::ranges::copy_if(names, std::back_inserter(like), matches);
  };
  if (!wanted.empty()) take([&](std::string_view name) { return name.starts_with(wanted); });
  if (like.empty()) {
    const std::string_view nearest = nearest_name(wanted, names);
    take([&](std::string_view name) { return name == nearest; });
  }
  if (like.empty()) take([&](std::string_view name) { return wanted.starts_with(name); });
  return like;
}

// A path by the working directory, as on a command line. In a config paths go by the file's folder.
std::string where_it_is(const ConfigNode& node) {
  std::error_code none;
  const std::filesystem::path given = node.text();
  if (given.is_relative() && std::filesystem::exists(given, none))
    return fmt::format(
        "paths go by the folder of the config; the one in the working directory is {}",
        std::filesystem::absolute(given).lexically_normal().string());
  return "";
}

// The smallest cluster with the GPUs of a name as "h200x4", of which a deployment takes some.
std::string larger_cluster(std::string_view wanted, const std::vector<std::string>& names) {
  const auto gpus = [](std::string_view name) {
    return try_number<int>(name.substr(name.rfind('x') + 1)).value_or(0);
  };
  const std::string_view kind = wanted.substr(0, wanted.rfind('x') + 1);
  const int asked = gpus(wanted);
  const std::string* least = nullptr;
  for (const std::string& name : names) {
    if (kind.empty() || asked == 0 || !name.starts_with(kind) || gpus(name) < asked) continue;
    if (least == nullptr || gpus(name) < gpus(*least)) least = &name;
  }
  if (least == nullptr) return "";
  return fmt::format("give \"{}\": \"parallel\" may take {} of its {} GPUs; ", *least, asked,
                     gpus(*least));
}

[[noreturn]] void refuse(const ConfigNode& node, Shipped which) {
  if (const std::string place = where_it_is(node); !place.empty())
    node.fail("no file is called \"{}\"; {}", node.relative(node.text()).string(), place);
  const std::vector<std::string> names = shipped_names(which);
  const std::vector<std::string_view> views(names.begin(), names.end());
  const std::string wanted = short_name(node.text());
  const std::string meant = fmt::format("{}", fmt::join(names_like(wanted, views), "\" or \""));
  std::string hint = which == Shipped::cluster ? larger_cluster(wanted, names) : "";
  if (hint.empty() && !meant.empty()) hint = fmt::format("did you mean \"{}\"? ", meant);
  node.fail("no file and no {} is called \"{}\"; {}they are: moesim list {}", kind(which).word,
            node.text(), hint, kind(which).list);
}

}  // namespace

std::vector<std::string> shipped_names(Shipped which) {
  std::vector<std::string> names;
  std::error_code none;
  for (const auto& entry :
       std::filesystem::directory_iterator(data_folder() / kind(which).folder, none)) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  }
  std::ranges::sort(names);
  return names;
}

namespace {

using FilesById = std::map<std::string, std::filesystem::path, std::less<>>;

// The models that list an id under "huggingface" that is no form of their own name.
FilesById read_ids(const std::filesystem::path& data) {
  FilesById files;
  for (const std::string& shipped : shipped_names(Shipped::model)) {
    const std::filesystem::path file = data / kind(Shipped::model).folder / (shipped + ".json");
    const Json json = ConfigNode::from_file(file).json();
    const auto ids = json.find("huggingface");
    if (ids == json.end() || !ids->is_array()) continue;
    for (const Json& id : *ids)
      if (id.is_string()) files.emplace(short_name(id.get<std::string>()), file);
  }
  return files;
}

// Read once: every text of a sweep that may be a name is looked for here.
std::optional<std::filesystem::path> model_with_id(std::string_view name) {
  static std::mutex reading;
  static std::map<std::filesystem::path, FilesById> of_folder;
  const std::filesystem::path data = data_folder();
  const std::lock_guard lock(reading);
  auto found = of_folder.find(data);
  if (found == of_folder.end()) found = of_folder.emplace(data, read_ids(data)).first;
  const auto file = found->second.find(short_name(name));
  if (file == found->second.end()) return std::nullopt;
  return file->second;
}

}  // namespace

std::optional<std::filesystem::path> shipped_file(Shipped which, std::string_view name) {
  std::filesystem::path file = data_folder() / kind(which).folder / (short_name(name) + ".json");
  std::error_code none;
  if (std::filesystem::is_regular_file(file, none)) return file;
  if (which == Shipped::model) return model_with_id(name);
  const std::string gpu = which == Shipped::gpu ? gpu_file(name) : "";
  if (gpu.empty()) return std::nullopt;
  return file.replace_filename(gpu + ".json");
}

std::string gpu_file(std::string_view name) {
  static const auto known = [] {
    const Json file = ConfigNode::from_file(data_folder() / "hardware/names.json").json();
    return file.at("gpus").get<std::map<std::string, std::string>>();
  }();
  std::string plain;
  for (const char c : name)
    plain +=
        c == ' ' || c == '_' ? '-' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  for (const std::string_view maker : {"NVIDIA-", "AMD-", "INSTINCT-"})
    if (plain.starts_with(maker)) plain.erase(0, maker.size());
  plain += '-';
  std::string_view longest, file;
  for (const auto& [beginning, of] : known)
    if (beginning.size() > longest.size() && plain.starts_with(beginning + '-'))
      longest = beginning, file = of;
  return std::string(file);
}

std::filesystem::path named_file(const ConfigNode& node, Shipped which) {
  const std::string text = node.text();
  std::filesystem::path file = node.relative(text);
  std::error_code none;
  if (std::filesystem::is_regular_file(file / "config.json", none)) return file / "config.json";
  if (which == Shipped::model && std::filesystem::is_directory(file, none))
    node.fail("the folder \"{}\" holds no config.json; name the folder that does", text);
  if (std::filesystem::exists(file, none)) return file;
  if (is_path(text)) {
    if (!where_it_is(node).empty()) refuse(node, which);
    return file;
  }
  if (const auto shipped = shipped_file(which, text)) return *shipped;
  refuse(node, which);
}

ConfigNode file_or_inline(const ConfigNode& node) {
  return node.json().is_string() ? ConfigNode::from_file(node.relative(node.text())) : node;
}

ConfigNode named_or_inline(const ConfigNode& node, Shipped which) {
  return node.json().is_string() ? ConfigNode::from_file(named_file(node, which)) : node;
}

}  // namespace moesim
