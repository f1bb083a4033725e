// SPDX-License-Identifier: Apache-2.0
// Routing traces. The first byte says which of a good trace's three files the rest replaces.
#include "traces/routing_trace.hpp"

#include <array>
#include <cstdio>
#include <fstream>

#include "tests/fuzz/fuzz.hpp"

using namespace moesim;

namespace {

// A directory whose three files are links to files in memory.
struct TraceDirectory {
  static constexpr std::array names{"meta.json", "requests.jsonl", "topk_ids.npy"};
  std::array<fuzz::File, 3> files{};
  std::array<std::string, 3> good{};
  std::filesystem::path path;

  TraceDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "fuzz_trace_XXXXXX").string();
    check(::mkdtemp(name.data()) != nullptr, "no temporary directory");
    path = name;
    for (std::size_t i = 0; i < names.size(); ++i) {
      std::ifstream stream(std::filesystem::path(MOESIM_SOURCE_DIR) /
                               "tests/fuzz/corpus/routing_trace" /
                               std::filesystem::path(names[i]).stem(),
                           std::ios::binary);
      stream.get();
      good[i] = {std::istreambuf_iterator<char>(stream), {}};
      std::filesystem::create_symlink(files[i].holding(good[i]), path / names[i]);
    }
  }
  ~TraceDirectory() { std::filesystem::remove_all(path); }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const TraceDirectory trace;
  if (size == 0) return 0;
  const std::size_t which = data[0] % 3;
  trace.files[which].holding(fuzz::text(data + 1, size - 1));
  fuzz::reads([&] {
    const RoutingTrace opened = RoutingTrace::open(trace.path);
    opened.expert_counts();
  });
  trace.files[which].holding(trace.good[which]);
  return 0;
}
