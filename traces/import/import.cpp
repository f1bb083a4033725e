// SPDX-License-Identifier: Apache-2.0
#include "traces/import/import.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "hardware/at.hpp"
#include "hardware/parse_json.hpp"
#include "traces/import/forms.hpp"
#include "traces/mapped_file.hpp"

namespace moesim {

namespace {

constexpr double most_tokens = 1e15;  // of a count

bool all_equal(std::span<const double> values) {
  return std::ranges::all_of(values, [&](double value) { return value == values[0]; });
}

// True if every column has one id: the zeros of a layer or row that was never written, or a fill of
// -1. That is 255 or 65535 where ids have no sign. A single column may be an id.
bool is_blank(std::span<const double> choice) {
  if (choice.size() > 1) return all_equal(choice);
  return choice[0] <= 0 || choice[0] == 255 || choice[0] == 65535;
}

// A zero of top-1 may be expert 0. Rows in a row are no chance at one in a million, ...
const double least_evidence = std::log(1e6);
// ... nor so many tokens of a layer, whose hottest expert gets half of them at most.
constexpr std::int64_t least_tokens = 40;

std::vector<std::filesystem::path> files_in(std::span<const std::filesystem::path> paths) {
  std::vector<std::filesystem::path> files;
  for (const std::filesystem::path& path : paths) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(path, ignored)) {
      files.push_back(path);
      continue;
    }
    std::vector<std::filesystem::path> inside;
    std::error_code error;
    const std::filesystem::directory_iterator folder(path, error);
    if (error) refuse(path.string(), fmt::format("cannot be read ({})", error.message()));
    for (const auto& entry : folder)
      if (entry.is_regular_file(ignored) && !entry.path().filename().string().starts_with('.'))
        inside.push_back(entry.path());  // no link in a circle
    if (inside.empty())
      refuse(path.string(), "is a folder without a file; name the folders in it, if there are any");
    std::sort(inside.begin(), inside.end(), [](const auto& a, const auto& b) {
      return natural_less(a.filename().string(), b.filename().string());
    });
    files.insert(files.end(), inside.begin(), inside.end());
  }
  return files;
}

}  // namespace

bool natural_less(std::string_view a, std::string_view b) {
  const auto digits = [](std::string_view text) {
    const std::size_t end = text.find_first_not_of("0123456789");
    return text.substr(0, end);
  };
  const std::string_view whole_a = a, whole_b = b;
  while (!a.empty() && !b.empty()) {
    std::string_view x = digits(a), y = digits(b);
    a.remove_prefix(std::max<std::size_t>(1, x.size()));
    b.remove_prefix(std::max<std::size_t>(1, y.size()));
    if (x.empty() || y.empty()) {
      x = std::string_view(a.data() - 1, 1);
      y = std::string_view(b.data() - 1, 1);
    } else {
      x.remove_prefix(std::min(x.find_first_not_of('0'), x.size()));
      y.remove_prefix(std::min(y.find_first_not_of('0'), y.size()));
      if (x.size() != y.size()) return x.size() < y.size();
    }
    if (x != y) return x < y;
  }
  return a.size() != b.size() ? a.size() < b.size() : whole_a < whole_b;
}

std::vector<RequestNote> read_request_notes(const std::filesystem::path& file) {
  std::vector<RequestNote> notes;
  for_each_line(file, [&](std::size_t number, std::string_view line) {
    const std::string place = fmt::format("{}:{}", file.string(), number);
    ConfigReader reader(ConfigNode(json_or_text(line), place));
    RequestNote note;
    note.file = reader.text_or("file", "");
    note.workload = reader.text_or("workload", note.workload);
    note.has_repetition = reader.flag_or("has_repetition", false);
    for (const std::string_view key : {"prompt_tokens", "prompt_rows"})
      if (reader.optional(key)) note.prompt_tokens = reader.integer(key, Range{0, 9e15});
    // A native trace's own file will do, which also says where its rows are.
    constexpr std::array<std::string_view, 7> known{
        "file",        "workload",  "has_repetition", "prompt_tokens",
        "prompt_rows", "row_start", "num_tokens"};
    for (const std::string& key : reader.all_keys())
      if (std::ranges::find(known, key) == known.end()) note.unread.push_back(key);
    notes.push_back(std::move(note));
  });
  if (notes.empty()) refuse(file.string(), "holds no request");
  return notes;
}

TraceBuilder::TraceBuilder(const MoeModel& model, ImportOptions options, std::string engine)
    : model_(model), options_(std::move(options)), engine_(std::move(engine)) {
  moe_layers_ = model.moe_layer_numbers();
  if (moe_layers_.empty()) throw ConfigError("{} has no layer with experts", model.name);
  recorded_ = moe_layers_;
  zeros_.assign(recorded_.size(), 0);
  if (!options_.logical_of_physical.empty() &&
      options_.logical_of_physical.size() != moe_layers_.size())
    throw ConfigError("the placement has {} layers; {} has {} with experts",
                      options_.logical_of_physical.size(), model.name, moe_layers_.size());
}

int TraceBuilder::ids_of_layer() const {
  return options_.logical_of_physical.empty()
             ? model_.experts
             : static_cast<int>(options_.logical_of_physical.front().size());
}

// Which entries of a dimension of layers these layers are. Layers that draft come last.
std::vector<std::int64_t> TraceBuilder::entries_of(const std::string& place, std::int64_t extent,
                                                   std::span<const int> layers) {
  std::vector<std::int64_t> entries(layers.begin(), layers.end());
  const std::int64_t all = model_.numbered_layers, moe = std::ssize(layers);
  const int drafts = model_.draft_layers;
  if (extent != all && extent != all + drafts)
    std::iota(entries.begin(), entries.end(), std::int64_t{0});
  if (extent == all || extent == moe) return entries;
  if (extent == all + drafts || extent == moe + drafts) {
    drop_drafts(drafts);
    return entries;
  }
  refuse(place, fmt::format("has {} layers; {} has {}, {} of them with experts", extent,
                            model_.name, model_.numbered_layers, moe_layers_.size()));
}

void TraceBuilder::physical_to_logical(const std::string& place, const Array& map) {
  if (map.shape.size() != 2)
    refuse(place, fmt::format("a map of slots has the shape [layers, slots]; found [{}]",
                              fmt::join(map.shape, ", ")));
  logical_of_physical_.clear();
  for (const std::int64_t entry : entries_of(place, map.extent(0), moe_layers_)) {
    std::vector<int>& experts = logical_of_physical_.emplace_back();
    for (const double expert : map.part(entry)) {
      if (!(expert >= -1 && expert < model_.experts))
        refuse(place, fmt::format("a slot holds expert {}; {} has {}", expert, model_.name,
                                  model_.experts));
      experts.push_back(static_cast<int>(expert));
    }
  }
}

void TraceBuilder::record_layers(const std::string& place, std::vector<int> layers) {
  for (const int layer : layers)
    if (!std::binary_search(moe_layers_.begin(), moe_layers_.end(), layer))
      refuse(place, layer >= model_.numbered_layers
                        ? fmt::format("has layer {}; {} has {}, from 0 on", layer, model_.name,
                                      model_.numbered_layers)
                        : fmt::format("has experts in layer {}, which is dense in {}", layer,
                                      model_.name));
  recorded_ = std::move(layers);
  zeros_.assign(recorded_.size(), 0);
}

void TraceBuilder::require_whole(const std::string& place, const std::string& id) {
  if (!read_.insert(id).second)
    refuse(place, fmt::format("is one more piece of request {}; join the pieces of a request", id));
}

void TraceBuilder::drop_drafts(int layers) { dropped_drafts_ = std::max(dropped_drafts_, layers); }

const TraceBuilder::SlotMap* TraceBuilder::map_of(bool physical) const {
  if (!options_.logical_of_physical.empty()) return &options_.logical_of_physical;
  return physical && !logical_of_physical_.empty() ? &logical_of_physical_ : nullptr;
}

// The slots of a recorded layer; nothing where ids are logical.
const std::vector<int>* TraceBuilder::slots_of(const SlotMap* map, std::size_t layer) const {
  if (map == nullptr) return nullptr;
  const auto entry = std::lower_bound(moe_layers_.begin(), moe_layers_.end(), recorded_[layer]);
  return &(*map)[at(entry - moe_layers_.begin())];
}

const RequestNote* TraceBuilder::note_on(const std::string& place) const {
  if (options_.notes.empty()) return nullptr;
  if (added_ >= options_.notes.size())
    refuse(place,
           fmt::format("is a request too many: the notes have {} requests", options_.notes.size()));
  const RequestNote& note = options_.notes[added_];
  if (!note.file.empty() && place.find(note.file) == std::string::npos)
    refuse(place,
           fmt::format("is request {}, but the notes name {} for that request", added_, note.file));
  return &note;
}

int TraceBuilder::workload(const std::string& name) {
  const auto found = std::find(workloads_.begin(), workloads_.end(), name);
  if (found == workloads_.end()) workloads_.push_back(name);
  return static_cast<int>(std::find(workloads_.begin(), workloads_.end(), name) -
                          workloads_.begin());
}

void TraceBuilder::add(const RecordedRequest& request) {
  const Array& ids = request.ids;
  if (ids.shape.size() != 3)
    refuse(request.place, fmt::format("routed experts have the shape [tokens, layers, experts per "
                                      "token]; found [{}]",
                                      fmt::join(ids.shape, ", ")));
  if (ids.extent(2) < model_.experts_per_token)
    refuse(request.place, fmt::format("has {} experts per token; {} picks {}", ids.extent(2),
                                      model_.name, model_.experts_per_token));
  const Reading reading{request.place, ids.extent(2), ids.extent(1),
                        entries_of(request.place, ids.extent(1), recorded_),
                        map_of(request.physical)};
  const RequestNote* note = note_on(request.place);
  ++added_;
  std::optional<std::int64_t> prompt = request.prompt_rows;
  TraceRequest made{.row_start = rows_};
  if (note != nullptr) {
    unread_.insert(note->unread.begin(), note->unread.end());
    if (note->prompt_tokens) prompt = note->prompt_tokens;
    made.has_repetition = note->has_repetition;
  }
  const std::vector<char> padding = padding_in(reading, ids);
  for (std::int64_t row = 0; row < ids.extent(0); ++row) {
    require_dense(reading, row, ids.part(row));
    if (padding[at(row)] != 0) continue;
    append_row(reading, row, ids.part(row));
    ++made.num_tokens;
    made.prompt_rows += !prompt || row < *prompt ? 1 : 0;
  }
  padding_rows_ += ids.extent(0) - made.num_tokens;
  dropped_dense_ = dropped_dense_ || reading.layers >= model_.numbered_layers;
  rows_ += made.num_tokens;
  short_ += prompt && *prompt > ids.extent(0);
  mapped_ = mapped_ || reading.map != nullptr;
  if (made.num_tokens == 0) {
    ++empty_;
    return;
  }
  if (!prompt) ++without_prompt_;
  made.workload = workload(note != nullptr ? note->workload : RequestNote().workload);
  requests_.push_back(made);
}

// A dense layer that holds choices is no layer of this model.
void TraceBuilder::require_dense(const Reading& reading, std::int64_t row,
                                 std::span<const double> ids) const {
  if (reading.layers == std::ssize(moe_layers_) || reading.layers < model_.numbered_layers) return;
  const auto columns = at(reading.columns);
  for (int layer = 0; layer < model_.numbered_layers; ++layer)
    if (!std::binary_search(moe_layers_.begin(), moe_layers_.end(), layer) &&
        !is_blank(ids.subspan(at(layer) * columns, columns)))
      refuse(reading.place, fmt::format("row {} has experts in layer {}, which is dense in {}", row,
                                        layer, model_.name));
}

// Rows that were never written, as those of prompts in a prefix cache: blank in every layer.
std::vector<char> TraceBuilder::padding_in(const Reading& reading, const Array& ids) {
  const std::int64_t rows = ids.extent(0);
  std::vector<char> padding(at(rows));
  for (std::int64_t row = 0; row < rows; ++row) {
    std::vector<double> chosen;
    for (const std::int64_t entry : reading.entries) {
      const auto choice = ids.part(row).subspan(at(entry * reading.columns), at(reading.columns));
      if (is_blank(choice)) chosen.push_back(choice[0]);
    }
    padding[at(row)] =
        chosen.size() == reading.entries.size() && (reading.columns > 1 || all_equal(chosen));
  }
  const double of_row = double(reading.entries.size()) * std::log(double(model_.experts));
  for (std::int64_t row = 0, end = 0; reading.columns == 1 && row < rows; row = end) {
    for (end = row + 1; end < rows && padding[at(end)] == padding[at(row)];) ++end;
    const double id = ids.part(row)[at(reading.entries.front())];
    if (padding[at(row)] == 0 || id < 0 || double(end - row) * of_row >= least_evidence) continue;
    std::fill(padding.begin() + row, padding.begin() + end, char{0});
    doubtful_rows_ += end - row;
  }
  return padding;
}

void TraceBuilder::append_row(const Reading& reading, std::int64_t row,
                              std::span<const double> ids) {
  for (std::size_t layer = 0; layer < reading.entries.size(); ++layer)
    append_choice(reading, row, layer,
                  ids.subspan(at(reading.entries[layer] * reading.columns), at(reading.columns)));
}

// Appends what a token picked in one layer, as logical ids.
void TraceBuilder::append_choice(const Reading& reading, std::int64_t row, std::size_t layer,
                                 std::span<const double> ids) {
  const auto fail = [&](const std::string& what) {
    refuse(reading.place, fmt::format("row {}, layer {}: {}", row, recorded_[layer], what));
  };
  if (ids.size() > 1 && all_equal(ids)) fail("was not written; other layers of the row were");
  zeros_[layer] += ids.size() == 1 && ids[0] == 0;
  const std::vector<int>* slots = slots_of(reading.map, layer);
  const double known = slots != nullptr ? static_cast<double>(slots->size()) : model_.experts;
  const auto k = at(model_.experts_per_token);
  const std::size_t first = ids_.size();
  for (const double id : ids) {
    const bool chosen = id >= 0 && id < known && id == std::floor(id);
    if (!chosen && ids.size() == k)
      fail(fmt::format("{} {}; ids are 0 to {}", slots != nullptr ? "slot" : "expert", id,
                       known - 1));
    if (!chosen) {  // a column that is not filled, or a shared expert's
      ++extra_ids_;
      continue;
    }
    const int expert =
        slots != nullptr ? (*slots)[static_cast<std::size_t>(id)] : static_cast<int>(id);
    if (expert < 0) fail(fmt::format("slot {}, which holds no expert", id));
    if (std::find(ids_.begin() + std::ptrdiff_t(first), ids_.end(), expert) != ids_.end())
      fail(fmt::format("expert {} twice; a token picks distinct experts", expert));
    ids_.push_back(static_cast<std::uint16_t>(expert));
  }
  if (ids_.size() - first != k)
    fail(fmt::format("{} experts; {} picks {}", ids_.size() - first, model_.name, k));
}

void TraceBuilder::add_counts(const std::string& place, std::int64_t step, const Array& counts,
                              bool physical) {
  if (counts.shape.size() != 2)
    refuse(place, fmt::format("counts have the shape [layers, experts]; found [{}]",
                              fmt::join(counts.shape, ", ")));
  const auto entries = entries_of(place, counts.extent(0), recorded_);
  const bool every = counts.extent(0) == model_.numbered_layers ||
                     counts.extent(0) == model_.numbered_layers + model_.draft_layers;
  for (int layer = 0; every && layer < model_.numbered_layers; ++layer)
    if (!std::binary_search(moe_layers_.begin(), moe_layers_.end(), layer) &&
        std::ranges::any_of(counts.part(layer), [](double tokens) { return tokens > 0; }))
      refuse(place,
             fmt::format("has tokens in layer {}, which is dense in {}", layer, model_.name));
  const SlotMap* map = map_of(physical);
  const auto experts = at(model_.experts);
  std::vector<double>& sum = counts_[step];
  sum.resize(entries.size() * experts);
  for (std::size_t layer = 0; layer < entries.size(); ++layer) {
    const std::span<const double> of_layer = counts.part(entries[layer]);
    const std::vector<int>* slots = slots_of(map, layer);
    const std::size_t known = slots != nullptr ? slots->size() : experts;
    if (of_layer.size() != known)
      refuse(place, fmt::format("counts the tokens of {} experts; {} are expected", of_layer.size(),
                                known));
    for (std::size_t i = 0; i < of_layer.size(); ++i) {
      if (!(of_layer[i] >= 0 && of_layer[i] <= most_tokens))
        refuse(place, fmt::format("layer {}: {} tokens", recorded_[layer], of_layer[i]));
      if (physical && of_layer[i] > 0) {
        first_slot_ = std::min(first_slot_, i);
        end_of_slots_ = std::max(end_of_slots_, i + 1);
      }
      const int expert = slots != nullptr ? (*slots)[i] : static_cast<int>(i);
      if (expert >= 0) sum[layer * experts + at(expert)] += of_layer[i];
    }
  }
  mapped_ = mapped_ || map != nullptr;
  if (physical) slots_ = std::max(slots_, at(counts.extent(1)));
}

TraceMeta TraceBuilder::meta() const {
  TraceMeta meta;
  meta.model = model_.name;
  meta.num_experts = model_.experts;
  meta.experts_per_token = model_.experts_per_token;
  meta.layer_ids = recorded_;
  meta.engine = engine_;
  meta.source = fmt::format("imported from a recording of {}", engine_);
  const bool prefill = std::any_of(requests_.begin(), requests_.end(),
                                   [](const TraceRequest& r) { return r.prompt_rows > 0; });
  const bool decode = std::any_of(requests_.begin(), requests_.end(),
                                  [](const TraceRequest& r) { return r.decode_rows() > 0; });
  if (prefill) meta.phases.emplace_back("prefill");
  if (decode) meta.phases.emplace_back("decode");
  return meta;
}

// Steps in which something was counted, in order.
Array TraceBuilder::all_counts() {
  Array all;
  const std::size_t steps = counts_.size();
  std::erase_if(counts_, [](const auto& step) {
    return std::all_of(step.second.begin(), step.second.end(), [](double n) { return n == 0; });
  });
  if (steps == 0) return all;
  if (counts_.empty()) throw ConfigError("the recording counts no token in any step");
  if (counts_.size() < steps)
    remarks_.push_back(
        fmt::format("dropped: {} of {} steps without a token", steps - counts_.size(), steps));
  all.shape = {std::ssize(counts_), std::ssize(recorded_), model_.experts};
  for (const auto& step : counts_)
    all.values.insert(all.values.end(), step.second.begin(), step.second.end());
  return all;
}

void TraceBuilder::remark_what_was_left_out() {
  const auto say = [&](bool so, std::string text) {
    if (so) remarks_.push_back(std::move(text));
  };
  const std::int64_t dense = model_.numbered_layers - std::ssize(moe_layers_);
  say(dropped_dense_ && dense > 0, fmt::format("dropped: {} dense layers", dense));
  say(dropped_drafts_ > 0, fmt::format("dropped: {} layers that draft (MTP)", dropped_drafts_));
  say(doubtful_rows_ > 0,
      fmt::format("kept: {} rows of expert 0 in every layer, which may be rows that were never "
                  "written: {} layers of top-1 do not tell",
                  doubtful_rows_, recorded_.size()));
  say(padding_rows_ > 0, fmt::format("dropped: {} rows of padding", padding_rows_));
  say(empty_ > 0, fmt::format("dropped: {} requests of nothing but padding", empty_));
  say(extra_ids_ > 0,
      fmt::format("dropped: {} ids in columns beyond the router's {}: not filled, or of shared "
                  "experts",
                  extra_ids_, model_.experts_per_token));
  say(short_ > 0,
      fmt::format("{} requests have fewer rows than tokens in their prompts: all were taken for "
                  "the prompt's",
                  short_));
  say(!unread_.empty(),
      fmt::format("not read in --requests: \"{}\"", fmt::join(unread_, "\", \"")));
  say(mapped_, "physical ids were mapped to logical ones");
  // With DeepEP a rank counts the tokens of its own slots, which follow each other.
  if (end_of_slots_ > 0 && 2 * (end_of_slots_ - first_slot_) <= slots_)
    remarks_.push_back(
        fmt::format("all tokens are of slots {} to {} of {}: a rank may have counted its own; give "
                    "the files of all ranks",
                    first_slot_, end_of_slots_ - 1, slots_));
  say(without_prompt_ > 0,
      fmt::format("{} of {} requests do not say where their prompt ends: all of their rows count "
                  "as prompt (--requests says more)",
                  without_prompt_, requests_.size()));
}

// A top-1 layer of zeros alone was never captured, unless there are few tokens.
void TraceBuilder::require_written_layers() const {
  for (std::size_t layer = 0; rows_ >= least_tokens && layer < recorded_.size(); ++layer)
    if (zeros_[layer] == rows_)
      throw ConfigError(
          "layer {} was never written: all {} tokens picked expert 0 there; record all "
          "layers of {}",
          recorded_[layer], rows_, model_.name);
}

Imported TraceBuilder::finish() && {
  if (requests_.empty() && counts_.empty())
    throw ConfigError("the recording has neither requests nor token counts");
  if (added_ > 0 && !options_.notes.empty() && added_ != options_.notes.size())
    throw ConfigError("the notes have {} requests, but {} were recorded", options_.notes.size(),
                      added_);
  require_written_layers();
  Imported imported;
  remark_what_was_left_out();
  if (!requests_.empty()) imported.trace.emplace(meta(), workloads_, requests_, std::move(ids_));
  imported.counts = all_counts();
  imported.remarks = std::move(remarks_);
  return imported;
}

std::span<const ImportForm> import_forms() {
  static constexpr std::array forms{
      ImportForm{"vllm", "routed experts of vLLM: .npy of each request, or its responses (.json)",
                 read_vllm_recording},
      ImportForm{"sglang", "expert distributions of SGLang (.pt), or its responses (.json)",
                 read_sglang_recording},
      ImportForm{"trtllm",
                 "expert statistics of TensorRT-LLM (.safetensors), or .npy of each "
                 "request",
                 read_trtllm_recording},
      ImportForm{"hf", "router logits of transformers: .npy, .npz or .pt of each request",
                 read_hf_logits},
      ImportForm{"jsonl", "a line for each choice of a token, or for each request",
                 read_jsonl_recording},
      ImportForm{"npz", "an .npz of each request", read_npz_recording},
  };
  return forms;
}

Imported import_trace(const ImportForm& form, std::span<const std::filesystem::path> paths,
                      const MoeModel& model, ImportOptions options) {
  const std::vector<std::filesystem::path> files = files_in(paths);
  TraceBuilder builder(model, std::move(options), std::string(form.name));
  form.read(files, builder);
  return std::move(builder).finish();
}

}  // namespace moesim
