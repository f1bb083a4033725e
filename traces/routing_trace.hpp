// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace moesim {

enum class Phase { prefill, decode };
inline constexpr std::array<std::string_view, 2> phase_names{"prefill", "decode"};

/// A recorded request: its rows follow each other in the trace, prompt rows first.
struct TraceRequest {
  std::int64_t row_start = 0;
  std::int64_t num_tokens = 0;   ///< rows
  std::int64_t prompt_rows = 0;  ///< how many rows belong to the prompt; the rest is decode
  int workload = 0;              ///< index into workloads()
  bool has_repetition = false;   ///< a degenerate loop
  std::int64_t decode_rows() const { return num_tokens - prompt_rows; }
};

/// Statements of a trace about itself.
struct TraceMeta {
  std::string model;
  std::string source, license, engine;
  int num_experts = 0;
  int experts_per_token = 0;
  std::vector<int> layer_ids;       ///< model layer of each recorded MoE layer
  std::vector<std::string> phases;  ///< "prefill", "decode": what was recorded
  bool synthetic = false;           ///< made by our generator
  std::string adapted;              ///< how it was bent to fit another model; empty as recorded
};

/// Which experts every token picked in every MoE layer: ids [tokens, layers, k], requests, and what
/// is known about them. Recorded (memory-mapped from a directory: topk_ids.npy, requests.jsonl,
/// meta.json) or generated in memory. Ids are logical, distinct within a token's layer and in
/// [0, num_experts). Cheap to copy: the rows are shared.
class RoutingTrace {
 public:
  template <class Id>
  using Ids = std::span<const Id>;  ///< flat [tokens, layers, k]

  /// Opens a trace directory. Checks shape, dtype, order and requests at once, and all ids of a
  /// trace of up to 64 MB. Of a longer one it checks the first and last 4096 rows, and the rest
  /// when check_ids() asks. Throws ConfigError naming the file and what would be right.
  static RoutingTrace open(const std::filesystem::path& directory);

  /// A trace made in memory. `ids` is flat [tokens, layers, k].
  RoutingTrace(TraceMeta meta, std::vector<std::string> workloads,
               std::vector<TraceRequest> requests, std::vector<std::uint16_t> ids);

  /// Writes every id of a request, flat [rows, layers, k].
  using Fill = std::function<void(std::size_t request, std::span<std::uint16_t> ids)>;
  /// A trace made in memory whose requests, one behind the other, are filled in any order, at once.
  RoutingTrace(TraceMeta meta, std::vector<std::string> workloads,
               std::vector<TraceRequest> requests, const Fill& fill);

  const TraceMeta& meta() const { return meta_; }
  std::int64_t tokens() const { return tokens_; }
  int layers() const { return static_cast<int>(meta_.layer_ids.size()); }
  int experts_per_token() const { return meta_.experts_per_token; }
  int num_experts() const { return meta_.num_experts; }
  /// Ids in one row: layers * k.
  std::int64_t row_ids() const { return std::int64_t{layers()} * experts_per_token(); }
  std::span<const TraceRequest> requests() const { return requests_; }
  std::span<const std::string> workloads() const { return workloads_; }
  bool recorded(std::string_view phase) const;
  /// The request without the rows of its prompt, if the trace has decode rows: what decode batches
  /// draw from. No rows are left of a request that decoded nothing.
  TraceRequest decoding(TraceRequest) const;

  /// Calls fn(Ids<uint8_t>) , fn(Ids<uint16_t>) or fn(Ids<int32_t>): loops over rows are written
  /// once, typed.
  template <class Fn>
  decltype(auto) visit(Fn&& fn) const {
    return std::visit(std::forward<Fn>(fn), ids_);
  }

  /// Tokens per expert [layers, num_experts], over the rows of the given requests (of all requests
  /// when empty). Reads those rows, of which a long mapped trace keeps none in memory.
  std::vector<std::int64_t> expert_counts(std::span<const std::size_t> of_requests = {}) const;
  /// Reads every row, as expert_counts() does. Throws ConfigError naming the first row and layer
  /// whose ids are out of range or not distinct.
  void check_ids() const;

  /// This trace with these of its requests alone; the rows are shared.
  RoutingTrace with_requests(std::vector<TraceRequest> requests) const;
  /// The trace without requests that fell into a loop.
  RoutingTrace without_loops() const;
  /// The trace whose loops count as other requests do.
  RoutingTrace with_loops() const;
  /// Remark on the requests that fell into a loop; empty: there are none.
  std::string loops_remark(std::string_view what_is_done) const;
  /// The rows of a model with these MoE layers: layer i takes the ids of recorded layer
  /// i mod layers(). Copies every row; meta().adapted says so.
  RoutingTrace with_layers(std::vector<int> layer_ids) const;

 private:
  RoutingTrace() = default;
  template <class Id>
  void store(std::vector<Id> ids);
  template <class Id>
  void fill_ids(const Fill& fill);
  void check_rows(std::int64_t first, std::int64_t last) const;
  template <class Read>
  void stream(std::int64_t first, std::int64_t last, Read&& read) const;

  TraceMeta meta_;
  std::vector<std::string> workloads_;
  std::vector<TraceRequest> requests_;
  std::int64_t tokens_ = 0;
  std::variant<Ids<std::uint8_t>, Ids<std::uint16_t>, Ids<std::int32_t>> ids_;
  std::shared_ptr<const void> storage_;  ///< the mapping, or the vector
  bool streams_ = false;                 ///< mapped, and too long to keep in memory what was read
  std::string place_;                    ///< the id file, for messages
};

/// The names under which write_trace() writes the files of a directory until each is whole: what a
/// program that is stopped meanwhile removes.
std::array<std::string, 3> unfinished_trace_files(const std::filesystem::path& directory);

/// Writes the directory form, creating the directory. Each file appears whole or not at all, and
/// meta.json last. Throws ConfigError if a file cannot be written.
void write_trace(const RoutingTrace&, const std::filesystem::path& directory);

}  // namespace moesim
