// SPDX-License-Identifier: Apache-2.0
#include "traces/trace_statistics.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <tbb/parallel_for.h>

#include "hardware/at.hpp"
#include "hardware/config.hpp"
#include "hardware/rng.hpp"
#include "hardware/units.hpp"

namespace moesim {
namespace {

// Sampled sizes: standard errors of some 0.002 of an overlap and 0.3 % of a batch statistic.
constexpr int pairs_sampled = 20'000;
constexpr std::size_t batch_tokens_sampled = 40'000;
constexpr std::size_t min_batches_sampled = 40;
constexpr std::size_t training_rows = 40'000;
constexpr std::size_t scored_rows = 3'000;
constexpr int most_paired_experts = 4096;  // a table of all pairs takes 64 MB, or 128 MB in 64 bits

struct Shape {
  std::size_t layers, experts, k;
  explicit Shape(const RoutingTrace& trace)
      : layers(at(trace.layers())),
        experts(at(trace.num_experts())),
        k(at(trace.experts_per_token())) {}
  /// Index of a row's layer in the flat array of ids.
  std::size_t first_id(std::int64_t row, std::size_t layer) const {
    return (at(row) * layers + layer) * k;
  }
};

LayerSpread spread(std::span<const double> per_layer) {
  const auto [min, max] = std::minmax_element(per_layer.begin(), per_layer.end());
  return {std::accumulate(per_layer.begin(), per_layer.end(), 0.0) /
              static_cast<double>(per_layer.size()),
          *min, *max};
}

/// P(a token picks expert e), [layers, experts]; a layer's sum is k.
std::vector<double> pick_probabilities(const RoutingTrace& trace) {
  std::int64_t tokens = 0;
  for (const TraceRequest& request : trace.requests()) tokens += request.num_tokens;
  const auto counts = trace.expert_counts();
  std::vector<double> probabilities(counts.size());
  std::transform(counts.begin(), counts.end(), probabilities.begin(), [&](std::int64_t count) {
    return static_cast<double>(count) / static_cast<double>(tokens);
  });
  return probabilities;
}

std::int64_t random_row(const TraceRequest& request, Rng& rng) {
  return request.row_start +
         static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(request.num_tokens)));
}

/// Draws one random decode row of each of `batch` different requests; with more rows than requests,
/// every request comes equally often, but for the remainder.
class DecodeBatches {
 public:
  DecodeBatches(const RoutingTrace& trace, Rng& rng) : rng_(rng) {
    for (const TraceRequest& request : trace.requests())
      if (const TraceRequest decoding = trace.decoding(request); decoding.num_tokens > 0)
        requests_.push_back(decoding);
    order_.resize(requests_.size());
    std::iota(order_.begin(), order_.end(), std::size_t{0});
  }
  void draw(std::vector<std::int64_t>& rows) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::size_t drawn = i % order_.size();
      std::swap(order_[drawn], order_[drawn + rng_.below(order_.size() - drawn)]);
      rows[i] = random_row(requests_[order_[drawn]], rng_);
    }
  }

 private:
  std::vector<TraceRequest> requests_;
  Rng& rng_;
  std::vector<std::size_t> order_;
};

/// Draws windows of consecutive rows of one request, each window of the trace equally likely.
class Windows {
 public:
  Windows(const RoutingTrace& trace, std::int64_t length) : requests_(trace.requests()) {
    for (const TraceRequest& request : requests_) {
      total_ += std::max<std::int64_t>(0, request.num_tokens - length + 1);
      windows_up_to_.push_back(total_);
    }
  }
  bool empty() const { return total_ == 0; }
  struct Drawn {
    std::size_t request;
    std::int64_t first_row;
  };
  Drawn draw(Rng& rng) const {
    const auto drawn = static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(total_)));
    const auto found = std::upper_bound(windows_up_to_.begin(), windows_up_to_.end(), drawn);
    const auto request = at(found - windows_up_to_.begin());
    const std::int64_t before = request == 0 ? 0 : windows_up_to_[request - 1];
    return {request, requests_[request].row_start + drawn - before};
  }

 private:
  std::span<const TraceRequest> requests_;
  std::vector<std::int64_t> windows_up_to_;
  std::int64_t total_ = 0;
};

std::size_t batches_sampled(int batch) {
  return std::max(min_batches_sampled, batch_tokens_sampled / at(batch));
}

/// The distinct experts that rows activate in each layer.
class DistinctCounter {
 public:
  explicit DistinctCounter(const RoutingTrace& trace)
      : trace_(trace), shape_(trace), seen_in_(shape_.experts) {}

  void count(std::span<const std::int64_t> rows, std::vector<double>& of_layer) {
    of_layer.assign(shape_.layers, 0);
    trace_.visit([&](auto ids) {
      for (std::size_t layer = 0; layer < shape_.layers; ++layer) {
        ++layers_counted_;
        for (const std::int64_t row : rows)
          for (const auto id : ids.subspan(shape_.first_id(row, layer), shape_.k))
            of_layer[layer] += std::exchange(seen_in_[at(id)], layers_counted_) != layers_counted_;
      }
    });
  }

 private:
  const RoutingTrace& trace_;
  Shape shape_;
  std::vector<std::uint64_t> seen_in_;  // [experts]: the last that had it, of all layers counted
  std::uint64_t layers_counted_ = 0;
};

/// Moments of the distinct experts of sampled batches.
class DistinctMoments {
 public:
  void add(std::span<const double> of_layer) {
    if (sum_.empty()) sum_ = squares_ = std::vector<double>(of_layer.size());
    double total = 0;
    for (std::size_t layer = 0; layer < of_layer.size(); ++layer) {
      total += of_layer[layer];
      sum_[layer] += of_layer[layer];
      squares_[layer] += of_layer[layer] * of_layer[layer];
    }
    totals_ += total;
    total_squares_ += total * total;
    ++batches_;
  }
  double mean() const { return totals_ / batches_ / static_cast<double>(sum_.size()); }
  double variance_ratio() const {
    double of_layers = 0;
    for (std::size_t layer = 0; layer < sum_.size(); ++layer)
      of_layers += variance(sum_[layer], squares_[layer]);
    return of_layers > 0 ? variance(totals_, total_squares_) / of_layers : 1;
  }

 private:
  double variance(double sum, double squares) const {
    return squares / batches_ - sum / batches_ * (sum / batches_);
  }
  std::vector<double> sum_, squares_;  // by layer
  double totals_ = 0, total_squares_ = 0;
  int batches_ = 0;
};

/// Expected distinct experts of B independent tokens: sum over e of 1 - (1 - p_e)^B.
double expected_distinct(std::span<const double> probabilities, int batch) {
  double sum = 0;
  for (const double p : probabilities) sum += 1 - std::pow(1 - p, batch);
  return sum;
}

/// Mean over layers of max/mean tokens per rank of a batch.
double imbalance_of(const RoutingTrace& trace, std::span<const std::int64_t> rows, int ranks) {
  const Shape shape(trace);
  const std::size_t experts_per_rank = shape.experts / at(ranks);
  std::vector<std::int64_t> tokens(at(ranks));
  double sum_of_max = 0;
  trace.visit([&](auto ids) {
    for (std::size_t layer = 0; layer < shape.layers; ++layer) {
      std::fill(tokens.begin(), tokens.end(), 0);
      for (const std::int64_t row : rows)
        for (const auto id : ids.subspan(shape.first_id(row, layer), shape.k))
          ++tokens[at(id) / experts_per_rank];
      sum_of_max += static_cast<double>(*std::max_element(tokens.begin(), tokens.end()));
    }
  });
  const auto mean = static_cast<double>(rows.size() * shape.k) / ranks;
  return sum_of_max / mean / static_cast<double>(shape.layers);
}

/// Adds, per layer, the experts that two rows share.
void add_shared(const RoutingTrace& trace, std::int64_t row, std::int64_t other,
                std::vector<std::int64_t>& per_layer) {
  const Shape shape(trace);
  trace.visit([&](auto ids) {
    for (std::size_t layer = 0; layer < shape.layers; ++layer) {
      const auto theirs = ids.subspan(shape.first_id(other, layer), shape.k);
      for (const auto id : ids.subspan(shape.first_id(row, layer), shape.k))
        per_layer[layer] += std::count(theirs.begin(), theirs.end(), id);
    }
  });
}

/// Share of k that the pairs of rows which draw() answers have in common, by layer.
template <class Draw>
LayerSpread mean_overlap(const RoutingTrace& trace, Draw&& draw) {
  std::vector<std::int64_t> shared(at(trace.layers()));
  for (int pair = 0; pair < pairs_sampled; ++pair) {
    const auto [row, other] = draw();
    add_shared(trace, row, other, shared);
  }
  std::vector<double> share(shared.size());
  std::transform(shared.begin(), shared.end(), share.begin(), [&](std::int64_t count) {
    return static_cast<double>(count) / pairs_sampled / trace.experts_per_token();
  });
  return spread(share);
}

/// At most `limit` rows, drawn without regard to request, of every request whose index is `parity`
/// modulo 2.
std::vector<std::int64_t> rows_of_half(const RoutingTrace& trace, std::size_t parity,
                                       std::size_t limit, Rng& rng) {
  std::vector<std::int64_t> rows;
  for (std::size_t i = parity; i < trace.requests().size(); i += 2) {
    const TraceRequest& request = trace.requests()[i];
    for (std::int64_t row = 0; row < request.num_tokens; ++row)
      rows.push_back(request.row_start + row);
  }
  const std::size_t kept = std::min(limit, rows.size());
  for (std::size_t i = 0; i < kept; ++i) std::swap(rows[i], rows[i + rng.below(rows.size() - i)]);
  rows.resize(kept);
  return rows;
}

/// Naive Bayes between one layer and the next. An expert j of the next layer scores log P(j) + sum
/// over the token's experts i of log P(i | j), counts smoothed by a half.
class NextLayerGuess {
 public:
  NextLayerGuess(const RoutingTrace& trace, std::size_t layer, std::span<const std::int64_t> rows)
      : shape_(trace), layer_(layer), log_prior_(shape_.experts), log_given_(square()) {
    std::vector<float> next(shape_.experts), both(square());
    trace.visit([&](auto ids) {
      for (const std::int64_t row : rows) {
        const auto from = ids.subspan(shape_.first_id(row, layer_), shape_.k);
        for (const auto to : ids.subspan(shape_.first_id(row, layer_ + 1), shape_.k)) {
          next[at(to)] += 1;
          for (const auto id : from) both[pair(id, to)] += 1;
        }
      }
    });
    for (std::size_t to = 0; to < shape_.experts; ++to) {
      log_prior_[to] = std::log(next[to] + 0.5F);
      for (std::size_t from = 0; from < shape_.experts; ++from)
        log_given_[pair(from, to)] = std::log((both[pair(from, to)] + 0.5F) / (next[to] + 1));
    }
  }

  /// Scores of the next layer's experts given a token's ids in this one.
  template <class Ids>
  void score(Ids from, std::vector<float>& scores) const {
    scores = log_prior_;
    for (const auto id : from) {
      const std::size_t start = pair(id, 0);
      for (std::size_t to = 0; to < scores.size(); ++to) scores[to] += log_given_[start + to];
    }
  }
  const std::vector<float>& prior() const { return log_prior_; }

 private:
  std::size_t square() const { return shape_.experts * shape_.experts; }
  template <class From, class To>
  std::size_t pair(From from, To to) const {
    return at(from) * shape_.experts + at(to);
  }
  Shape shape_;
  std::size_t layer_;
  std::vector<float> log_prior_, log_given_;
};

/// How many of `truth` are among the `guesses` best scores.
template <class Ids>
std::size_t hits(std::span<const float> scores, std::size_t guesses, Ids truth,
                 std::vector<float>& scratch) {
  scratch.assign(scores.begin(), scores.end());
  const auto nth = scratch.begin() + static_cast<std::ptrdiff_t>(guesses - 1);
  std::nth_element(scratch.begin(), nth, scratch.end(), std::greater<>());
  return at(
      std::count_if(truth.begin(), truth.end(), [&](auto id) { return scores[at(id)] >= *nth; }));
}

}  // namespace

PopularitySkew popularity_skew(std::span<const std::int64_t> counts, int experts) {
  const auto n = at(experts);
  check(n > 0 && counts.size() >= n && counts.size() % n == 0, "counts must be [layers, experts]");
  std::vector<double> max, min, variation, top, gini;
  for (auto rest = counts; !rest.empty(); rest = rest.subspan(n)) {
    std::vector<double> sorted(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(n));
    std::sort(sorted.begin(), sorted.end());
    const double sum = std::max(1.0, std::accumulate(sorted.begin(), sorted.end(), 0.0));
    const double mean = sum / experts;
    double squares = 0, ranked = 0;
    for (std::size_t i = 0; i < n; ++i) {
      squares += (sorted[i] - mean) * (sorted[i] - mean);
      ranked += static_cast<double>(i + 1) * sorted[i];
    }
    const auto whole = static_cast<std::ptrdiff_t>(n / 8);
    const double part = static_cast<double>(n % 8) / 8;  // of the next expert
    max.push_back(sorted.back() / mean);
    min.push_back(sorted.front() / mean);
    variation.push_back(std::sqrt(squares / experts) / mean);
    const double next = *(sorted.end() - whole - (part > 0 ? 1 : 0));
    top.push_back(
        (std::accumulate(sorted.end() - whole, sorted.end(), 0.0) + (part > 0 ? part * next : 0)) /
        sum);
    // Gini = 2 sum(i x_i) / (n sum x) - (n + 1)/n, x ascending, i from 1.
    gini.push_back(2 * ranked / (experts * sum) - (experts + 1.0) / experts);
  }
  return {spread(max), spread(min), spread(variation), spread(top), spread(gini)};
}

std::vector<std::int64_t> coactivation_counts(const RoutingTrace& trace,
                                              std::span<const std::size_t> of_requests) {
  std::vector<TraceRequest> requests(trace.requests().begin(), trace.requests().end());
  if (!of_requests.empty()) {
    requests.clear();
    for (const std::size_t i : of_requests) requests.push_back(trace.requests()[i]);
  }
  if (trace.num_experts() > most_paired_experts) {
    throw ConfigError(
        "co-activation counts all pairs of experts: {} experts; expected "
        "at most {}",
        trace.num_experts(), most_paired_experts);
  }
  const Shape shape(trace);
  std::vector<std::int64_t> counts(shape.layers * shape.experts * shape.experts);
  trace.visit([&](auto ids) {
    tbb::parallel_for(std::size_t{0}, shape.layers, [&](std::size_t layer) {
      std::int64_t* const pairs = counts.data() + layer * shape.experts * shape.experts;
      for (const TraceRequest& request : requests) {
        for (std::int64_t i = 0; i < request.num_tokens; ++i) {
          const auto picks = ids.subspan(shape.first_id(request.row_start + i, layer), shape.k);
          for (const auto a : picks) {
            for (const auto b : picks) {
              pairs[at(a) * shape.experts + at(b)] += a != b;
            }
          }
        }
      }
    });
  });
  return counts;
}

std::vector<DistinctExperts> distinct_experts(const RoutingTrace& trace,
                                              std::span<const int> batches, std::uint64_t seed) {
  Rng rng(seed, "distinct experts");
  DecodeBatches decode(trace, rng);
  const std::vector<double> popularity = pick_probabilities(trace);
  const std::vector<double> flat(
      at(trace.num_experts()),
      static_cast<double>(trace.experts_per_token()) / trace.num_experts());
  std::vector<DistinctExperts> answers;
  for (const int batch : batches) {
    const std::size_t samples = batches_sampled(batch);
    std::vector<std::int64_t> rows(at(batch));
    DistinctCounter distinct(trace);
    std::vector<double> of_layer;
    const auto sampled = [&](auto&& draw) {
      DistinctMoments moments;
      for (std::size_t sample = 0; sample < samples; ++sample) {
        draw();
        distinct.count(rows, of_layer);
        moments.add(of_layer);
      }
      return moments;
    };
    DistinctExperts answer;
    answer.batch = batch;
    const DistinctMoments of_decode = sampled([&] { decode.draw(rows); });
    answer.decode = of_decode.mean();
    answer.variance_ratio = of_decode.variance_ratio();
    answer.independent = expected_distinct(popularity, batch) / trace.layers();
    answer.uniform = expected_distinct(flat, batch);
    if (const Windows windows(trace, batch); !windows.empty())
      answer.chunk =
          sampled([&] { std::iota(rows.begin(), rows.end(), windows.draw(rng).first_row); }).mean();
    answers.push_back(answer);
  }
  return answers;
}

std::vector<RankImbalance> rank_imbalance(const RoutingTrace& trace, std::span<const int> ranks,
                                          std::span<const int> batches, std::uint64_t seed) {
  Rng rng(seed, "rank imbalance");
  DecodeBatches decode(trace, rng);
  std::vector<RankImbalance> answers;
  for (const int batch : batches) {
    std::vector<std::int64_t> rows(at(batch));
    const std::size_t samples = batches_sampled(batch);
    const std::size_t first = answers.size();
    for (const int count : ranks)
      if (trace.num_experts() % count == 0) answers.push_back({count, batch, 0.0});
    for (std::size_t sample = 0; sample < samples; ++sample) {
      decode.draw(rows);
      for (std::size_t i = first; i < answers.size(); ++i)
        answers[i].max_over_mean +=
            imbalance_of(trace, rows, answers[i].ranks) / static_cast<double>(samples);
    }
  }
  return answers;
}

TokenOverlap token_overlap(const RoutingTrace& trace, std::span<const int> lags,
                           std::uint64_t seed) {
  Rng rng(seed, "token overlap");
  TokenOverlap answer;
  for (const int lag : lags) {
    const Windows windows(trace, lag + 1);
    answer.lags.push_back({lag, std::nullopt});
    if (windows.empty()) continue;
    answer.lags.back().share = mean_overlap(trace, [&] {
      const std::int64_t row = windows.draw(rng).first_row;
      return std::pair(row, row + lag);
    });
  }
  const Windows tokens(trace, 1);
  if (!Windows(trace, 2).empty())
    answer.same_request = mean_overlap(trace, [&] {
                            Windows::Drawn drawn = tokens.draw(rng);
                            while (trace.requests()[drawn.request].num_tokens < 2)
                              drawn = tokens.draw(rng);
                            std::int64_t other = drawn.first_row;
                            while (other == drawn.first_row)
                              other = random_row(trace.requests()[drawn.request], rng);
                            return std::pair(drawn.first_row, other);
                          }).mean;
  if (trace.requests().size() > 1)
    answer.different_requests = mean_overlap(trace, [&] {
                                  const Windows::Drawn one = tokens.draw(rng);
                                  Windows::Drawn other = one;
                                  while (other.request == one.request) other = tokens.draw(rng);
                                  return std::pair(one.first_row, other.first_row);
                                }).mean;
  const std::vector<double> popularity = pick_probabilities(trace);
  answer.independent =
      std::inner_product(popularity.begin(), popularity.end(), popularity.begin(), 0.0) /
      trace.layers() / trace.experts_per_token();
  answer.uniform = static_cast<double>(trace.experts_per_token()) / trace.num_experts();
  return answer;
}

std::optional<LayerPredictability> layer_predictability(const RoutingTrace& trace,
                                                        std::uint64_t seed) {
  if (trace.layers() < 2 || trace.requests().size() < 2) return std::nullopt;
  if (trace.num_experts() > most_paired_experts) return std::nullopt;
  Rng rng(seed, "layer predictability");
  const Shape shape(trace);
  const auto training = rows_of_half(trace, 0, training_rows, rng);
  const auto scored = rows_of_half(trace, 1, scored_rows, rng);
  const std::size_t twice = std::min(2 * shape.k, shape.experts);
  const auto truths = static_cast<double>(scored.size() * shape.k);
  std::vector<double> recall_k, recall_2k, popularity;
  std::vector<float> scores, scratch;
  for (std::size_t layer = 0; layer + 1 < shape.layers; ++layer) {
    const NextLayerGuess guess(trace, layer, training);
    std::size_t in_k = 0, in_2k = 0, popular = 0;
    trace.visit([&](auto ids) {
      for (const std::int64_t row : scored) {
        const auto truth = ids.subspan(shape.first_id(row, layer + 1), shape.k);
        guess.score(ids.subspan(shape.first_id(row, layer), shape.k), scores);
        in_k += hits(scores, shape.k, truth, scratch);
        in_2k += hits(scores, twice, truth, scratch);
        popular += hits(guess.prior(), shape.k, truth, scratch);
      }
    });
    recall_k.push_back(static_cast<double>(in_k) / truths);
    recall_2k.push_back(static_cast<double>(in_2k) / truths);
    popularity.push_back(static_cast<double>(popular) / truths);
  }
  return LayerPredictability{spread(recall_k), spread(recall_2k), spread(popularity).mean};
}

}  // namespace moesim
