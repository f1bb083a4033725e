// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "hardware/config.hpp"
#include "traces/requests/row_readers.hpp"

namespace moesim {
namespace {

using std::chrono::nanoseconds;

/// A whole text as a number. Throws ConfigError naming it otherwise.
template <class Number>
Number parse_number(std::string_view text, std::string_view what) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size())
    throw ConfigError(fmt::format("\"{}\" is not {}", text, what));
  return number;
}

nanoseconds parse_seconds(std::string_view text) {
  const auto seconds = parse_number<double>(text, "a time in seconds");
  if (!(std::abs(seconds) < 9e9))
    throw ConfigError(fmt::format("\"{}\" is not a time in seconds", text));
  return nanoseconds(std::llround(seconds * 1e9));
}

/// "2023-11-16 18:15:46.6805900", up to nine decimals or none; a zone such as "+00:00" at the end
/// is the same in every row and left out.
nanoseconds parse_date_time(std::string_view text) {
  const auto refuse = [whole = text] {
    throw ConfigError(
        fmt::format("\"{}\" is not a time; as in 2023-11-16 18:15:46.6805900", whole));
  };
  constexpr std::string_view shape = "dddd-dd-dd dd:dd:dd";
  if (text.size() < shape.size()) refuse();
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (shape[i] == 'd' ? text[i] < '0' || text[i] > '9' : text[i] != shape[i]) refuse();
  const auto digits = [&](std::size_t at, std::size_t count) {
    return parse_number<int>(text.substr(at, count), "a number");
  };
  const std::chrono::year_month_day date{std::chrono::year(digits(0, 4)),
                                         std::chrono::month(static_cast<unsigned>(digits(5, 2))),
                                         std::chrono::day(static_cast<unsigned>(digits(8, 2)))};
  const int hour = digits(11, 2), minute = digits(14, 2), second = digits(17, 2);
  if (!date.ok() || hour > 23 || minute > 59 || second > 60) refuse();
  nanoseconds time = std::chrono::sys_days(date).time_since_epoch() + std::chrono::hours(hour) +
                     std::chrono::minutes(minute) + std::chrono::seconds(second);
  text.remove_prefix(shape.size());
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    std::int64_t unit = 100'000'000;
    for (; !text.empty() && text[0] >= '0' && text[0] <= '9'; unit /= 10, text.remove_prefix(1))
      time += nanoseconds((text[0] - '0') * unit);
  }
  if (!text.empty() && text != "Z" && text[0] != '+' && text[0] != '-') refuse();
  return time;
}

/// Which columns of a known format hold what.
struct CsvFormat {
  std::string_view name;
  std::string_view time;  ///< empty: the format tells lengths only
  nanoseconds (*parse_time)(std::string_view);
  std::string_view prompt_tokens;
  std::string_view output_tokens;
  bool no_output_is_failure;  ///< such rows are left out rather than refused
};
constexpr std::array formats{
    CsvFormat{"Azure", "TIMESTAMP", parse_date_time, "ContextTokens", "GeneratedTokens", false},
    CsvFormat{"BurstGPT", "Timestamp", parse_seconds, "Request tokens", "Response tokens", true},
    CsvFormat{"lengths", "", nullptr, "prompt_tokens", "output_tokens", false},
};

std::vector<std::string_view> split(std::string_view line) {
  std::vector<std::string_view> fields;
  for (;;) {
    const std::size_t end = line.find(',');
    std::string_view field = line.substr(0, end);
    while (field.starts_with(' ')) field.remove_prefix(1);
    while (field.ends_with(' ')) field.remove_suffix(1);
    fields.push_back(field);
    if (end == std::string_view::npos) return fields;
    line.remove_prefix(end + 1);
  }
}

std::optional<std::size_t> column(const std::vector<std::string_view>& header,
                                  std::string_view name) {
  const auto found = std::find(header.begin(), header.end(), name);
  if (found == header.end()) return std::nullopt;
  return static_cast<std::size_t>(found - header.begin());
}

/// A count of tokens; some tools write it as "12.0".
std::int64_t parse_tokens(std::string_view text) {
  const auto value = parse_number<double>(text, "a number of tokens");
  if (value != std::floor(value) || std::abs(value) > 1e15)
    throw ConfigError(fmt::format("\"{}\" is not a number of tokens", text));
  return static_cast<std::int64_t>(value);
}

}  // namespace

std::optional<RowReader> csv_reader(std::string_view header) {
  if (header.starts_with("\xEF\xBB\xBF")) header.remove_prefix(3);  // UTF-8's byte order mark
  const std::vector<std::string_view> names = split(header);
  for (const CsvFormat& format : formats) {
    const auto time = column(names, format.time);
    const auto prompt = column(names, format.prompt_tokens);
    const auto output = column(names, format.output_tokens);
    if (!prompt || !output || (!format.time.empty() && !time)) continue;
    const auto read = [=, columns =
                              names.size()](std::string_view line) -> std::optional<RecordedRow> {
      const std::vector<std::string_view> fields = split(line);
      if (fields.size() != columns)
        throw ConfigError(
            fmt::format("has {} fields; the header names {}", fields.size(), columns));
      RecordedRow row;
      if (time) row.time = format.parse_time(fields[*time]);
      row.prompt_tokens = parse_tokens(fields[*prompt]);
      row.output_tokens = parse_tokens(fields[*output]);
      if (format.no_output_is_failure && row.output_tokens == 0) return std::nullopt;
      return row;
    };
    return RowReader{read, /*first_line_is_header=*/true, !format.time.empty()};
  }
  return std::nullopt;
}

std::string csv_formats() {
  std::string text;
  for (const CsvFormat& format : formats)
    text +=
        fmt::format("{}{} ({}{}{}, {})", text.empty() ? "" : ", ", format.name, format.time,
                    format.time.empty() ? "" : ", ", format.prompt_tokens, format.output_tokens);
  return text;
}

}  // namespace moesim
