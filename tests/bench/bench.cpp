// SPDX-License-Identifier: Apache-2.0
// How fast are whole simulated steps, as ratios to what was measured in the same run? Prints a
// table of figures, goals and verdicts after Google Benchmark's own.
#include <array>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <tbb/global_control.h>

#include "sim/serving/simulator.hpp"

namespace moesim {
namespace {

Experiment experiment(const std::string& name, const Json& set = Json::object()) {
  const auto file = std::filesystem::path(MOESIM_SOURCE_DIR) / "configs/bench" / (name + ".json");
  Json json = ConfigNode::from_file(file).json();
  json.merge_patch(set);
  static TraceLibrary traces;
  return load_experiment(ConfigNode(json, file), traces);
}

// The least that a replay must do: read each id of the step's rows once and count it, by layer.
void histogram(benchmark::State& state, const RoutingTrace& trace, std::size_t rows) {
  const auto layers = static_cast<std::size_t>(trace.layers());
  const auto k = static_cast<std::size_t>(trace.experts_per_token());
  const auto experts = static_cast<std::size_t>(trace.num_experts());
  std::vector<std::int32_t> counts(layers * experts);
  const std::size_t all = static_cast<std::size_t>(trace.tokens());
  std::size_t row = 0;
  for (auto _ : state) {
    std::fill(counts.begin(), counts.end(), 0);
    trace.visit([&](auto ids) {
      for (std::size_t t = 0; t < rows; ++t) {
        // As scattered as the rows of requests are.
        row = (row + 7919) % all;
        const auto* id = ids.data() + row * layers * k;
        for (std::int32_t* layer = counts.data(); layer < counts.data() + counts.size();
             layer += experts) {
          for (std::size_t j = 0; j < k; ++j) ++layer[*id++];
        }
      }
    });
    benchmark::DoNotOptimize(counts.data());
    benchmark::ClobberMemory();
  }
  state.counters["ids/s"] = benchmark::Counter(static_cast<double>(rows * layers * k),
                                               benchmark::Counter::kIsIterationInvariantRate);
}

// The least that a replay with a combine all-to-all must do: as above, and for each token count the
// GPUs that it goes to, by the GPU that holds it. A loop of its own: with the one above by a common
// template the floor was a seventh slower.
void gathering(benchmark::State& state, const RoutingTrace& trace, std::size_t rows) {
  constexpr std::size_t gpus = 16, bits_of_byte = 8;
  const auto layers = static_cast<std::size_t>(trace.layers());
  const auto k = static_cast<std::size_t>(trace.experts_per_token());
  const auto experts = static_cast<std::size_t>(trace.num_experts());
  // Bit b of a byte as a one in byte b: eight counts in a word.
  std::array<std::uint64_t, 256> spread{};
  for (std::size_t byte = 0; byte < spread.size(); ++byte) {
    for (std::size_t bit = 0; bit < bits_of_byte; ++bit)
      spread[byte] |= (std::uint64_t{byte} >> bit & 1) << (bits_of_byte * bit);
  }
  std::vector<std::uint32_t> bit_of_expert;
  for (std::size_t expert = 0; expert < experts; ++expert)
    bit_of_expert.push_back(1U << (expert * gpus / experts));
  std::vector<std::int32_t> counts(layers * experts);
  std::vector<std::array<std::uint64_t, 2>> copies(gpus * layers);
  const std::size_t all = static_cast<std::size_t>(trace.tokens()), of_gpu = rows / gpus;
  std::size_t row = 0;
  for (auto _ : state) {
    std::fill(counts.begin(), counts.end(), 0);
    std::fill(copies.begin(), copies.end(), std::array<std::uint64_t, 2>{});
    trace.visit([&](auto ids) {
      for (std::size_t t = 0; t < rows; ++t) {
        row = (row + 7919) % all;
        const auto* id = ids.data() + row * layers * k;
        auto* sent = copies.data() + t / of_gpu * layers;
        for (std::int32_t* layer = counts.data(); layer < counts.data() + counts.size();
             layer += experts, ++sent) {
          std::uint32_t bits = 0;
          for (std::size_t j = 0; j < k; ++j, ++id) {
            ++layer[*id];
            bits |= bit_of_expert[static_cast<std::size_t>(*id)];
          }
          (*sent)[0] += spread[bits & 255];
          (*sent)[1] += spread[bits >> bits_of_byte];
        }
      }
    });
    benchmark::DoNotOptimize(counts.data());
    benchmark::DoNotOptimize(copies.data());
    benchmark::ClobberMemory();
  }
  state.counters["ids/s"] = benchmark::Counter(static_cast<double>(rows * layers * k),
                                               benchmark::Counter::kIsIterationInvariantRate);
}

// A whole run; what it counts is per second.
void simulate(benchmark::State& state, const Experiment& experiment) {
  SimulatorWork work;
  for (auto _ : state) {
    const SimulatorWork one = run(experiment).work;
    work.steps += one.steps;
    work.routed_ids += one.routed_ids;
    work.generated_tokens += one.generated_tokens;
  }
  const auto rate = [](std::int64_t count) {
    return benchmark::Counter(static_cast<double>(count), benchmark::Counter::kIsRate);
  };
  state.counters["steps/s"] = rate(work.steps);
  state.counters["ids/s"] = rate(work.routed_ids);
  state.counters["tokens/s"] = rate(work.generated_tokens);
}

using Counters = std::map<std::string, double>;

class Table : public benchmark::ConsoleReporter {
 public:
  void ReportRuns(const std::vector<Run>& runs) override {
    ConsoleReporter::ReportRuns(runs);
    for (const Run& one : runs) {
      // Of repetitions, which are told one by one before, the median.
      if (one.run_type == Run::RT_Aggregate && one.aggregate_name != "median") continue;
      for (const auto& [name, counter] : one.counters)
        figures_[one.run_name.function_name][name] = counter;
    }
  }
  double of(const std::string& run, const std::string& counter) const {
    return figures_.at(run).at(counter);
  }
  bool has(const std::string& run) const { return figures_.contains(run); }

 private:
  std::map<std::string, Counters> figures_;
};

struct Goal {
  std::string run, counter,
      floor;  // the ratio is floor's counter over the run's; no floor: the counter
  double goal;
  std::string text;
};

void print(const Table& table, const std::vector<Goal>& goals) {
  fmt::print("\n{:<66} {:>9} {:>9}\n", "figure", "measured", "goal");
  for (const Goal& goal : goals) {
    if (!table.has(goal.run) || (!goal.floor.empty() && !table.has(goal.floor))) continue;
    const double own = table.of(goal.run, goal.counter);
    if (goal.floor.empty()) {
      fmt::print("{:<66} {:>9.3g} {:>9.3g} {}\n", goal.text, own, goal.goal,
                 own >= goal.goal ? "met" : "missed");
    } else {
      const double ratio = table.of(goal.floor, goal.counter) / own;
      fmt::print("{:<66} {:>9.2f} {:>9.2f} {}\n", goal.text, ratio, goal.goal,
                 ratio <= goal.goal ? "met" : "missed");
    }
  }
}

}  // namespace
}  // namespace moesim

int main(int argc, char** argv) {
  using namespace moesim;
  const tbb::global_control one_thread(tbb::global_control::max_allowed_parallelism, 1);
  const Json both_ways = {{"type", "all_gather"}, {"combine", "reduce_scatter"}};
  const Json all_to_all_back = {{"type", "all_gather"}, {"combine", "all_to_all"}};
  struct Replay {
    std::string name, routing;
    Json dispatch;
  };
  const std::vector<Replay> replays{{"even", "even", both_ways},
                                    {"metro", "metro", both_ways},
                                    {"even_back", "even", all_to_all_back},
                                    {"metro_back", "metro", all_to_all_back},
                                    {"optimal", "optimal", both_ways},
                                    {"hybrid", "hybrid", both_ways}};
  std::vector<Experiment> experiments;
  for (const Replay& replay : replays) {
    experiments.push_back(
        experiment("replay_deepseek_v3", {{"token_routing", {{"decode", replay.routing}}},
                                          {"dispatch", {{"decode", replay.dispatch}}}}));
  }
  const Experiment batch_64 =
      experiment("replay_deepseek_v3",
                 {{"workload", {{"arrivals", {{"concurrency", 64}}}, {"requests", 512}}}});
  const Experiment plain = experiment("serving_plain");

  constexpr std::size_t batch = 1024;
  benchmark::RegisterBenchmark("floor", histogram, experiments.front().decode().trace, batch)
      ->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("gathering", gathering, experiments.front().decode().trace, batch)
      ->Unit(benchmark::kMillisecond);
  for (std::size_t i = 0; i < replays.size(); ++i) {
    benchmark::RegisterBenchmark(replays[i].name.c_str(), simulate, std::cref(experiments[i]))
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::RegisterBenchmark("batch_64", simulate, std::cref(batch_64))
      ->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("serving_plain", simulate, std::cref(plain))
      ->Unit(benchmark::kMillisecond);
  benchmark::Initialize(&argc, argv);
  Table table;
  benchmark::RunSpecifiedBenchmarks(&table);
  print(table,
        {{"even", "ids/s", "floor", 2.0, "exact replay, even, all-gather: times the floor"},
         {"metro", "ids/s", "floor", 2.0, "exact replay, metro, all-gather: times the floor"},
         {"even_back", "ids/s", "floor", 3.5,
          "exact replay, even, combine all-to-all: times the floor"},
         {"metro_back", "ids/s", "floor", 3.5,
          "exact replay, metro, combine all-to-all: times the floor"},
         {"even_back", "ids/s", "gathering", 2.0,
          "exact replay, even, combine all-to-all: times the gathering floor"},
         {"metro_back", "ids/s", "gathering", 2.0,
          "exact replay, metro, combine all-to-all: times the gathering floor"},
         {"optimal", "ids/s", "metro", 1.5, "optimal: times metro"},
         {"hybrid", "ids/s", "metro", 2.0, "hybrid: times metro"},
         {"metro", "ids/s", "", 1.2e9, "routed ids per second and core"},
         {"metro", "tokens/s", "", 2e6, "tokens per second and core, exact, batch 1024"},
         {"batch_64", "tokens/s", "", 5e5, "tokens per second and core, exact, batch 64"},
         {"serving_plain", "tokens/s", "", 5e6, "tokens per second and core, plain serving"},
         {"serving_plain", "tokens/s", "", 1e7, "the same, aimed at"}});
}
