// SPDX-License-Identifier: Apache-2.0
// What engines record. The first byte says which form and ending the rest is read as.
#include <array>

#include "tests/fuzz/fuzz.hpp"
#include "traces/import/import.hpp"

using namespace moesim;

namespace {

struct Kind {
  std::size_t form;  // in import_forms()
  std::string_view ending;
};
constexpr std::array kinds{Kind{0, ".npy"}, Kind{5, ".npz"},         Kind{0, ".json"},
                           Kind{1, ".pt"},  Kind{2, ".safetensors"}, Kind{3, ".npy"},
                           Kind{3, ".pt"},  Kind{4, ".jsonl"},       Kind{1, ".pt"}};

// A link of each ending to one file in memory.
struct Links {
  fuzz::File file{};
  std::filesystem::path folder{};

  Links() {
    std::string name = (std::filesystem::temp_directory_path() / "fuzz_recording_XXXXXX").string();
    check(::mkdtemp(name.data()) != nullptr, "no temporary directory");
    folder = name;
    for (const std::string_view ending : {".npy", ".npz", ".json", ".jsonl", ".pt", ".safetensors"})
      std::filesystem::create_symlink(file.holding(""), folder / fmt::format("x{}", ending));
  }
  ~Links() { std::filesystem::remove_all(folder); }
};

MoeModel tiny() {
  MoeModel model;
  model.name = "tiny";
  model.experts = 8;
  model.experts_per_token = 2;
  model.layers.resize(3);
  model.layers[0].moe = false;
  return model;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Links links;
  static const MoeModel model = tiny();
  if (size == 0) return 0;
  const Kind& kind = kinds[data[0] % kinds.size()];
  links.file.holding(fuzz::text(data + 1, size - 1));
  return fuzz::reads([&] {
    const std::array path{links.folder / fmt::format("x{}", kind.ending)};
    const Imported imported = import_trace(import_forms()[kind.form], path, model);
    if (imported.trace) imported.trace->check_ids();
  });
}
