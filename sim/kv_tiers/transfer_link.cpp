// SPDX-License-Identifier: Apache-2.0
#include "sim/kv_tiers/transfer_link.hpp"

#include <algorithm>

namespace moesim {

TransferLink::TransferLink(LinkShare share, const Rates& rates, int ports)
    : share_(share), rates_(rates), on_port_(at(ports)) {
  check(rates.port > BytesPerSecond(0), "a link without bandwidth");
}

TransferId TransferLink::start(int port, Bytes bytes, Time now, double pieces) {
  move_to(now);
  bytes_ += bytes;
  const double waits = before(pieces).count() * rates_.port.value();
  under_way_.push_back({next_id_, port, bytes.value() + waits, 0, now});
  if (on_port_[at(port)]++ == 0) ++active_ports_;
  share_out();
  return next_id_++;
}

Seconds TransferLink::alone(Bytes bytes, double pieces) const {
  return bytes / rates_.port + before(pieces);
}

std::optional<Time> TransferLink::next() const {
  if (under_way_.empty()) return std::nullopt;
  return std::ranges::min(under_way_, {}, &Transfer::end).end;
}

Time TransferLink::end(TransferId id) const {
  const auto found = std::ranges::find(under_way_, id, &Transfer::id);
  check(found != under_way_.end(), "a transfer that is not under way");
  return found->end;
}

Time TransferLink::idle(int port, Time now) const {
  for (const Transfer& transfer : under_way_) {
    if (transfer.port == port) now = std::max(now, transfer.end);
  }
  return now;
}

void TransferLink::hold_up(int port, Duration length, Time now) {
  move_to(now);
  for (Transfer& transfer : under_way_) {
    if (transfer.port == port) transfer.left += transfer.rate * to_seconds(length).count();
  }
  share_out();
}

void TransferLink::land(Time now, std::vector<TransferId>& landed) {
  while (!under_way_.empty()) {
    const auto first = std::ranges::min_element(under_way_, {}, &Transfer::end);
    if (first->end > now) break;
    move_to(std::max(first->end, at_));
    landed.push_back(first->id);
    if (--on_port_[at(first->port)] == 0) --active_ports_;
    under_way_.erase(first);
    share_out();
  }
  move_to(now);
}

Seconds TransferLink::busy(Time now) const {
  return to_seconds(busy_ + (now - at_) * active_ports_);
}

void TransferLink::move_to(Time now) {
  check(now >= at_, "a link goes back in time");
  const double seconds = to_seconds(now - at_).count();
  busy_ += (now - at_) * active_ports_;
  at_ = now;
  for (Transfer& transfer : under_way_)
    transfer.left = std::max(0.0, transfer.left - transfer.rate * seconds);
}

namespace {

// Beyond what a run can last: a caller refuses it before the clock comes there.
constexpr Seconds never{8.9e6};

Time after(Time begin, Seconds length) {
  if (to_seconds(begin) + length > never) return Time{} + to_duration(never);
  return begin + to_duration(length);
}

}  // namespace

// Sets the rate of each transfer, and when it ends at that. Equal parts are those of its port, or
// of all ports where these have less. In a queue the first of each port goes; those behind follow.
void TransferLink::share_out() {
  const auto count = share_ == LinkShare::equal ? under_way_.size() : at(active_ports_);
  const double most =
      rates_.all ? rates_.all->value() / static_cast<double>(count) : rates_.port.value();
  std::vector<Time> free(on_port_.size(), at_);
  std::vector<bool> taken(on_port_.size());
  for (Transfer& transfer : under_way_) {
    const auto port = at(transfer.port);
    const double part = share_ == LinkShare::equal ? on_port_[port] : 1;
    const double rate = std::min(rates_.port.value() / part, most);
    transfer.end = after(free[port], Seconds(transfer.left / rate));
    transfer.rate = share_ == LinkShare::equal || !taken[port] ? rate : 0;
    if (share_ == LinkShare::equal) continue;
    taken[port] = true;
    free[port] = transfer.end;
  }
}

}  // namespace moesim
