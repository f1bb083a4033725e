// SPDX-License-Identifier: Apache-2.0
#include "sim/kv_tiers/kv_tier.hpp"

#include <algorithm>
#include <functional>
#include <utility>

namespace moesim {

namespace {

TransferLink::Rates rates_of(const KvTierPlan& plan, BytesPerSecond port) {
  return {port, plan.aggregate_bandwidth, plan.latency, plan.piece_time};
}

}  // namespace

KvTier::KvTier(const KvTierPlan& plan, std::int64_t blocks, BlockShard of_block, int ports,
               TierBelow below)
    : plan_(plan),
      below_(below),
      capacity_(blocks),
      of_block_(of_block),
      reads_(plan.share, rates_of(plan, plan.bandwidth), ports),
      writes_(plan.share, rates_of(plan, plan.write_bandwidth), ports),
      order_(plan.eviction->order()),
      found_(at(ports)) {
  check(blocks >= 1, "a tier without room");
  if (plan.eviction->looks_ahead() || plan.write->live_only) owners_.emplace();
}

void KvTier::own(AgentName agent, std::span<const BlockHash> blocks) {
  if (owners_) tell_order(owners_->own(agent, blocks));
}

void KvTier::announce(const Announcement& announced) {
  if (owners_) tell_order(owners_->announce(announced));
}

void KvTier::tell_order(std::span<const BlockHash> changed) {
  if (!plan_.eviction->looks_ahead()) return;
  for (const BlockHash hash : changed) {
    if (holds(hash)) order_->next_use(hash, owners_->next(hash));
  }
}

void KvTier::use(int port, std::span<const BlockHash> prompt) {
  stamp(prompt);
  if (below_.tier == nullptr) return;
  for (const BlockHash hash : prompt) {
    if (below_.tier->write().when_there && has(hash) && !below_.tier->holds(hash))
      found_[at(port)].push_back(hash);
  }
  below_.tier->use(below_.first_port + port, prompt);
}

void KvTier::stamp(std::span<const BlockHash> prompt) {
  std::for_each(prompt.rbegin(), prompt.rend(), [&](BlockHash hash) {
    const auto held = blocks_.find(hash);
    if (held == blocks_.end()) return;
    order_->use(hash);
    held.value().stamp = ++last_stamp_;
  });
}

TransferId KvTier::load(int port, std::vector<BlockHash> blocks, Time now, std::int64_t passing) {
  for (const BlockHash hash : blocks) {
    Block& block = blocks_.at(hash);
    check(block.landed, "a block is loaded before it landed");
    block.read = true;
    ++block.pins;
  }
  const TransferId id = start(reads_, port, std::ssize(blocks) + passing, now, tally_.alone_read);
  ++tally_.loads;
  tally_.read += std::ssize(blocks);
  tally_.passed += passing;
  loading_.emplace(id, Moving{port, now, std::move(blocks)});
  return id;
}

TransferId KvTier::start(TransferLink& link, int port, std::int64_t blocks, Time now,
                         Seconds& alone) const {
  const auto count = static_cast<double>(blocks);
  const Bytes bytes = of_block_.bytes * count;
  const double pieces = of_block_.pieces * count;
  alone += link.alone(bytes, pieces);
  return link.start(port, bytes, now, pieces);
}

std::vector<KvTier::Stored> KvTier::store(int port, std::span<const BlockHash> offered, Time now) {
  std::vector<Stored> all;
  Stored batch;
  count_fill(now);
  const auto start_batch = [&] {
    if (batch.places.empty()) return;
    Moving moving{port, now, {}};
    for (const std::size_t place : batch.places) moving.blocks.push_back(offered[place]);
    batch.transfer = start(writes_, port, std::ssize(moving.blocks), now, tally_.alone_write);
    ++tally_.stores;
    tally_.written += std::ssize(moving.blocks);
    storing_.emplace(batch.transfer, std::move(moving));
    all.push_back(std::exchange(batch, {}));
    land_stores(now);
  };
  for (std::size_t place = 0; place < offered.size(); ++place) {
    const BlockHash hash = offered[place];
    if (holds(hash)) continue;
    if (!make_room()) {
      start_batch();  // what takes no time can make room for what follows
      if (!make_room()) {
        ++tally_.refused;
        continue;
      }
    }
    take_in(hash, {});
    batch.places.push_back(place);
  }
  start_batch();
  copy_leaving(port, now);
  return all;
}

// From the far end on, so that the beginning stays where not all has room.
void KvTier::keep(int port, std::span<const BlockHash> passed, Time now) {
  count_fill(now);
  std::for_each(passed.rbegin(), passed.rend(), [this](BlockHash hash) {
    if (holds(hash) || !make_room()) return;
    take_in(hash, {.landed = true, .read = true});
    ++tally_.kept;
  });
  copy_leaving(port, now);
  if (below_.tier == nullptr || !below_.tier->write().when_there) return;
  std::vector<BlockHash> here(passed.begin(), passed.end());
  std::erase_if(here, [this](BlockHash hash) { return !has(hash); });
  copy_below(port, std::move(here), now);
}

void KvTier::copy_found(int port, Time now) {
  std::vector<BlockHash>& found = found_[at(port)];
  if (found.empty()) return;
  std::erase_if(found, [this](BlockHash hash) { return !has(hash); });
  copy_below(port, std::exchange(found, {}), now);
}

// Copies blocks that are here to the tier below, as far as it lacks them: in its order, too, the
// newest here makes room last. They are pinned until they are there.
void KvTier::copy_below(int port, std::vector<BlockHash> blocks, Time now) {
  const auto stamp = [this](BlockHash hash) { return blocks_.at(hash).stamp; };
  std::ranges::sort(blocks, std::greater{}, stamp);
  for (const Stored& stored : below_.tier->store(below_.first_port + port, blocks, now)) {
    for (const std::size_t place : stored.places) {
      if (below_.tier->has(blocks[place])) continue;  // a copy that took no time
      ++blocks_.at(blocks[place]).pins;
      copying_below_[stored.transfer].push_back(blocks[place]);
    }
  }
  below_.tier->stamp(blocks);
}

void KvTier::copied(TransferId store_below) {
  const auto pinned = copying_below_.find(store_below);
  if (pinned == copying_below_.end()) return;
  for (const BlockHash hash : pinned->second) --blocks_.at(hash).pins;
  copying_below_.erase(pinned);
}

// Copies what has made room to the tier below, if that takes such blocks.
void KvTier::copy_leaving(int port, Time now) {
  if (leaving_.empty()) return;
  const std::vector<BlockHash> leaving = std::exchange(leaving_, {});
  below_.tier->store(below_.first_port + port, leaving, now);
}

void KvTier::take_in(BlockHash hash, Block block) {
  block.stamp = ++last_stamp_;
  blocks_.emplace(hash, block);
  order_->add(hash);
  if (plan_.eviction->looks_ahead()) order_->next_use(hash, owners_->next(hash));
  tally_.peak = std::max(tally_.peak, resident());
}

bool KvTier::make_room() {
  if (resident() < capacity_) return true;
  const auto victim = order_->victim([this](BlockHash hash) { return pinned(hash); });
  if (!victim) return false;
  if (below_.tier != nullptr && below_.tier->takes_leaving(*victim)) leaving_.push_back(*victim);
  evict(*victim);
  return true;
}

bool KvTier::pinned(BlockHash hash) const {
  const Block& block = blocks_.find(hash)->second;
  return block.pins > 0 || !block.landed;
}

void KvTier::evict(BlockHash hash) {
  const auto block = blocks_.find(hash);
  ++tally_.evicted;
  tally_.dead += block->second.read ? 0 : 1;
  order_->remove(hash);
  blocks_.erase(block);
}

void KvTier::hold_up_loads(int port, Duration length, Time now) {
  tally_.held_up += to_seconds(length);
  reads_.hold_up(port, length, now);
}

void KvTier::hold_up_stores(int port, Bytes others, Time now) {
  if (writes_.idle(port, now) == now) return;
  const Seconds length = others / plan_.write_bandwidth;
  tally_.held_up += length;
  writes_.hold_up(port, to_duration(length), now);
}

Time KvTier::stored_by(TransferId store, Time now) const {
  return storing_.contains(store) ? writes_.end(store) : now;
}

std::optional<Time> KvTier::next() const {
  if (!landed_stores_.empty()) return changed_;
  const std::optional<Time> read = reads_.next(), write = writes_.next();
  if (!read || !write) return read ? read : write;
  return std::min(*read, *write);
}

void KvTier::land(Time now, std::vector<Landed>& landed) {
  std::vector<TransferId> ended;
  reads_.land(now, ended);
  for (const TransferId id : ended) {
    const auto load = loading_.find(id);
    for (const BlockHash hash : load->second.blocks) --blocks_.at(hash).pins;
    tally_.waits.push_back(to_seconds(now - load->second.began).count());
    landed.push_back({load->second.port, true, id});
    loading_.erase(load);
  }
  land_stores(now);
  landed.insert(landed.end(), landed_stores_.begin(), landed_stores_.end());
  landed_stores_.clear();
}

void KvTier::land_stores(Time now) {
  count_fill(now);
  std::vector<TransferId> ended;
  writes_.land(now, ended);
  for (const TransferId id : ended) {
    const auto store = storing_.find(id);
    for (const BlockHash hash : store->second.blocks) blocks_.at(hash).landed = true;
    landed_stores_.push_back({store->second.port, false, id});
    if (below_.tier != nullptr && below_.tier->write().when_there)
      copy_below(store->second.port, store->second.blocks, now);
    storing_.erase(store);
  }
}

void KvTier::count_fill(Time now) {
  tally_.block_seconds += static_cast<double>(resident()) * to_seconds(now - changed_).count();
  changed_ = now;
}

KvTierTally KvTier::tally(Time now) const {
  KvTierTally tally = tally_;
  tally.until = now;
  tally.block_seconds += static_cast<double>(resident()) * to_seconds(now - changed_).count();
  tally.read_busy = reads_.busy(now);
  tally.write_busy = writes_.busy(now);
  return tally;
}

}  // namespace moesim
