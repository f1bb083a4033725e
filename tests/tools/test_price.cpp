// SPDX-License-Identifier: Apache-2.0
// Does `price` give the steps of a run the seconds that they took in the run, asked over a socket?
#include <chrono>
#include <csignal>
#include <thread>

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/support.hpp"
#include "tests/temporary.hpp"
#include "tests/tiny_experiment.hpp"
#include "tools/bench/step_pricer.hpp"
#include "tools/run/price.hpp"

namespace moesim::test_price {
namespace {

using test::TemporaryFolder;

/// A caller of the socket, which appears once the server has read its config.
class Caller {
 public:
  explicit Caller(const std::string& path) : socket_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    for (int tries = 0; tries < 600 && !connected_; ++tries) {
      connected_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
      if (!connected_) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    REQUIRE(connected_);
  }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;
  ~Caller() { ::close(socket_); }

  Json ask(const Json& batch) {
    const std::string line = batch.dump() + "\n";
    REQUIRE(::send(socket_, line.data(), line.size(), 0) == std::ssize(line));
    std::string answer;
    for (char c = 0; ::read(socket_, &c, 1) == 1 && c != '\n';) answer += c;
    return Json::parse(answer);
  }

 private:
  int socket_;
  bool connected_ = false;
};

/// `moesim price CONFIG --socket PATH`, until it is told to end.
class Server {
 public:
  explicit Server(const Experiment& experiment)
      : thread_([this, &experiment] { serve_prices(experiment.decode(), socket()); }) {}
  ~Server() {
    if (thread_.joinable()) end();
  }
  std::string socket() const { return (folder_ / "price.sock").string(); }
  void end() {
    std::raise(SIGTERM);  // the server listens, so that it is noted and not obeyed
    thread_.join();
  }

 private:
  TemporaryFolder folder_;
  std::thread thread_;
};

/// The batches of a run as another scheduler would say them: a rank serves its requests in order of
/// arrival, each with a token or more in each step until it leaves.
class Batches : public RunObserver {
 public:
  Batches(const std::vector<RequestRecord>& requests, std::size_t ranks)
      : requests_(requests), on_rank_(ranks) {
    for (std::size_t id = 0; id < requests.size(); ++id)
      on_rank_[static_cast<std::size_t>(requests[id].rank)].push_back(id);
  }
  void step_ended(const StepRecord& record, Time now) override {
    Json ranks = Json::array();
    for (std::size_t r = 0; r < on_rank_.size(); ++r) {
      Json& rank = ranks.emplace_back(Json::object());
      const RankStep& step = record.batch.ranks[r];
      if (step.dummy) continue;
      for (std::size_t i = 0; i < step.sequences.size(); ++i) {
        const std::size_t id = on_rank_[r].at(i);
        rank["new"].push_back(step.sequences[i].new_tokens);
        rank["context"].push_back(step.sequences[i].context_tokens);
        rank["prompt"].push_back(requests_[id].prompt_tokens);
        rank["request"].push_back(id);
      }
    }
    batches.push_back({{"ranks", ranks}});
    seconds.push_back(record.cost.total.count());
    took.push_back(to_seconds(now - record.step.start).count());
    kinds.emplace_back(step_kind_names[static_cast<std::size_t>(record.step.kind)]);
    idle.push_back(record.cost.idle);
    for (const Milestone& milestone : record.milestones) {
      if (!milestone.last) continue;
      for (auto& ids : on_rank_) std::erase(ids, milestone.request);
    }
  }
  std::vector<Json> batches;
  std::vector<double> seconds, took;
  std::vector<std::string> kinds;
  std::vector<std::vector<double>> idle;  // [GPUs]

 private:
  const std::vector<RequestRecord>& requests_;
  std::vector<std::vector<std::size_t>> on_rank_;
};

void compare_with_run(const Json& set) {
  const Experiment experiment = test::load_tiny(set);
  const test::Served first = test::serve(experiment);
  Batches run(first.requests, static_cast<std::size_t>(experiment.decode().parallel.dp));
  test::serve(experiment, {&run});
  Server server(experiment);
  {
    Caller caller(server.socket());
    for (std::size_t step = 0; step < run.batches.size(); ++step) {
      INFO("step " << step << ": " << run.batches[step]);
      const Json answer = caller.ask(run.batches[step]);
      REQUIRE(answer.value("error", "") == "");
      REQUIRE(answer["seconds"].get<double>() == run.seconds[step]);
      REQUIRE_THAT(answer["seconds"].get<double>(), test::WithinAbs(run.took[step], 2e-12));
      REQUIRE(answer["holds"] == run.kinds[step]);
      const auto gpus_of_rank = run.idle[step].size() / answer["wait_seconds"].size();
      for (std::size_t rank = 0; rank < answer["wait_seconds"].size(); ++rank) {
        double wait = 0;
        for (std::size_t i = 0; i < gpus_of_rank; ++i)
          wait += run.idle[step][rank * gpus_of_rank + i] / double(gpus_of_rank);
        REQUIRE_THAT(answer["wait_seconds"][rank].get<double>(), test::WithinAbs(wait, 1e-9));
        REQUIRE_THAT(answer["rank_seconds"][rank].get<double>() + wait,
                     test::WithinAbs(run.seconds[step], 2e-9));
      }
    }
  }
  REQUIRE(run.batches.size() > 50);
  REQUIRE(std::ranges::count(run.kinds, "mixed") > 5);
  REQUIRE(std::ranges::count(run.kinds, "decode") > 5);
  // The next caller begins anew, so the first steps come out alike.
  Caller again(server.socket());
  REQUIRE(again.ask(run.batches[0])["seconds"].get<double>() == run.seconds[0]);
  REQUIRE(again.ask({{"ranks", Json::array({1})}})["error"] ==
          "batch 2:/ranks: has 1 ranks, and the deployment 4; an idle rank is {}");
  REQUIRE(again.ask(run.batches[1])["seconds"].get<double>() == run.seconds[1]);
  server.end();
  REQUIRE(!std::filesystem::exists(server.socket()));
}

TEST_CASE("the steps of a run cost over a socket what they cost in the run", "[price]") {
  compare_with_run(Json::object());
}

TEST_CASE("so do steps of experts over all GPUs of ranks of two", "[price]") {
  compare_with_run({{"parallel", {{"dp", 4}, {"tp", 2}, {"ep", 8}}},
                    {"token_routing", {{"decode", "metro"}, {"mixed", "prefill"}}},
                    {"dispatch", {{"decode", "ids_all_gather"}}}});
}

TEST_CASE("so do sampled steps, and those with graphs that pad", "[price]") {
  compare_with_run({{"fidelity", "sampled"}});
  compare_with_run({{"cuda_graph", {{"sizes", {4, 8}}}}});
}

// Every expert serves every token, so that recordings make no difference.
TEST_CASE("explain prices a batch as price does, padded to graphs as well", "[price]") {
  const Json all = {{"model", {{"experts", {{"per_token", 16}}}}}, {"placement", "linear"}};
  Json graphs = all;
  graphs["cuda_graph"] = {{"sizes", {4, 8}}};
  const Experiment padded = test::load_tiny(graphs), plain = test::load_tiny(all);
  const auto priced = [](const Experiment& e, int sequences) {
    StepPricer pricer(e.decode());
    const auto size = static_cast<std::size_t>(sequences);
    const RankWork rank{.new_tokens = std::vector<std::int32_t>(size, 1),
                        .context = std::vector<std::int32_t>(size, 100)};
    return pricer.price(std::vector<RankWork>(4, rank)).total.count();
  };
  const auto explained = [](const Experiment& e, int sequences) {
    return explain_step(e, decode_step(sequences, 100)).cost.total.count();
  };
  for (const int sequences : {1, 3, 4, 5, 8}) {
    CAPTURE(sequences);
    CHECK(explained(padded, sequences) == priced(padded, sequences));
    CHECK(explained(plain, sequences) == priced(plain, sequences));
  }
  CHECK(explained(padded, 5) > explained(plain, 5));
}

TEST_CASE("without requests a decode takes any recording, and a longer context more time",
          "[price]") {
  const Experiment experiment = test::load_tiny(Json::object());
  Server server(experiment);
  Caller caller(server.socket());
  const auto batch = [](std::vector<int> tokens, std::vector<int> context) {
    const Json rank = {{"new", tokens}, {"context", context}};
    return Json{{"ranks", {rank, rank, rank, rank}}};
  };
  const Json brief = caller.ask(batch({1, 1}, {100, 100}));
  const Json lengthy = caller.ask(batch({1, 1}, {100'000, 100'000}));
  REQUIRE(brief["holds"] == "decode");
  REQUIRE(lengthy["seconds"].get<double>() > 1.5 * brief["seconds"].get<double>());
  REQUIRE(caller.ask(batch({64}, {0}))["holds"] == "prefill");
  REQUIRE(brief["active_experts"].get<double>() <= 16);
  REQUIRE(caller.ask(batch({0}, {0}))["error"] ==
          "batch 4:/ranks/0/new/0: expected a whole number from 1 to 1048576");
  server.end();
}

}  // namespace
}  // namespace moesim::test_price
