// SPDX-License-Identifier: Apache-2.0
// When do requests arrive, and how long are they?
#include <algorithm>
#include <cmath>
#include <set>

#include "hardware/rng.hpp"
#include "tests/support.hpp"
#include "tests/temporary.hpp"
#include "traces/mapped_file.hpp"
#include "traces/requests/arrivals.hpp"
#include "traces/requests/lengths.hpp"
#include "traces/requests/request_trace.hpp"

namespace moesim::test_requests {

using namespace moesim::test;

namespace {

RequestWorkload workload(const std::string& text) {
  return read_object(config(text), [](ConfigReader& reader) { return read_workload(reader); });
}

std::vector<TimedRequest> all(const RequestWorkload& of, std::uint64_t seed = 1) {
  const auto source = of.make(seed, 1);
  std::vector<TimedRequest> requests;
  while (const auto request = source->next()) requests.push_back(*request);
  return requests;
}

struct Moments {
  double mean, cv;
};
Moments gap_moments(std::span<const TimedRequest> requests) {
  double sum = 0, squares = 0;
  Time last{};
  for (const TimedRequest& request : requests) {
    const double gap = to_seconds(request.arrival - last).count();
    sum += gap;
    squares += gap * gap;
    last = request.arrival;
  }
  const double n = static_cast<double>(requests.size()), mean = sum / n;
  return {mean, std::sqrt(squares / n - mean * mean) / mean};
}

constexpr auto fixed_lengths = R"("lengths": {"type": "fixed", "prompt": 100, "output": 20})";
std::string rated(const std::string& arrivals, int requests) {
  return R"({"arrivals": )" + arrivals + ", " + fixed_lengths + R"(, "requests": )" +
         std::to_string(requests) + "}";
}
std::string traced(const std::string& file, const std::string& more = "") {
  return R"({"arrivals": {"type": "trace", "file": ")" + file + "\"" + more + "}}";
}

}  // namespace

TEST_CASE("Poisson gaps have the mean of the rate and a coefficient of variation of one") {
  const auto requests = all(workload(rated(R"({"type": "poisson", "rate": "50 /s"})", 100'000)));
  REQUIRE(requests.size() == 100'000);
  const Moments gaps = gap_moments(requests);
  CHECK_THAT(gaps.mean, WithinRel(0.02, 0.015));  // standard error 0.3 %
  CHECK_THAT(gaps.cv, WithinRel(1.0, 0.015));
  CHECK(requests[7].request.prompt_tokens == 100);
  CHECK(requests[7].request.output_tokens == 20);
}

TEST_CASE("gamma gaps have the coefficient of variation asked for") {
  for (const double cv : {0.5, 3.0}) {
    const auto requests = all(workload(
        rated(R"({"type": "gamma", "rate": "4 /s", "cv": )" + std::to_string(cv) + "}", 200'000)));
    const Moments gaps = gap_moments(requests);
    CHECK_THAT(gaps.mean, WithinRel(0.25, 0.03));
    CHECK_THAT(gaps.cv, WithinRel(cv, 0.03));
  }
}

TEST_CASE("constant arrivals are equally spaced and the first waits one gap") {
  const auto requests = all(workload(rated(R"({"type": "constant", "rate": "4 /s"})", 3)));
  REQUIRE(requests.size() == 3);
  CHECK(to_seconds(requests[0].arrival).count() == 0.25);
  CHECK(to_seconds(requests[2].arrival).count() == 0.75);
}

TEST_CASE("equal seeds give equal requests, other seeds others") {
  const RequestWorkload poisson = workload(rated(R"({"type": "poisson", "rate": "1 /s"})", 50));
  const auto once = all(poisson), again = all(poisson), other = all(poisson, 2);
  CHECK(once.back().arrival == again.back().arrival);
  CHECK(once.back().arrival != other.back().arrival);
}

TEST_CASE("burstiness is one over the squared coefficient of variation, as in vLLM") {
  // 0.25 = 1/2^2
  const auto by_burstiness =
      all(workload(rated(R"({"type": "gamma", "rate": "4 /s", "burstiness": 0.25})", 50)));
  const auto by_cv = all(workload(rated(R"({"type": "gamma", "rate": "4 /s", "cv": 2})", 50)));
  CHECK(by_burstiness.back().arrival == by_cv.back().arrival);
}

TEST_CASE("a schedule's rates hold one after the other, and gaps go on across their borders") {
  // 2 /s for 1.25 s: 0.5, 1.0; the third is halfway there at 1.25 s. Nothing until 3 s. Then half
  // a gap at 10 /s: 3.05, and 0.1 s each.
  const auto requests = all(workload(rated(
      R"({"type": "constant", "rate": [{"rate": "2 /s", "until": "1.25 s"},
          {"rate": "0 /s", "until": "3 s"}, {"rate": "10 /s"}]})",
      5)));
  REQUIRE(requests.size() == 5);
  const std::vector<double> expected{0.5, 1.0, 3.05, 3.15, 3.25};
  for (std::size_t i = 0; i < 5; ++i)
    CHECK_THAT(to_seconds(requests[i].arrival).count(), WithinAbs(expected[i], 1e-9));
}

TEST_CASE("a Poisson schedule has each rate's number of arrivals") {
  const auto requests = all(workload(rated(
      R"({"type": "poisson", "rate": [{"rate": "100 /s", "until": "100 s"}, {"rate": "10 /s"}]})",
      11'000)));
  const auto before = std::count_if(requests.begin(), requests.end(), [](const TimedRequest& r) {
    return to_seconds(r.arrival).count() < 100;
  });
  CHECK_THAT(double(before), WithinAbs(10'000, 400));  // four standard deviations
  const double rest = to_seconds(requests.back().arrival).count() - 100;
  CHECK_THAT(double(11'000 - before) / rest, WithinRel(10.0, 0.15));
}

TEST_CASE("a schedule of one rate is that rate") {
  const auto plain = all(workload(rated(R"({"type": "poisson", "rate": "7 /s"})", 40)));
  const auto listed =
      all(workload(rated(R"({"type": "poisson", "rate": [{"rate": "7 /s"}]})", 40)));
  for (std::size_t i = 0; i < plain.size(); ++i) CHECK(plain[i].arrival == listed[i].arrival);
}

TEST_CASE("a schedule that cannot be meant is refused") {
  using Catch::Matchers::Contains;
  const auto refused = [](const std::string& rate) {
    return config_error(
        [&] { workload(rated(R"({"type": "poisson", "rate": )" + rate + "}", 1)); });
  };
  CHECK_THAT(refused(R"([{"rate": "1 /s", "until": "5 s"}])"), Contains("without \"until\""));
  CHECK_THAT(refused("[]"), Contains("without \"until\""));
  CHECK_THAT(refused(R"([{"rate": "1 /s"}, {"rate": "2 /s"}])"), Contains("follows a rate"));
  CHECK_THAT(refused(R"([{"rate": "1 /s", "until": "5 s"}, {"rate": "0 /s"}])"),
             Contains("above zero"));
  CHECK_THAT(refused(R"([{"rate": "1 /s", "until": "5 s"}, {"rate": "1 /s", "until": "4 s"},
                         {"rate": "1 /s"}])"),
             Contains("/1/until: must be after"));
}

TEST_CASE("clients wait as long as the workload says") {
  const auto rule = [](const std::string& more) {
    return workload(R"({"arrivals": {"type": "constant", "rate": "1 /s"}, "requests": 1, )" +
                    std::string(fixed_lengths) + more + "}")
        .patience;
  };
  CHECK(rule("").endless());
  Rng rng(1, "test");
  const Patience both = rule(R"(, "timeout": "60 s", "ttft_timeout": "2 s")").draw(rng);
  CHECK(to_seconds(*both.whole).count() == 60);
  CHECK(to_seconds(*both.first_token).count() == 2);
  CHECK_FALSE(both.cancels);

  const PatienceRule cancelling = rule(R"(, "cancellation": {"share": 0.25, "mean_after": "4 s"})");
  int cancelled = 0;
  double after = 0;
  for (int i = 0; i < 40'000; ++i) {
    const Patience patience = cancelling.draw(rng);
    if (!patience.cancels) continue;
    ++cancelled;
    after += to_seconds(*patience.cancels).count();
  }
  CHECK_THAT(cancelled / 40'000., WithinAbs(0.25, 0.01));
  CHECK_THAT(after / cancelled, WithinRel(4.0, 0.04));

  using Catch::Matchers::Contains;
  CHECK_THAT(config_error([&] { rule(R"(, "timeout": "0 s")"); }), Contains("timeout: must be"));
  CHECK_THAT(config_error([&] { rule(R"(, "cancellation": {"share": 2, "mean_after": "4 s"})"); }),
             Contains("share: 2 is out of range"));
  CHECK_THAT(config_error([&] { rule(R"(, "cancellation": {"share": 0.5})"); }),
             Contains("mean_after"));
}

TEST_CASE("a closed loop keeps its concurrency until all requests are sent") {
  const RequestWorkload loop =
      workload(rated(R"({"type": "closed_loop", "concurrency_per_rank": 2})", 8));
  const auto source = loop.make(1, 3);  // 2 per rank, 3 ranks: 6 at once
  for (int i = 0; i < 6; ++i) {
    const auto request = source->next();
    REQUIRE(request);
    CHECK(request->arrival == Time{});
  }
  CHECK_FALSE(source->next());
  const Time later{Duration(5000)};
  source->completed(0, Outcome::finished, later);
  CHECK(source->next()->arrival == later);
  CHECK_FALSE(source->next());
  source->completed(1, Outcome::finished, later);
  source->completed(2, Outcome::finished, later);
  CHECK(source->next());        // the eighth and last
  CHECK_FALSE(source->next());  // though a client is idle
}

TEST_CASE("clients that never send take no memory") {
  const auto requests =
      all(workload(rated(R"({"type": "closed_loop", "concurrency": 1000000000000000})", 3)));
  REQUIRE(requests.size() == 3);
  CHECK(requests[2].arrival == Time{});
}

TEST_CASE("a global concurrency does not grow with the ranks") {
  const RequestWorkload loop = workload(rated(R"({"type": "closed_loop", "concurrency": 3})", 100));
  const auto source = loop.make(1, 16);
  int sent = 0;
  while (source->next()) ++sent;
  CHECK(sent == 3);
}

TEST_CASE("arrivals at a rate with a limit wait for a place, and then follow at once or in step") {
  const auto at = [](double seconds) { return Time(to_duration(Seconds(seconds))); };
  const auto sent = [&](const char* more) {
    const RequestWorkload capped = workload(rated(
        std::string(R"({"type": "constant", "rate": "1 /s", "max_concurrency": 2)") + more + "}",
        5));
    CHECK(capped.arrivals->closed());
    CHECK(capped.arrivals->in_flight(8) == 2);
    const auto source = capped.make(1, 1);
    std::vector<Time> times{source->next()->arrival, source->next()->arrival};
    CHECK_FALSE(source->next());
    // Both places are taken from 2 s on; they become free at 4.5 and 4.75 s, then at 4.8 s.
    for (const auto& [request, leaves] : {std::pair{0, 4.5}, {1, 4.75}, {2, 4.8}}) {
      source->completed(request, Outcome::finished, at(leaves));
      times.push_back(source->next()->arrival);
      CHECK_FALSE(source->next());
    }
    return times;
  };
  // Due at 3, 4 and 5 s.
  CHECK(sent("") == std::vector{at(1), at(2), at(4.5), at(4.75), at(5)});
  // Each next one is due a gap after the last one was sent.
  CHECK(sent(R"(, "catch_up": false)") == std::vector{at(1), at(2), at(4.5), at(5.5), at(6.5)});
}

TEST_CASE("a limit that is never reached changes no arrival") {
  const auto free = all(workload(rated(R"({"type": "poisson", "rate": "50 /s"})", 500)));
  const auto capped =
      all(workload(rated(R"({"type": "poisson", "rate": "50 /s", "max_concurrency": 500})", 500)));
  REQUIRE(capped.size() == free.size());
  for (std::size_t i = 0; i < free.size(); ++i) CHECK(capped[i].arrival == free[i].arrival);
}

TEST_CASE("rescaled gaps end at requests / rate, and keep their proportions") {
  const auto seconds = [](const TimedRequest& one) {
    return to_seconds(one.arrival - Time{}).count();
  };
  for (const std::string shape :
       {R"("poisson")", R"("gamma", "burstiness": 0.5)", R"("constant")"}) {
    const std::string arrivals = R"({"type": )" + shape + R"(, "rate": "50 /s")";
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      const auto drawn = all(workload(rated(arrivals + "}", 500)), seed);
      const auto scaled = all(workload(rated(arrivals + R"(, "rescaled": true})", 500)), seed);
      REQUIRE(scaled.size() == 500);
      for (std::size_t i = 0; i < 500; ++i)
        REQUIRE_THAT(seconds(scaled[i]),
                     WithinAbs(10 * seconds(drawn[i]) / seconds(drawn.back()), 1e-8));
    }
  }
  CHECK_THAT(config_error([] {
               workload(rated(R"({"type": "poisson", "rescaled": true, "rate":
                                  [{"rate": "5 /s", "until": "1 s"}, {"rate": "2 /s"}]})",
                              5));
             }),
             Catch::Matchers::Contains("/arrivals/rescaled: needs one rate"));
}

TEST_CASE("requests that leave move no arrival where places are free, whenever a source is asked") {
  const auto at = [](double seconds) { return Time(to_duration(Seconds(seconds))); };
  const auto limit = GENERATE(as<std::string>{}, "", R"(, "max_concurrency": 1000000)");
  const auto source =
      workload(rated(R"({"type": "constant", "rate": "1 /s")" + limit + "}", 9)).make(1, 1);
  for (int i = 0; i < 9; ++i) {
    CHECK(source->next()->arrival == at(i + 1));
    source->completed(i, Outcome::finished, at(i + 2.5));  // after the next one is due
  }
}

TEST_CASE("at a rate beyond all service a limit is a closed loop") {
  const auto at = [](int seconds) { return Time(to_duration(Seconds(seconds))); };
  const auto source =
      workload(rated(R"({"type": "constant", "rate": "1000000 /s", "max_concurrency": 2})", 4))
          .make(1, 1);
  source->next();
  source->next();
  // Both leave before anybody asks: each place is free since its own request left.
  source->completed(0, Outcome::finished, at(5));
  source->completed(1, Outcome::finished, at(7));
  CHECK(source->next()->arrival == at(5));
  CHECK(source->next()->arrival == at(7));
}

TEST_CASE("log-normal lengths have their median and stay within their maximum") {
  const RequestWorkload lognormal = workload(R"({
    "arrivals": {"type": "constant", "rate": "1 /s"}, "requests": 20001,
    "lengths": {"type": "lognormal", "prompt": {"median": 1000, "sigma": 1.0, "max": 4000},
                "output": {"median": 1, "sigma": 2}}})");
  std::vector<int> prompts;
  for (const TimedRequest& request : all(lognormal)) {
    prompts.push_back(request.request.prompt_tokens);
    CHECK(request.request.output_tokens >= 1);
    CHECK(request.request.prompt_tokens <= 4000);
  }
  std::nth_element(prompts.begin(), prompts.begin() + 10'000, prompts.end());
  CHECK_THAT(prompts[10'000], WithinRel(1000.0, 0.03));
}

TEST_CASE("every known file family is recognised from its first line") {
  const TemporaryFile azure(
      "requests.txt",
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
      "2023-11-16 23:59:59.5000000,374,44\r\n2023-11-17 00:00:01.2500000,396,109\r\n");
  const TemporaryFile azure_2024(
      "requests.txt",
      "TIMESTAMP,ContextTokens,GeneratedTokens\n"
      "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-09 19:30:01.759930-04:30,10,2\n");
  const TemporaryFile burst(
      "requests.txt",
      "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
      "5,ChatGPT,472,18,490,Conversation log\n6,ChatGPT,99,0,99,Conversation log\n"
      "6.75,GPT-4,1087,230,1317,Conversation log\n");
  const TemporaryFile mooncake(
      "requests.txt",
      R"({"timestamp": 100, "input_length": 758, "output_length": 500, "hash_ids": [0, 1]})"
      "\n"
      R"({"timestamp": 1850, "input_length": 322, "output_length": 490, "hash_ids": [0]})");
  const TemporaryFile vidur(
      "requests.txt",
      "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,374,44\n2.25,396,109\n");
  const TemporaryFile splitwise(
      "requests.txt",
      "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
      "0,2,0,1.0,1,374,44\n1,2,0,2.75,1,396,109\n");
  const TemporaryFile lines(
      "requests.txt",
      "{\"arrival_s\": 3, \"prompt_tokens\": 600, \"output_tokens\": 44, \"hash_ids\": [7, 8]}\n"
      "{\"arrival_s\": 4.75, \"prompt_tokens\": 396, \"output_tokens\": 109}\n");
  const TemporaryFile own(
      "requests.txt",
      "request,arrival_s,rank,prompt_tokens,output_tokens\n0,0.25,3,374,44\n1,2.0,1,396,109\n");
  // In each the second request that did not fail comes 1.75 s after the first.
  for (const TemporaryFile* file :
       {&azure, &azure_2024, &burst, &mooncake, &vidur, &splitwise, &lines, &own}) {
    const RequestTrace trace = read_request_trace(file->path());
    REQUIRE(trace.rows.size() == 2);
    CHECK(trace.has_arrivals);
    CHECK(trace.rows[0].arrival.count() == 0);
    CHECK(trace.rows[1].arrival == std::chrono::milliseconds(1750));
  }
  CHECK(read_request_trace(burst.path()).rows[1].request.prompt_tokens == 1087);
  const Request conversation = read_request_trace(mooncake.path()).rows[0].request;
  CHECK(conversation.output_tokens == 500);
  CHECK(conversation.prompt_ids->spans == std::vector<PromptIds::Span>{{512, 0}, {758, 1}});
  for (const TemporaryFile* file : {&vidur, &splitwise, &lines, &own}) {
    const Request second = read_request_trace(file->path()).rows[1].request;
    CHECK(second.prompt_tokens == 396);
    CHECK(second.output_tokens == 109);
    CHECK(second.prompt_ids == nullptr);
  }
  CHECK(read_request_trace(lines.path()).rows[0].request.prompt_ids->spans.back().id == 8);
  const TemporaryFile lengths("requests.txt",
                              "num_prefill_tokens,num_decode_tokens,pd_ratio\n5,2,2.5\n");
  CHECK_FALSE(read_request_trace(lengths.path()).has_arrivals);
}

TEST_CASE("rows out of order are sorted by time") {
  const TemporaryFile file(
      "requests.txt",
      "Timestamp,Model,Request tokens,Response tokens\n9,m,2,1\n4,m,1,1\n9,m,3,1\n");
  const RequestTrace trace = read_request_trace(file.path());
  CHECK(trace.rows[0].request.prompt_tokens == 1);
  CHECK(trace.rows[1].request.prompt_tokens == 2);
  CHECK(trace.rows[2].request.prompt_tokens == 3);
  CHECK(trace.rows[2].arrival == std::chrono::seconds(5));
}

TEST_CASE("a trace played twice as fast has half the gaps") {
  const TemporaryFile file(
      "requests.txt",
      "Timestamp,Model,Request tokens,Response tokens\n10,m,1,1\n12,m,1,1\n17,m,1,1\n");
  const auto plain = all(workload(traced(file.path())));
  const auto fast = all(workload(traced(file.path(), R"(, "speedup": 2)")));
  REQUIRE(plain.size() == 3);
  CHECK(to_seconds(plain[2].arrival).count() == 7.0);
  CHECK(to_seconds(fast[1].arrival).count() == 1.0);
  CHECK(to_seconds(fast[2].arrival).count() == 3.5);
}

TEST_CASE(
    "files whose requests follow begin a mean gap after the last request, with their classes") {
  const TemporaryFile first("first.csv",
                            "arrival_s,prompt_tokens,output_tokens,class\n3,1,1,a\n5,2,1,b\n");
  const TemporaryFile next("next.csv",
                           "arrival_s,prompt_tokens,output_tokens,class\n8,3,1,b\n9,4,1,c\n");
  const auto then = R"(, "speedup": 2, "then": [")" + next.path().string() + "\"]";
  const RequestWorkload both = workload(traced(first.path().string(), then));
  const auto requests = all(both);
  REQUIRE(requests.size() == 4);
  // 0 and 2 s, a gap of 2 s, then 0 and 1 s; all twice as fast.
  CHECK(to_seconds(requests[2].arrival).count() == 2.0);
  CHECK(to_seconds(requests[3].arrival).count() == 2.5);
  CHECK(requests[3].request.prompt_tokens == 4);
  CHECK(requests[0].request.recorded_class == 0);
  CHECK(requests[2].request.recorded_class == 1);
  CHECK(requests[3].request.recorded_class == 2);
}

TEST_CASE("a trace of lengths that repeats has tokens of its own each time") {
  const TemporaryFile file(
      "requests.jsonl",
      R"({"timestamp": 0, "input_length": 1024, "output_length": 4, "hash_ids": [1, 2]}
{"timestamp": 1, "input_length": 600, "output_length": 4, "hash_ids": [1, 3]}
)");
  const auto lengths = request_lengths().make(
      config(R"({"type": "trace", "file": ")" + file.path().string() + "\"}"));
  Rng rng(1, "test");
  const auto ids = [&](std::int64_t index) {
    const Request request = lengths->request(index, rng);
    return std::pair(request.prompt_ids->spans[0].id, request.prompt_ids->spans[1].id);
  };
  std::set<std::uint64_t> seen;
  for (const std::int64_t round : {0, 1, 2}) {
    CHECK(ids(2 * round).first == ids(2 * round + 1).first);  // what they share they share again
    CHECK(ids(2 * round).second != ids(2 * round + 1).second);
    CHECK(seen.insert(ids(2 * round).first).second);
    CHECK(seen.insert(ids(2 * round).second).second);
  }
  CHECK(lengths->request(3, rng).prompt_ids->tokens() == 600);
}

TEST_CASE("recorded lengths repeat from the first under other arrivals") {
  for (const char* text :
       {"prompt_tokens,output_tokens\n3992,454\n5151,1803\n",
        "{\"prompt_tokens\": 3992, \"output_tokens\": 454}\n"
        "{\"prompt_tokens\": 5151, \"output_tokens\": 1803}\n",
        "{\"input_length\": 3992, \"output_length\": 454, \"hash_ids\": [1, 2, 3, 4, 5, 6, 7, 8]}\n"
        "{\"input_length\": 5151, \"output_length\": 1803}\n"}) {
    const TemporaryFile file("requests.txt", text);
    const auto requests = all(workload(
        R"({"arrivals": {"type": "constant", "rate": "1 /s"}, "requests": 3,
            "lengths": {"type": "trace", "file": ")" +
        file.path().string() + "\"}}"));
    CHECK(requests[1].request.output_tokens == 1803);
    CHECK(requests[2].request.prompt_tokens == 3992);
    CHECK_THAT(config_error([&] { workload(traced(file.path().string())); }),
               Catch::Matchers::Contains("has lengths but no times"));
  }
}

TEST_CASE("a malformed row is refused with its line number") {
  const std::string header = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  const auto refused = [&](const std::string& row) {
    const TemporaryFile file("requests.txt",
                             header + "2023-11-16 18:15:46.68,374,44\n" + row + "\n");
    return config_error([&] { read_request_trace(file.path()); });
  };
  using Catch::Matchers::Contains;
  CHECK_THAT(refused("2023-11-16 18:15:50,396"), Contains(":3: has 2 fields"));
  CHECK_THAT(refused("2023-11-16 18:15:50,many,3"), Contains(":3: \"many\""));
  CHECK_THAT(refused("2023-13-16 18:15:50,12,3"), Contains(":3: \"2023-13-16"));
  CHECK_THAT(refused("yesterday,12,3"), Contains(":3: \"yesterday\""));
  CHECK_THAT(refused("2023-11-16 18:15:50,12,0"), Contains(":3: 0 output tokens"));
  CHECK_THAT(refused("2023-11-16 18:15:50,-1,5"), Contains(":3: -1 prompt tokens"));
  CHECK_THAT(refused("2023-11-16 18:15:50,1.5,5"), Contains(":3: \"1.5\""));
  CHECK_THAT(refused("2023-11-16 18:15:50,99999999999,5"), Contains(":3: 99999999999 prompt"));
  const TemporaryFile moon(
      "requests.txt",
      "{\"timestamp\": 1, \"input_length\": 2, \"output_length\": 3}\n{\"timestamp\": 1}\n");
  CHECK_THAT(config_error([&] { read_request_trace(moon.path()); }), Contains(":2: has no number"));
  const TemporaryFile ids(
      "requests.txt",
      R"({"timestamp": 1, "input_length": 513, "output_length": 3, "hash_ids": [4]})");
  CHECK_THAT(config_error([&] { read_request_trace(ids.path()); }),
             Contains(":1: \"hash_ids\" are not 2 ids"));
  // Ids may be of fewer tokens than 512, by what the first row with several has.
  const TemporaryFile of_64(
      "requests.txt",
      R"({"timestamp": 1, "input_length": 30, "output_length": 3, "hash_ids": [4]}
{"timestamp": 1, "input_length": 129, "output_length": 3, "hash_ids": [4, 5, 6]}
{"timestamp": 2, "input_length": 64, "output_length": 3, "hash_ids": [4, 5]})");
  CHECK_THAT(config_error([&] { read_request_trace(of_64.path()); }),
             Contains(":3: \"hash_ids\" are not 1 ids, one for each 64 tokens"));
  const TemporaryFile in_ms("requests.txt",
                            "timestamp,prompt_tokens,output_tokens\n1700000000250,100,5\n");
  CHECK_THAT(config_error([&] { read_request_trace(in_ms.path()); }),
             Contains(":2: \"1700000000250\" is not a time in seconds of this century; "
                      "a timestamp in ms is divided by 1000"));
  const TemporaryFile other("requests.txt", "a,b,c\n1,2,3\n");
  CHECK_THAT(config_error([&] { read_request_trace(other.path()); }),
             Contains(":1: is not a request trace"));
  const TemporaryFile bare("requests.txt", "prompt_tokens,output_tokens\n");
  CHECK_THAT(config_error([&] { read_request_trace(bare.path()); }), Contains("holds no request"));
}

TEST_CASE("fields of a CSV file may stand in quotes, over lines too") {
  const TemporaryFile file("requests.csv",
                           "prompt_tokens, \"output_tokens\" ,class\n"
                           "10,\"1\",\"a,b\"\n11,2,\" x \"\n12,3,\"two\r\n\n\"\"lines\"\"\"\n"
                           "13,4, bare \n14,5,'=1+1\n15,6,\n");
  const RequestTrace trace = read_request_trace(file.path());
  REQUIRE(trace.rows.size() == 6);
  const std::vector<std::string> names{"a,b", " x ", "two\r\n\n\"lines\"", "bare", "=1+1", ""};
  for (std::size_t i = 0; i < names.size(); ++i) {
    CHECK(trace.rows[i].request.prompt_tokens == 10 + static_cast<int>(i));
    CHECK(trace.classes.names()[trace.rows[i].request.recorded_class] == names[i]);
  }
  const TemporaryFile open("requests.csv", "prompt_tokens,output_tokens\n1,2\n\"3,4\n5,6\n");
  CHECK_THAT(config_error([&] { read_request_trace(open.path()); }),
             Catch::Matchers::Contains(":3: a field's quote is not closed"));
}

TEST_CASE("the first line of a file is that which is not blank, with either end or none") {
  const auto first = [](const std::string& text) {
    return first_line(TemporaryFile("lines.txt", text).path());
  };
  CHECK(first("a b\nc\n") == "a b");
  CHECK(first("\n \t\r\n  a\r\nb") == "  a");
  CHECK(first("a") == "a");
  CHECK(first(" \n").empty());
}

TEST_CASE("a compressed file is refused as one") {
  const TemporaryFile file("requests.jsonl.gz", "\x1F\x8B\x08\x04{}");
  CHECK_THAT(config_error([&] { read_request_trace(file.path()); }),
             Catch::Matchers::EndsWith("requests.jsonl.gz: is compressed by gzip; unpack it with "
                                       "gunzip"));
  CHECK_THAT(config_error([&] { ConfigNode::from_file(file.path()); }),
             Catch::Matchers::Contains("requests.jsonl.gz: is compressed by gzip"));
}

TEST_CASE("a file whose line has no end is refused before it fills memory") {
  const TemporaryFile zeros("requests.jsonl", "{}");
  std::filesystem::resize_file(zeros.path(), (std::uintmax_t{1} << 30) + 1);
  CHECK_THAT(config_error([&] { read_request_trace(zeros.path()); }),
             Catch::Matchers::EndsWith("requests.jsonl:1: is longer than 1 GiB"));
}

TEST_CASE("a workload that cannot be meant is refused") {
  using Catch::Matchers::Contains;
  const auto refused = [](const std::string& text) {
    return config_error([&] { workload(text); });
  };
  CHECK_THAT(refused(R"({"arrivals": {"type": "poisson", "rate": "1 /s"}, "requests": 3})"),
             Contains("lengths"));
  CHECK_THAT(refused(R"({"arrivals": {"type": "poisson", "rate": "1 /s"},
                         "lengths": {"type": "fixed", "prompt": 1, "output": 1}})"),
             Contains("requests"));
  CHECK_THAT(refused(rated(R"({"type": "poisson", "rate": "0 /s"})", 1)), Contains("rate"));
  CHECK_THAT(refused(rated(R"({"type": "poisson", "rate": "1 /s", "cv": 2})", 1)), Contains("cv"));
  CHECK_THAT(refused(rated(R"({"type": "closed_loop"})", 1)), Contains("concurrency_per_rank"));
  CHECK_THAT(
      refused(rated(R"({"type": "closed_loop", "concurrency": 1, "concurrency_per_rank": 1})", 1)),
      Contains("both"));
  const TemporaryFile lengths("requests.txt", "prompt_tokens,output_tokens\n1,1\n");
  CHECK_THAT(refused(traced(lengths.path())), Contains("has lengths but no times"));
  const TemporaryFile two("requests.txt",
                          "Timestamp,Request tokens,Response tokens\n1,1,1\n2,1,1\n");
  CHECK_THAT(refused(R"({"requests": 3, )" + traced(two.path()).substr(1)),
             Contains("3 requests of a trace of 2"));
  const TemporaryFile long_ago("requests.txt",
                               "Timestamp,Request tokens,Response tokens\n1,1,1\n1e7,1,1\n");
  CHECK_THAT(refused(traced(long_ago.path())), Contains("speedup"));
  CHECK_THAT(refused(traced("/")), Contains("not a regular file"));
}

TEST_CASE("the Azure 2023 conversation trace has its published size, rate and lengths") {
  if (!has_shared()) {
    WARN("skipped: ../shared is absent");
    return;
  }
  const RequestTrace trace = read_request_trace(shared_dir() / "data" / "requests" / "azure_2023" /
                                                "AzureLLMInferenceTrace_conv.csv");
  CHECK(trace.rows.size() == 19'366);
  const double seconds = std::chrono::duration<double>(trace.rows.back().arrival).count();
  CHECK_THAT(19'366 / seconds, WithinRel(5.53, 0.001));
  std::vector<int> prompts, outputs;
  for (const RequestTrace::Row& row : trace.rows) {
    prompts.push_back(row.request.prompt_tokens);
    outputs.push_back(row.request.output_tokens);
  }
  const auto median = [](std::vector<int>& values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
  };
  CHECK(median(prompts) == 1020);
  CHECK(median(outputs) == 129);
}

TEST_CASE("the Mooncake conversation trace has its published size and rate") {
  if (!has_shared()) {
    WARN("skipped: ../shared is absent");
    return;
  }
  const RequestTrace trace = read_request_trace(shared_dir() / "data" / "requests" /
                                                "mooncake_fast25" / "conversation_trace.jsonl");
  CHECK(trace.rows.size() == 12'031);
  CHECK_THAT(std::chrono::duration<double>(trace.rows.back().arrival).count(),
             WithinAbs(3537.0, 1.0));
}

}  // namespace moesim::test_requests
