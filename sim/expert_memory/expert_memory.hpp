// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hardware/registry.hpp"
#include "hardware/units.hpp"

namespace moesim {

/// Which expert slots, keys 0..keys-1, stand in a memory that has room for fewer.
class ExpertCache {
 public:
  struct Admission {
    bool admitted = false;
    int evicted = -1;  ///< the key that made room; -1 if there was some
  };

  virtual ~ExpertCache() = default;
  virtual bool holds(int key) const = 0;
  /// An expert runs, whether it is held or not.
  virtual void use(int key) = 0;
  /// Takes in a key that is not held. Keys with pinned[key] do not make room for it; an empty
  /// `pinned` pins no key.
  virtual Admission admit(int key, std::span<const std::uint8_t> pinned) = 0;
};

/// Decides which experts stay in a memory that does not hold them all. Pure; its caches have state.
class ExpertMemory {
 public:
  virtual ~ExpertMemory() = default;
  /// True if all experts are in HBM: then there is no memory below it, and no cache.
  virtual bool resident() const { return false; }
  /// An empty cache: capacity >= 1.
  virtual std::unique_ptr<ExpertCache> cache(int keys, int capacity) const = 0;
};

/// The table: resident, lru, lfu_aging, static_hot.
const Registry<ExpertMemory>& expert_memories();

/// Foresees which slots of one GPU run next. State of one GPU.
class Predictor {
 public:
  virtual ~Predictor() = default;
  /// A layer ran with `tokens` on each of its slots.
  virtual void ran(int layer, std::span<const std::int32_t> tokens) = 0;
  /// Writes the slots of a layer that are expected to run next, the most likely first. `coming` is
  /// what will run, when the step under way has already chosen it, or empty: only a simulator can
  /// look there. Ties: lowest slot.
  virtual void predict(int layer, std::span<const std::int32_t> coming,
                       std::vector<int>& slots) = 0;
};

/// Chooses what is fetched before it is needed. Pure; its predictors have state.
class Prefetch {
 public:
  virtual ~Prefetch() = default;
  /// A predictor of layers with so many slots.
  virtual std::unique_ptr<Predictor> predictor(std::span<const int> slots_of_layer,
                                               std::uint64_t seed) const = 0;
};

/// The table: none, history, popularity, oracle.
const Registry<Prefetch>& prefetches();

/// A way from one memory to the next faster one: one transfer at a time,
/// latency + bytes / bandwidth.
struct MemoryLink {
  Seconds latency{};
  BytesPerSecond bandwidth{};
  std::string source;
  Seconds time(Bytes bytes) const { return latency + bytes / bandwidth; }
};

/// The memories below HBM, per GPU.
struct ExpertMemoryPlan {
  std::string type;
  std::shared_ptr<const ExpertMemory> policy;
  std::shared_ptr<const Prefetch> prefetch;
  /// Slots of HBM that hold experts: of each MoE layer, or of all layers together.
  int slots = 0;
  /// True if `slots` are of each MoE layer apart.
  bool per_layer = false;
  /// How many layers ahead experts are fetched.
  int lookahead = 1;
  /// From DRAM to HBM.
  MemoryLink host;
  struct Nvme {
    /// Slots of DRAM over all layers; experts beyond them are read from NVMe into DRAM first.
    int dram_slots = 0;
    /// From NVMe to DRAM.
    MemoryLink link;
  };
  std::optional<Nvme> nvme;

  /// Slots of HBM taken by a GPU that owns `owned` slots over `layers`: the cached ones, and one
  /// through which the others stream.
  double slots_in_hbm(double owned, double layers) const;
};

/// "expert_memory": "resident", or {"type", "slots_per_gpu" | "slots_per_layer", "host":
/// {"bandwidth", "latency", "source"}, "prefetch": "none", "lookahead": 1, "nvme":
/// {"dram_slots_per_gpu", "bandwidth", "latency", "source"}}. Nothing if every expert stays in HBM.
/// Throws ConfigError.
std::optional<ExpertMemoryPlan> read_expert_memory(const ConfigNode&, const Registry<ExpertMemory>&,
                                                   const Registry<Prefetch>&);
std::span<const Key> expert_memory_keys();

}  // namespace moesim
