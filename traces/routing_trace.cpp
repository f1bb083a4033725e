// SPDX-License-Identifier: Apache-2.0
#include "traces/routing_trace.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>

#include "hardware/at.hpp"
#include "hardware/config.hpp"
#include "hardware/parse_json.hpp"
#include "traces/npy.hpp"

namespace moesim {
namespace {

constexpr std::array<std::string_view, 3> trace_files{"topk_ids.npy", "requests.jsonl",
                                                      "meta.json"};

constexpr std::string_view format_name = "moesim-routing-trace";
constexpr Range expert_range{1, 65536};
constexpr Range row_range{0, 9e15};
constexpr std::int64_t checked_at_open = 64'000'000;  // ids; some 0.1 s
constexpr std::int64_t rows_checked_of_longer = 4096;
constexpr std::int64_t ids_streamed_at_once = 1 << 24;

TraceMeta read_meta(const std::filesystem::path& file) {
  ConfigReader reader(ConfigNode::from_file(file));
  constexpr std::array formats{format_name};
  constexpr std::array<std::string_view, 1> id_kinds{"logical"};
  reader.choice("format", formats);
  reader.integer("version", Range{1, 1});
  reader.choice("ids", id_kinds);
  TraceMeta meta;
  meta.model = reader.text("model");
  meta.num_experts = static_cast<int>(reader.integer("num_experts", expert_range));
  meta.experts_per_token = static_cast<int>(reader.integer("experts_per_token", expert_range));
  if (meta.experts_per_token > meta.num_experts)
    reader.child("experts_per_token")
        .fail("{} experts per token of {} experts; a token picks distinct experts",
              meta.experts_per_token, meta.num_experts);
  for (const ConfigNode& layer : reader.child("layer_ids").list())
    meta.layer_ids.push_back(static_cast<int>(layer.integer(Range{0, 1e6})));
  if (meta.layer_ids.empty()) reader.child("layer_ids").fail("names no layer");
  for (const ConfigNode& phase : reader.child("phases").list()) {
    meta.phases.push_back(phase.text());
    if (std::find(phase_names.begin(), phase_names.end(), meta.phases.back()) == phase_names.end())
      phase.fail("\"{}\" is not a phase; one of: prefill, decode", meta.phases.back());
  }
  meta.source = reader.text_or("source", "");
  meta.license = reader.text_or("license", "");
  meta.engine = reader.text_or("engine", "");
  meta.synthetic = reader.flag_or("synthetic", false);
  meta.adapted = reader.text_or("adapted", "");
  return meta;  // what else a recorder noted is no concern of ours
}

Json parse_line(const std::string& place, std::string_view line) {
  Json json = json_or_text(line);
  if (!json.is_object()) throw ConfigError("{}: is not a JSON object", place);
  return json;
}

struct RequestTable {
  std::vector<TraceRequest> requests;
  std::vector<std::string> workloads;
};

TraceRequest read_request(ConfigReader& reader, std::int64_t tokens, int workload) {
  TraceRequest request;
  request.row_start = reader.integer("row_start", row_range);
  request.num_tokens = reader.integer("num_tokens", Range{1, row_range.max});
  request.prompt_rows = reader.integer("prompt_rows", row_range);
  request.has_repetition = reader.flag_or("has_repetition", false);
  request.workload = workload;
  if (request.row_start + request.num_tokens > tokens)
    reader.node().fail("rows {} to {} of a trace of {} rows", request.row_start,
                       request.row_start + request.num_tokens - 1, tokens);
  if (request.prompt_rows > request.num_tokens)
    reader.node().fail("prompt_rows {} exceeds num_tokens {}", request.prompt_rows,
                       request.num_tokens);
  return request;
}

/// `lines` holds the line of each request, for the message.
void refuse_overlaps(const std::filesystem::path& file, std::span<const TraceRequest> requests,
                     std::span<const std::size_t> lines) {
  std::vector<std::size_t> order(requests.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(requests[a].row_start, a) < std::pair(requests[b].row_start, b);
  });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const TraceRequest& before = requests[order[i - 1]];
    if (before.row_start + before.num_tokens > requests[order[i]].row_start)
      throw ConfigError("{}:{}: row {} also belongs to the request of line {}", file.string(),
                        lines[order[i]], requests[order[i]].row_start, lines[order[i - 1]]);
  }
}

RequestTable read_requests(const std::filesystem::path& file, std::int64_t tokens) {
  RequestTable table;
  std::vector<std::size_t> lines;
  std::map<std::string, int, std::less<>> workloads;
  for_each_line(file, [&](std::size_t number, std::string_view line) {
    const std::string place = fmt::format("{}:{}", file.string(), number);
    ConfigReader reader(ConfigNode(parse_line(place, line), place));
    const auto [found, added] = workloads.try_emplace(reader.text_or("workload", "unknown"),
                                                      static_cast<int>(workloads.size()));
    if (added) table.workloads.push_back(found->first);
    table.requests.push_back(read_request(reader, tokens, found->second));
    lines.push_back(number);
  });
  if (table.requests.empty()) throw ConfigError(file.string() + ": holds no request");
  refuse_overlaps(file, table.requests, lines);
  return table;
}

std::filesystem::path partial_name(const std::filesystem::path& file) {
  return file.string() + ".partial";
}

/// A file that appears under its name only once it is whole.
class NewFile {
 public:
  explicit NewFile(std::filesystem::path file)
      : file_(std::move(file)), partial_(partial_name(file_)) {}
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile() {
    std::error_code ignored;
    std::filesystem::remove(partial_, ignored);  // gone already unless writing it failed
  }
  const std::filesystem::path& partial() const { return partial_; }
  void write(std::string_view text) const {
    std::FILE* out = std::fopen(partial_.c_str(), "wb");
    const bool written =
        out != nullptr && std::fwrite(text.data(), 1, text.size(), out) == text.size();
    const bool closed = out != nullptr && std::fclose(out) == 0;
    if (!written || !closed) throw ConfigError(file_.string() + ": cannot be written");
  }
  void commit() const {
    std::error_code error;
    std::filesystem::rename(partial_, file_, error);
    if (error) throw ConfigError("{}: cannot be written: {}", file_.string(), error.message());
  }

 private:
  std::filesystem::path file_, partial_;
};

std::string meta_text(const TraceMeta& meta) {
  OrderedJson json;
  json["format"] = format_name;
  json["version"] = 1;
  json["model"] = meta.model;
  json["num_experts"] = meta.num_experts;
  json["experts_per_token"] = meta.experts_per_token;
  json["layer_ids"] = meta.layer_ids;
  json["ids"] = "logical";
  json["phases"] = meta.phases;
  json["synthetic"] = meta.synthetic;
  if (!meta.adapted.empty()) json["adapted"] = meta.adapted;
  json["engine"] = meta.engine;
  json["license"] = meta.license;
  json["source"] = meta.source;
  return json.dump(1) + "\n";
}

std::string requests_text(const RoutingTrace& trace) {
  std::string text;
  for (std::size_t i = 0; i < trace.requests().size(); ++i) {
    const TraceRequest& request = trace.requests()[i];
    OrderedJson json;
    json["request"] = i;
    json["row_start"] = request.row_start;
    json["num_tokens"] = request.num_tokens;
    json["prompt_rows"] = request.prompt_rows;
    json["workload"] = trace.workloads()[at(request.workload)];
    if (request.has_repetition) json["has_repetition"] = true;
    text += json.dump() + "\n";
  }
  return text;
}

}  // namespace

RoutingTrace RoutingTrace::open(const std::filesystem::path& directory) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(directory, ignored))
    throw ConfigError(directory.string() +
                      ": is not a directory; a routing trace is a directory of topk_ids.npy, "
                      "requests.jsonl and meta.json");
  RoutingTrace trace;
  trace.meta_ = read_meta(directory / trace_files[2]);
  const std::filesystem::path id_file = directory / trace_files[0];
  trace.place_ = id_file.string();
  const NpyArray array = NpyArray::open(id_file);
  switch (array.type()) {
    case NpyType::u1: trace.ids_ = array.as<std::uint8_t>(); break;
    case NpyType::u2: trace.ids_ = array.as<std::uint16_t>(); break;
    case NpyType::i4: trace.ids_ = array.as<std::int32_t>(); break;
    default:
      throw ConfigError("{}: holds ids of type {}; save them as u1, u2 or i4", trace.place_,
                        npy_type_names[at(array.type())]);
  }
  const auto shape = array.shape();
  if (shape.size() != 3 || shape[1] != trace.layers() || shape[2] != trace.experts_per_token())
    throw ConfigError("{}: has shape ({}); meta.json says [tokens, {} layers, {} ids]",
                      trace.place_, fmt::join(shape, ", "), trace.layers(),
                      trace.experts_per_token());
  trace.tokens_ = shape[0];
  trace.storage_ = array.storage();
  RequestTable table = read_requests(directory / trace_files[1], trace.tokens_);
  trace.requests_ = std::move(table.requests);
  trace.workloads_ = std::move(table.workloads);
  trace.streams_ = array.elements() > checked_at_open;
  if (!trace.streams_) {
    trace.check_ids();
  } else {
    trace.check_rows(0, std::min(rows_checked_of_longer, trace.tokens_));
    trace.check_rows(std::max<std::int64_t>(0, trace.tokens_ - rows_checked_of_longer),
                     trace.tokens_);
  }
  return trace;
}

RoutingTrace::RoutingTrace(TraceMeta meta, std::vector<std::string> workloads,
                           std::vector<TraceRequest> requests, std::vector<std::uint16_t> ids)
    : meta_(std::move(meta)),
      workloads_(std::move(workloads)),
      requests_(std::move(requests)),
      place_(meta_.source) {
  check(row_ids() > 0 && static_cast<std::int64_t>(ids.size()) % row_ids() == 0,
        "a routing trace was made of broken rows");
  tokens_ = static_cast<std::int64_t>(ids.size()) / row_ids();
  if (meta_.num_experts <= 256)
    store(std::vector<std::uint8_t>(ids.begin(), ids.end()));
  else
    store(std::move(ids));
}

RoutingTrace::RoutingTrace(TraceMeta meta, std::vector<std::string> workloads,
                           std::vector<TraceRequest> requests, const Fill& fill)
    : meta_(std::move(meta)),
      workloads_(std::move(workloads)),
      requests_(std::move(requests)),
      place_(meta_.source) {
  for (const TraceRequest& request : requests_) tokens_ += request.num_tokens;
  if (meta_.num_experts <= 256)
    fill_ids<std::uint8_t>(fill);
  else
    fill_ids<std::uint16_t>(fill);
}

template <class Id>
void RoutingTrace::fill_ids(const Fill& fill) {
  const std::size_t of_row = at(row_ids()), count = at(tokens_) * of_row;
  const std::shared_ptr<Id[]> ids = std::make_shared_for_overwrite<Id[]>(count);
  const auto fill_some = [&](const tbb::blocked_range<std::size_t>& some) {
    std::vector<std::uint16_t> own;
    for (std::size_t i = some.begin(); i < some.end(); ++i) {
      own.resize(at(requests_[i].num_tokens) * of_row);
      fill(i, own);
      std::ranges::transform(own, ids.get() + at(requests_[i].row_start) * of_row,
                             [](std::uint16_t id) { return static_cast<Id>(id); });
    }
  };
  tbb::parallel_for(tbb::blocked_range<std::size_t>(0, requests_.size()), fill_some);
  ids_ = Ids<Id>(ids.get(), count);
  storage_ = ids;
}

template <class Id>
void RoutingTrace::store(std::vector<Id> ids) {
  const auto stored = std::make_shared<const std::vector<Id>>(std::move(ids));
  ids_ = Ids<Id>(*stored);
  storage_ = stored;
  streams_ = false;
}

bool RoutingTrace::recorded(std::string_view phase) const {
  return std::find(meta_.phases.begin(), meta_.phases.end(), phase) != meta_.phases.end();
}

TraceRequest RoutingTrace::decoding(TraceRequest request) const {
  if (!recorded("decode")) return request;
  request.row_start += request.prompt_rows;
  request.num_tokens = request.decode_rows();
  request.prompt_rows = 0;
  return request;
}

std::vector<std::int64_t> RoutingTrace::expert_counts(
    std::span<const std::size_t> of_requests) const {
  const auto experts = at(num_experts());
  const auto k = at(experts_per_token());
  const auto ids_per_row = at(row_ids());
  std::vector<std::int64_t> counts(at(layers()) * experts);
  const auto add = [&](const TraceRequest& request) {
    stream(request.row_start, request.row_start + request.num_tokens, [&](auto rows) {
      for (; !rows.empty(); rows = rows.subspan(ids_per_row)) {
        auto id = rows.begin();
        for (auto layer = counts.begin(); layer != counts.end(); layer += std::ptrdiff_t(experts))
          for (std::size_t i = 0; i < k; ++i) ++layer[static_cast<std::ptrdiff_t>(*id++)];
      }
    });
  };
  if (of_requests.empty())
    for (const TraceRequest& request : requests_) add(request);
  else
    for (const std::size_t request : of_requests) add(requests_[request]);
  return counts;
}

// read(ids) of rows first to last - 1, some at a time, in order.
template <class Read>
void RoutingTrace::stream(std::int64_t first, std::int64_t last, Read&& read) const {
  const std::int64_t at_once = std::max<std::int64_t>(1, ids_streamed_at_once / row_ids());
  for (std::int64_t end = first; first < last; first = end) {
    end = std::min(first + at_once, last);
    visit([&](auto ids) {
      const auto rows = ids.subspan(at(first * row_ids()), at((end - first) * row_ids()));
      read(rows);
      if (streams_) MappedFile::forget(std::as_bytes(rows));
    });
  }
}

void RoutingTrace::check_ids() const { check_rows(0, tokens_); }

void RoutingTrace::check_rows(std::int64_t first, std::int64_t last) const {
  const auto experts = static_cast<std::uint32_t>(num_experts());
  const auto k = at(experts_per_token());
  const auto fail = [&](std::size_t group, const std::string& what) {
    const auto layer_count = at(layers());
    throw ConfigError("{}: row {}, layer {}: {}", place_, group / layer_count,
                      meta_.layer_ids[group % layer_count], what);
  };
  std::vector<std::size_t> seen_in(experts, 0);  // the last group, counted from 1, with this id
  auto group = at(first * layers());
  stream(first, last, [&](auto rows) {
    for (; !rows.empty(); rows = rows.subspan(k), ++group) {
      for (const auto choice : rows.first(k)) {
        const auto id = static_cast<std::uint32_t>(choice);
        if (id >= experts)
          fail(group, fmt::format("expert {}; ids are 0 to {}", choice, experts - 1));
        if (std::exchange(seen_in[id], group + 1) == group + 1)
          fail(group, fmt::format("expert {} twice; a token picks distinct experts", choice));
      }
    }
  });
}

RoutingTrace RoutingTrace::with_requests(std::vector<TraceRequest> requests) const {
  RoutingTrace trace = *this;
  trace.requests_ = std::move(requests);
  return trace;
}

RoutingTrace RoutingTrace::without_loops() const {
  std::vector<TraceRequest> kept;
  for (const TraceRequest& request : requests_)
    if (!request.has_repetition) kept.push_back(request);
  return with_requests(std::move(kept));
}

RoutingTrace RoutingTrace::with_loops() const {
  std::vector<TraceRequest> all = requests_;
  for (TraceRequest& request : all) request.has_repetition = false;
  return with_requests(std::move(all));
}

std::string RoutingTrace::loops_remark(std::string_view what_is_done) const {
  const auto loops = std::ranges::count_if(requests_, &TraceRequest::has_repetition);
  if (loops == 0) return {};
  return fmt::format("{} of {} recorded requests fell into a loop (has_repetition) and are {}",
                     loops, requests_.size(), what_is_done);
}

RoutingTrace RoutingTrace::with_layers(std::vector<int> layer_ids) const {
  RoutingTrace trace = *this;
  trace.meta_.layer_ids = std::move(layer_ids);
  trace.meta_.adapted =
      fmt::format("{} recorded MoE layers stand for {}: layer i is layer i mod {}", layers(),
                  trace.layers(), layers());
  visit([&](auto ids) {
    using Id = typename decltype(ids)::value_type;
    const auto k = at(experts_per_token());
    const auto from_layers = at(layers());
    const auto to_layers = at(trace.layers());
    std::vector<Id> mapped;
    mapped.reserve(at(tokens_) * to_layers * k);
    for (std::size_t row = 0; row < at(tokens_); ++row)
      for (std::size_t layer = 0; layer < to_layers; ++layer) {
        const auto group = ids.subspan((row * from_layers + layer % from_layers) * k, k);
        mapped.insert(mapped.end(), group.begin(), group.end());
      }
    trace.store(std::move(mapped));
  });
  return trace;
}

std::array<std::string, 3> unfinished_trace_files(const std::filesystem::path& directory) {
  std::array<std::string, 3> names;
  std::ranges::transform(trace_files, names.begin(), [&](std::string_view name) {
    return partial_name(directory / name).string();
  });
  return names;
}

void write_trace(const RoutingTrace& trace, const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw ConfigError("{}: cannot be made: {}", directory.string(), error.message());
  const NewFile ids(directory / trace_files[0]);
  const NewFile requests(directory / trace_files[1]);
  const NewFile meta(directory / trace_files[2]);
  const std::array<std::int64_t, 3> shape{trace.tokens(), trace.layers(),
                                          trace.experts_per_token()};
  trace.visit([&]<class Id>(RoutingTrace::Ids<Id> rows) { write_npy(ids.partial(), shape, rows); });
  requests.write(requests_text(trace));
  meta.write(meta_text(trace.meta()));
  ids.commit();
  requests.commit();
  meta.commit();
}

}  // namespace moesim
