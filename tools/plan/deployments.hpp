// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hardware/fabric.hpp"
#include "models/deployment.hpp"
#include "models/moe_model.hpp"
#include "tools/cli/serving_question.hpp"
#include "tools/sweep/tune.hpp"

namespace moesim {

/// Layouts that are looked at: TP x DP x PP with whole experts or experts cut over all GPUs. `all`
/// has these and
///  - each with the KV cache shared by tokens over the most GPUs that can (DCP), and over half as
///    many;
///  - each with experts cut over some of the GPUs;
///  - a quarter, half or three quarters of a group's GPUs for experts alone (AFD);
///  - each with every GPU of a rank at tokens of a prompt of its own (PCP);
///  - experts and their exchange in one kernel (MegaMoE), where that was measured.
enum class Layouts { usual, all };

/// How the tokens of a group travel to their experts, where plan chooses.
enum class Travel {
  as_engine,   ///< as the engine does unless it is told otherwise
  deep_ep,     ///< prompts by the all-to-all, single tokens straight to each expert
  all_to_all,  ///< both by the all-to-all
  mega_moe     ///< in the experts' kernel
};

/// EP groups alike.
struct PlannedGroup {
  ParallelPlan parallel{};
  int instances = 1;
  Travel travel = Travel::as_engine;
  bool operator==(const PlannedGroup&) const = default;
};

/// max_num_seqs where plan chooses none.

/// Choices of plan for a deployment. The experiment that the choices are put into says the rest.
struct PlannedDeployment {
  std::optional<PlannedGroup> prefill{};  ///< prefills apart; none: one pool does both
  PlannedGroup decode{};                  ///< what decodes, or does both
  double replication = 1;                 ///< copies of what decodes, slots per expert
  bool metro = false;                     ///< decodes are routed by METRO, over an all-gather
  int chunk = usual_chunk;                ///< max_num_batched_tokens of what prefills
  int sequences = usual_sequences;        ///< max_num_seqs of what decodes
  int drafts = 0;                         ///< of a sequence and step
  bool operator==(const PlannedDeployment&) const = default;

  /// True if prefill and decode have pools of their own.
  bool apart() const { return prefill.has_value(); }
  /// True if it is one of those that people try first. That is tensor parallelism with or without
  /// expert parallelism over the same GPUs, one pipeline stage, any number of instances.
  bool plain() const;
  /// "2 x dp8 ep8", "prefill 4 x tp2, decode dp8 ep8 pp2"; with AFD "dp4 ffn4"
  std::string shape() const;
  /// "metro", or the engine's own "even" and how tokens travel: "even+DeepEP"
  std::string routing() const;
  /// "3 drafts", "no drafts"
  std::string drafts_text() const;
};

/// The experiment with these choices, in place of those that it holds. It has a base_deployment()
/// for its origin.
Json with_choices(Json experiment, const PlannedDeployment&);
/// The choices that such an experiment holds; of a base_deployment() chunk, sequences and drafts.
PlannedDeployment choices_in(const Json& experiment);

/// Every layout x instances that fills the cluster with groups alike, each under every dispatch
/// that makes a difference; in all else `like` this one. Not all fit in memory. Groups of a power
/// of two GPUs may leave some of at most 16 idle.
std::vector<PlannedDeployment> shapes(const PlannedDeployment& like, const MoeModel&,
                                      const ClusterSpec&, Layouts = Layouts::usual);

/// Deployments of these whose layouts the experiment's engine can start with the model in these
/// precisions; all of Layouts::all.
std::vector<PlannedDeployment> startable(std::vector<PlannedDeployment>, const Json& experiment,
                                         const MoeModel&, const PrecisionPlan&, Layouts);

/// A shape, and what its steps alone allow.
struct BoundedShape {
  PlannedDeployment shape;
  TuneBound bound;
};
/// Deployments with prefill and decode apart: the shapes that are best at each by their bounds per
/// GPU, in the numbers that balance them. Prefill has the best few of each depth of pipeline, and a
/// small one. Those that decode are also one group that takes all GPUs that are left.
std::vector<PlannedDeployment> pools(const std::vector<BoundedShape>&, const MoeModel&,
                                     const ClusterSpec&);

/// The deployment and its like with copies of experts, and policies that make use of copies.
std::vector<PlannedDeployment> with_copies(const PlannedDeployment&, const MoeModel&);
/// The deployment and its like with other sizes of a step's chunk.
std::vector<PlannedDeployment> with_chunks(const PlannedDeployment&);
/// The deployment and its like with fewer drafts for each sequence and step, and with none; itself
/// alone where none are asked for.
std::vector<PlannedDeployment> with_drafts(const PlannedDeployment&);
/// The deployment and its like with other layouts, of as many GPUs, of what prefills; itself alone
/// where nothing prefills apart. Of all layouts also those with PCP.
std::vector<PlannedDeployment> with_prefill_layouts(const PlannedDeployment&, const MoeModel&,
                                                    const ClusterSpec&, Layouts);
/// The deployment and its like with experts and their exchange in one kernel: of what prefills
/// apart, and of both. Whether a table has the kernel is not looked at.
std::vector<PlannedDeployment> with_one_kernel(const PlannedDeployment&);
/// The deployment and its like with other limits on sequences, up to what the KV cache has room
/// for.
std::vector<PlannedDeployment> with_sequences(const PlannedDeployment&, std::int64_t room);

}  // namespace moesim
