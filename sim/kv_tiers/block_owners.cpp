// SPDX-License-Identifier: Apache-2.0
#include "sim/kv_tiers/block_owners.hpp"

#include <algorithm>
#include <tuple>

namespace moesim {

namespace {

bool sooner(const NextRequest& a, const NextRequest& b) {
  return std::tie(a.state, a.at, a.turns_before) < std::tie(b.state, b.at, b.turns_before);
}

}  // namespace

std::vector<BlockHash> BlockOwners::own(AgentName name, std::span<const BlockHash> blocks) {
  Agent& agent = agents_[name];
  std::vector<BlockHash> changed = std::move(agent.blocks);
  const auto [end, ignored] = std::ranges::mismatch(changed, blocks);
  const auto kept = at(end - changed.begin());
  for (std::size_t b = kept; b < changed.size(); ++b) leave(name, changed[b]);
  for (const BlockHash hash : blocks.subspan(kept)) owners_[hash].push_back(name);
  agent.blocks.assign(blocks.begin(), blocks.end());
  agent.next = {NextRequest::State::due, {}, 0};
  changed.insert(changed.end(), blocks.begin() + std::ptrdiff_t(kept), blocks.end());
  return changed;
}

std::vector<BlockHash> BlockOwners::announce(const Announcement& announced) {
  const auto found = agents_.find(announced.agent);
  if (found == agents_.end()) return {};
  found->second.next = announced.next;
  if (announced.next.state != NextRequest::State::never) return found->second.blocks;
  std::vector<BlockHash> left = std::move(found->second.blocks);
  agents_.erase(found);
  for (const BlockHash hash : left) leave(announced.agent, hash);
  return left;
}

NextRequest BlockOwners::next(BlockHash hash) const {
  NextRequest soonest;
  const auto owners = owners_.find(hash);
  if (owners == owners_.end()) return soonest;
  for (const AgentName name : owners->second)
    soonest = std::min(soonest, agents_.at(name).next, sooner);
  return soonest;
}

void BlockOwners::leave(AgentName name, BlockHash hash) {
  const auto owners = owners_.find(hash);
  std::erase(owners.value(), name);
  if (owners->second.empty()) owners_.erase(owners);
}

}  // namespace moesim
