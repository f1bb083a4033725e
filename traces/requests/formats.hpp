// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moesim {

/// One row of a request trace as it stands in the file.
struct RecordedRow {
  std::chrono::nanoseconds time{};  ///< since whatever moment the file counts from
  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;
  std::int32_t id_block_tokens = 0;         ///< tokens that a prompt id covers; 0 = no ids
  std::vector<std::uint64_t> prompt_ids{};  ///< see PromptIds
};

/// Reads the rows of one file. nullopt is a row to leave out. Throws ConfigError, without a place,
/// at a malformed row.
struct RowReader {
  std::function<std::optional<RecordedRow>(std::string_view line)> read;
  bool first_line_is_header = false;
  bool has_arrivals = false;
};

/// The reader of the format that a file's first line belongs to: the first in the table all of
/// whose columns it names, as the header of a CSV file or the keys of a JSON object. Throws
/// ConfigError, without a place, naming the formats there are.
RowReader recognise_format(std::string_view first_line);

}  // namespace moesim
