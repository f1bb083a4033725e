// SPDX-License-Identifier: Apache-2.0
#include "sim/engines/server.hpp"

#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace moesim {

std::string Server::host() const { return fmt::format("$NODE{}", node); }
std::string Server::url() const { return fmt::format("http://{}:{}", host(), port()); }

std::string Server::devices() const {
  if (gpus() >= gpus_per_node) return "";
  std::vector<int> mine(at(gpus()));
  std::iota(mine.begin(), mine.end(), first_gpu);
  return fmt::format("CUDA_VISIBLE_DEVICES={} ", fmt::join(mine, ","));
}

std::vector<const Server*> Fleet::of_role(std::string_view role) const {
  std::vector<const Server*> some;
  for (const Server& server : servers)
    if (server.role == role) some.push_back(&server);
  return some;
}

}  // namespace moesim
