// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "traces/requests/request_source.hpp"

namespace moesim {

struct RecordedRow;

/// Request of a row. Throws ConfigError, without a place, if that is no tokens or too many.
Request request_of(const RecordedRow&);

/// The classes that a file's rows name.
class RecordedClasses {
 public:
  /// The place of a row's class among the names; "": the row has none.
  std::uint32_t place(const std::string& name);
  /// In order of their first rows; none if no row names any.
  std::span<const std::string> names() const {
    return named_ ? std::span<const std::string>(names_) : std::span<const std::string>();
  }

 private:
  std::vector<std::string> names_;
  std::unordered_map<std::string, std::uint32_t> places_;
  bool named_ = false;
};

/// Requests that were recorded somewhere, in order of arrival.
struct RequestTrace {
  struct Row {
    std::chrono::nanoseconds arrival{};  ///< since the first row
    Request request;
  };
  std::vector<Row> rows;      ///< never empty
  bool has_arrivals = false;  ///< the file tells times, not only lengths
  RecordedClasses classes{};  ///< Request::recorded_class is a place among them
};

/// Reads a request trace; the format is recognised from the first line:
///   Azure LLM inference   CSV: TIMESTAMP, ContextTokens, GeneratedTokens
///   BurstGPT              CSV: Timestamp (s), Request tokens, Response tokens; rows without
///                         response tokens are failed requests and left out
///   Vidur                 CSV: num_prefill_tokens, num_decode_tokens and, if there, arrived_at (s)
///   Splitwise             CSV: arrival_timestamp (s), prompt_size, token_size
///   Mooncake              JSON lines: timestamp (ms), input_length, output_length
///   moesim                JSON lines: arrival_s, prompt_tokens, output_tokens
///                         CSV: the same columns (what `run --requests` writes), or lengths only
/// JSON lines may have hash_ids, one for each 512 tokens of the prompt, chained. If the first row
/// with several has another number, each is of the power of two that fits. Every form may have a
/// column class. Columns may stand in any order among others. Rows out of order are sorted by time,
/// ties as in the file. Throws ConfigError with the line number at a row that is malformed or asks
/// for no tokens.
RequestTrace read_request_trace(const std::filesystem::path& file);

/// The requests of another trace follow, the first one a mean gap after the last one that was
/// there.
void append(RequestTrace&, const RequestTrace& next);

}  // namespace moesim
