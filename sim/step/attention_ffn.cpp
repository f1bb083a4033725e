// SPDX-License-Identifier: Apache-2.0
#include "sim/step/attention_ffn.hpp"

#include "hardware/at.hpp"

namespace moesim {

namespace {

// Work in the order in which it was given to its stage; each piece knows for what it waited.
class Stages {
 public:
  static constexpr int nothing = -1;

  // `after` is what the micro-batch did before. Answers the new piece.
  int add(AfdStage stage, Seconds time, int after) {
    int& last = last_of_[at(static_cast<int>(stage))];
    const int waited = end_of(last) > end_of(after) ? last : after;
    pieces_.push_back({stage, time, end_of(waited) + time, waited});
    last = static_cast<int>(pieces_.size()) - 1;
    return last;
  }

  AfdTimes times() const {
    AfdTimes times;
    int last = nothing;
    for (int i = 0; i < static_cast<int>(pieces_.size()); ++i) {
      const Piece& piece = pieces_[at(i)];
      times.busy[at(static_cast<int>(piece.stage))] += piece.time;
      if (end_of(i) >= end_of(last)) last = i;
    }
    times.total = end_of(last);
    for (int i = last; i != nothing; i = pieces_[at(i)].waited)
      times.critical[at(static_cast<int>(pieces_[at(i)].stage))] += pieces_[at(i)].time;
    return times;
  }

 private:
  struct Piece {
    AfdStage stage;
    Seconds time, end;
    int waited;
  };

  Seconds end_of(int piece) const { return piece == nothing ? Seconds{} : pieces_[at(piece)].end; }

  std::vector<Piece> pieces_;
  std::array<int, 4> last_of_{nothing, nothing, nothing, nothing};
};

}  // namespace

AfdStage afd_stage_of(Part part) {
  switch (part) {
    case Part::dispatch: return AfdStage::dispatch;
    case Part::experts: return AfdStage::ffn;
    case Part::combine: return AfdStage::combine;
    default: return AfdStage::attention;
  }
}

AfdTimes pass_afd(std::span<const AfdChain> micro_batches) {
  Stages stages;
  std::vector<int> at_home(micro_batches.size(), Stages::nothing);
  const std::size_t rounds = micro_batches.empty() ? 0 : micro_batches.front().rounds.size();
  for (std::size_t round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < micro_batches.size(); ++i) {
      const AfdRound& times = micro_batches[i].rounds[round];
      const int left = stages.add(AfdStage::attention, times.attention, at_home[i]);
      stages.add(AfdStage::attention, times.beside, left);
      const int arrived = stages.add(AfdStage::dispatch, times.dispatch, left);
      const int computed = stages.add(AfdStage::ffn, times.ffn, arrived);
      at_home[i] = stages.add(AfdStage::combine, times.combine, computed);
    }
  }
  for (std::size_t i = 0; i < micro_batches.size(); ++i)
    stages.add(AfdStage::attention, micro_batches[i].tail, at_home[i]);
  return stages.times();
}

}  // namespace moesim
