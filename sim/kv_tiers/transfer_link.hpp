// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "hardware/units.hpp"

namespace moesim {

/// How transfers that are under way together share their port.
enum class LinkShare {
  fifo,  ///< one after the other, in order of their start (one stream, as vLLM)
  equal  ///< each of n has the n-th part
};
inline constexpr std::array<std::string_view, 2> link_share_names{"fifo", "equal"};

/// Names a transfer on its link: numbers in order of their start.
using TransferId = std::uint64_t;

/// A direction between ranks and a memory below HBM. Each rank has a port of its own. A transfer of
/// b bytes in n pieces that has its port to itself takes latency + n piece_time + b / rate. Those
/// times of transfers that share a port add up.
class TransferLink {
 public:
  struct Rates {
    BytesPerSecond port{};                ///< of one port, above 0
    std::optional<BytesPerSecond> all{};  ///< of all ports together, each active one an equal part
    Seconds latency{};                    ///< before the first byte
    Seconds piece_time{};                 ///< before the first byte of each contiguous piece
  };
  TransferLink(LinkShare, const Rates&, int ports);

  /// Begins a transfer. `now` never decreases.
  TransferId start(int port, Bytes, Time now, double pieces = 1);
  /// Time of a transfer at the full rate of its port.
  Seconds alone(Bytes, double pieces) const;
  /// When the next transfer ends if none begins before; nothing if none is under way.
  std::optional<Time> next() const;
  /// When a transfer under way ends if none begins before.
  Time end(TransferId) const;
  /// When a port has carried all that is under way if nothing else begins; `now` if nothing is.
  Time idle(int port, Time now) const;
  /// Whatever is under way on a port stands still for so long, from `now` on.
  void hold_up(int port, Duration, Time now);
  /// Appends the transfers that have ended by `now`, in order of (end, id).
  void land(Time now, std::vector<TransferId>& landed);

  bool idle() const { return under_way_.empty(); }
  /// Bytes of all transfers that began.
  Bytes bytes() const { return bytes_; }
  /// Time in which something was under way, summed over ports, until `now`.
  Seconds busy(Time now) const;

 private:
  struct Transfer {
    TransferId id = 0;
    int port = 0;
    double left = 0;  // bytes, times before them as bytes of the port's rate
    double rate = 0;  // bytes per second; 0: waits behind others
    Time end{};
  };
  Seconds before(double pieces) const { return rates_.latency + pieces * rates_.piece_time; }
  void move_to(Time now);
  void share_out();

  LinkShare share_;
  Rates rates_;
  std::vector<Transfer> under_way_;  // in order of their start
  std::vector<int> on_port_;         // how many
  int active_ports_ = 0;
  TransferId next_id_ = 0;
  Time at_{};
  Bytes bytes_{};
  Duration busy_{};
};

}  // namespace moesim
