// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include <fmt/format.h>

#include "hardware/config.hpp"
#include "traces/requests/row_readers.hpp"

namespace moesim {
namespace {

double number(const Json& row, const char* key) {
  const auto found = row.find(key);
  if (found == row.end() || !found->is_number())
    throw ConfigError(fmt::format("has no number \"{}\"", key));
  return found->get<double>();
}

std::int64_t tokens(const Json& row, const char* key) {
  const double value = number(row, key);
  if (value != std::floor(value) || std::abs(value) > 1e15)
    throw ConfigError(fmt::format("\"{}\" is {}, not a number of tokens", key, value));
  return static_cast<std::int64_t>(value);
}

// Each id of the FAST'25 release stands for 512 tokens and all before them.
constexpr std::int32_t hash_block_tokens = 512;

std::vector<std::uint64_t> hash_ids(const Json& row, std::int64_t prompt_tokens) {
  const auto found = row.find("hash_ids");
  if (found == row.end()) return {};
  const std::int64_t blocks = (prompt_tokens + hash_block_tokens - 1) / hash_block_tokens;
  if (!found->is_array() || std::ssize(*found) != blocks)
    throw ConfigError(fmt::format("\"hash_ids\" are not {} ids, one for each {} tokens of {}",
                                  blocks, hash_block_tokens, prompt_tokens));
  std::vector<std::uint64_t> ids;
  for (const Json& id : *found) {
    if (!id.is_number_integer()) throw ConfigError("\"hash_ids\" are not all whole numbers");
    ids.push_back(static_cast<std::uint64_t>(id.get<std::int64_t>()));
  }
  return ids;
}

std::optional<RecordedRow> read_row(std::string_view line) {
  const Json row = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!row.is_object()) throw ConfigError("is not a JSON object");
  const double milliseconds = number(row, "timestamp");
  if (!(std::abs(milliseconds) < 9e12))
    throw ConfigError(fmt::format("\"timestamp\" is {}, not a time in ms", milliseconds));
  RecordedRow read{std::chrono::nanoseconds(std::llround(milliseconds * 1e6)),
                   tokens(row, "input_length"), tokens(row, "output_length")};
  read.prompt_ids = hash_ids(row, read.prompt_tokens);
  if (!read.prompt_ids.empty()) read.id_block_tokens = hash_block_tokens;
  return read;
}

}  // namespace

std::optional<RowReader> mooncake_reader(std::string_view first_line) {
  const Json row = Json::parse(first_line, nullptr, /*allow_exceptions=*/false);
  if (!row.is_object() || !row.contains("input_length")) return std::nullopt;
  return RowReader{read_row, /*first_line_is_header=*/false, /*has_arrivals=*/true};
}

}  // namespace moesim
