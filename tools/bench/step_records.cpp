// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/step_records.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "hardware/at.hpp"
#include "hardware/tables/table_file.hpp"
#include "sim/report/statistics.hpp"
#include "tools/bench/validation.hpp"

namespace moesim {

namespace {

// --- records -------------------------------------------------------------------------------------

/// Work that one rank scheduled in one step.
struct Record {
  int rank = 0;
  double ended_s = 0, seconds = 0;
  std::int64_t prompts = 0, prompt_tokens = 0, prompt_context = 0;
  std::int64_t decodes = 0, decode_context = 0;
  std::string where;

  bool idle() const { return prompts == 0 && decodes == 0; }
};

double number_of(const Json& json, const char* key, double most, const std::string& where) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number() || !(found->get<double>() >= 0) ||
      found->get<double>() > most)
    throw ConfigError("{}: \"{}\" is no number from 0 to {:g}", where, key, most);
  return found->get<double>();
}

const Json& object_of(const Json& json, const char* key, const std::string& where) {
  const auto found = json.find(key);
  if (!json.is_object() || found == json.end() || !found->is_object()) {
    throw ConfigError(
        "{}: has no object \"{}\"; a line of DYN_FPM_TRACE is expected, schema dynamo.fpm.trace.v1",
        where, key);
  }
  return *found;
}

Record record_of(const Json& line, const std::string& where, int ranks) {
  constexpr double most_sequences = 1 << 20, most_tokens = 1 << 30, most_seconds = 1e6;
  const Json& event = object_of(line, "event", where);
  const Json& fpm = object_of(event, "fpm", where);
  const Json& scheduled = object_of(fpm, "scheduled_requests", where);
  const auto count = [&](const char* key, double most) {
    return std::llround(number_of(scheduled, key, most, where));
  };
  const auto rank = std::llround(number_of(fpm, "dp_rank", most_sequences, where));
  if (rank >= ranks) {
    throw ConfigError(
        "{}: \"dp_rank\" is {}, but the experiment has {} of them; set /parallel/dp as "
        "it was measured",
        where, rank, ranks);
  }
  Record record{.rank = static_cast<int>(rank),
                .ended_s = number_of(event, "observed_at_unix_ms", 1e15, where) / 1e3,
                .seconds = number_of(fpm, "wall_time", most_seconds, where),
                .prompts = count("num_prefill_requests", most_sequences),
                .prompt_tokens = count("sum_prefill_tokens", most_tokens),
                .prompt_context = count("sum_prefill_kv_tokens", most_tokens),
                .decodes = count("num_decode_requests", most_sequences),
                .decode_context = count("sum_decode_kv_tokens", most_tokens),
                .where = where};
  if (record.prompt_tokens < record.prompts)
    throw ConfigError("{}: has {} prompts, but {} tokens of prompts", where, record.prompts,
                      record.prompt_tokens);
  return record;
}

// --- work ----------------------------------------------------------------------------------------

/// Adds sequences that share new tokens and context evenly.
void share(RankWork& work, std::int64_t sequences, std::int64_t tokens, std::int64_t context) {
  const auto part = [&](std::int64_t of, std::int64_t i) {
    return static_cast<std::int32_t>(of * (i + 1) / sequences - of * i / sequences);
  };
  for (std::int64_t i = 0; i < sequences; ++i) {
    work.new_tokens.push_back(part(tokens, i));
    work.context.push_back(part(context, i));
  }
}

RankWork work_of(const Record& record, bool counts_new) {
  RankWork work;
  const std::int64_t context =
      counts_new ? std::max<std::int64_t>(0, record.prompt_context - record.prompt_tokens)
                 : record.prompt_context;
  share(work, record.prompts, record.prompt_tokens, context);
  // A sequence of one new token decodes where it has a context (RankWork).
  share(work, record.decodes, record.decodes,
        std::max<std::int64_t>(record.decodes, record.decode_context));
  return work;
}

RecordedStep step_of(const Record& record, int ranks, bool counts_new) {
  RecordedStep step{record.where, std::vector<RankWork>(at(ranks)), record.seconds};
  step.ranks[at(record.rank)] = work_of(record, counts_new);
  return step;
}

/// Joins the records of a worker's ranks, which end a step together.
class Lockstep {
 public:
  Lockstep(int ranks, bool counts_new) : ranks_(ranks), counts_new_(counts_new) {}

  void add(const Record& record) {
    const double apart = std::abs(record.ended_s - ended_s_);
    const bool same = step_ && step_->ranks[at(record.rank)].new_tokens.empty() &&
                      apart <= std::max(record.seconds, step_->seconds) / 2;
    if (!same) {
      finish();
      step_ = step_of(record, ranks_, counts_new_);
      ended_s_ = record.ended_s;
      return;
    }
    step_->ranks[at(record.rank)] = work_of(record, counts_new_);
    step_->seconds = std::max(step_->seconds, record.seconds);
  }
  std::vector<RecordedStep> take() {
    finish();
    return std::move(steps_);
  }

 private:
  void finish() {
    if (step_) steps_.push_back(std::move(*step_));
    step_.reset();
  }

  int ranks_;
  bool counts_new_;
  std::optional<RecordedStep> step_;
  double ended_s_ = 0;
  std::vector<RecordedStep> steps_;
};

}  // namespace

std::vector<RecordedStep> read_step_records(const std::string& file, int ranks, bool counts_new) {
  const std::string text = decompressed(file, "recording of steps");
  std::map<std::string, std::vector<Record>> workers;
  std::int64_t number = 0;
  for (std::size_t begin = 0; begin < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line(text.data() + begin, end - begin);
    begin = end + 1;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const std::string where = fmt::format("{}:{}", file, number + 1);
    const Json json = Json::parse(line, nullptr, false);
    if (json.is_discarded()) throw ConfigError(where + ": is not JSON, or cut short");
    const Record record = record_of(json, where, ranks);
    if (record.idle() || record.seconds == 0) continue;
    workers[json["event"]["fpm"].value("worker_id", Json()).dump()].push_back(record);
  }
  std::vector<RecordedStep> steps;
  for (auto& [worker, records] : workers) {
    std::ranges::stable_sort(records, {}, &Record::ended_s);
    Lockstep together(ranks, counts_new);
    for (const Record& record : records) together.add(record);
    std::ranges::move(together.take(), std::back_inserter(steps));
  }
  if (steps.empty()) throw ConfigError(file + ": no record schedules a request");
  return steps;
}

StepComparison compare_steps(std::span<const RecordedStep> steps, const Deployment& deployment) {
  struct Seen {
    std::vector<double> measured, predicted, errors;
  };
  std::array<Seen, step_kind_names.size()> seen;
  std::vector<double> factors;
  StepPricer pricer(deployment);
  for (const RecordedStep& step : steps) {
    const double predicted = pricer.price(step.ranks).total.count();
    Seen& of = seen[at(pricer.kind())];
    of.measured.push_back(step.seconds * 1e3);
    of.predicted.push_back(predicted * 1e3);
    of.errors.push_back(predicted / step.seconds - 1);
    if (pricer.kind() != StepKind::prefill) factors.push_back(step.seconds / predicted);
  }
  StepComparison comparison;
  for (std::size_t kind = 0; kind < seen.size(); ++kind) {
    const Seen& of = seen[kind];
    if (of.errors.empty()) continue;
    const std::vector<double> sizes = absolute(of.errors);
    comparison.kinds.push_back({static_cast<StepKind>(kind), static_cast<int>(sizes.size()),
                                median(of.measured), median(of.predicted), median(of.errors),
                                median(sizes), interpolated(sizes, .9)});
  }
  if (factors.empty()) return comparison;
  comparison.decoding = static_cast<int>(factors.size());
  comparison.factor = median(factors);
  for (double& factor : factors) factor = std::abs(comparison.factor / factor - 1);
  comparison.left = median(factors);
  return comparison;
}

void StepRecords::step_ended(const StepRecord& record, Time now) {
  const double seconds = to_seconds(now - record.step.start).count();
  for (std::size_t rank = 0; rank < record.batch.ranks.size(); ++rank) {
    const RankStep& step = record.batch.ranks[rank];
    if (step.dummy) continue;
    Record sum;
    for (const SequenceWork& sequence : step.sequences) {
      const bool decodes = record.step.kind == StepKind::decode || sequence.verifies ||
                           (record.step.kind == StepKind::mixed && sequence.new_tokens == 1 &&
                            sequence.context_tokens > 0);
      (decodes ? sum.decodes : sum.prompts) += 1;
      (decodes ? sum.decode_context : sum.prompt_context) += sequence.context_tokens;
      if (!decodes) sum.prompt_tokens += sequence.new_tokens;
    }
    const double ms = to_seconds(now - Time{}).count() * 1e3;
    const Json line{{"timestamp", ms},
                    {"event",
                     {{"schema", "dynamo.fpm.trace.v1"},
                      {"capture_mode", "full"},
                      {"observed_at_unix_ms", ms},
                      {"fpm",
                       {{"version", 1},
                        {"worker_id", fmt::format("{}", record.instance)},
                        {"dp_rank", rank},
                        {"counter_id", counter_},
                        {"wall_time", seconds},
                        {"scheduled_requests",
                         {{"num_prefill_requests", sum.prompts},
                          {"sum_prefill_tokens", sum.prompt_tokens},
                          {"var_prefill_length", 0},
                          {"sum_prefill_kv_tokens", sum.prompt_context},
                          {"num_decode_requests", sum.decodes},
                          {"sum_decode_kv_tokens", sum.decode_context},
                          {"var_decode_kv_tokens", 0}}}}}}}};
    file_.write(line.dump() + "\n");
  }
  ++counter_;
}

}  // namespace moesim
