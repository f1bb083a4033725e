// SPDX-License-Identifier: Apache-2.0
// Gives a reader each file of a folder, as libFuzzer does before it makes files of its own:
// replay_NAME FOLDER. Exit 1 where the folder holds none.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <fmt/format.h>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
    fmt::print("{}\n", entry.path().filename().string());
    std::fflush(stdout);  // names the file that ends it
    std::ifstream stream(entry.path(), std::ios::binary);
    const std::string input{std::istreambuf_iterator<char>(stream), {}};
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
    ++files;
  }
  return files > 0 ? 0 : 1;
}
