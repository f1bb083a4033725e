// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

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
  double kv_tokens = 0;  ///< that HBM has room for, all ranks
  bool fits = true;      ///< the batch's own KV does
  int layers = 0;        ///< MoE layers of a step
  bool by_global_counts() const { return !free_ms.empty(); }
};
/// The mean of samples, at least one.
double mean_of(const std::vector<double>&);
/// The rows of done points by case, constants, kind and batch; points that could not be priced are
/// left out. Throws ConfigError where an older program wrote the store.
std::vector<RegimeRow> regime_rows(const RegimeStudy&, const StoredSweep&);

/// A difference in percent of the second's mean, on paired samples, and half its 95 % interval.
struct PairedGain {
  double percent = 0, margin = 0;
};
PairedGain paired_gain(const std::vector<double>& of, const std::vector<double>& against);

/// A cell of the map: which policy's step is shortest, each behind its best exchange.
struct RegimeCell {
  const RegimeRow* fastest = nullptr;
  /// The row with the most KV cache whose step time does not differ from the fastest's by more than
  /// the interval: what to deploy.
  const RegimeRow* cheapest = nullptr;
  const RegimeRow* reference = nullptr;  ///< the fastest of the study's first policy
  const RegimeRow* metro = nullptr;      ///< the fastest of policies called metro..., if any
};
/// A cell per case, constants, kind and batch that has a reference. Points into `rows`.
std::vector<RegimeCell> regime_map(const RegimeStudy&, const std::vector<RegimeRow>& rows);

/// Time that a policy may take to decide, and still pay.
struct BreakEven {
  const RegimeRow* policy = nullptr;  ///< at the ratio and exchange that leave the most time
  const RegimeRow* rival = nullptr;   ///< a row that needs no counts of all GPUs
  /// In the mean, for each MoE layer, and half its 95 % interval; below 0 the policy does not pay
  /// though it decides in no time.
  double us = 0, margin = 0;
  /// Time of deciding for each MoE layer, as published and by a kernel of today.
  double published_us = 0, fast_us = 0;
  /// True if the policy pays with either kernel, false with neither, else unset. (Published times
  /// are scaled by the active experts and can be the shorter ones.)
  std::optional<bool> pays() const;
  /// True if the policy pays with the kernel of today.
  bool pays_fast() const { return us - margin > fast_us; }
};
/// Break-even times for each cell, each of two rivals and each policy by global counts, in the
/// study's order. Rivals are the reference and the fastest, if that is another row.
///   us = (rival's step - policy's step if it decides in no time) / MoE layers, on paired batches.
/// Rows whose batch does not fit are left out. Points into `rows`.
std::vector<BreakEven> break_even(const RegimeStudy&, const std::vector<RegimeRow>& rows);

/// Who is fastest in a cell under one assumption.
struct RegimeView {
  std::size_t constants = 0;
  /// Behind which exchange all policies run; none: each behind its best.
  std::optional<std::size_t> exchange;
  const RegimeRow* fastest = nullptr;
  const RegimeRow* reference = nullptr;
  /// Families within the interval of the fastest or within 1 % of it, which nobody would notice.
  /// A family are the policies whose names begin with the same word ("ep 1", "ep 4").
  std::vector<std::string> as_fast;
};
/// Verdict of a case on one batch, whatever is assumed.
struct RegimeVerdict {
  std::vector<RegimeView> views;
  /// The family that is as fast as the fastest in every view; of several the reference's, then the
  /// one that is the fastest most often. None: the answer is open, it depends on the view.
  std::optional<std::string> family;
};
/// The first word of a policy's name.
std::string family_of(const RegimeStudy&, const RegimeRow&);
/// A verdict per case, kind and batch. Views are every set of constants, each policy behind its
/// best exchange and all behind each exchange that every policy can use. Points into `rows`.
std::vector<RegimeVerdict> regime_verdicts(const RegimeStudy&, const std::vector<RegimeRow>& rows);

}  // namespace moesim
