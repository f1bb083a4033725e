// SPDX-License-Identifier: Apache-2.0
// Experiments: a small one with the input merged into it. Inputs with numbers of more than three
// digits are left out: they ask for large experiments, not for wrong ones.
#include "sim/experiment/experiment.hpp"

#include <regex>

#include "tests/fuzz/fuzz.hpp"
#include "tests/tiny_experiment.hpp"

using namespace moesim;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::File file;
  static const std::regex large("[0-9]{4}|[0-9.][eE]");
  const std::string_view text = fuzz::text(data, size);
  if (std::regex_search(text.begin(), text.end(), large)) return 0;
  return fuzz::reads([&] {
    const Json set = ConfigNode::from_file(file.holding(text)).json();
    TraceLibrary traces;
    const auto here = std::filesystem::path(MOESIM_SOURCE_DIR) / "tests" / "fuzz.json";
    load_experiment(ConfigNode(test::tiny_experiment(set), here), traces);
  });
}
