// SPDX-License-Identifier: Apache-2.0
#include "traces/requests/request_source.hpp"

#include <fmt/format.h>

#include "traces/requests/arrivals.hpp"
#include "traces/requests/lengths.hpp"

namespace moesim {

namespace {

constexpr Range request_count{1, 1e9};

}  // namespace

RequestWorkload read_workload(ConfigReader& workload) {
  RequestWorkload read;
  read.arrivals = request_arrivals().make(workload.child("arrivals"));
  const bool own_lengths = read.arrivals->own_lengths() != nullptr;
  read.lengths = own_lengths && !workload.has("lengths")
                     ? read.arrivals->own_lengths()
                     : request_lengths().make(workload.child("lengths"));
  const std::int64_t available = read.arrivals->available();
  read.requests = available > 0 ? workload.integer_or("requests", available, request_count)
                                : workload.integer("requests", request_count);
  if (available > 0 && read.requests > available)
    workload.child("requests")
        .fail(fmt::format("{} requests of a trace of {}", read.requests, available));
  read.patience = read_patience(workload);
  return read;
}

std::int64_t RequestWorkload::longest() const {
  const Request request = lengths->longest();
  return std::int64_t{request.prompt_tokens} + request.output_tokens;
}

std::unique_ptr<RequestSource> RequestWorkload::make(std::uint64_t seed, int dp_ranks) const {
  return arrivals->start({lengths, requests, seed, dp_ranks});
}

}  // namespace moesim
