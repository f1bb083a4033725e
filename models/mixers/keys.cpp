// SPDX-License-Identifier: Apache-2.0
#include "models/mixers/keys.hpp"

namespace moesim {

bool present(const ConfigReader& r, std::string_view key) {
  return r.has(key) && !r.node().json().at(std::string(key)).is_null();
}

int nullable(ConfigReader& r, std::string_view key) {
  const ConfigNode value = r.child(key);
  return value.json().is_null() ? 0 : static_cast<int>(value.integer(whole));
}

int optional(ConfigReader& r, std::string_view key, int fallback) {
  return present(r, key) ? static_cast<int>(r.integer(key, whole)) : fallback;
}

bool flagged(ConfigReader& r, std::string_view key) { return present(r, key) && r.flag(key); }

}  // namespace moesim
