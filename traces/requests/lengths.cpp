// SPDX-License-Identifier: Apache-2.0
#include "traces/requests/lengths.hpp"

#include <algorithm>
#include <cmath>

#include "traces/requests/request_trace.hpp"

namespace moesim {
namespace {

constexpr Range token_range{1, 1e9};

std::int32_t read_tokens(ConfigReader& options, std::string_view key) {
  return static_cast<std::int32_t>(options.integer(key, token_range));
}

class Fixed final : public Lengths {
 public:
  explicit Fixed(ConfigReader& options)
      : request_{read_tokens(options, "prompt"), read_tokens(options, "output")} {}
  Request request(std::int64_t, Rng&) const override { return request_; }

 private:
  Request request_;
};

/// exp(normal(log(median), sigma)), rounded and clipped to [1, max].
struct LognormalTokens {
  double median, sigma, max;
  explicit LognormalTokens(const ConfigNode& node) {
    read_object(node, [&](ConfigReader& options) {
      median = options.number("median", token_range);
      sigma = options.number("sigma", Range{0, 10});
      max = options.number_or("max", token_range.max, Range{median, token_range.max});
    });
  }
  std::int32_t draw(Rng& rng) const {
    const double tokens = std::round(median * std::exp(sigma * rng.normal()));
    return static_cast<std::int32_t>(std::clamp(tokens, 1.0, max));
  }
};

class Lognormal final : public Lengths {
 public:
  explicit Lognormal(ConfigReader& options)
      : prompt_(options.child("prompt")), output_(options.child("output")) {}
  Request request(std::int64_t, Rng& rng) const override {
    const std::int32_t prompt = prompt_.draw(rng);
    return {prompt, output_.draw(rng)};
  }

 private:
  LognormalTokens prompt_, output_;
};

/// The rows in order; past the last, from the first again.
class FromTrace final : public Lengths {
 public:
  explicit FromTrace(ConfigReader& options) : trace_(read_request_trace(options.path("file"))) {}
  Request request(std::int64_t index, Rng&) const override {
    return trace_.rows[static_cast<std::size_t>(index) % trace_.rows.size()].request;
  }

 private:
  RequestTrace trace_;
};

template <class Policy>
std::unique_ptr<Lengths> make(ConfigReader& options) {
  return std::make_unique<Policy>(options);
}

}  // namespace

const Registry<Lengths>& request_lengths() {
  static const Registry<Lengths> table(
      "lengths", {{"fixed", "every request alike: prompt, output", make<Fixed>},
                  {"lognormal",
                   "prompt and output drawn from a median and a sigma, "
                   "clipped to an optional max",
                   make<Lognormal>},
                  {"trace", "the lengths of a recorded file, in its order", make<FromTrace>}});
  return table;
}

}  // namespace moesim
