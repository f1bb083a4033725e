// SPDX-License-Identifier: Apache-2.0
#include "traces/requests/request_trace.hpp"

#include <algorithm>

#include "hardware/config.hpp"
#include "traces/requests/formats.hpp"

namespace moesim {
namespace {

constexpr std::int64_t max_tokens = 1'000'000'000;

std::int32_t checked_tokens(std::int64_t tokens, std::string_view what) {
  if (tokens < 1 || tokens > max_tokens)
    throw ConfigError("{} {} tokens; a request has 1 to {}", tokens, what, max_tokens);
  return static_cast<std::int32_t>(tokens);
}

}  // namespace

Request request_of(const RecordedRow& row) {
  Request request{checked_tokens(row.prompt_tokens, "prompt"),
                  checked_tokens(row.output_tokens, "output")};
  if (row.id_block_tokens > 0) {
    request.prompt_ids = std::make_shared<const PromptIds>(
        ids_of_blocks(row.prompt_tokens, row.id_block_tokens, row.prompt_ids));
  }
  return request;
}

std::uint32_t RecordedClasses::place(const std::string& name) {
  named_ = named_ || !name.empty();
  const auto [found, fresh] = places_.try_emplace(name, static_cast<std::uint32_t>(names_.size()));
  if (fresh) names_.push_back(name);
  return found->second;
}

RequestTrace read_request_trace(const std::filesystem::path& file) {
  RequestTrace trace;
  std::optional<RowReader> reader;
  for_each_row(file, [&](std::string_view line) {
    if (!reader) {
      reader = recognise_format(line);
      if (reader->first_line_is_header) return;
    }
    std::optional<RecordedRow> row = reader->read(line);
    if (!row) return;
    trace.rows.push_back({row->time, request_of(*row)});
    trace.rows.back().request.recorded_class = trace.classes.place(row->of_class);
  });
  if (trace.rows.empty()) throw ConfigError(file.string() + ": holds no request");
  trace.has_arrivals = reader->has_arrivals;
  std::ranges::stable_sort(trace.rows,
                           [](const auto& a, const auto& b) { return a.arrival < b.arrival; });
  for (const auto first = trace.rows.front().arrival; RequestTrace::Row & row : trace.rows)
    row.arrival -= first;
  return trace;
}

void append(RequestTrace& trace, const RequestTrace& next) {
  const auto last = trace.rows.back().arrival;
  const auto gaps = std::max<std::int64_t>(1, std::ssize(trace.rows) - 1);
  const auto begin = last + last / gaps;
  const std::span<const std::string> names = next.classes.names();
  for (RequestTrace::Row row : next.rows) {
    row.arrival += begin;
    const std::uint32_t of_class = row.request.recorded_class;
    row.request.recorded_class = trace.classes.place(names.empty() ? "" : names[of_class]);
    trace.rows.push_back(std::move(row));
  }
}

}  // namespace moesim
