// SPDX-License-Identifier: Apache-2.0
// SGLang: what its expert distribution recorder dumps
// (python/sglang/srt/eplb/expert_distribution.py), and what its servers answer with
// --enable-return-routed-experts.
//   stat         {"logical_count": [steps, layers, experts], ...}
//   per_pass     {"records": [{"forward_pass_id", "global_physical_count": [layers, slots]}, ...],
//                 "last_physical_to_logical_map": [layers, slots]}
//   per_token    the same, with "topk_ids_of_layer" [layers, tokens, 8] of slots, "positions",
//                "extend_seq_lens" and "forward_mode"
// Records of tokens do not name requests. They are put together again: a token goes to the sequence
// that it is the next one of by its position, and of those in the order of the batch, which SGLang
// keeps. Every rank writes a file; those of tensor-parallel ranks hold the same tokens.
#include <array>
#include <deque>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "traces/import/forms.hpp"
#include "traces/import/torch_file.hpp"

namespace moesim {

namespace {

class Dump {
 public:
  Dump(const std::filesystem::path& file, TraceBuilder& builder)
      : place_(file.string()), file_(file), builder_(builder) {}

  /// Reads a dump; of one whose tokens are all in `seen`, nothing is taken, and the answer is
  /// false.
  bool read(std::set<std::string>& seen) {
    const auto* dict = std::get_if<const PyDict*>(&file_.value());
    if (dict == nullptr) file_.refuse("holds no dictionary, as SGLang's dumps are");
    if (const PyValue* counts = (*dict)->find("logical_count")) {
      read_stat(tensor(*counts));
      return true;
    }
    const PyValue* records = (*dict)->find("records");
    if (records == nullptr)
      file_.refuse(
          "has neither \"records\" nor \"logical_count\"; SGLang's expert distribution is "
          "expected");
    if (const PyValue* map = (*dict)->find("last_physical_to_logical_map"))
      builder_.physical_to_logical(place_, tensor(*map));
    for (const PyValue& record : list(records, "records").items) read_record(dictionary(record));
    if (!tokens_.empty() && !seen.insert(tokens_).second) return false;
    for (const Sequence& sequence : sequences_) add(sequence);
    return true;
  }

 private:
  // IntEnum ForwardMode of SGLang.
  static constexpr std::int64_t mixed = 3, verify = 5, draft_extend_v2 = 7;
  enum Phase : std::size_t { prefilling, decoding };
  // Facts known of one request.
  struct Sequence {
    std::vector<double> ids;  // [rows, layers, columns]
    std::int64_t rows = 0, prompt_rows = 0;
  };

  const PyList& list(const PyValue* value, std::string_view name) const {
    const auto* found = value == nullptr ? nullptr : std::get_if<const PyList*>(value);
    if (found == nullptr) file_.refuse(fmt::format("\"{}\" is not a list", name));
    return **found;
  }
  const PyDict& dictionary(const PyValue& value) const {
    const auto* found = std::get_if<const PyDict*>(&value);
    if (found == nullptr) file_.refuse("has a record that is not a dictionary");
    return **found;
  }
  Array tensor(const PyValue& value) {
    const auto* found = std::get_if<const PyTensor*>(&value);
    if (found == nullptr) file_.refuse("has no tensor where one is expected");
    return file_.read(**found);
  }
  std::vector<std::int64_t> numbers(const PyDict& record, std::string_view name) const {
    std::vector<std::int64_t> numbers;
    for (const PyValue& item : list(record.find(name), name).items) {
      const auto* number = std::get_if<std::int64_t>(&item);
      if (number == nullptr || *number < 0)
        file_.refuse(fmt::format("a value of \"{}\" is not a whole number", name));
      numbers.push_back(*number);
    }
    return numbers;
  }
  std::int64_t number_or(const PyDict& record, std::string_view name, std::int64_t other) const {
    const PyValue* value = record.find(name);
    const auto* number = value == nullptr ? nullptr : std::get_if<std::int64_t>(value);
    return number == nullptr ? other : *number;
  }

  void read_stat(const Array& counts) {
    if (counts.shape.size() != 3) file_.refuse("\"logical_count\" is not [steps, layers, experts]");
    for (std::int64_t step = 0; step < counts.extent(0); ++step) {
      const std::span<const double> part = counts.part(step);
      builder_.add_counts(
          place_, step, {{counts.extent(1), counts.extent(2)}, {part.begin(), part.end()}}, false);
    }
  }

  void read_record(const PyDict& record) {
    if (const PyValue* ids = record.find("topk_ids_of_layer")) return read_tokens(record, *ids);
    const PyValue* counts = record.find("global_physical_count");
    if (counts == nullptr)
      file_.refuse("has a record without topk_ids_of_layer and without global_physical_count");
    builder_.add_counts(place_, number_or(record, "forward_pass_id", 0), tensor(*counts), true);
  }

  void read_tokens(const PyDict& record, const PyValue& ids) {
    pass_ = tensor(ids);
    const std::vector<std::int64_t> positions = numbers(record, "positions");
    const std::int64_t mode = number_or(record, "forward_mode", 0);
    if (mode >= verify && mode <= draft_extend_v2)
      file_.refuse(fmt::format(
          "has a pass over drafts (forward_mode {}), which does not say which of its tokens were "
          "accepted; record without speculative decoding, or per_pass for counts alone",
          mode));
    if (mode > draft_extend_v2)
      file_.refuse(fmt::format(
          "has a pass of forward_mode {}, which is neither of prompts nor of decodes; per_pass "
          "holds counts alone",
          mode));
    if (positions.empty()) return;  // an idle pass, beside ranks that have work
    note_tokens(record, positions);
    if (pass_.shape.size() != 3 || pass_.extent(1) < std::ssize(positions))
      file_.refuse(
          fmt::format("topk_ids_of_layer is not [layers, {} tokens, k]", positions.size()));
    if (layers_ != 0 && (layers_ != pass_.extent(0) || columns_ != pass_.extent(2)))
      file_.refuse("has records of different shapes");
    layers_ = pass_.extent(0);
    columns_ = pass_.extent(2);
    const PyValue* lengths = record.find("extend_seq_lens");
    const bool extends = lengths != nullptr && std::holds_alternative<const PyList*>(*lengths);
    if (extends)
      extend(positions, numbers(record, "extend_seq_lens"), mode == mixed);
    else
      decode(positions);
  }

  // Appends which tokens a pass has, if the record says it.
  void note_tokens(const PyDict& record, std::span<const std::int64_t> positions) {
    const PyValue* ids = record.find("input_ids");
    if (ids == nullptr || !std::holds_alternative<const PyList*>(*ids)) return;
    tokens_ += fmt::format("{}:{}@{};", number_or(record, "forward_pass_id", 0),
                           fmt::join(numbers(record, "input_ids"), ","), fmt::join(positions, ","));
  }

  // A batch of prompts, or of their last chunks; in a mixed one decodes are extended by a token.
  void extend(const std::vector<std::int64_t>& positions, const std::vector<std::int64_t>& lengths,
              bool with_decodes) {
    std::int64_t token = 0;
    for (const std::int64_t length : lengths) {
      if (length < 0 || length > std::ssize(positions) - token)
        file_.refuse("extend_seq_lens are longer than the batch");
      if (length == 0) continue;
      const std::int64_t first = positions[at(token)];
      const Phase phase = with_decodes && length == 1 ? decoded(first) : prefilling;
      const bool decodes = with_decodes && length == 1 && waiting_[phase].contains(first);
      append(take(phase, first), token, length, first, !decodes);
      token += length;
    }
  }

  // Every sequence that decodes takes part: those that are missed have ended.
  void decode(const std::vector<std::int64_t>& positions) {
    std::vector<std::size_t> chosen;
    for (const std::int64_t position : positions)
      chosen.push_back(take(decoded(position), position));
    waiting_[decoding].clear();
    for (std::size_t i = 0; i < chosen.size(); ++i)
      append(chosen[i], static_cast<std::int64_t>(i), 1, positions[i], false);
  }

  // Phase where a sequence waits that decodes the token at a position: its first in prefill.
  Phase decoded(std::int64_t position) const {
    return waiting_[decoding].contains(position) ? decoding : prefilling;
  }
  // The sequence whose next token stands at a position; a new one, where none waits for it.
  std::size_t take(Phase phase, std::int64_t position) {
    const auto found = waiting_[phase].find(position);
    if (position == 0 || found == waiting_[phase].end()) {
      sequences_.emplace_back();
      return sequences_.size() - 1;
    }
    const std::size_t sequence = found->second.front();
    found->second.pop_front();
    if (found->second.empty()) waiting_[phase].erase(found);
    return sequence;
  }

  void append(std::size_t to, std::int64_t token, std::int64_t length, std::int64_t position,
              bool prompt) {
    Sequence& sequence = sequences_[to];
    const auto columns = static_cast<std::ptrdiff_t>(columns_);
    for (std::int64_t i = token; i < token + length; ++i)
      for (std::int64_t layer = 0; layer < layers_; ++layer) {
        const auto first = pass_.part(layer).begin() + i * columns;
        sequence.ids.insert(sequence.ids.end(), first, first + columns);
      }
    sequence.rows += length;
    sequence.prompt_rows += prompt ? length : 0;
    std::int64_t next = 0;
    if (__builtin_add_overflow(position, length, &next))
      file_.refuse(fmt::format("has a token at position {}, which is out of range", position));
    waiting_[prompt ? prefilling : decoding][next].push_back(to);
  }

  void add(const Sequence& sequence) {
    builder_.add({.place = place_,
                  .ids = {{sequence.rows, layers_, columns_}, sequence.ids},
                  .prompt_rows = sequence.prompt_rows,
                  .physical = true});
  }

  std::string place_;
  TorchFile file_;
  TraceBuilder& builder_;
  Array pass_;  // ids of the batch that is read
  std::int64_t layers_ = 0, columns_ = 0;
  std::vector<Sequence> sequences_;
  std::string tokens_;  // of all passes, with their positions
  // Sequences by the position of their next token, in the order of their batch.
  std::array<std::map<std::int64_t, std::deque<std::size_t>>, 2> waiting_;
};

}  // namespace

void read_sglang_recording(std::span<const std::filesystem::path> files, TraceBuilder& builder) {
  std::set<std::string> seen;
  int again = 0;
  for (const std::filesystem::path& file : files) {
    if (file.extension() == ".pt") {
      again += Dump(file, builder).read(seen) ? 0 : 1;
    } else if (is_json_file(file)) {
      add_responses(file, "SGLang's --enable-return-routed-experts and return_routed_experts",
                    builder);
    } else {
      refuse_file(file, "an expert distribution of SGLang: .pt, or responses as .json or .jsonl");
    }
  }
  if (again > 0)
    builder.remark(
        fmt::format("dropped: {} files of ranks that hold the tokens of another file", again));
}

}  // namespace moesim
