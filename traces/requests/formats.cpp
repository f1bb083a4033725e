// SPDX-License-Identifier: Apache-2.0
#include "traces/requests/formats.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <unordered_map>

#include <fmt/format.h>

#include "hardware/config.hpp"
#include "hardware/parse_json.hpp"
#include "hardware/rng.hpp"
#include "hardware/text.hpp"
#include "traces/mapped_file.hpp"

namespace moesim {
namespace {

using std::chrono::nanoseconds;

/// A whole text as a number. Throws ConfigError naming it otherwise.
template <class Number>
Number parse_number(std::string_view text, std::string_view what) {
  const auto number = try_number<Number>(text);
  if (!number) throw ConfigError("\"{}\" is not {}", text, what);
  return *number;
}

// Nanoseconds, 126 years: times of either sign are that far apart at most twice, which still fits.
constexpr double latest_time = 4e18;

/// A time as a number of units.
template <std::int64_t nanoseconds_per_unit>
nanoseconds parse_time(std::string_view text) {
  constexpr std::string_view what =
      nanoseconds_per_unit == 1'000'000'000 ? "a time in seconds" : "a time in ms";
  const double time = parse_number<double>(text, what) * double{nanoseconds_per_unit};
  if (!(std::abs(time) < latest_time)) throw ConfigError("\"{}\" is not {}", text, what);
  return nanoseconds(std::llround(time));
}
constexpr auto parse_seconds = parse_time<1'000'000'000>;
constexpr auto parse_milliseconds = parse_time<1'000'000>;

/// Offset of a zone from UTC: "+01:00", "-0530", "+01", "Z" or "", which is UTC.
std::optional<nanoseconds> zone_offset(std::string_view zone) {
  if (zone.empty() || zone == "Z") return nanoseconds(0);
  const bool west = zone[0] == '-';
  if (!west && zone[0] != '+') return std::nullopt;
  std::string digits(zone.substr(1));
  if (digits.size() == 5 && digits[2] == ':') digits.erase(2, 1);
  if (digits.size() == 2) digits += "00";
  if (digits.size() != 4 || digits.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  const int hours = std::stoi(digits.substr(0, 2)), minutes = std::stoi(digits.substr(2));
  if (hours > 23 || minutes > 59) return std::nullopt;
  const nanoseconds ahead = std::chrono::hours(hours) + std::chrono::minutes(minutes);
  return west ? -ahead : ahead;
}

/// "2023-11-16 18:15:46.6805900", up to nine decimals or none, and a zone such as "+00:00" or none,
/// in UTC. Years 1900 to 2100: nanoseconds do not count much further.
nanoseconds parse_date_time(std::string_view text) {
  const auto refuse = [whole = text] {
    throw ConfigError("\"{}\" is not a time; as in 2023-11-16 18:15:46.6805900", whole);
  };
  constexpr std::string_view shape = "dddd-dd-dd dd:dd:dd";
  if (text.size() < shape.size()) refuse();
  const auto fits = [](char c, char as) {
    if (as == 'd') return c >= '0' && c <= '9';
    return c == as || (as == ' ' && c == 'T');
  };
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (!fits(text[i], shape[i])) refuse();
  const auto digits = [&](std::size_t at, std::size_t count) {
    return parse_number<int>(text.substr(at, count), "a number");
  };
  const std::chrono::year_month_day date{std::chrono::year(digits(0, 4)),
                                         std::chrono::month(static_cast<unsigned>(digits(5, 2))),
                                         std::chrono::day(static_cast<unsigned>(digits(8, 2)))};
  const int hour = digits(11, 2), minute = digits(14, 2), second = digits(17, 2);
  const bool known_year =
      date.year() >= std::chrono::year(1900) && date.year() <= std::chrono::year(2100);
  if (!known_year || !date.ok() || hour > 23 || minute > 59 || second > 60) refuse();
  nanoseconds time = std::chrono::sys_days(date).time_since_epoch() + std::chrono::hours(hour) +
                     std::chrono::minutes(minute) + std::chrono::seconds(second);
  text.remove_prefix(shape.size());
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    std::int64_t unit = 100'000'000;
    for (; !text.empty() && text[0] >= '0' && text[0] <= '9'; unit /= 10, text.remove_prefix(1))
      time += nanoseconds((text[0] - '0') * unit);
  }
  const std::optional<nanoseconds> ahead = zone_offset(text);
  if (!ahead) refuse();
  return time - *ahead;
}

/// A number of seconds, or a date and time.
nanoseconds parse_timestamp(std::string_view text) {
  if (text.size() > 4 && text[4] == '-') return parse_date_time(text);
  if (std::abs(try_number<double>(text).value_or(0)) * 1e9 >= latest_time)
    throw ConfigError(
        "\"{}\" is not a time in seconds of this century; a timestamp in ms is divided by 1000",
        text);
  return parse_seconds(text);
}

enum class Encoding { csv, json_lines };

/// Which columns of a known format hold what.
struct Format {
  std::string_view name;
  Encoding encoding;
  std::string_view time;  ///< empty: the format tells lengths only
  nanoseconds (*parse_time)(std::string_view);
  std::string_view prompt_tokens;
  std::string_view output_tokens;
  bool no_output_is_failure = false;  ///< such rows are left out rather than refused
};

/// The table. Sources: github.com/Azure/AzurePublicDataset; github.com/HPMLL/BurstGPT;
/// github.com/microsoft/vidur (data/processed_traces); github.com/Mutinifni/splitwise-sim (traces);
/// github.com/kvcache-ai/Mooncake (FAST25-release). Ours come last, as they ask for the fewest
/// columns.
constexpr std::array formats{
    Format{"Azure", Encoding::csv, "TIMESTAMP", parse_date_time, "ContextTokens",
           "GeneratedTokens"},
    Format{"BurstGPT", Encoding::csv, "Timestamp", parse_seconds, "Request tokens",
           "Response tokens", /*no_output_is_failure=*/true},
    Format{"Vidur", Encoding::csv, "arrived_at", parse_seconds, "num_prefill_tokens",
           "num_decode_tokens"},
    Format{"Vidur lengths", Encoding::csv, "", nullptr, "num_prefill_tokens", "num_decode_tokens"},
    Format{"Splitwise", Encoding::csv, "arrival_timestamp", parse_seconds, "prompt_size",
           "token_size"},
    Format{"Mooncake", Encoding::json_lines, "timestamp", parse_milliseconds, "input_length",
           "output_length"},
    Format{"moesim", Encoding::json_lines, "arrival_s", parse_seconds, "prompt_tokens",
           "output_tokens"},
    Format{"moesim", Encoding::csv, "arrival_s", parse_seconds, "prompt_tokens", "output_tokens"},
    Format{"moesim", Encoding::json_lines, "timestamp", parse_timestamp, "prompt_tokens",
           "output_tokens"},
    Format{"moesim", Encoding::csv, "timestamp", parse_timestamp, "prompt_tokens", "output_tokens"},
    Format{"Mooncake lengths", Encoding::json_lines, "", nullptr, "input_length", "output_length"},
    Format{"lengths", Encoding::json_lines, "", nullptr, "prompt_tokens", "output_tokens"},
    Format{"lengths", Encoding::csv, "", nullptr, "prompt_tokens", "output_tokens"},
};

std::string known_formats(Encoding encoding) {
  std::string text;
  for (const Format& format : formats) {
    if (format.encoding != encoding) continue;
    text +=
        fmt::format("{}{} ({}{}{}, {})", text.empty() ? "" : ", ", format.name, format.time,
                    format.time.empty() ? "" : ", ", format.prompt_tokens, format.output_tokens);
  }
  return text;
}

/// A count of tokens; some tools write it as "12.0".
std::int64_t parse_tokens(std::string_view text) {
  const auto value = parse_number<double>(text, "a number of tokens");
  if (value != std::floor(value) || std::abs(value) > 1e15)
    throw ConfigError("\"{}\" is not a number of tokens", text);
  return static_cast<std::int64_t>(value);
}

/// A column that says how long a client paused before a turn.
struct GapColumn {
  std::string_view name;
  nanoseconds (*parse)(std::string_view);
};

/// Columns that say to which session a row belongs, as aiperf, Dynamo and BurstGPT write them.
constexpr std::array<std::string_view, 3> session_columns{"session_id", "session", "Session ID"};
/// Column that says of which class of requests a row is, as `run --requests` writes it.
constexpr std::string_view class_column = "class";
/// The same of what all sessions begin with.
constexpr std::string_view shared_prefix_column = "shared_prefix";
constexpr std::array gap_columns{GapColumn{"delay", parse_milliseconds},
                                 GapColumn{"delay_ms", parse_milliseconds},
                                 GapColumn{"gap_s", parse_seconds}};

/// Kind of a file's rows.
struct Rows {
  std::string_view session{};        ///< the column of sessions; empty: rows are single requests
  std::int32_t id_block_tokens = 0;  ///< 0: as the ids of a prompt say
  /// The column of the row that one continues, where `session` names the row alone.
  std::string_view parent{};
  bool ids_of_content = false;  ///< an id names its block's tokens, not those before
};

/// Bailian traces of Alibaba (github.com/alibaba-edu/qwen-bailian-usagetraces-anon; not seen by us,
/// by its description). A row names the chat that it continues, -1 if none. An id of 16 tokens is a
/// hash of these alone.
constexpr Format bailian{"Bailian",     Encoding::json_lines, "timestamp",
                         parse_seconds, "input_length",       "output_length"};
constexpr Rows bailian_rows{"chat_id", 16, "parent_chat_id", true};

nanoseconds parse_gap(const GapColumn& column, std::string_view text) {
  const nanoseconds gap = column.parse(text);
  if (gap < nanoseconds(0)) throw ConfigError("\"{}\" {} is below zero", column.name, text);
  return gap;
}

/// `text_of` answers what a row says under a column, and `has` whether it says anything.
template <class TextOf, class Has>
std::optional<RecordedRow> read_row(const Format& format, const Rows& rows, TextOf&& text_of,
                                    Has&& has) {
  RecordedRow row;
  row.has_time = !format.time.empty() && (rows.session.empty() || has(format.time));
  if (row.has_time) row.time = format.parse_time(text_of(format.time));
  row.prompt_tokens = parse_tokens(text_of(format.prompt_tokens));
  row.output_tokens = parse_tokens(text_of(format.output_tokens));
  if (format.no_output_is_failure && row.output_tokens == 0) return std::nullopt;
  if (has(class_column)) row.of_class = text_of(class_column);
  if (rows.session.empty()) return row;
  row.session = text_of(rows.session);
  if (has(shared_prefix_column)) row.shared_prefix = parse_tokens(text_of(shared_prefix_column));
  for (const GapColumn& column : gap_columns) {
    if (has(column.name)) row.gap = parse_gap(column, text_of(column.name));
  }
  return row;
}

/// A field in quotes, which it begins with, up to the comma behind it (RFC 4180). nullopt: its
/// quote is not closed.
std::optional<std::string> quoted(std::string_view& rest) {
  std::string field;
  for (std::size_t at = 1; at < rest.size(); ++at) {
    if (rest[at] == '"' && (at + 1 == rest.size() || rest[at + 1] != '"')) {
      rest.remove_prefix(std::min(rest.find(',', at), rest.size()));
      return field;
    }
    if (rest[at] == '"') ++at;
    field += rest[at];
  }
  return std::nullopt;
}

/// Up to the next comma, without the blanks around it.
std::string bare(std::string_view& rest) {
  std::string_view field = rest.substr(0, rest.find(','));
  rest.remove_prefix(field.size());
  while (field.ends_with(' ')) field.remove_suffix(1);
  return std::string(field);
}

/// Takes off what writers of tables put before what a spreadsheet would take for a formula.
void take_off_apostrophe(std::string& field) {
  const std::size_t begins = field.find_first_not_of('\'');
  if (begins != std::string::npos && begins > 0 &&
      std::string_view("=+-@\t\r").find(field[begins]) != std::string_view::npos)
    field.erase(0, 1);
}

/// The fields of a row. nullopt: it goes on in the next line.
std::optional<std::vector<std::string>> split(std::string_view row) {
  std::vector<std::string> fields;
  for (;;) {
    while (row.starts_with(' ')) row.remove_prefix(1);
    std::optional<std::string> field = row.starts_with('"') ? quoted(row) : bare(row);
    if (!field) return std::nullopt;
    take_off_apostrophe(*field);
    fields.push_back(std::move(*field));
    if (row.empty()) return fields;
    row.remove_prefix(1);
  }
}

RowReader csv_reader(const Format& format, const Rows& rows, std::string_view header) {
  std::vector<std::string> names = split(header).value();
  const auto read = [&format, rows, names = std::move(names)](std::string_view line) {
    const std::vector<std::string> fields = split(line).value();
    if (fields.size() != names.size())
      throw ConfigError("has {} fields; the header names {}", fields.size(), names.size());
    const auto text_of = [&](std::string_view column) -> const std::string& {
      const auto found = std::ranges::find(names, column);
      return fields[at(found - names.begin())];
    };
    return read_row(format, rows, text_of, [&](std::string_view column) {
      return std::ranges::find(names, column) != names.end() && !text_of(column).empty();
    });
  };
  return {read, /*first_line_is_header=*/true, !format.time.empty()};
}

std::int64_t blocks_of(std::int64_t tokens, std::int32_t block_tokens) {
  return (tokens + block_tokens - 1) / block_tokens;
}

// Tokens that each of so many ids covers: 512, or else the power of two that fits.
std::int32_t fitting_block(std::int64_t prompt_tokens, const Json& ids) {
  constexpr std::int32_t usual = 512, longest = 1 << 20;
  const auto fits = [&](std::int32_t block) {
    return blocks_of(prompt_tokens, block) == std::ssize(ids);
  };
  if (ids.size() < 2 || fits(usual)) return usual;
  for (std::int32_t block = 1; block <= longest; block *= 2)
    if (fits(block)) return block;
  return usual;
}

// An id stands for a block's tokens and all before them.
std::vector<std::uint64_t> hash_ids(const Json& ids, std::int64_t prompt_tokens,
                                    std::int32_t block_tokens) {
  const std::int64_t blocks = blocks_of(prompt_tokens, block_tokens);
  if (!ids.is_array() || std::ssize(ids) != blocks)
    throw ConfigError("\"hash_ids\" are not {} ids, one for each {} tokens of {}", blocks,
                      block_tokens, prompt_tokens);
  std::vector<std::uint64_t> numbers;
  for (const Json& id : ids) {
    if (!id.is_number_integer()) throw ConfigError("\"hash_ids\" are not all whole numbers");
    numbers.push_back(static_cast<std::uint64_t>(id.get<std::int64_t>()));
  }
  return numbers;
}

// Names each block by its tokens and all before them, where an id names its own tokens alone. Equal
// contents behind other beginnings are then not equal.
void chain_ids(std::vector<std::uint64_t>& ids) {
  std::uint64_t before = 0;
  for (std::uint64_t& id : ids) before = id = Rng(before ^ id, "traces/requests/chained").bits();
}

// Chats by the first one of their conversation. A file may begin in the middle of one.
using Roots = std::unordered_map<std::string, std::string>;
std::string root_of(Roots& roots, const std::string& chat, const std::string& parent) {
  const auto known = roots.find(parent);
  return roots[chat] = known == roots.end() ? chat : known->second;
}

// A name that may be written as a number.
std::string name_of(const Json& value, std::string_view key) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_number_integer()) throw ConfigError("\"{}\" is no number or text", key);
  return value.dump();
}

// Reads what Dynamo's agentic traces say of the order of requests.
void read_dependencies(const Json& object, RecordedRow& row) {
  if (const auto id = object.find("request_id"); id != object.end())
    row.id = name_of(*id, "request_id");
  if (const auto tools = object.find("tool_wait_ms"); tools != object.end()) {
    if (!tools->is_number()) throw ConfigError("\"tool_wait_ms\" is no number");
    row.gap = row.gap.value_or(nanoseconds(0)) +
              parse_gap({"tool_wait_ms", parse_milliseconds}, tools->dump());
  }
  const auto waits = object.find("wait_for");
  if (waits == object.end() || waits->is_null()) return;
  if (!waits->is_array()) throw ConfigError("\"wait_for\" is not a list of request ids");
  for (const Json& id : *waits) row.waits_for.push_back(name_of(id, "wait_for"));
}

/// A key of a JSON object as a column of text: of numbers, dates and names of sessions.
std::string json_column(const Json& object, const Format& format, const Rows& rows,
                        std::string_view column) {
  const auto found = object.find(column);
  const bool may_be_text =
      column == format.time || column == rows.session || column == class_column;
  if (found != object.end() && found->is_string() && may_be_text) return found->get<std::string>();
  if (found != object.end() && found->is_null() && column == rows.session) return "";
  if (found == object.end() || !found->is_number()) {
    const bool is_name = column == rows.session || column == class_column;
    throw ConfigError("has no {} \"{}\"", is_name ? "number or text" : "number", column);
  }
  return found->dump();
}

RowReader json_reader(const Format& format, const Rows& rows) {
  const auto roots = std::make_shared<Roots>();
  const auto read = [&format, rows, roots,
                     block = rows.id_block_tokens](std::string_view line) mutable {
    const Json object = json_or_text(line);
    if (!object.is_object()) throw ConfigError("is not a JSON object");
    auto row = read_row(
        format, rows,
        [&](std::string_view column) { return json_column(object, format, rows, column); },
        [&](std::string_view column) {
          const auto found = object.find(column);
          return found != object.end() && !found->is_null();
        });
    if (const auto ids = object.find("hash_ids"); row && ids != object.end() && !ids->is_null()) {
      const std::int32_t of_row = block > 0 ? block : fitting_block(row->prompt_tokens, *ids);
      if (ids->size() > 1) block = of_row;
      row->prompt_ids = hash_ids(*ids, row->prompt_tokens, of_row);
      row->id_block_tokens = row->prompt_ids.empty() ? 0 : of_row;
      if (rows.ids_of_content) chain_ids(row->prompt_ids);
    }
    if (row && !rows.parent.empty())
      row->session = root_of(*roots, row->session, json_column(object, format, rows, rows.parent));
    if (row && !rows.session.empty()) read_dependencies(object, *row);
    return row;
  };
  return {read, /*first_line_is_header=*/false, !format.time.empty()};
}

/// The first line of a file: the columns that it names.
class FirstLine {
 public:
  explicit FirstLine(std::string_view line)
      : line_(line.starts_with(order_mark) ? line.substr(order_mark.size()) : line),
        object_(json_or_text(line_)),
        header_(split(line_).value_or(std::vector<std::string>{})) {}

  Encoding encoding() const { return object_.is_object() ? Encoding::json_lines : Encoding::csv; }
  bool has(std::string_view column) const {
    if (column.empty()) return true;
    return object_.is_object() ? object_.contains(column)
                               : std::ranges::find(header_, column) != header_.end();
  }
  /// The column of sessions; empty: it names none.
  std::string_view session_column() const {
    const auto found = std::ranges::find_if(
        session_columns, [this](std::string_view column) { return has(column); });
    return found == session_columns.end() ? std::string_view() : *found;
  }
  bool is_bailian() const {
    return has_lengths_of(bailian) && has(bailian_rows.session) && has(bailian_rows.parent);
  }
  RowReader reader(const Format& format, const Rows& rows) const {
    return encoding() == Encoding::csv ? csv_reader(format, rows, line_)
                                       : json_reader(format, rows);
  }
  bool has_lengths_of(const Format& format) const {
    return format.encoding == encoding() && has(format.prompt_tokens) && has(format.output_tokens);
  }

 private:
  static constexpr std::string_view order_mark = "\xEF\xBB\xBF";  // UTF-8's
  std::string_view line_;
  Json object_;
  std::vector<std::string> header_;
};

[[noreturn]] void refuse_format() {
  throw ConfigError("is not a request trace; known: CSV of {}; JSON lines of {}",
                    known_formats(Encoding::csv), known_formats(Encoding::json_lines));
}

}  // namespace

void for_each_row(const std::filesystem::path& file,
                  const std::function<void(std::string_view)>& fn) {
  // Limit of a row. It could not be said where the quote of a longer row was meant to end.
  constexpr std::ptrdiff_t longest_of_lines = 1 << 16;
  const std::string head = first_line(file);
  // Behind a byte order mark or not.
  const bool csv = head.find('{') != head.find_first_not_of(" \t\xEF\xBB\xBF");
  const char* begin = nullptr;  // of the row
  std::size_t number = 0;
  const auto refuse = [&](std::string_view what) {
    throw ConfigError("{}:{}: {}", file.string(), number, what);
  };
  constexpr std::string_view open = "a field's quote is not closed; a quote within a field is two";
  for_each_line(file, [&](std::size_t line_number, std::string_view line) {
    if (begin == nullptr) {
      begin = line.data();
      number = line_number;
    }
    const std::string_view row(begin, at(line.data() + line.size() - begin));
    const bool goes_on = csv && row.find('"') != std::string_view::npos && !split(row);
    if (goes_on && std::ssize(row) > longest_of_lines) refuse(open);
    if (goes_on) return;
    begin = nullptr;
    try {
      fn(row);
    } catch (const ConfigError& error) {
      refuse(error.what());
    }
  });
  if (begin != nullptr) refuse(open);
}

RowReader recognise_format(std::string_view first_line) {
  const FirstLine line(first_line);
  // Were the column passed over, turns of one conversation would share no prefix.
  for (const std::string_view session : {"session", "session_id", "chat_id"}) {
    if (line.has(session))
      throw ConfigError(
          "has a column \"{}\": write the file under \"sessions\", as {{\"type\": \"recorded\", "
          "\"file\": ..}}; without the column each line is a request by itself",
          session);
  }
  for (const Format& format : formats) {
    if (line.has_lengths_of(format) && line.has(format.time)) return line.reader(format, {});
  }
  refuse_format();
}

bool names_sessions(std::string_view first_line) {
  const FirstLine line(first_line);
  return line.is_bailian() || !line.session_column().empty();
}

RowReader recognise_session_format(std::string_view first_line, std::int32_t id_block_tokens) {
  const FirstLine line(first_line);
  if (line.is_bailian()) return line.reader(bailian, bailian_rows);
  const Rows rows{line.session_column(), id_block_tokens};
  if (rows.session.empty())
    throw ConfigError("has no column that says to which session a row belongs; known: {}",
                      join_names(session_columns));
  // Those with times first; a later row may have one where this one has none.
  for (const Format& format : formats) {
    if (!format.time.empty() && line.has_lengths_of(format) && line.has(format.time))
      return line.reader(format, rows);
  }
  for (const Format& format : formats) {
    if (line.has_lengths_of(format)) return line.reader(format, rows);
  }
  refuse_format();
}

}  // namespace moesim
