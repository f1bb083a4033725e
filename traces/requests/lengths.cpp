// SPDX-License-Identifier: Apache-2.0
#include "traces/requests/lengths.hpp"

#include <algorithm>

#include "traces/requests/lognormal.hpp"
#include "traces/requests/request_trace.hpp"

namespace moesim {
namespace {

constexpr Range token_range{1, 1e9};

std::span<const Key> fixed_keys() {
  static constexpr Key keys[] = {
      {"prompt", form::integer(token_range), required, "tokens of every prompt"},
      {"output", form::integer(token_range), required, "tokens of every output"}};
  return keys;
}

std::int32_t read_tokens(ConfigReader& options, std::string_view key) {
  return static_cast<std::int32_t>(options.integer(key));
}

class Fixed final : public Lengths {
 public:
  explicit Fixed(ConfigReader& options)
      : request_{read_tokens(options, "prompt"), read_tokens(options, "output")} {}
  Request request(std::int64_t, Rng&) const override { return request_; }
  Request longest() const override { return request_; }

 private:
  Request request_;
};

std::span<const Key> uniform_keys() {
  static constexpr Key keys[] = {
      {"prompt", form::integer(token_range), required, "tokens of the longest prompt"},
      {"output", form::integer(token_range), required, "tokens of the longest output"},
      {"least", form::number(0, 1), "0.8", "the shortest of each, as a share of the longest"}};
  return keys;
}

/// Prompts and outputs drawn apart from each other, every length as likely: vLLM's bench with
/// --dataset-name random and --random-range-ratio.
class Uniform final : public Lengths {
 public:
  explicit Uniform(ConfigReader& options)
      : longest_{read_tokens(options, "prompt"), read_tokens(options, "output")},
        least_(options.number("least")) {}
  Request request(std::int64_t, Rng& rng) const override {
    const std::int32_t prompt = draw(longest_.prompt_tokens, rng);
    return {prompt, draw(longest_.output_tokens, rng)};
  }
  Request longest() const override { return longest_; }
  double least() const override { return least_; }

 private:
  std::int32_t draw(std::int32_t longest, Rng& rng) const {
    const auto shortest = std::max<std::int32_t>(1, static_cast<std::int32_t>(longest * least_));
    return shortest +
           static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(longest - shortest) + 1));
  }

  Request longest_;
  double least_;
};

std::span<const Key> lognormal_tokens_keys() {
  static constexpr Key keys[] = {
      {"median", form::number(token_range), required, "tokens"},
      {"sigma", form::number(0, 10), required, "standard deviation of the logarithm"},
      {"max", form::number(token_range), "1e9", "tokens to which draws are clipped"}};
  return keys;
}

std::span<const Key> lognormal_keys() {
  static constexpr Form tokens = form::object(lognormal_tokens_keys);
  static constexpr Key keys[] = {{"prompt", tokens, required, "tokens of a prompt"},
                                 {"output", tokens, required, "tokens of an output"}};
  return keys;
}

std::span<const Key> recorded_lengths_keys() {
  static constexpr Key keys[] = {
      {"file", form::file, required, "recorded requests; the format is recognised"}};
  return keys;
}

Lognormal read_tokens_drawn(const ConfigNode& node) {
  return read_object(node, lognormal_tokens_keys, [](ConfigReader& options) {
    Lognormal tokens{options.number("median"), options.number("sigma")};
    tokens.max = options.number("max", Range{tokens.median, token_range.max});
    return tokens;
  });
}

class Drawn final : public Lengths {
 public:
  explicit Drawn(ConfigReader& options)
      : prompt_(read_tokens_drawn(options.child("prompt"))),
        output_(read_tokens_drawn(options.child("output"))) {}
  Request request(std::int64_t, Rng& rng) const override {
    const std::int32_t prompt = prompt_.draw_count(rng);
    return {prompt, output_.draw_count(rng)};
  }

 private:
  Lognormal prompt_, output_;
};

/// The rows in order; past the last from the first again. These have tokens of their own, because a
/// prefix cache would hold all of them otherwise.
class FromTrace final : public Lengths {
 public:
  explicit FromTrace(ConfigReader& options) : trace_(read_request_trace(options.path("file"))) {}
  Request request(std::int64_t index, Rng&) const override {
    const auto row = at(index);
    Request request = trace_.rows[row % trace_.rows.size()].request;
    const std::size_t round = row / trace_.rows.size();
    if (round > 0 && request.prompt_ids)
      request.prompt_ids = ids_of_others(*request.prompt_ids, round);
    return request;
  }
  std::span<const std::string> classes() const override { return trace_.classes.names(); }
  bool has_ids() const override {
    return std::ranges::any_of(trace_.rows,
                               [](const auto& row) { return row.request.prompt_ids != nullptr; });
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
      "lengths",
      {{"fixed", "every request the same: prompt, output", make<Fixed>, fixed_keys},
       {"uniform", "prompt and output drawn evenly between a share of the longest and the longest",
        make<Uniform>, uniform_keys},
       {"lognormal",
        "prompt and output drawn from a median and a sigma, "
        "clipped to an optional max",
        make<Drawn>, lognormal_keys},
       {"trace", "the lengths of a recorded file, in its order", make<FromTrace>,
        recorded_lengths_keys}});
  return table;
}

}  // namespace moesim
