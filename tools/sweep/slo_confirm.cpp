// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <tbb/task_arena.h>
#include <tbb/task_group.h>

#include "tools/sweep/slo_runs.hpp"
#include "tools/sweep/slo_search.hpp"
#include "tools/sweep/slo_trial.hpp"

namespace moesim {

namespace {

// Between which loads the heaviest one is that a deployment bears.
class Bracket {
 public:
  explicit Bracket(int rung) : rung_(rung), first_(rung) {}
  int rung() const { return rung_; }
  std::optional<int> met() const { return met_; }
  bool open() const {
    constexpr int furthest_down = 96, furthest_up = 32;
    if (met_ && missed_) return *missed_ - *met_ > 1;
    return rung_ >= first_ - furthest_down && rung_ <= first_ + furthest_up;
  }
  /// To the rung below the one that is met.
  void step_back() {
    missed_ = *met_;
    rung_ = --*met_;
  }
  void note(bool bears) {
    (bears ? met_ : missed_) = rung_;
    if (met_ && missed_) {
      rung_ = *met_ + (*missed_ - *met_) / 2;
    } else {
      rung_ += bears ? step_ : -step_;
      step_ *= 2;
    }
  }

 private:
  int rung_, first_, step_ = 1;
  std::optional<int> met_, missed_;
};

// A load under which so many are served in time is much too heavy.
constexpr double few = .5;

// Question to a run: all that it shows, if it meets the SLO, or if few requests are served in time.
// If that is sure it need not run to its end.
enum class Ask { all, whether, whether_few };

struct Question {
  TunePoint point;
  Ask what;
  auto operator<=>(const Question&) const = default;
};

bool is_in(const std::vector<Question>& some, const Question& question) {
  return std::ranges::find(some, question) != some.end();
}

// Course of a deployment so far. It looks for its load by the first draw and then by the others.
// Most loads that it does not sustain show in the first. Then it looks beyond: is little more much
// too heavy? If so it takes the rung below. Where more load is met, a longer run says if it lasts.
// At the very edge of what can be served a queue grows so slowly that no run is long enough to see
// it.
struct Course {
  enum class Stage { first_draw, other_draws, few_beyond, rung_below, beyond, far_beyond, done };
  Bracket bracket;
  Stage stage = Stage::first_draw;

  void note(bool bears) {
    bracket.note(bears);
    stage = Stage::first_draw;
    if (!bracket.open()) stage = bracket.met() ? Stage::few_beyond : Stage::done;
  }
};

// Deployments that are run under ever other loads, side by side: each continues as soon as its own
// runs tell how. Cores that no asked run needs make those that may be asked next. They drop them
// when it turns out that they are not: answers depend on what is asked alone.
class Confirmation {
 public:
  Confirmation(const SloSearch& search, std::span<const double> loads, SloRuns& runs)
      : search_(search),
        draws_(search.draws),
        attainment_(search.attainment),
        tells_heavier_(search.tells_heavier),
        runs_(runs) {
    for (const double load : loads)
      deployments_.push_back({Bracket(search.ladder->above(load) - 1)});
  }

  TuneResult run() {
    for (std::size_t i = 0; i < deployments_.size() && !runs_.stopped(); ++i) {
      for (std::size_t draw = 0; draw < draws_; ++draw)
        runs_.make_trace_of(runs_.point_of(at(i, deployments_[i].bracket.rung(), draw)));
    }
    {
      const std::lock_guard lock(mutex_);
      look_what_to_run();
    }
    group_.wait();
    for (std::size_t i = 0; i < deployments_.size(); ++i) {
      if (const auto met = met_by(i)) result_.found.push_back(found(i, *met));
    }
    if (result_.found.empty() && !trials_.empty()) result_.nearest = nearest();
    result_.runs = trials_.size();
    return result_;
  }

  // How the i-th deployment fares beyond what it bears.
  std::optional<Heavier> heavier(std::size_t i) const {
    const int rung = *met_by(i) + rungs_per_5_percent;
    if (whole(at(i, rung)) == nullptr) return std::nullopt;
    // The least of the draws that were run to their end.
    TunePoint least = at(i, rung);
    for (std::size_t draw = 1; draw < draws_; ++draw) {
      const Trial* other = whole(at(i, rung, draw));
      if (other != nullptr && other->attainment < trials_.at(least).attainment)
        least = at(i, rung, draw);
    }
    const TunePoint longer = runs_.lengthened(at(i, rung));
    const Trial* far = whole(longer);
    if (far != nullptr && far->attainment < trials_.at(least).attainment) least = longer;
    const Trial& trial = trials_.at(least);
    // A load below was not sustained, though this one keeps all latencies: a queue grows slowly.
    const bool keeps_all = !search_.sessions && trial.attainment > attainment_ + by_chance;
    return Heavier{runs_.load_at(rung) / runs_.load_at(*met_by(i)) - 1, trial.attainment,
                   keeps_all ? "capacity" : lack_of(runs_.of({least, trial}), search_)};
  }

 private:
  std::optional<int> met_by(std::size_t i) const { return deployments_[i].bracket.met(); }

  TunePoint at(std::size_t i, int rung, std::size_t draw = 0) const {
    return {i * draws_ + draw, rung};
  }

  // Returns what a run showed that was run to its end; null where none did.
  const Trial* whole(TunePoint point) const {
    const auto trial = trials_.find(point);
    return trial == trials_.end() || trial->second.given_up ? nullptr : &trial->second;
  }

  // True if the first draws all last, and as many requests as are asked for meet the SLO in their
  // mean. A few draws may fall short by chance, but not the last, which may be the longest.
  bool bears(std::size_t i, std::size_t draws) const {
    const int rung = deployments_[i].bracket.rung();
    double attained = 0;
    for (std::size_t draw = 0; draw < draws; ++draw) {
      const Trial& trial = trials_.at(at(i, rung, draw));
      if (!trial.lasts) return false;
      attained += trial.attainment;
      if (draw + 1 == draws_ && !trial.meets) return false;
    }
    const double asked = attainment_ - (draws < draws_ ? by_chance : 0);
    return attained >= asked * static_cast<double>(draws);
  }

  // Questions that a deployment asks next, if it has come so far.
  std::vector<Question> questions(std::size_t i, const Course& course) const {
    std::vector<Question> asked;
    switch (const Bracket& bracket = course.bracket; course.stage) {
      case Course::Stage::first_draw: return {{at(i, bracket.rung()), Ask::whether}};
      case Course::Stage::other_draws:
        for (std::size_t draw = 1; draw < draws_; ++draw)
          asked.push_back({at(i, bracket.rung(), draw), Ask::whether});
        return asked;
      case Course::Stage::few_beyond:
        if (was_few(i, *bracket.met())) return {};
        return {{at(i, *bracket.met() + rungs_per_5_percent), Ask::whether_few}};
      case Course::Stage::rung_below:  // the other draws stay as at the edge, which they bear
        asked.push_back({at(i, *bracket.met() - 1), Ask::all});
        if (tells_heavier_)
          asked.push_back({at(i, *bracket.met() - 1 + rungs_per_5_percent), Ask::all});
        return asked;
      case Course::Stage::beyond:
        if (!tells_heavier_) return {};
        return {{at(i, *bracket.met() + rungs_per_5_percent), Ask::all}};
      case Course::Stage::far_beyond: {
        const TunePoint heavier = at(i, *bracket.met() + rungs_per_5_percent);
        const Trial* trial = whole(heavier);
        if (!search_.lengthen || trial == nullptr || trial->attainment < attainment_) return {};
        const TunePoint longer = runs_.lengthened(heavier);
        if (runs_.length_of(longer) <= runs_.length_of(heavier)) return {};
        return {{longer, Ask::all}};
      }
      case Course::Stage::done: return {};
    }
    return {};
  }

  // True if a run under no more than 5 % more load was served in time to few.
  bool was_few(std::size_t i, int met) const {
    for (int rung = met + rungs_per_5_percent; rung > met; --rung) {
      const Trial* trial = whole(at(i, rung));
      if (trial != nullptr && trial->attainment < few) return true;
    }
    return false;
  }

  // True if a little more load is too much for the capacity, or served in time to few.
  bool little_more_is_too_much(std::size_t i) const {
    if (was_few(i, *met_by(i))) return true;
    const auto trial = trials_.find(at(i, *met_by(i) + rungs_per_5_percent));
    if (trial != trials_.end() && trial->second.given_up) return true;
    const std::optional<Heavier> beyond = heavier(i);
    return beyond && (beyond->attainment < few || beyond->binds == "capacity");
  }

  // Returns what follows for a deployment if its question is answered well, or not.
  Course then(Course course, bool well) const {
    switch (course.stage) {
      case Course::Stage::first_draw:
        if (draws_ > 1 && well) {
          course.stage = Course::Stage::other_draws;
        } else {
          course.note(well);
        }
        break;
      case Course::Stage::other_draws: course.note(well); break;
      case Course::Stage::few_beyond:
        course.stage = well ? Course::Stage::beyond : Course::Stage::rung_below;
        break;
      case Course::Stage::rung_below:
        if (well) course.bracket.step_back();
        course.stage = Course::Stage::beyond;
        break;
      case Course::Stage::beyond: course.stage = Course::Stage::far_beyond; break;
      case Course::Stage::far_beyond:
      case Course::Stage::done: course.stage = Course::Stage::done; break;
    }
    return course;
  }

  // True if all that a deployment asked was answered well.
  bool went_well(std::size_t i) const {
    switch (deployments_[i].stage) {
      case Course::Stage::first_draw: return bears(i, 1);
      case Course::Stage::other_draws: return bears(i, draws_);
      case Course::Stage::few_beyond: return !little_more_is_too_much(i);
      case Course::Stage::rung_below: {
        const Trial& lighter = trials_.at(at(i, *met_by(i) - 1));
        return lighter.lasts && lighter.attainment >= attainment_ - by_chance;
      }
      case Course::Stage::beyond:
      case Course::Stage::far_beyond:
      case Course::Stage::done: break;
    }
    return true;
  }

  bool answered(const Question& question) const {
    return question.what == Ask::whether ? trials_.contains(question.point)
                                         : whole(question.point) != nullptr;
  }

  // Questions of a deployment that no run has answered yet. Takes up what was run ahead.
  std::vector<Question> open_questions(std::size_t i) {
    for (;;) {
      std::vector<Question> open = questions(i, deployments_[i]);
      std::erase_if(open, [&](const Question& question) {
        if (answered(question)) return true;
        const auto ahead = ahead_.find(question);
        if (ahead == ahead_.end()) return false;
        const std::span outcome(&ahead->second, 1);
        trials_.insert_or_assign(question.point,
                                 runs_.keep(std::span(&question.point, 1), outcome).front());
        ahead_.erase(ahead);
        return true;
      });
      if (!open.empty() || deployments_[i].stage == Course::Stage::done || result_.stopped)
        return open;
      deployments_[i] = then(deployments_[i], went_well(i));
    }
  }

  // Questions that deployments may ask next, what follows from good answers first.
  std::vector<Question> guesses() const {
    std::vector<Question> guessed;
    for (const bool well : {true, false}) {
      for (std::size_t i = 0; i < deployments_.size(); ++i) {
        for (const Question& question : questions(i, then(deployments_[i], well))) {
          if (!answered(question) && !ahead_.contains(question)) guessed.push_back(question);
        }
      }
    }
    return guessed;
  }

  // Sets tasks to what is asked and, on cores that are left, to what may be asked next.
  void look_what_to_run() {
    result_.stopped |= runs_.stopped();
    std::vector<Question> wanted;
    for (std::size_t i = 0; i < deployments_.size(); ++i) {
      for (const Question& question : open_questions(i)) wanted.push_back(question);
    }
    const bool done = wanted.empty() || result_.stopped;
    const std::vector<Question> guessed = done ? std::vector<Question>{} : guesses();
    std::size_t busy = 0;
    for (auto& [question, stop] : running_) {
      const bool useful = is_in(wanted, question) || is_in(guessed, question);
      if (!useful) stop.request_stop();
      busy += useful;
    }
    waiting_.clear();
    if (result_.stopped) return;
    for (const Question& question : wanted) {
      if (!running_.contains(question)) waiting_.push_back(question);
    }
    std::ranges::stable_sort(waiting_, std::greater{}, [&](const Question& question) {
      return runs_.length_of(question.point);
    });
    const auto cores = static_cast<std::size_t>(tbb::this_task_arena::max_concurrency());
    for (const Question& question : guessed) {
      if (busy + waiting_.size() >= cores) break;
      if (!running_.contains(question) && !is_in(waiting_, question)) waiting_.push_back(question);
    }
    for (; tasks_ < waiting_.size(); ++tasks_) {
      group_.run([this] { run_first_waiting(); });
    }
  }

  void run_first_waiting() {
    std::unique_lock lock(mutex_);
    --tasks_;
    if (waiting_.empty()) return;
    const Question question = waiting_.front();
    waiting_.erase(waiting_.begin());
    const std::stop_token stop = running_[question].get_token();
    const SweepPoint point = runs_.point_of(question.point);
    std::optional<double> least;
    if (question.what != Ask::all)
      least = question.what == Ask::whether ? runs_.least_attainment() : few;
    lock.unlock();
    std::optional<SloRuns::Outcome> outcome;
    tbb::this_task_arena::isolate([&] { outcome = runs_.run(point, least, stop); });
    lock.lock();
    running_.erase(question);
    if (outcome) ahead_.emplace(question, std::move(*outcome));
    look_what_to_run();
  }

  TuneResult::Found found(std::size_t i, int rung) const {
    TuneResult::Found run{at(i, rung), trials_.at(at(i, rung))};
    for (std::size_t draw = 1; draw < draws_; ++draw) {
      // If the answer is a rung below the edge, the others were run at the edge.
      const auto here = trials_.find(at(i, rung, draw));
      const Trial& other = here != trials_.end() ? here->second : trials_.at(at(i, rung + 1, draw));
      run.trial.attainment += other.attainment;
      run.trial.goodput = std::min(run.trial.goodput, other.goodput);
    }
    run.trial.attainment /= static_cast<double>(draws_);
    return run;
  }

  // The run that missed by least, to its end.
  std::optional<TuneResult::Found> nearest() {
    const auto excess = [](const auto& run) { return run.second.excess; };
    const auto least = std::ranges::min_element(trials_, {}, excess);
    if (least->second.given_up) {
      const auto whole = runs_(std::span(&least->first, 1), false);
      result_.stopped |= !whole;
      if (!whole) return std::nullopt;
      least->second = whole->front();
    }
    return TuneResult::Found{least->first, least->second};
  }

  const SloSearch& search_;
  std::size_t draws_;
  double attainment_;
  bool tells_heavier_;
  SloRuns& runs_;
  TuneResult result_;
  std::map<TunePoint, Trial> trials_;  // of what was asked
  std::vector<Course> deployments_;
  // Guards tasks: runs to be made, in this order, and those that are being made. Also those that
  // are not asked for yet, and tasks that have not begun.
  std::mutex mutex_;
  std::vector<Question> waiting_;
  std::map<Question, std::stop_source> running_;
  std::map<Question, SloRuns::Outcome> ahead_;
  std::size_t tasks_ = 0;
  tbb::task_group group_;
};

}  // namespace

SloResult confirm_slo(const SloSearch& search, std::span<const double> loads, TraceLibrary& traces,
                      Remarks& remarks, const SloHooks& hooks) {
  check(search.ladder && loads.size() * search.draws == search.places.size(),
        "each deployment has a load");
  SloRuns runs(search, traces, remarks, hooks);
  runs.climb(*search.ladder);
  Confirmation confirmation(search, loads, runs);
  SloResult result;
  result.search = confirmation.run();
  runs.write_into(result);
  for (SloRun& run : result.found) {
    run.place /= search.draws;
    run.draws = search.draws;
    run.heavier = confirmation.heavier(run.place);
  }
  std::ranges::stable_sort(result.found, [](const SloRun& a, const SloRun& b) {
    return std::pair(a.per_second(), a.trial.attainment) >
           std::pair(b.per_second(), b.trial.attainment);
  });
  return result;
}

}  // namespace moesim
