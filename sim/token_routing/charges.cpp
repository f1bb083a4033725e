// SPDX-License-Identifier: Apache-2.0
#include "sim/token_routing/charges.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <fmt/format.h>

#include "hardware/choice.hpp"

namespace moesim {

namespace {

using namespace std::chrono_literals;

constexpr std::array<std::string_view, 4> routing_charge_names{"measured", "fast", "none",
                                                               "by_candidates"};

std::span<const Key> charge_keys() {
  static constexpr Key keys[] = {
      {"fixed", form::time, "0 us", "per layer"},
      {"per_128_active", form::time, "0 us", "per layer and 128 active experts"},
      {"per_128_candidates", form::time, "0 us", "per layer and 128 replicas of active experts"}};
  return keys;
}

std::span<const Key> routing_charges_keys() {
  static constexpr Key keys[] = {{"source", form::text, required, "where these numbers come from"},
                                 {"top_k_of_all_tokens", form::time, "3 us",
                                  "time of top-k when every rank chooses for all tokens"},
                                 {.name = "*",
                                  .form = form::object(charge_keys),
                                  .by_default = unset("as measured, or no time"),
                                  .meaning = "a policy's own GPU time; replaces the measured time",
                                  .registry = "token_routing"}};
  return keys;
}

Charges read_values(const ConfigNode& node, std::span<const std::string_view> policies) {
  return read_object(node, routing_charges_keys, [&](ConfigReader& reader) {
    Charges charges = routing_charges(RoutingCharges::measured);
    charges.source = fmt::format("{}; the others: {}", reader.text("source"), charges.source);
    charges.top_k_of_all_tokens = reader.quantity<Seconds>("top_k_of_all_tokens");
    for (const auto& [policy, value] : reader.node().json().items()) {
      if (file_of_class(policy).empty() && std::ranges::find(policies, policy) == policies.end())
        continue;
      charges.token_routing[policy] =
          read_object(reader.child(policy), charge_keys, [](ConfigReader& charge) {
            return RoutingCharge{charge.quantity<Seconds>("fixed"),
                                 charge.quantity<Seconds>("per_128_active"),
                                 charge.quantity<Seconds>("per_128_candidates")};
          });
    }
    return charges;
  });
}

}  // namespace

// Sources in the order of their rows, each once.
Charges routing_charges(RoutingCharges taken) {
  Charges charges;
  if (taken == RoutingCharges::none) return charges;
  for (const MeasuredCharge& row : measured_charges()) {
    const std::optional<RoutingCharge>& charge =
        taken == RoutingCharges::fast ? row.fast : row.charge;
    if (!charge) continue;
    charges.token_routing[std::string(row.policy)] = *charge;
    if (charges.source.find(row.source) != std::string::npos) continue;
    if (!charges.source.empty()) charges.source += "; ";
    charges.source += row.source;
  }
  if (taken == RoutingCharges::by_candidates) {
    // METRO's 26 us are of 128 experts at 1.5x, and its Algorithm 1 looks at each replica once.
    constexpr double replicas_each = 1.5;
    for (auto& [policy, charge] : charges.token_routing)
      charge = {charge.fixed, {}, charge.per_128_active / replicas_each};
    charges.source += "; by replicas, of which 128 experts had 192";
  }
  if (taken == RoutingCharges::fast)
    charges.source =
        "metro, optimal: own kernels (hardware/measured); published: " + charges.source;
  // METRO: top-k over all tokens instead of the local ones takes at most 3 us more.
  charges.top_k_of_all_tokens = 3us;
  return charges;
}

bool Charges::knows(std::string_view policy) const {
  if (token_routing.contains(policy)) return true;
  const auto rows = measured_charges();
  const auto row = std::ranges::find(rows, policy, &MeasuredCharge::policy);
  return row != rows.end() && !row->charge;
}

RoutingCharge Charges::routing(std::string_view policy) const {
  const auto found = token_routing.find(policy);
  return found == token_routing.end() ? RoutingCharge{} : found->second;
}

// E max = integral over x > 0 of P(max > x) - P(max < -x), with P(max < x) = Phi(x)^n.
double mean_of_largest(int n) {
  if (n < 2) return 0;
  constexpr double step = .01, end = 9;  // the trapezoidal rule is exact to 1e-9 here
  double sum = 0;
  for (double x = 0; x < end; x += step) {
    const double below = .5 * std::erfc(x / std::numbers::sqrt2);  // Phi(-x)
    const double both = 1 - std::pow(1 - below, n) - std::pow(below, n);
    sum += x == 0 ? both / 2 : both;
  }
  return sum * step;
}

std::span<const Key> charges_keys() {
  static constexpr Form values = form::object(routing_charges_keys);
  static constexpr Key keys[] = {
      {"token_routing", form::choice(routing_charge_names).or_a(values), "measured",
       "policies' own GPU time"},
      {"request_routing", form::time, "0 us", "time of the request router for each request"},
      {"host_overhead", form::time, "0 us", "time of the host per step"},
      {"per_layer", form::time, "0 us", "gaps between kernels, per layer"},
      {"per_sequence", form::time, "0 us", "time of the host per sequence of the fullest rank"},
      {"eager_launch", form::time, "0 us",
       "least time to launch a kernel where no graph is launched"},
      {"rank_jitter", form::time, unset("0 us"),
       "deviation of when ranks' hosts launch; all wait for the last"}};
  return keys;
}

Charges read_charges(const ConfigNode& node, std::span<const std::string_view> policies) {
  return read_object(node, charges_keys, [&](ConfigReader& reader) {
    Charges charges;
    if (reader.has("token_routing") && reader.node().json().at("token_routing").is_object()) {
      charges = read_values(reader.child("token_routing"), policies);
    } else {
      charges =
          routing_charges(choice<RoutingCharges>(reader, "token_routing", routing_charge_names));
    }
    charges.request_routing = reader.quantity<Seconds>("request_routing");
    charges.host_overhead = reader.quantity<Seconds>("host_overhead");
    charges.per_layer = reader.quantity<Seconds>("per_layer");
    charges.per_sequence = reader.quantity<Seconds>("per_sequence");
    charges.eager_launch = reader.quantity<Seconds>("eager_launch");
    if (reader.optional("rank_jitter"))
      charges.rank_jitter = reader.quantity<Seconds>("rank_jitter");
    return charges;
  });
}

}  // namespace moesim
