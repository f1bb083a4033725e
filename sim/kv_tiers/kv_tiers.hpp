// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hardware/registry.hpp"
#include "hardware/units.hpp"
#include "sim/kv_tiers/transfer_link.hpp"
#include "traces/requests/request_source.hpp"

namespace moesim {

/// Names a KV block by its tokens and all tokens before them.
using BlockHash = std::uint64_t;

/// The order in which the blocks of one tier make room. State of that tier.
class TierOrder {
 public:
  virtual ~TierOrder() = default;
  /// A block is stored that is not held yet.
  virtual void add(BlockHash) = 0;
  /// A request finds a block that is held, or one that is held stands in a prompt whose blocks
  /// come.
  virtual void use(BlockHash) = 0;
  /// When a block that is held is needed next; told only to orders of a policy that looks_ahead().
  /// Until then, never.
  virtual void next_use(BlockHash, const NextRequest&) {}
  /// A block leaves.
  virtual void remove(BlockHash) = 0;
  /// The block to evict next, of those that are not pinned; nothing if all are.
  virtual std::optional<BlockHash> victim(const std::function<bool(BlockHash)>& pinned) const = 0;
};

/// Decides which block of a full tier makes room. Pure; its orders have state.
class TierEviction {
 public:
  virtual ~TierEviction() = default;
  /// The order of an empty tier.
  virtual std::unique_ptr<TierOrder> order() const = 0;
  /// True if its orders are told when sessions need their blocks next.
  virtual bool looks_ahead() const { return false; }
};

/// Moments at which a block of the memory above, HBM or a nearer tier, is copied to a tier that
/// lacks it.
struct TierWrite {
  bool when_there = false;  ///< just computed, or landed above; again when a request finds it there
  bool when_taken = false;  ///< about to be taken for other tokens
  bool live_only = false;   ///< when_taken: if an agent of a session has it that asks again
};

/// The table: lru, steps_to_use, oracle.
const Registry<TierEviction>& tier_evictions();
/// The table: write_through, write_back, live.
const Registry<TierWrite>& tier_writes();

/// Who shares a tier.
enum class TierScope { rank, node, cluster };
inline constexpr std::array<std::string_view, 3> tier_scope_names{"rank", "node", "cluster"};

/// Tiers below each other, at most: host memory, a disk, a pool.
inline constexpr std::size_t most_tiers = 3;
/// Something of each tier below the first, nearest first.
template <class T>
using OfLowerTiers = std::array<T, most_tiers - 1>;

/// How what a tier below the first has comes to HBM.
enum class TierPath {
  staged,  ///< through the first tier, over its link too, and stays there
  direct   ///< over its own link alone
};
inline constexpr std::array<std::string_view, 2> tier_path_names{"staged", "direct"};

/// Units of a block that lie together in both memories, and move as one piece.
enum class TierPieces {
  layer,  ///< what a layer keeps in one array: its keys, its values, its latent vectors
  block   ///< all layers (vLLM from 0.12 on)
};
inline constexpr std::array<std::string_view, 2> tier_pieces_names{"layer", "block"};

/// Who waits for blocks on their way from a tier to HBM.
enum class TierRead {
  parked,    ///< their request alone; steps go on without it (vLLM)
  blocking,  ///< the step that computes the request, so all ranks of its EP group
  layerwise  ///< that step, which computes a layer when the layer's blocks are there (SGLang)
};
inline constexpr std::array<std::string_view, 3> tier_read_names{"parked", "blocking", "layerwise"};

/// Which of the blocks that a tier has are loaded; the others are computed.
enum class TierFetch {
  all,        ///< all
  if_shorter  ///< those of hits that take longer to compute than to load: break_even_blocks()
};
inline constexpr std::array<std::string_view, 2> tier_fetch_names{"all", "if_shorter"};

/// The fewest blocks that are loaded sooner than computed: n with latency + n load < n compute.
/// Nothing if no number is: load >= compute.
std::optional<std::int64_t> break_even_blocks(Seconds latency, Seconds load, Seconds compute);

/// A memory below HBM that keeps blocks of the KV cache.
struct KvTierPlan {
  std::string name = "host";
  std::size_t place = 0;  ///< in the config's list
  TierScope per = TierScope::rank;
  TierPath path = TierPath::staged;
  Bytes capacity{};                ///< over all of `per`, ranks' shards together; or ...
  std::optional<double> of_hbm{};  ///< ... in KV caches of the HBM of all ranks of `per`
  /// Rates of the link of one GPU: each moves its own shard.
  BytesPerSecond bandwidth{}, write_bandwidth{};
  std::optional<BytesPerSecond> aggregate_bandwidth{};  ///< of all links of `per`, one direction
  Seconds latency{};
  Seconds piece_time{};  ///< of each piece, beside its bytes
  TierPieces pieces = TierPieces::layer;
  LinkShare share = LinkShare::fifo;
  std::shared_ptr<const TierEviction> eviction;
  std::shared_ptr<const TierWrite> write;
};

/// Pieces that move a block of which each layer's arrays lie in so many.
double pieces_of_block(const KvTierPlan&, double of_layers);
/// Time of a load on one GPU's link, with nothing else on any link and without the latency.
Seconds load_time(const KvTierPlan&, Bytes, double pieces);

/// "kv_cache/tiers", nearest first, at most `most_tiers`. `host_link` is what the GPU's data sheet
/// gives one direction of its link to the host, which is the first tier's. A tier without capacity
/// is none. Throws ConfigError.
std::vector<KvTierPlan> read_kv_tiers(const ConfigNode&, const Registry<TierEviction>&,
                                      const Registry<TierWrite>&, BytesPerSecond host_link);
std::span<const Key> kv_tier_keys();

/// Share of the sheet's host link that copies of KV blocks reach where a config does not say.
/// Pinned copies measured on PCIe 5.0 x16 reach 50 to 54 of 63 GB/s.
inline constexpr double host_link_share = 0.85;

}  // namespace moesim
