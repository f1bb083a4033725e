// SPDX-License-Identifier: Apache-2.0
#include "hardware/kernel_tables.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace moesim {

namespace {

// "1.3.0rc10" is 1, 3, 0, 10.
std::array<int, 4> numbers_of(std::string_view version) {
  std::array<int, 4> numbers{};
  std::size_t next = 0;
  const char* end = version.data() + version.size();
  for (const char* c = version.data(); c < end && next < numbers.size();) {
    const auto [rest, failed] = std::from_chars(c, end, numbers[next]);
    next += failed == std::errc() ? 1 : 0;
    c = failed == std::errc() ? rest : c + 1;
  }
  return numbers;
}

// Releases count more the further to the left they differ.
double distance(std::string_view one, std::string_view other) {
  const auto a = numbers_of(one), b = numbers_of(other);
  double apart = 0;
  for (std::size_t i = 0; i < a.size(); ++i) apart = apart * 1000 + (a[i] - b[i]);
  return std::abs(apart);
}

KernelFamily family_of(const AttentionShape& shape) {
  if (!shape.decode) return KernelFamily::attention_prefill;
  return shape.mla ? KernelFamily::mla_decode : KernelFamily::attention_decode;
}

}  // namespace

std::vector<Profile> by_nearness(std::vector<Profile> profiles, const EngineVersion& engine) {
  const auto farther = [&](const Profile& profile) {
    if (profile.engine.name != engine.name) return std::pair(1, 0.0);
    // No version at all asks for the newest.
    const std::string_view wanted = engine.version.empty() ? "999" : engine.version;
    return std::pair(0, distance(profile.engine.version, wanted));
  };
  std::ranges::stable_sort(profiles, {}, farther);
  return profiles;
}

Cost attention(const AttentionShape& shape, const AttentionLoad& load, const GpuSpec& gpu) {
  return roofline(load.work, {}, family_of(shape), gpu);
}

std::optional<Cost> mla_block(const AttentionShape&, const AttentionLoad&, Precision,
                              const GpuSpec&) {
  return std::nullopt;
}

Cost quantise(double m, double k, Precision precision, const GpuSpec& gpu) {
  return memory_op(Bytes(m * k * (2 + bytes_per_element(precision))), gpu);
}

GpuSpec with_engine(GpuSpec gpu, const EngineVersion&, const KernelChoice&) { return gpu; }

}  // namespace moesim
