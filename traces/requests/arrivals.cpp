// SPDX-License-Identifier: Apache-2.0
#include "traces/requests/arrivals.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <vector>

#include "traces/requests/request_trace.hpp"

namespace moesim {
namespace {

std::span<const Key> closed_loop_keys() {
  static constexpr Form count = form::integer(positive_count);
  static constexpr Key keys[] = {
      {"concurrency", count, unset("by rank"), "requests in flight over all ranks; or ..."},
      {"concurrency_per_rank", count, unset("in all"), "... of each attention rank"},
      {"staggered", form::flag, "false",
       "first outputs are cut short, evenly: clients out of step"},
      {"clients_in_step", count, unset("1"), "how many staggered clients share one cut"}};
  return keys;
}

std::span<const Key> span_keys() {
  static constexpr Key keys[] = {{"rate", form::per_second, required, "requests per second"},
                                 {"until", form::time, unset("the end: of the last one"),
                                  "end of arrivals, from the start of the run"}};
  return keys;
}

constexpr Form rate_span = form::object(span_keys);
constexpr Form rate_schedule = form::list(rate_span);
constexpr Key rate_key{"rate", form::per_second.or_a(rate_schedule), required,
                       "requests per second: one rate, or spans"};

constexpr Key cap_key{"max_concurrency", form::integer(positive_count), unset("no limit"),
                      "most requests in flight; the others wait at the client"};
constexpr Key catch_up_key{"catch_up", form::flag, "true",
                           "waiting requests follow at once (vLLM, SGLang); false: as AIPerf"};

constexpr Key rescaled_key{"rescaled", form::flag, "false",
                           "gaps are scaled: the last request comes at requests / rate (vLLM)"};

std::span<const Key> rated_keys() {
  static constexpr Key keys[] = {rate_key, cap_key, catch_up_key, rescaled_key};
  return keys;
}

std::span<const Key> gamma_keys() {
  static constexpr Key keys[] = {
      rate_key,
      {"cv", form::number(1e-3, 100), unset("burstiness"),
       "coefficient of variation of the gaps; or ..."},
      {"burstiness", form::number(1e-4, 1e6), unset("cv"), "... 1/cv^2, as vLLM's bench"},
      cap_key,
      catch_up_key,
      rescaled_key};
  return keys;
}

std::span<const Key> recorded_arrivals_keys() {
  static constexpr Form files = form::list(form::file);
  static constexpr Key keys[] = {
      {"file", form::file, required, "recorded requests; the format is recognised"},
      {"then", files, unset("none"), "files whose requests follow, one after the other"},
      {"speedup", form::number(1e-6, 1e6), "1", "recorded times are divided by it"}};
  return keys;
}

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

/// Keeps as many requests in flight as there are clients: each sends its next request when the one
/// before has finished.
class ClosedLoop final : public Arrivals {
 public:
  explicit ClosedLoop(ConfigReader& options) : per_rank_(!options.has("concurrency")) {
    if (!per_rank_ && options.has("concurrency_per_rank"))
      options.node().fail("has both \"concurrency\" and \"concurrency_per_rank\"; give one");
    concurrency_ = options.integer(per_rank_ ? "concurrency_per_rank" : "concurrency");
    staggered_ = options.flag("staggered");
    if (!options.optional("clients_in_step")) return;
    if (!staggered_) options.child("clients_in_step").fail("needs \"staggered\": true");
    in_step_ = options.integer("clients_in_step");
  }
  std::unique_ptr<RequestSource> start(const SourceStart& start) const override {
    return std::make_unique<Source>(start, in_flight(start.dp_ranks), staggered_ ? in_step_ : 0);
  }
  std::int64_t in_flight(int dp_ranks) const override {
    return concurrency_ * (per_rank_ ? dp_ranks : 1);
  }
  bool closed() const override { return true; }

 private:
  class Source final : public Numbered {
   public:
    /// `in_step`: so many staggered clients each are in step; 0: all are.
    Source(const SourceStart& start, std::int64_t clients, std::int64_t in_step)
        : Numbered(start),
          idle_(at(std::min(clients, start.requests))),
          cut_(in_step > 0 ? clients : 0),
          in_step_(in_step) {}
    std::optional<TimedRequest> next() override {
      if (idle_.empty() || ended()) return std::nullopt;
      TimedRequest request = send(idle_.front());
      idle_.pop_front();
      // Client i of n begins with i/n of its output, or with the share of the last one in its step.
      if (sent() <= cut_) {
        const std::int64_t last = std::min(cut_, (sent() - 1) / in_step_ * in_step_ + in_step_);
        std::int32_t& output = request.request.output_tokens;
        output = static_cast<std::int32_t>(std::max<std::int64_t>(1, output * last / cut_));
      }
      return request;
    }
    void completed(std::int64_t, Outcome, Time now) override { idle_.push_back(now); }

   private:
    /// Since when each client that waits for nothing does so. Clients that never send are left out.
    std::deque<Time> idle_;
    std::int64_t cut_;  ///< first requests that are cut short
    std::int64_t in_step_;
  };

  bool per_rank_, staggered_;
  std::int64_t in_step_ = 1;
  std::int64_t concurrency_;
};

/// How often requests arrive: one rate, or one after the other.
class RateSchedule {
 public:
  /// "5 /s", or [{"rate": "5 /s", "until": "60 s"}, .., {"rate": "2 /s"}], times from the start.
  explicit RateSchedule(const ConfigNode& node) {
    if (!node.json().is_array()) {
      only_ = node.quantity<PerSecond>().value();
      spans_.push_back({Time::max(), mean_gap(node)});
    } else {
      for (const ConfigNode& span : node.list()) read_span(span);
    }
    if (spans_.empty() || spans_.back().end != Time::max())
      node.fail("must end with a rate without \"until\"");
    if (!std::isfinite(spans_.back().mean_gap))
      node.fail(spans_.size() == 1 ? "must be above zero" : "must end with a rate above zero");
  }

  /// Requests per second where there is one rate, else 0.
  double only_rate() const { return only_; }

  /// Returns when a stretch of `gaps` mean gaps ends that began at `now`. A gap that spans a change
  /// of rate passes at each rate for as long as that holds. With exponential gaps this is a Poisson
  /// process of varying rate (Cinlar, Introduction to Stochastic Processes, 1975, ch. 4.7).
  Time after(Time now, double gaps) const {
    auto span = spans_.begin();
    while (span->end <= now) ++span;
    for (; span->end != Time::max(); now = span++->end) {
      const Seconds left = to_seconds(span->end - now);
      if (gaps * span->mean_gap <= left.count()) break;
      gaps -= left.count() / span->mean_gap;
    }
    const Seconds gap(span->mean_gap * gaps);
    if (to_seconds(now) + gap > last_arrival)
      throw ConfigError(
          "workload/arrivals: requests arrive for longer than the 60 days that can be "
          "simulated; give a higher rate or fewer requests");
    return now + to_duration(gap);
  }

 private:
  struct Span {
    Time end;
    double mean_gap;  ///< seconds; infinite at rate 0
  };

  static double mean_gap(const ConfigNode& rate) {
    const double per_second = rate.quantity<PerSecond>().value();
    if (per_second < 0) rate.fail("must not be below zero");
    return 1 / per_second;
  }

  void read_span(const ConfigNode& node) {
    read_object(node, span_keys, [&](ConfigReader& span) {
      const Time begin = spans_.empty() ? Time{} : spans_.back().end;
      if (begin == Time::max()) node.fail("follows a rate without \"until\"");
      Time end = Time::max();
      if (span.has("until")) {
        end = Time(to_duration(span.quantity<Seconds>("until")));
        if (end <= begin) span.child("until").fail("must be after the span before it");
      }
      spans_.push_back({end, mean_gap(span.child("rate"))});
    });
  }

  std::vector<Span> spans_;  ///< in order; the last one has no end
  double only_ = 0;          ///< requests per second
};

/// Requests a random gap apart, the first one gap after the start. Shape draws a gap of mean 1.
template <class Shape>
class Rated final : public Arrivals {
 public:
  explicit Rated(ConfigReader& options) : shape_(options), rate_(options.child("rate")) {
    if (options.optional("max_concurrency")) cap_ = options.integer("max_concurrency");
    if (options.optional("rescaled")) rescaled_ = options.flag("rescaled");
    if (rescaled_ && rate_.only_rate() == 0)
      options.child("rescaled").fail("needs one rate, not a schedule");
    if (!options.optional("catch_up")) return;
    if (cap_ == 0) options.child("catch_up").fail("needs \"max_concurrency\"");
    catch_up_ = options.flag("catch_up");
  }
  std::unique_ptr<RequestSource> start(const SourceStart& start) const override {
    return std::make_unique<Source>(start, *this);
  }
  double rate() const override { return rate_.only_rate(); }
  double burstiness() const override { return shape_.burstiness(); }
  std::int64_t in_flight(int /*dp_ranks*/) const override { return cap_; }
  bool closed() const override { return cap_ > 0; }

 private:
  // Factor with which so many gaps, drawn from here on, add up to as many mean ones.
  double scale_of(Rng draws, std::int64_t gaps) const {
    double sum = 0;
    for (std::int64_t i = 0; rescaled_ && i < gaps; ++i) sum += shape_.gap(draws);
    return sum > 0 ? static_cast<double>(gaps) / sum : 1;
  }

  class Source final : public Numbered {
   public:
    Source(const SourceStart& start, const Rated& of)
        : Numbered(start),
          rng_(start.seed, "arrivals"),
          of_(of),
          scale_(of.scale_of(rng_, start.requests)) {}
    std::optional<TimedRequest> next() override {
      if (ended()) return std::nullopt;
      Time freed{};
      if (of_.cap_ > 0 && sent() >= of_.cap_) {
        if (freed_.empty()) return std::nullopt;
        freed = freed_.front();
        freed_.pop_front();
      }
      now_ = of_.rate_.after(now_, of_.shape_.gap(rng_) * scale_);
      const Time at = std::max(now_, freed);
      if (!of_.catch_up_) now_ = at;
      return send(at);
    }
    // The place of a request that left is another's at the earliest then.
    void completed(std::int64_t, Outcome, Time now) override {
      if (of_.cap_ > 0) freed_.push_back(now);
    }

   private:
    Rng rng_;
    Rated of_;
    double scale_;            ///< of gaps
    std::deque<Time> freed_;  ///< since when each place is free that nobody has taken again
    Time now_{};
  };

  Shape shape_;
  RateSchedule rate_;
  std::int64_t cap_ = 0;  ///< 0: no limit
  bool catch_up_ = true, rescaled_ = false;
};

struct ConstantGap {
  explicit ConstantGap(ConfigReader&) {}
  static double burstiness() { return std::numeric_limits<double>::infinity(); }
  double gap(Rng&) const { return 1; }
};
struct PoissonGap {
  explicit PoissonGap(ConfigReader&) {}
  static double burstiness() { return 1; }
  double gap(Rng& rng) const { return rng.exponential(); }
};
/// A gamma of shape b has the coefficient of variation 1/sqrt(b). vLLM's `bench serve` calls the
/// shape `--burstiness`: below 1 is bursty, 1 is Poisson.
struct GammaGap {
  double shape;
  explicit GammaGap(ConfigReader& options) : shape(read_shape(options)) {}
  static double read_shape(ConfigReader& options) {
    if (!options.optional("burstiness")) return std::pow(options.number("cv"), -2);
    if (options.has("cv")) options.node().fail("has both \"cv\" and \"burstiness\"; give one");
    return options.number("burstiness");
  }
  double burstiness() const { return shape; }
  double gap(Rng& rng) const { return rng.gamma(shape) / shape; }
};

/// Repeats recorded times, `speedup` times as fast.
class Recorded final : public Arrivals {
 public:
  explicit Recorded(std::vector<TimedRequest> timed) {
    auto rows = std::make_shared<Rows>();
    rows->timed = std::move(timed);
    rows_ = std::move(rows);
  }
  explicit Recorded(ConfigReader& options) {
    const ConfigNode file = options.child("file");
    const double speedup = options.number("speedup");
    RequestTrace trace = read_timed(file);
    if (options.optional("then")) {
      for (const ConfigNode& next : options.child("then").list()) append(trace, read_timed(next));
    }
    auto rows = std::make_shared<Rows>();
    rows->of_file = trace.classes;
    for (const RequestTrace::Row& row : trace.rows) {
      const double picoseconds = static_cast<double>(row.arrival.count()) * 1e3 / speedup;
      if (picoseconds > last_arrival.count() * 1e12)
        file.fail("lasts longer than the 60 days that can be simulated; give a larger speedup");
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
  static RequestTrace read_timed(const ConfigNode& file) {
    RequestTrace trace = read_request_trace(file.relative(file.text()));
    if (!trace.has_arrivals)
      file.fail("has lengths but no times; use the file for lengths, with other arrivals");
    return trace;
  }

  struct Rows final : Lengths {
    std::vector<TimedRequest> timed;
    RecordedClasses of_file;
    Request request(std::int64_t index, Rng&) const override { return timed[at(index)].request; }
    std::span<const std::string> classes() const override { return of_file.names(); }
    bool has_ids() const override {
      return std::ranges::any_of(
          timed, [](const TimedRequest& one) { return one.request.prompt_ids != nullptr; });
    }
  };
  class Source final : public Numbered {
   public:
    Source(const SourceStart& start, std::shared_ptr<const Rows> rows)
        : Numbered(start), rows_(std::move(rows)) {}
    std::optional<TimedRequest> next() override {
      if (ended()) return std::nullopt;
      return send(rows_->timed[at(sent())].arrival);
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

std::shared_ptr<const Arrivals> recorded_arrivals(std::vector<TimedRequest> requests) {
  return std::make_shared<const Recorded>(std::move(requests));
}

const Registry<Arrivals>& request_arrivals() {
  static const Registry<Arrivals> table(
      "arrivals", {{"closed_loop", "a fixed number in flight: concurrency, or concurrency_per_rank",
                    make<ClosedLoop>, closed_loop_keys},
                   {"poisson", "independent arrivals at a rate, or at rates one after the other",
                    make<Rated<PoissonGap>>, rated_keys},
                   {"gamma", "gamma-distributed gaps: rate, and cv or burstiness = 1/cv^2",
                    make<Rated<GammaGap>>, gamma_keys},
                   {"constant", "equal gaps at a rate", make<Rated<ConstantGap>>, rated_keys},
                   {"trace", "recorded times, divided by speedup; the format is recognised",
                    make<Recorded>, recorded_arrivals_keys}});
  return table;
}

}  // namespace moesim
