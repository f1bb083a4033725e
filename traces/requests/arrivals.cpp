// SPDX-License-Identifier: Apache-2.0
#include "traces/requests/arrivals.hpp"

#include <cmath>

#include "traces/requests/request_trace.hpp"

namespace moesim {
namespace {

/// Numbers the requests of a source and draws their lengths.
class Numbered : public RequestSource {
 protected:
  explicit Numbered(const SourceStart& start)
      : lengths_(start.lengths), requests_(start.requests), rng_(start.seed, "request lengths") {}
  bool ended() const { return sent_ == requests_; }
  std::int64_t sent() const { return sent_; }
  TimedRequest send(Time arrival) { return {arrival, lengths_->request(sent_++, rng_)}; }

 private:
  std::shared_ptr<const Lengths> lengths_;
  std::int64_t requests_;
  std::int64_t sent_ = 0;
  Rng rng_;
};

/// As many requests in flight as there are clients: each sends its next request when the one before
/// has finished.
class ClosedLoop final : public Arrivals {
 public:
  explicit ClosedLoop(ConfigReader& options) : per_rank_(!options.has("concurrency")) {
    if (!per_rank_ && options.has("concurrency_per_rank"))
      options.node().fail("says both concurrency and concurrency_per_rank; say one");
    concurrency_ =
        options.integer(per_rank_ ? "concurrency_per_rank" : "concurrency", positive_count);
  }
  std::unique_ptr<RequestSource> start(const SourceStart& start) const override {
    return std::make_unique<Source>(start, concurrency_ * (per_rank_ ? start.dp_ranks : 1));
  }

 private:
  class Source final : public Numbered {
   public:
    Source(const SourceStart& start, std::int64_t clients) : Numbered(start), idle_(clients) {}
    std::optional<TimedRequest> next() override {
      if (idle_ == 0 || ended()) return std::nullopt;
      --idle_;
      return send(now_);
    }
    void completed(Time now) override {
      now_ = now;
      ++idle_;
    }

   private:
    std::int64_t idle_;  ///< clients that wait for nothing
    Time now_{};
  };

  bool per_rank_;
  std::int64_t concurrency_;
};

/// Requests a random gap apart, the first one gap after the start. Shape draws a gap of mean 1.
template <class Shape>
class Rated final : public Arrivals {
 public:
  explicit Rated(ConfigReader& options)
      : shape_(options), rate_(options.quantity<PerSecond>("rate")) {
    if (!(rate_.value() > 0)) options.child("rate").fail("must be above zero");
  }
  std::unique_ptr<RequestSource> start(const SourceStart& start) const override {
    return std::make_unique<Source>(start, shape_, 1 / rate_.value());
  }

 private:
  class Source final : public Numbered {
   public:
    Source(const SourceStart& start, const Shape& shape, double mean_gap)
        : Numbered(start), rng_(start.seed, "arrivals"), shape_(shape), mean_gap_(mean_gap) {}
    std::optional<TimedRequest> next() override {
      if (ended()) return std::nullopt;
      now_ += to_duration(Seconds(mean_gap_ * shape_.gap(rng_)));
      return send(now_);
    }

   private:
    Rng rng_;
    Shape shape_;
    double mean_gap_;
    Time now_{};
  };

  Shape shape_;
  PerSecond rate_;
};

struct ConstantGap {
  explicit ConstantGap(ConfigReader&) {}
  double gap(Rng&) const { return 1; }
};
struct PoissonGap {
  explicit PoissonGap(ConfigReader&) {}
  double gap(Rng& rng) const { return rng.exponential(); }
};
/// A gamma of shape 1/cv^2 has the coefficient of variation cv.
struct GammaGap {
  double shape;
  explicit GammaGap(ConfigReader& options)
      : shape(std::pow(options.number("cv", Range{1e-3, 100}), -2)) {}
  double gap(Rng& rng) const { return rng.gamma(shape) / shape; }
};

/// As recorded, `speedup` times as fast.
class Recorded final : public Arrivals {
 public:
  explicit Recorded(ConfigReader& options) {
    const ConfigNode file = options.child("file");
    const double speedup = options.number_or("speedup", 1, Range{1e-6, 1e6});
    const RequestTrace trace = read_request_trace(file.relative(file.text()));
    if (!trace.has_arrivals)
      file.fail("tells lengths only, no times; use it as lengths, with other arrivals");
    auto rows = std::make_shared<Rows>();
    for (const RequestTrace::Row& row : trace.rows) {
      const double picoseconds = static_cast<double>(row.arrival.count()) * 1e3 / speedup;
      if (picoseconds > 9e18)
        file.fail("lasts longer than the simulated clock's 100 days; give a larger speedup");
      rows->timed.push_back({Time(Duration(std::llround(picoseconds))), row.request});
    }
    rows_ = std::move(rows);
  }
  std::unique_ptr<RequestSource> start(const SourceStart& start) const override {
    return std::make_unique<Source>(start, rows_);
  }
  std::shared_ptr<const Lengths> own_lengths() const override { return rows_; }
  std::int64_t available() const override { return std::ssize(rows_->timed); }

 private:
  struct Rows final : Lengths {
    std::vector<TimedRequest> timed;
    Request request(std::int64_t index, Rng&) const override {
      return timed[static_cast<std::size_t>(index)].request;
    }
  };
  class Source final : public Numbered {
   public:
    Source(const SourceStart& start, std::shared_ptr<const Rows> rows)
        : Numbered(start), rows_(std::move(rows)) {}
    std::optional<TimedRequest> next() override {
      if (ended()) return std::nullopt;
      return send(rows_->timed[static_cast<std::size_t>(sent())].arrival);
    }

   private:
    std::shared_ptr<const Rows> rows_;
  };

  std::shared_ptr<const Rows> rows_;
};

template <class Policy>
std::unique_ptr<Arrivals> make(ConfigReader& options) {
  return std::make_unique<Policy>(options);
}

}  // namespace

const Registry<Arrivals>& request_arrivals() {
  static const Registry<Arrivals> table(
      "arrivals",
      {{"closed_loop", "a fixed number in flight: concurrency, or concurrency_per_rank",
        make<ClosedLoop>},
       {"poisson", "independent arrivals at a rate", make<Rated<PoissonGap>>},
       {"gamma", "gamma-distributed gaps: rate, cv (above 1 is bursty)", make<Rated<GammaGap>>},
       {"constant", "equal gaps at a rate", make<Rated<ConstantGap>>},
       {"trace", "recorded times (Azure, BurstGPT, Mooncake), divided by speedup",
        make<Recorded>}});
  return table;
}

}  // namespace moesim
