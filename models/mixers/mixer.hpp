// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/operations.hpp"
#include "models/sequence_work.hpp"

namespace moesim {

/// Share of one GPU of a layer's mixer as it is deployed. Refers to what it was made of.
struct MixerShard {
  int hidden;
  const ParallelPlan& plan;
  const PrecisionPlan& precision;
  const GpuSpec& gpu;
};

/// Bytes that a layer keeps of a sequence on one GPU.
struct Kept {
  double elements = 0;      ///< numbers of the KV cache for each token that the mixer's Sight holds
  double bytes = 0;         ///< of these numbers
  double index_bytes = 0;   ///< of the keys of an indexer for each token, beside them
  double state_bytes = 0;   ///< of a state, whatever the sequence's length
  double state_tokens = 0;  ///< last tokens that a state is of; 0: of all (recurrent)
  /// Tokens that share an entry of the KV cache. Layers with several have pages as small as their
  /// entries are few.
  int tokens_of_entry = 1;
  /// Contiguous pieces in which the tokens of one block lie: one for each array that engines keep
  /// for the layer. So there are two where keys and values lie apart, one more with an indexer.
  double pieces = 0;
};

/// How queries meet the KV cache of a layer.
struct CacheHeads {
  int kv_heads = 0;           ///< of the cache, over all GPUs; 0: no cache that queries read whole
  double queries = 0;         ///< query heads of one GPU
  double query_numbers = 0;   ///< of a head's query, in bf16
  double output_numbers = 0;  ///< of a head's output behind the cache, in bf16
};

/// A matrix of a mixer, by the name that most files have for it below the mixer's.
struct MixerMatrix {
  std::string_view name;
  double parameters = 0;
};

/// Kernels that the host launches for a layer's mixer in a step with prompts. They are products,
/// whose inputs may be quantised by a kernel each, and others. Norms before and behind the mixer
/// are left out.
struct Launches {
  double products = 0, others = 0;
};

/// Mixer of the tokens of a sequence in one layer: attention of some kind, or a recurrence. A
/// value: what is made is complete, and the same for every step. A kind is one file of this folder
/// and a row of mixers.cpp. Functions whose plan has tp > 1 answer for one of tp GPUs.
class Mixer {
 public:
  virtual ~Mixer() = default;
  virtual bool operator==(const Mixer&) const = 0;

  /// Why it contradicts itself, or cannot be cut over `tp` GPUs ("tp 3 does not divide ...");
  /// empty: nothing speaks against it.
  virtual std::string fault() const { return {}; }
  virtual std::string cut_fault(int tp) const = 0;
  /// Returns the same in a layer that sees less. It is under a window, or without the choice of an
  /// indexer (`sight.top` is then 0). Or it has the choice of another layer (`sight.indexed` is
  /// then false), or entries of `sight.ratio` tokens.
  virtual std::shared_ptr<const Mixer> in_layer(const Sight& sight) const = 0;

  /// True if a token waits for the token before: for a state that passes from one to the next.
  virtual bool recurrent() const { return false; }
  /// Which tokens stay in the KV cache, and are attended to.
  virtual Sight sight() const { return {}; }
  virtual CacheHeads cache_heads(int /*tp*/) const { return {}; }
  virtual double parameters(int hidden, const ParallelPlan&) const = 0;
  /// Its matrices, whole: nearly all of its parameters.
  virtual std::vector<MixerMatrix> matrices(int hidden) const {
    return {{"proj", parameters(hidden, {})}};
  }
  virtual Kept kept(const ParallelPlan&, const PrecisionPlan&) const = 0;

  /// The operations of one layer for a rank with `tokens` new tokens, in three parts, each appended
  /// to `out`; no tokens append nothing. First what depends on the tokens alone: the norm before,
  /// the projections, the rows of the KV cache.
  virtual void input(const MixerShard&, double tokens, std::vector<Operation>& out) const = 0;
  /// Between the two, what depends on the queries that decode alone; nothing in most kinds.
  virtual bool absorbs() const { return false; }
  virtual void absorption(const MixerShard&, double /*queries*/, std::vector<Operation>&) const {}
  /// Second what depends on every sequence's length.
  virtual void core(const MixerShard&, const RankSequences&, std::vector<Operation>& out) const = 0;
  /// Third the projection of the output and the norm behind it. The TP all-reduce between the two
  /// is the caller's (it needs the fabric).
  virtual void output(const MixerShard&, double tokens, std::vector<Operation>& out) const = 0;
  /// GPUs that share the heads add the squares of queries and keys between input and core.
  virtual bool joint_norm() const { return false; }

  /// Launches of the whole layer. `rope_apart`: the rotary embedding is a kernel of its own.
  virtual Launches launches(bool rope_apart) const = 0;
};
using MixerPtr = std::shared_ptr<const Mixer>;

}  // namespace moesim
