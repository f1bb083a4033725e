// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "hardware/at.hpp"
#include "hardware/rng.hpp"
#include "sim/placement/batch_matching.hpp"
#include "sim/placement/placers.hpp"
#include "sim/placement/policies/eplb.hpp"

namespace moesim {

namespace {

struct JointOptions {
  int moves = 0;
  double token_weight = 0, load_slack = 0;
  double first_temperature = 0, last_temperature = 0;
  BatchSample sample{};
};

// A placement on its way: the first `primaries[g]` slots of GPU g hold a copy each of experts that
// no other GPU has as a primary.
struct Layout {
  std::vector<std::vector<int>> experts_on_gpu;
  std::vector<int> primaries;
  int gpus_per_node = 1;
};

// Start of the search. Primaries by load, the heaviest first to the lightest GPU with room. Every
// GPU has equally many (the last one fewer where they do not divide evenly). Then copies one by
// one, to the expert with the largest load per copy. A GPU with an open slot must not hold it; the
// lightest such GPU gets it. All within nodes where nodes divide the expert groups, as EPLB's
// hierarchy. Ties: lowest id.
class Start {
 public:
  Start(const PlacementProblem& problem, std::span<const double> load)
      : load_(load),
        slots_(problem.slots_per_gpu),
        held_(at(problem.gpus)),
        copies_(load.size(), 1) {
    const bool by_node = problem.groups % problem.nodes == 0;
    const int nodes = by_node ? problem.nodes : 1, groups = by_node ? problem.groups : 1;
    layout_.gpus_per_node = problem.gpus / nodes;
    layout_.primaries.resize(at(problem.gpus));
    // EPLB over nodes as if they were GPUs deals whole groups to them.
    const int on_node = problem.experts / nodes;
    const std::vector<int> experts =
        eplb({problem.experts, nodes, on_node, nodes, groups}, load).phy2log;
    for (int node = 0; node < nodes; ++node) {
      const int first_gpu = node * layout_.gpus_per_node;
      deal(std::span(experts).subspan(at(node * on_node), at(on_node)), first_gpu);
      replicate(std::span(experts).subspan(at(node * on_node), at(on_node)), first_gpu);
    }
    layout_.experts_on_gpu = std::move(held_);
  }

  Layout take() { return std::move(layout_); }

 private:
  double weight(int gpu) const {
    double sum = 0;
    for (const int expert : held_[at(gpu)]) sum += load_[at(expert)] / copies_[at(expert)];
    return sum;
  }

  // The lightest GPU of a node that may take the expert, or -1.
  template <class Takes>
  int lightest(int first_gpu, Takes&& takes) const {
    int best = -1;
    for (int gpu = first_gpu; gpu < first_gpu + layout_.gpus_per_node; ++gpu) {
      if (takes(gpu) && (best < 0 || weight(gpu) < weight(best))) best = gpu;
    }
    return best;
  }

  void deal(std::span<const int> experts, int first_gpu) {
    const int gpus = layout_.gpus_per_node, count = static_cast<int>(experts.size());
    for (int g = 0; g < gpus; ++g) {
      layout_.primaries[at(first_gpu + g)] = count / gpus + (g < count % gpus ? 1 : 0);
    }
    std::vector<int> order(experts.begin(), experts.end());
    std::stable_sort(order.begin(), order.end(),
                     [&](int e, int f) { return load_[at(e)] > load_[at(f)]; });
    for (const int expert : order) {
      const int gpu = lightest(
          first_gpu, [&](int g) { return std::ssize(held_[at(g)]) < layout_.primaries[at(g)]; });
      held_[at(gpu)].push_back(expert);
    }
  }

  bool open(int gpu) const { return std::ssize(held_[at(gpu)]) < slots_; }
  bool takes(int gpu, int expert) const {
    const std::vector<int>& held = held_[at(gpu)];
    return open(gpu) && std::find(held.begin(), held.end(), expert) == held.end();
  }

  void replicate(std::span<const int> experts, int first_gpu) {
    std::vector<int> order(experts.begin(), experts.end());
    std::sort(order.begin(), order.end());
    const auto hotter = [&](int e, int f) {
      return load_[at(e)] / copies_[at(e)] > load_[at(f)] / copies_[at(f)];
    };
    for (;;) {
      int hottest = -1, gpu = -1;
      for (const int expert : order) {
        if (hottest >= 0 && !hotter(expert, hottest)) continue;
        const int host = lightest(first_gpu, [&](int g) { return takes(g, expert); });
        if (host < 0) continue;
        hottest = expert;
        gpu = host;
      }
      if (gpu < 0) return;  // every slot is taken, or every GPU holds every expert
      held_[at(gpu)].push_back(hottest);
      ++copies_[at(hottest)];
    }
  }

  std::span<const double> load_;
  int slots_;
  std::vector<std::vector<int>> held_;
  std::vector<int> copies_;
  Layout layout_;
};

// Simulated annealing. Minimises, 1 being as good as it gets:
//
//   mean over batches of the least maximum of activated experts / mean of ceil(active / GPUs)
//     + token_weight * max(0, fullest GPU / mean GPU - 1 - load_slack)
//
// Tokens are split evenly over the copies of an expert. Moves: two GPUs of a node exchange a
// primary or a copy each, or a GPU takes another expert for a copy.
class Annealing {
 public:
  Annealing(Layout layout, const LayerStatistics& seen, const JointOptions& options, int layer)
      : options_(options),
        primaries_(std::move(layout.primaries)),
        gpus_per_node_(layout.gpus_per_node),
        load_(seen.load.begin(), seen.load.end()),
        gpu_load_(layout.experts_on_gpu.size()),
        table_(static_cast<int>(load_.size()), std::move(layout.experts_on_gpu)),
        matching_(table_, seen.batches),
        rng_(options.sample.seed, fmt::format("placement/joint/{}", layer)) {
    const double total = std::accumulate(load_.begin(), load_.end(), 0.0);
    for (double& load : load_) load *= total > 0 ? table_.gpus() / total : 0;
  }

  // The best placement that any move led to.
  std::vector<std::vector<int>> settle() {
    std::vector<std::vector<int>> best = table_.experts_on_gpu();
    double least = cost_ = matching_.mean_value() / scale() + token_cost();
    const double cooling = std::pow(options_.last_temperature / options_.first_temperature,
                                    1.0 / std::max(1, options_.moves));
    temperature_ = options_.first_temperature;
    for (int move = 0; move < options_.moves; ++move, temperature_ *= cooling) {
      if (!try_a_move() || cost_ >= least) continue;
      least = cost_;
      best = table_.experts_on_gpu();
    }
    return best;
  }

 private:
  struct Change {
    int gpu, slot, expert;
  };

  double scale() const { return std::max(matching_.bound_mean(), 1.0); }

  double token_cost() {
    for (int gpu = 0; gpu < table_.gpus(); ++gpu) {
      double load = 0;
      for (const int expert : table_.on_gpu(gpu)) {
        load += load_[at(expert)] / static_cast<double>(table_.hosts_of(expert).size());
      }
      gpu_load_[at(gpu)] = load;
    }
    const double fullest = *std::max_element(gpu_load_.begin(), gpu_load_.end());
    return options_.token_weight * std::max(0.0, fullest - 1 - options_.load_slack);
  }

  int below(int bound) { return static_cast<int>(rng_.below(static_cast<std::uint64_t>(bound))); }
  int slots(int gpu) const { return static_cast<int>(table_.on_gpu(gpu).size()); }
  int in_same_node(int gpu) {
    return gpu / gpus_per_node_ * gpus_per_node_ + below(gpus_per_node_);
  }

  bool try_a_move() {
    const int gpu = below(table_.gpus());
    const int copies = slots(gpu) - primaries_[at(gpu)];
    if (copies == 0 || rng_.uniform() < 0.5) return exchange(gpu, 0, primaries_[at(gpu)], true);
    if (rng_.uniform() < 0.5) return exchange(gpu, primaries_[at(gpu)], copies, false);
    return take_another(gpu, primaries_[at(gpu)] + below(copies));
  }

  // Exchanges one of `count` slots from `first` on of a GPU with one of the same kind of another.
  bool exchange(int gpu, int first, int count, bool primary) {
    const int other = in_same_node(gpu);
    const int others = primary ? primaries_[at(other)] : slots(other) - primaries_[at(other)];
    if (other == gpu || count == 0 || others == 0) return false;
    const int slot = first + below(count);
    const int other_slot = (primary ? 0 : primaries_[at(other)]) + below(others);
    const int mine = table_.on_gpu(gpu)[at(slot)], theirs = table_.on_gpu(other)[at(other_slot)];
    if (table_.holds(other, mine) || table_.holds(gpu, theirs)) return false;
    const std::array<Change, 2> changes{{{gpu, slot, theirs}, {other, other_slot, mine}}};
    return try_changes(changes);
  }

  bool take_another(int gpu, int slot) {
    const int expert = below(table_.experts());
    const bool same_node = table_.hosts_of(expert)[0] / gpus_per_node_ == gpu / gpus_per_node_;
    if (!same_node || table_.holds(gpu, expert)) return false;
    const std::array<Change, 1> changes{{{gpu, slot, expert}}};
    return try_changes(changes);
  }

  // Makes the changes unless they cost too much at this temperature.
  bool try_changes(std::span<const Change> changes) {
    const double limit = cost_ + temperature_ * rng_.exponential();
    std::array<Change, 2> before{};
    std::array<int, 4> touched{};
    for (std::size_t i = 0; i < changes.size(); ++i) {
      const auto& [gpu, slot, expert] = changes[i];
      before[i] = {gpu, slot, table_.on_gpu(gpu)[at(slot)]};
      touched[2 * i] = before[i].expert;
      touched[2 * i + 1] = expert;
      table_.replace(gpu, slot, expert);
    }
    // No mean over batches is below that of their bounds.
    const double tokens = token_cost();
    if (matching_.bound_mean() / scale() + tokens <= limit) {
      matching_.adapt(std::span(touched).first(2 * changes.size()));
      const double cost = matching_.mean_value() / scale() + tokens;
      if (cost <= limit) {
        cost_ = cost;
        return true;
      }
      matching_.undo();
    }
    for (std::size_t i = changes.size(); i-- > 0;) {
      table_.replace(before[i].gpu, before[i].slot, before[i].expert);
    }
    return false;
  }

  const JointOptions& options_;
  std::vector<int> primaries_;
  int gpus_per_node_;
  std::vector<double> load_, gpu_load_;  // of the mean GPU
  CopyTable table_;
  BatchMatching matching_;
  Rng rng_;
  double cost_ = 0, temperature_ = 0;
};

// Puts experts where exact routing activates the fewest, and prefill's tokens stay balanced, on
// batches that were sampled from traces. Our own. EPLB balances tokens alone: its copies may be
// next to each other. Even exact routing may then activate more than without replication.
//
// Safe for decode: every expert has a primary copy, and no GPU more than ceil(experts / GPUs) of
// them. So exact routing never activates more than that, nor more than the primaries by themselves,
// whatever the batch.
class Joint final : public Placer {
 public:
  explicit Joint(JointOptions options) : options_(std::move(options)) {}

  LayerPlacement place(const PlacementProblem& problem, const LayerStatistics& seen,
                       int layer) const override {
    require_sound(problem, seen.load);
    if (seen.batches.empty()) {
      throw ConfigError(
          "joint needs the experts that batches activate; a load does not hold these; give a "
          "routing "
          "trace");
    }
    Layout start = Start(problem, seen.load).take();
    if (holds_everything(start, problem)) return filled_up(std::move(start), problem);
    return {problem.experts, Annealing(std::move(start), seen, options_, layer).settle()};
  }

  bool uses_load() const override { return true; }
  BatchSample sample() const override { return options_.sample; }

 private:
  // True if GPUs have a slot for every expert of their node: then there is nothing to choose.
  static bool holds_everything(const Layout& start, const PlacementProblem& problem) {
    const int nodes = problem.gpus / start.gpus_per_node;
    return problem.slots_per_gpu >= problem.experts / nodes;
  }

  // Slots that no further expert is left for hold second copies.
  static LayerPlacement filled_up(Layout start, const PlacementProblem& problem) {
    for (std::vector<int>& experts : start.experts_on_gpu) {
      const std::size_t distinct = experts.size();
      while (std::ssize(experts) < problem.slots_per_gpu) {
        experts.push_back(experts[experts.size() % distinct]);
      }
    }
    return {problem.experts, start.experts_on_gpu};
  }

  JointOptions options_;
};

}  // namespace

// Temperatures of the first and the last move, in the unit of the cost. An expert fewer on the
// busiest GPU of one of some hundred batches is worth about the first. A tenth of it in the mean is
// worth the last. Starts at 0.01, 0.003 and 0.001 and ends down to 0.00003 were tried on the
// recorded traces of gpt-oss-20b and DeepSeek-V2-Lite. These gave the lowest cost on the fitted
// halves of both. The results of the other halves were in sight as well. README.md has what
// workloads say that no constant was chosen on.
std::span<const Key> joint_placement_keys() {
  static constexpr Form tokens = form::integer(1, 1e6);
  static constexpr Key keys[] = {
      {"batch", form::list(tokens), unset("1, 2 and 4 per expert"),
       "tokens of the decode batches that it is fitted on"},
      {"batches", form::integer(1, 1e5), "256", "sampled of each size"},
      {"moves", form::integer(0, 1e9), "6000", "tried in each layer"},
      {"token_weight", form::number(non_negative), "4",
       "weight of the fullest GPU's tokens beyond the slack"},
      {"load_slack", form::number(non_negative), "0.02",
       "above the mean that a GPU's tokens may be for nothing"},
      {"first_temperature", form::number(1e-9, 1), "0.001",
       "at the first move, in shares of the cost"},
      {"last_temperature", form::number(1e-9, 1), "0.00003", "at the last move"},
      {"seed", form::integer(non_negative), "1", "seed of batches and moves"}};
  return keys;
}

std::unique_ptr<Placer> make_joint(ConfigReader& options) {
  JointOptions joint;
  joint.moves = static_cast<int>(options.integer("moves"));
  joint.token_weight = options.number("token_weight");
  joint.load_slack = options.number("load_slack");
  joint.first_temperature = options.number("first_temperature");
  joint.last_temperature = options.number("last_temperature");
  joint.sample.batches = static_cast<int>(options.integer("batches"));
  joint.sample.seed = static_cast<std::uint64_t>(options.integer("seed"));
  if (options.has("batch")) {
    for (const ConfigNode& size : options.child("batch").list()) {
      joint.sample.tokens.push_back(static_cast<int>(size.integer()));
    }
  }
  return std::make_unique<Joint>(std::move(joint));
}

}  // namespace moesim
