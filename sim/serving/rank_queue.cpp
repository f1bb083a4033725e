// SPDX-License-Identifier: Apache-2.0
#include "sim/serving/rank_queue.hpp"

#include <algorithm>
#include <utility>

namespace moesim {

void RankQueue::arrive(const Sequence& sequence) {
  waiting_.push_back(sequence);
  ++arrived_;
  blocks_ += wanted(sequence);
}

void RankQueue::put_first(const Sequence& sequence) {
  waiting_.push_front(sequence);
  --gone_;
  ++other_changes_;
  blocks_ += wanted(sequence);
}

void RankQueue::put_in_order(const Sequence& sequence) {
  const auto later = [&](const Sequence& other) { return other.request > sequence.request; };
  waiting_.insert(std::ranges::find_if(waiting_, later), sequence);
  --gone_;
  ++other_changes_;
  blocks_ += wanted(sequence);
}

Sequence RankQueue::take_first() {
  const Sequence sequence = waiting_.front();
  waiting_.pop_front();
  ++gone_;
  blocks_ -= wanted(sequence);
  return sequence;
}

void RankQueue::park(const Parked& parked) {
  parked_.push_back(parked);
  blocks_ += wanted(parked.sequence);
}

std::vector<Parked> RankQueue::take_parked() {
  for (const Parked& parked : parked_) blocks_ -= wanted(parked.sequence);
  return std::exchange(parked_, {});
}

bool RankQueue::give_up_last(const std::function<void(Sequence&)>& let_go) {
  const auto holds = [](const Sequence& sequence) { return sequence.blocks > 0; };
  const auto last = std::find_if(waiting_.rbegin(), waiting_.rend(), holds);
  if (last == waiting_.rend()) return false;
  blocks_ -= wanted(*last);
  let_go(*last);
  blocks_ += wanted(*last);
  ++other_changes_;
  return true;
}

void RankQueue::drop(const std::function<bool(const Sequence&)>& gone,
                     const std::function<void(Sequence&)>& let_go) {
  const auto drop = [&](Sequence& sequence) {
    blocks_ -= wanted(sequence);
    let_go(sequence);
  };
  const auto parked_gone = [&](const Parked& parked) {
    return parked.loads == 0 && gone(parked.sequence);
  };
  for (Sequence& sequence : waiting_)
    if (gone(sequence)) drop(sequence);
  for (Parked& parked : parked_)
    if (parked_gone(parked)) drop(parked.sequence);
  gone_ += static_cast<std::int64_t>(std::erase_if(waiting_, gone));
  std::erase_if(parked_, parked_gone);
}

void RankQueue::clear() {
  gone_ += std::ssize(waiting_);
  waiting_.clear();
  blocks_ = 0;
}

void RankQueue::pass_step(bool looks, std::size_t steps) {
  known_.push_back(looks ? arrived_ : last_known());
  while (known_.size() > steps + 1) known_.pop_front();
}

std::size_t RankQueue::received() const {
  const std::int64_t known = known_.empty() ? arrived_ : known_.front();
  const auto received = at(std::max<std::int64_t>(known - gone_, 0));
  return std::min(received, waiting_.size());
}

// Most steps change nothing here, and a queue may be long.
std::span<const Sequence> RankQueue::show(std::size_t seats) {
  const Shown shown{arrived_, gone_, other_changes_, std::min(seats, received())};
  if (std::exchange(shown_at_, shown) != shown) {
    shown_.assign(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(shown.visible));
  }
  return shown_;
}

void RankQueue::reorder(const std::function<void(std::vector<Sequence>&)>& order) {
  ordered_.assign(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(received()));
  order(ordered_);
  std::ranges::copy(ordered_, waiting_.begin());
  ++other_changes_;
}

}  // namespace moesim
