// SPDX-License-Identifier: Apache-2.0
// What the HTTP servers of vLLM and SGLang answer with.
#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "hardware/config.hpp"
#include "hardware/find_value.hpp"
#include "hardware/parse_json.hpp"
#include "traces/import/forms.hpp"
#include "traces/mapped_file.hpp"
#include "traces/npy.hpp"

namespace moesim {

namespace {

constexpr std::string_view routed = "routed_experts";

Json parse_at(const std::string& place, std::string_view text) {
  try {
    return parse_json(text);
  } catch (const ConfigError& error) {
    refuse(place, error.what());
  }
}

std::optional<std::int64_t> whole(const Json& object, std::string_view key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_integer()) return std::nullopt;
  return found->get<std::int64_t>();
}

// Number of ids of a prompt where they stand.
std::optional<std::int64_t> prompt_ids(const Json& object) {
  const auto ids = object.find("prompt_token_ids");
  if (ids == object.end() || !ids->is_array()) return std::nullopt;
  return std::ssize(*ids);
}

// A number that vLLM says in "usage" and SGLang in "meta_info": "completion_tokens" of all choices.
std::optional<std::int64_t> of_usage(const Json& response, std::string_view name) {
  for (const char* key : {"usage", "meta_info"})
    if (const auto found = response.find(key); found != response.end() && found->is_object())
      if (const auto there = whole(*found, name)) return there;
  return std::nullopt;
}

// The length of a prompt: the response says it, or its usage, or its ids stand there.
std::optional<std::int64_t> prompt_tokens(const Json& response) {
  if (const auto here = whole(response, "prompt_tokens")) return here;
  if (const auto there = of_usage(response, "prompt_tokens")) return there;
  return prompt_ids(response);
}

// A response's own name; a streamed one has it in each of its pieces.
std::string id_of(const Json& response) {
  const auto meta = response.find("meta_info");
  for (const Json* object : {&response, meta == response.end() ? &response : &*meta})
    for (const char* key : {"id", "request_id", "req_id"})
      if (const auto id = object->find(key); id != object->end()) return id->dump();
  return {};
}

// Prompt rows that the client did not ask for.
std::int64_t first_row(const Json& response) {
  for (const char* key : {"routed_experts_prompt_start", "routed_experts_start_len"})
    if (const auto start = whole(response, key)) return *start;
  return 0;
}

// Rows of a prompt that the client asked for.
std::int64_t rows_of_prompt(const std::string& place, std::int64_t tokens, const Json& response) {
  std::int64_t rows = 0;
  if (__builtin_sub_overflow(tokens, first_row(response), &rows))
    refuse(place, "has more prompt tokens than a sequence can have");
  return std::max<std::int64_t>(0, rows);
}

// SGLang's bare int32, of all layers (num_hidden_layers of the config: blocks, where a model counts
// these); of those with experts where only that fits.
Array bare_ids(const std::string& place, std::string_view bytes, const TraceBuilder& builder) {
  const std::int64_t k = builder.model().experts_per_token;
  const int all = builder.model().numbered_layers;
  std::vector<double> values = decode(ElementType::i32, bytes);
  for (const std::int64_t layers : {std::int64_t{all}, std::ssize(builder.moe_layers()),
                                    std::int64_t{all} + builder.model().draft_layers})
    if (bytes.size() % 4 == 0 && std::ssize(values) % (layers * k) == 0)
      return {{std::ssize(values) / (layers * k), layers, k}, std::move(values)};
  refuse(place, fmt::format("{} bytes are not int32 of {} or {} layers and {} experts per token",
                            bytes.size(), all, builder.moe_layers().size(), k));
}

// Lists of lists of lists, all equally long.
Array listed_ids(const std::string& place, const Json& rows) {
  Array ids;
  const auto visit = [&](const auto& self, const Json& json, std::size_t depth) -> void {
    if (!json.is_array()) {
      if (!json.is_number() || depth != ids.shape.size())
        refuse(place, "its routed experts are not a list [token][layer] of lists of ids");
      ids.values.push_back(json.get<double>());
      return;
    }
    if (ids.values.empty() && depth == ids.shape.size()) ids.shape.push_back(std::ssize(json));
    if (depth >= ids.shape.size() || ids.shape[depth] != std::ssize(json))
      refuse(place, "its routed experts are in lists of unequal lengths");
    for (const Json& inside : json) self(self, inside, depth + 1);
  };
  visit(visit, rows, 0);
  return ids;
}

// Dynamo's {"data": base64, "shape": [tokens, layers, k], "dtype": "uint8"}.
Array shaped_ids(const std::string& place, const Json& value) {
  static const std::map<std::string, ElementType, std::less<>> types{{"uint8", ElementType::u8},
                                                                     {"uint16", ElementType::u16},
                                                                     {"int16", ElementType::i16},
                                                                     {"int32", ElementType::i32},
                                                                     {"int64", ElementType::i64}};
  const auto type = types.find(text_at(value, "/dtype"));
  const Json *const data = find_value(value, "/data"), *const shape = find_value(value, "/shape");
  if (type == types.end() || data == nullptr || !data->is_string() || shape == nullptr)
    refuse(place, "its routed experts have no \"data\", \"shape\" and \"dtype\" of whole numbers");
  Array ids;
  for (const Json& extent : *shape)
    ids.shape.push_back(extent.is_number_integer() ? extent.get<std::int64_t>() : -1);
  const std::string bytes = from_base64(place, data->get_ref<const std::string&>());
  if (elements_of(ids.shape, std::ssize(bytes)) * std::int64_t(bytes_of(type->second)) !=
      std::ssize(bytes))
    refuse(place,
           fmt::format("the {} bytes of its routed experts are not of their shape", bytes.size()));
  ids.values = decode(type->second, bytes);
  return ids;
}

Array ids_of(const std::string& place, const Json& value, const TraceBuilder& builder) {
  if (value.is_array()) return listed_ids(place, value);
  if (value.is_object()) return shaped_ids(place, value);
  if (!value.is_string()) refuse(place, "its routed experts are neither base64 nor lists");
  const std::string bytes = from_base64(place, value.get_ref<const std::string&>());
  if (bytes.starts_with("\x93NUMPY")) return array_of(NpyArray::parse(bytes, place));
  return bare_ids(place, bytes, builder);
}

// The response within a line of a batch or of a log: what has choices, or SGLang's "meta_info".
const Json& body_of(const Json& response) {
  if (!response.is_object() || response.contains("choices") || response.contains("meta_info"))
    return response;
  for (const auto& item : response.items()) {
    const Json& inside = body_of(item.value());
    if (inside.is_object() && (inside.contains("choices") || inside.contains("meta_info")))
      return inside;
  }
  return response;
}

// True of a line of vllm run-batch that has an error, and of a response whose request was aborted
// before any step: its routed_experts are null.
bool has_failed(const Json& json) {
  if (json.is_object()) {
    if (const auto status = whole(json, "status_code"); status && *status >= 400) return true;
    if (const auto found = json.find(routed); found != json.end() && found->is_null()) return true;
    if (const auto error = json.find("error"); error != json.end() && !error->is_null())
      return true;
  }
  return json.is_structured() && std::any_of(json.begin(), json.end(),
                                             [](const Json& inside) { return has_failed(inside); });
}

// Calls fn(holder) for every object with "routed_experts", in order.
template <class Fn>
void find_routed(const Json& json, Fn&& fn) {
  if (json.is_array() && (json.empty() || json[0].is_number())) return;
  if (json.is_object())
    if (const auto found = json.find(routed); found != json.end() && !found->is_null()) fn(json);
  for (const auto& item : json.items())
    if (item.key() != routed && item.value().is_structured()) find_routed(item.value(), fn);
}

int base64_digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+' || c == '-') return 62;
  if (c == '/' || c == '_') return 63;
  return -1;
}

}  // namespace

Array joined(const std::string& place, Array ahead, const Array& ids) {
  if (ahead.shape.empty()) return ids;
  if (ahead.shape.size() != ids.shape.size() ||
      !std::equal(ahead.shape.begin() + 1, ahead.shape.end(), ids.shape.begin() + 1))
    refuse(place, "has prompt_routed_experts of another shape than routed_experts");
  ahead.shape[0] += ids.shape[0];
  ahead.values.insert(ahead.values.end(), ids.values.begin(), ids.values.end());
  return ahead;
}

std::string from_base64(const std::string& place, std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  unsigned held = 0;
  int bits = 0;
  while (text.ends_with('=')) text.remove_suffix(1);
  for (const char c : text) {
    const int digit = base64_digit(c);
    if (digit < 0) refuse(place, "its routed experts are not base64");
    held = (held << 6 | static_cast<unsigned>(digit)) & 0xffff;
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    bytes += static_cast<char>(held >> bits & 0xff);
  }
  if (bits >= 6) refuse(place, "its base64 is cut short");
  return bytes;
}

bool is_json_file(const std::filesystem::path& file) {
  return file.extension() == ".json" || file.extension() == ".jsonl";
}

void for_each_json(const std::filesystem::path& file,
                   const std::function<void(const std::string& place, const Json&)>& fn) {
  if (file.extension() == ".jsonl") {
    for_each_line(file, [&](std::size_t number, std::string_view line) {
      const std::string place = fmt::format("{}:{}", file.string(), number);
      fn(place, parse_at(place, line));
    });
    return;
  }
  const MappedFile mapped(file);
  const Json whole_file = parse_at(file.string(), mapped.text());
  if (!whole_file.is_array()) return fn(file.string(), whole_file);
  for (std::size_t i = 0; i < whole_file.size(); ++i)
    fn(fmt::format("{}:/{}", file.string(), i), whole_file[i]);
}

std::size_t add_response(const std::string& place, const Json& whole_response,
                         TraceBuilder& builder) {
  const Json& response = body_of(whole_response);
  std::optional<std::int64_t> prompt = prompt_tokens(response);
  if (prompt) prompt = rows_of_prompt(place, *prompt, response);
  // vLLM's later versions say the prompt's once, for all choices.
  Array ahead;
  if (const auto apart = response.find("prompt_routed_experts"); apart != response.end()) {
    if (!apart->is_null()) ahead = ids_of(place, *apart, builder);
    prompt = ahead.shape.empty() ? 0 : ahead.extent(0);
  }
  std::vector<RecordedRequest> choices;
  std::int64_t rows = 0;
  find_routed(response, [&](const Json& holder) {
    RecordedRequest& choice = choices.emplace_back(RecordedRequest{
        .place = place, .ids = joined(place, ahead, ids_of(place, holder.at(routed), builder))});
    choice.prompt_rows = prompt;
    if (const auto own = prompt_ids(holder))
      choice.prompt_rows = rows_of_prompt(place, *own, response);
    if (!choice.ids.shape.empty()) rows += choice.ids.extent(0);
  });
  // The last token generated has no row. vLLM adds up the prompts of several, and says the one
  // prompt of several choices once.
  const std::int64_t generated =
      of_usage(response, "completion_tokens").value_or(0) - std::ssize(choices);
  const bool own_prompts =
      choices.size() > 1 && generated >= 0 && prompt && rows - generated == *prompt;
  for (RecordedRequest& choice : choices) {
    if (own_prompts && choice.prompt_rows == prompt) choice.prompt_rows.reset();
    // Of a client that asked for rows from a later token of the prompt on, which no answer repeats.
    if (choices.size() == 1 && generated >= 0 && prompt && rows - generated < *prompt)
      choice.prompt_rows = std::max<std::int64_t>(0, rows - generated);
    builder.add(choice);
  }
  if (const std::string id = id_of(response); !choices.empty() && !id.empty())
    builder.require_whole(place, id);
  return choices.size();
}

void add_responses(const std::filesystem::path& file, std::string_view advice,
                   TraceBuilder& builder) {
  std::size_t added = 0, failed = 0;
  for_each_json(file, [&](const std::string& place, const Json& response) {
    const std::size_t found = add_response(place, response, builder);
    added += found;
    if (found > 0) return;
    if (!has_failed(response))
      refuse(place, fmt::format("has no \"{}\"; ask for them with {}", routed, advice));
    ++failed;
  });
  if (added == 0)
    refuse(file.string(), fmt::format("has no \"{}\"; ask for them with {}", routed, advice));
  if (failed > 0)
    builder.remark(fmt::format("left out: {} responses that failed or were aborted", failed));
}

void refuse(const std::string& place, const std::string& what) {
  throw ConfigError("{}: {}", place, what);
}

void refuse_file(const std::filesystem::path& file, std::string_view expected) {
  refuse(file.string(), fmt::format("is not {}", expected));
}

}  // namespace moesim
