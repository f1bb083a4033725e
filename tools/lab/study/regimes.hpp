// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sim/gain/gain.hpp"
#include "sim/step/step_record.hpp"
#include "tools/lab/study/regime_study.hpp"

namespace moesim {

/// A policy at a ratio behind an exchange, in steps of one size.
struct RegimeRow {
  RegimePlace place;
  StepKind kind = StepKind::decode;
  double replication = 1;  ///< as built: whole slots
  int batch = 0;           ///< tokens of the step
  double x = 0;            ///< tokens * k / experts: selections per expert
  /// Values by sample, of steps and of the GPU with the most activated slots (means over MoE
  /// layers). A cut expert's slot holds a part of the expert, so bytes are what policies share.
  std::vector<double> ms, activated, read_mb;
  /// Step times by sample of policies that decide by the counts of all GPUs. Deciding takes no
  /// time, as long as published, or as long as a comparable kernel of today. Others: empty.
  std::vector<double> free_ms{}, published_ms{}, fast_ms{};
  std::vector<double> off_ms{};  ///< step times on hardware that could as well be true, or none
  double kv_tokens = 0;          ///< that HBM has room for, all ranks
  bool fits = true;              ///< the batch's own KV does
  int layers = 0;                ///< MoE layers of a step
  bool by_global_counts() const { return !free_ms.empty(); }
  Sampled steps() const { return {ms, off_ms}; }
};
/// The mean of samples, at least one.
double mean_of(const std::vector<double>&);
/// The rows of done points by case, constants, kind and batch; points that could not be priced are
/// left out. Throws ConfigError where an older program wrote the store.
std::vector<RegimeRow> regime_rows(const RegimeStudy&, const StoredSweep&);

/// A cell of the map: which policy's step is shortest, each behind its best exchange.
struct RegimeCell {
  const RegimeRow* fastest = nullptr;
  /// The row with the most KV cache whose step is shorter than the fastest's with P >= .05: what to
  /// deploy.
  const RegimeRow* cheapest = nullptr;
  const RegimeRow* reference = nullptr;  ///< the fastest of the study's first policy
  const RegimeRow* metro = nullptr;      ///< the fastest of policies called metro..., if any
};
/// A cell per case, constants, kind and batch that has a reference. Points into `rows`.
std::vector<RegimeCell> regime_map(const RegimeStudy&, const std::vector<RegimeRow>& rows);
/// The worlds that a study's samples are one of.
Worlds worlds_of(const RegimeStudy&);

/// Time that a policy may take to decide, and still pay.
struct BreakEven {
  const RegimeRow* policy = nullptr;  ///< at the ratio and exchange that leave the most time
  const RegimeRow* rival = nullptr;   ///< a row that needs no counts of all GPUs
  /// In the mean, for each MoE layer; below 0 the policy does not pay though it decides in no time.
  double us = 0;
  /// P(the policy's step is shorter than the rival's) if deciding takes as long as published, and
  /// as long as a kernel of today.
  double p_published = 0, p_fast = 0;
};
/// Break-even times for each cell, each of two rivals and each policy by global counts, in the
/// study's order. Rivals are the reference and the fastest, if that is another row.
///   us = (rival's step - policy's step if it decides in no time) / MoE layers, on paired batches.
/// Rows whose batch does not fit are left out. Points into `rows`.
std::vector<BreakEven> break_even(const RegimeStudy&, const std::vector<RegimeRow>& rows);

/// Who is fastest in a cell under one assumption. A family are the policies whose names begin with
/// the same word ("ep 1", "ep 4").
struct RegimeView {
  std::size_t constants = 0;
  /// Behind which exchange all policies run; none: each behind its best.
  std::optional<std::size_t> exchange;
  const RegimeRow* fastest = nullptr;
  const RegimeRow* reference = nullptr;
  /// Share of worlds in which a family has the shortest step; families that tie share a world.
  std::map<std::string, double> p_fastest;
};
/// A family, and P that it is the fastest in the view that says least for it.
struct FastestFamily {
  std::string family;
  double p = 0;
};
/// The family that has most; views are at least one.
FastestFamily fastest_family(const std::vector<RegimeView>& views);
/// Views of a case on one batch, under every set of constants. There each policy is behind its best
/// exchange, or all are behind one that every policy can use. Points into `rows`.
std::vector<std::vector<RegimeView>> regime_views(const RegimeStudy&,
                                                  const std::vector<RegimeRow>& rows);
/// The first word of a policy's name.
std::string family_of(const RegimeStudy&, const RegimeRow&);

}  // namespace moesim
