// SPDX-License-Identifier: Apache-2.0
#include "sim/kv_cache/retention.hpp"

namespace moesim {

namespace {

// Retention as ttl with the pause known in advance. Blocks are held until the agent is back if that
// takes no longer than `longest`, and else not at all. A request that is back may wait in the queue
// for as long again. Blocks of an agent that waits for others are not held. A bound: no engine
// knows how long a tool will take.
class AnnouncedRetention final : public Retention {
 public:
  explicit AnnouncedRetention(Seconds longest) : longest_(to_duration(longest)) {}
  std::optional<Time> until(Time now, const NextRequest& next) const override {
    if (next.state != NextRequest::State::due || next.at - now > longest_) return std::nullopt;
    return next.at + longest_;
  }

 private:
  Duration longest_;
};

}  // namespace

std::span<const Key> announced_retention_keys() {
  static constexpr Key keys[] = {
      {"longest", form::time, required, "pause for which blocks are held"}};
  return keys;
}

std::unique_ptr<Retention> make_announced_retention(ConfigReader& options) {
  return std::make_unique<AnnouncedRetention>(options.quantity<Seconds>("longest"));
}

}  // namespace moesim
