// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/moe_model.hpp"
#include "traces/import/array.hpp"
#include "traces/routing_trace.hpp"

namespace moesim {

/// Facts of a user's file on a request that the engine's recording does not have.
struct RequestNote {
  std::string file;  ///< name of the file that the request is in; empty: not said
  std::optional<std::int64_t> prompt_tokens;
  std::string workload = "unknown";
  bool has_repetition = false;
  std::vector<std::string> unread{};  ///< other keys, which an import names
};
/// Reads JSON lines of "prompt_tokens" (or a routing trace's "prompt_rows"), "workload",
/// "has_repetition" and "file", one for each request in order. Throws ConfigError with the line.
std::vector<RequestNote> read_request_notes(const std::filesystem::path& file);

/// Options next to an engine's recording.
struct ImportOptions {
  /// Experts of physical slots, [MoE layers][slots]: the recording's ids are physical. Empty: they
  /// are logical, unless the recording brings such a map along.
  std::vector<std::vector<int>> logical_of_physical{};
  std::vector<RequestNote> notes{};  ///< of each request, or none
};

/// A request of a recording: ids [rows, layers, k] of all the model's layers, or of those with
/// experts; `layers` where it is neither.
struct RecordedRequest {
  std::string place;  ///< where it stands, for messages
  Array ids;
  std::optional<std::int64_t> prompt_rows{};  ///< nothing: not known
  bool physical = false;                      ///< its ids are slots
};

/// Results of an import: routing, or counts alone, and what was left out on the way.
struct Imported {
  std::optional<RoutingTrace> trace{};
  Array counts{};  ///< tokens per expert, [steps, MoE layers, experts]; empty shape: none
  std::vector<std::string> remarks{};
};

/// Puts recordings together into a native trace of a model. Dense layers, padding and columns of
/// experts that the router did not choose are dropped and counted; physical ids become logical.
class TraceBuilder {
 public:
  TraceBuilder(const MoeModel&, ImportOptions, std::string engine);

  const MoeModel& model() const { return model_; }
  /// Numbers of the model's layers with experts.
  std::span<const int> moe_layers() const { return moe_layers_; }
  /// Number of ids that a layer can have: slots where the user gave a map of them, else experts.
  int ids_of_layer() const;
  /// The model's layers that all rows are of, ascending: those with experts unless this is said.
  /// Throws ConfigError if one is dense.
  void record_layers(const std::string& place, std::vector<int> layers);
  /// Says that so many layers of a recording draft tokens (MTP) and are left out.
  void drop_drafts(int layers);
  /// The map that a recording brings along, [layers, slots] of all layers or of those with experts;
  /// the user's own wins. Throws ConfigError.
  void physical_to_logical(const std::string& place, const Array& map);
  /// Throws ConfigError naming the place, row and layer of what does not fit.
  void add(const RecordedRequest&);
  /// Adds tokens of each expert in one step, [layers, experts] of all layers or of those with
  /// experts. Those of one step from several ranks are summed.
  void add_counts(const std::string& place, std::int64_t step, const Array& counts, bool physical);
  /// The recording's name of a request. Throws ConfigError where it has been read before.
  void require_whole(const std::string& place, const std::string& id);
  void remark(std::string text) { remarks_.push_back(std::move(text)); }

  /// Throws ConfigError if nothing was added.
  Imported finish() &&;

 private:
  using SlotMap = std::vector<std::vector<int>>;  // [MoE layers][slots] -> expert
  // How a request's ids are to be read.
  struct Reading {
    const std::string& place;
    std::int64_t columns = 0;           // ids of a layer
    std::int64_t layers = 0;            // that a row has
    std::vector<std::int64_t> entries;  // of each recorded layer in the dimension of layers
    const SlotMap* map = nullptr;       // of physical ids
  };
  std::vector<std::int64_t> entries_of(const std::string& place, std::int64_t extent,
                                       std::span<const int> layers);
  const SlotMap* map_of(bool physical) const;
  const RequestNote* note_on(const std::string& place) const;
  void require_dense(const Reading&, std::int64_t row, std::span<const double> ids) const;
  std::vector<char> padding_in(const Reading&, const Array& ids);
  void require_written_layers() const;
  void append_row(const Reading&, std::int64_t row, std::span<const double> ids);
  void append_choice(const Reading&, std::int64_t row, std::size_t layer,
                     std::span<const double> ids);
  const std::vector<int>* slots_of(const SlotMap*, std::size_t layer) const;
  int workload(const std::string& name);
  TraceMeta meta() const;
  Array all_counts();
  void remark_what_was_left_out();

  const MoeModel& model_;
  ImportOptions options_;
  std::string engine_;
  std::vector<int> moe_layers_, recorded_;
  SlotMap logical_of_physical_;  // as recorded
  std::vector<std::uint16_t> ids_;
  std::vector<TraceRequest> requests_;
  std::vector<std::string> workloads_;
  std::map<std::int64_t, std::vector<double>> counts_;  // by step
  std::size_t added_ = 0, empty_ = 0, without_prompt_ = 0, short_ = 0;
  std::set<std::string> unread_, read_;
  std::int64_t rows_ = 0, padding_rows_ = 0, extra_ids_ = 0, doubtful_rows_ = 0;
  std::vector<std::int64_t> zeros_;  // top-1 choices of expert 0, by recorded layer
  int dropped_drafts_ = 0;
  bool dropped_dense_ = false, mapped_ = false;
  // Physical slots, and those of them in which any token was counted: from the first to the end.
  std::size_t slots_ = 0, first_slot_ = std::numeric_limits<std::size_t>::max(), end_of_slots_ = 0;
  std::vector<std::string> remarks_;
};

/// A form of recordings: an engine's, or a common one.
struct ImportForm {
  std::string_view name;
  std::string_view summary;
  void (*read)(std::span<const std::filesystem::path> files, TraceBuilder&);
};
/// The table of forms.
std::span<const ImportForm> import_forms();

/// Reads recordings of a form; a folder stands for the files in it, in the order of their names.
/// Throws ConfigError.
Imported import_trace(const ImportForm&, std::span<const std::filesystem::path> paths,
                      const MoeModel&, ImportOptions = {});

}  // namespace moesim
