// SPDX-License-Identifier: Apache-2.0
#include "sim/requests/requests.hpp"

#include <algorithm>
#include <utility>

namespace moesim {

Requests::Requests(std::int64_t expected) {
  constexpr std::int64_t most_reserved = 1 << 22;
  const auto reserved = at(std::min(expected, most_reserved));
  places_.reserve(reserved);
  lives_.reserve(reserved);
}

RequestRecord& Requests::add() {
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(records_.size()));
    records_.emplace_back();
  }
  places_.push_back(free_.back());
  free_.pop_back();
  lives_.emplace_back();
  return records_[places_.back()];
}

void Requests::left(std::uint32_t id) {
  RequestRecord& record = (*this)[id];
  lives_[id] = static_cast<const RequestLife&>(record);
  generated_tokens_ += record.generated;
  if (record.turn) {
    turns_.resize(std::max(turns_.size(), id + std::size_t{1}));
    turns_[id] = {*record.turn, record.prompt_tokens, record.cached_tokens, record.loaded_tokens,
                  record.loading};
  }
  if (record.state != RequestRecord::State::finished) return;
  record = {};
  free_.push_back(std::exchange(places_[id], gone));
}

}  // namespace moesim
