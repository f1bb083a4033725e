// SPDX-License-Identifier: Apache-2.0
#include "hardware/config.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
#include <numeric>

#include <fmt/format.h>

#include "hardware/no_such_file.hpp"
#include "hardware/parse_json.hpp"
#include "hardware/text_file.hpp"

namespace moesim {

namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] != b[j - 1] ? 1 : 0);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

// Names that hold what was typed come first: "fp4" is short for "nvfp4" or "mxfp4".
std::string did_you_mean(std::string_view name, std::span<const std::string_view> candidates) {
  std::vector<std::string_view> longer;
  std::ranges::copy_if(candidates, std::back_inserter(longer), [&](std::string_view candidate) {
    return name.size() >= 3 && candidate.find(name) != candidate.npos;
  });
  if (longer.size() == 2)
    return fmt::format("did you mean \"{}\" or \"{}\"? ", longer[0], longer[1]);
  const std::string_view nearest = longer.size() == 1 ? longer[0] : nearest_name(name, candidates);
  return nearest.empty() ? "" : fmt::format("did you mean \"{}\"? ", nearest);
}

constexpr double largest_quantity = 1e30;
// 30 days in seconds: three such times follow each other within the 106 days of the clock.
constexpr double longest_time = 2.592e6;

struct Prefix {
  std::string_view symbol;
  double factor;
};
// Longest symbols first, so that "Gi" is not read as "G".
constexpr std::array prefixes{Prefix{"Ki", 1024.0},
                              Prefix{"Mi", 1048576.0},
                              Prefix{"Gi", 1073741824.0},
                              Prefix{"Ti", 1099511627776.0},
                              Prefix{"k", 1e3},
                              Prefix{"M", 1e6},
                              Prefix{"G", 1e9},
                              Prefix{"T", 1e12},
                              Prefix{"P", 1e15},
                              Prefix{"E", 1e18},
                              Prefix{"", 1.0}};

// The factor of a unit such as "TB/s" whose base is "B/s"; 0 when the text is not a prefix and the
// base.
double unit_factor(std::string_view unit, std::string_view base) {
  for (const Prefix& prefix : prefixes) {
    if (unit.size() == prefix.symbol.size() + base.size() && unit.starts_with(prefix.symbol) &&
        unit.ends_with(base)) {
      return prefix.factor;
    }
  }
  return 0;
}

struct Split {
  double number;
  std::string_view unit;
};

Split split_quantity(std::string_view text, std::string_view example) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number)) {
    throw ConfigError("\"{}\" is not a number with a unit (expected e.g. \"{}\")", text, example);
  }
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  if (unit.empty()) throw ConfigError("\"{}\" has no unit (expected e.g. \"{}\")", text, example);
  return {number, unit};
}

double parse_with_base(std::string_view text, std::string_view base, std::string_view example) {
  const auto [number, unit] = split_quantity(text, example);
  double factor = unit_factor(unit, base);
  // "Gb/s" counts bits.
  if (factor == 0 && base == "B/s") factor = unit_factor(unit, "b/s") / 8;
  if (factor == 0) {
    throw ConfigError("\"{}\" has the unknown unit \"{}\" (expected e.g. \"{}\")", text, unit,
                      example);
  }
  if (number < 0) throw ConfigError("\"{}\" is negative (expected e.g. \"{}\")", text, example);
  if (number * factor > largest_quantity)
    throw ConfigError("\"{}\" is out of range (at most {:g} {})", text, largest_quantity, base);
  return number * factor;
}

const char* kind_of(const Json& json) {
  switch (json.type()) {
    case Json::value_t::null: return "null";
    case Json::value_t::object: return "an object";
    case Json::value_t::array: return "a list";
    case Json::value_t::string: return "a text";
    case Json::value_t::boolean: return "true or false";
    default: return "a number";
  }
}

std::string escape_pointer(std::string_view key) {
  std::string escaped;
  for (const char c : key) {
    if (c == '~') {
      escaped += "~0";
    } else if (c == '/') {
      escaped += "~1";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

// The value at a pointer; an object where nothing is yet. Throws Json::exception where it would
// have to stand in something other than an object.
Json& made_object(Json& config, const Json::json_pointer& place) {
  if (place.empty()) return config;
  Json& parent = made_object(config, place.parent_pointer());
  if (!parent.is_object()) return config.at(place);
  return *parent.emplace(place.back(), Json::object()).first;
}

std::string describe(Range range) {
  const bool below = std::isfinite(range.max);
  if (below) return fmt::format("between {} and {}", range.min, range.max);
  return fmt::format("at least {}", range.min);
}

}  // namespace

std::string_view nearest_name(std::string_view name, std::span<const std::string_view> candidates) {
  std::string_view best;
  std::size_t best_distance = std::max<std::size_t>(2, name.size() / 3) + 1;
  for (const std::string_view candidate : candidates) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string join_names(std::span<const std::string_view> names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

template <>
Bytes parse_quantity<Bytes>(std::string_view text) {
  return Bytes(parse_with_base(text, "B", "80 GB"));
}
template <>
BytesPerSecond parse_quantity<BytesPerSecond>(std::string_view text) {
  return BytesPerSecond(parse_with_base(text, "B/s", "3.35 TB/s"));
}
template <>
FlopsPerSecond parse_quantity<FlopsPerSecond>(std::string_view text) {
  return FlopsPerSecond(parse_with_base(text, "FLOP/s", "989 TFLOP/s"));
}
template <>
PerSecond parse_quantity<PerSecond>(std::string_view text) {
  return PerSecond(parse_with_base(text, "/s", "12 /s"));
}
template <>
Watts parse_quantity<Watts>(std::string_view text) {
  return Watts(parse_with_base(text, "W", "700 W"));
}
template <>
Seconds parse_quantity<Seconds>(std::string_view text) {
  const auto [number, unit] = split_quantity(text, "50 ms");
  double scale = 0;
  if (unit == "s") scale = 1;
  if (unit == "ms") scale = 1e-3;
  if (unit == "us") scale = 1e-6;
  if (unit == "ns") scale = 1e-9;
  if (unit == "min") scale = 60;
  if (unit == "h") scale = 3600;
  if (scale == 0) {
    throw ConfigError(
        "\"{}\" has the unknown unit \"{}\" (expected e.g. \"50 ms\"; known: ns us ms s min h)",
        text, unit);
  }
  if (number < 0) throw ConfigError("\"{}\" is negative (expected e.g. \"50 ms\")", text);
  if (number * scale > longest_time) {
    throw ConfigError("\"{}\" is longer than 720 h, too long for the simulated clock", text);
  }
  return Seconds(number * scale);
}

ConfigNode::ConfigNode(Json value, std::filesystem::path file, std::string pointer)
    : value_(std::move(value)),
      file_(std::move(file)),
      pointer_(std::move(pointer)),
      resolved_(std::make_shared<Json>(Json::object())) {}

ConfigNode ConfigNode::from_file(const std::filesystem::path& file) {
  std::error_code ignored;
  const auto status = std::filesystem::status(file, ignored);
  // A file may have such a name; else the text is an object by itself.
  if (file.native().starts_with('{') && !std::filesystem::exists(status)) {
    const char* const name = "config";
    try {
      return {parse_json(file.native()), name};
    } catch (const ConfigError& error) {
      throw ConfigError("{}: {}", name, error.what());
    }
  }
  if (!std::filesystem::exists(status)) throw NoSuchFile(file);
  if (!std::filesystem::is_regular_file(status)) {
    throw ConfigError("{}: not a regular file; a JSON file is expected", file.string());
  }
  refuse_huge(file, "JSON file");
  std::error_code gone;
  const auto size = std::filesystem::file_size(file, gone);
  std::ifstream stream(file, std::ios::binary);
  std::string text(gone ? 0 : size, '\0');
  if (gone || !stream || !stream.read(text.data(), static_cast<std::streamsize>(size)))
    throw ConfigError("{}: cannot be read", file.string());
  try {
    return {parse_json(text), file};
  } catch (const ConfigError& error) {
    throw ConfigError("{}: {}", file.string(), error.what());
  }
}

void ConfigNode::fail(std::string_view message) const {
  throw ConfigError(one_line(
      fmt::format("{}:{}: {}", file_.string(), pointer_.empty() ? "/" : pointer_, message)));
}

std::filesystem::path ConfigNode::relative(std::string_view path) const {
  const std::filesystem::path written(path);
  return written.is_absolute() ? written : (file_.parent_path() / written).lexically_normal();
}

ConfigNode ConfigNode::at(Json value, std::string pointer, const Form* form) const {
  ConfigNode node(std::move(value), file_, std::move(pointer));
  node.resolved_ = resolved_;
  node.form_ = form;
  return node;
}

ConfigNode ConfigNode::child(std::string_view key) const {
  return at(value_.at(std::string(key)), pointer_ + "/" + escape_pointer(key));
}

ConfigNode ConfigNode::element(std::size_t index) const {
  const Form* const list = read_as({Form::Kind::list});
  return at(value_.at(index), pointer_ + "/" + std::to_string(index),
            list == nullptr ? nullptr : list->element);
}

ConfigNode ConfigNode::as_policy() const {
  return value_.is_string() ? at(Json{{"type", value_}}, pointer_, form_) : *this;
}

void ConfigNode::resolve(Json value) const {
  (*resolved_)[Json::json_pointer(pointer_)] = std::move(value);
}

// True if a form of this node is such, or where no table says one.
template <class Predicate>
bool ConfigNode::is_form(Predicate such) const {
  if (form_ == nullptr) return true;
  for (const Form* form = form_; form != nullptr; form = form->or_else) {
    if (such(*form)) return true;
  }
  return false;
}

// The form of this node as which it is read; null where no table says one.
const Form* ConfigNode::read_as(std::initializer_list<Form::Kind> kinds) const {
  if (form_ == nullptr) return nullptr;
  for (const Form* form = form_; form != nullptr; form = form->or_else) {
    if (std::ranges::find(kinds, form->kind) != kinds.end()) return form;
  }
  throw std::logic_error(
      fmt::format("{} is read as something that its table of keys does not say", pointer_));
}

std::string ConfigNode::text() const {
  read_as({Form::Kind::text, Form::Kind::file, Form::Kind::choice, Form::Kind::policy});
  if (!value_.is_string()) fail("expected a text, found {}", kind_of(value_));
  if (value_.get_ref<const std::string&>().find('\0') != std::string::npos)
    fail("{} has a NUL character; leave it out", value_.dump());
  resolve(value_);
  return value_.get<std::string>();
}

double ConfigNode::number_as(Form::Kind kind, Range range) const {
  if (const Form* form = read_as({kind})) {
    range = {std::max(range.min, form->range.min), std::min(range.max, form->range.max)};
  }
  if (!value_.is_number()) fail("expected a number, found {}", kind_of(value_));
  const double number = value_.get<double>();
  if (!std::isfinite(number) || number < range.min || number > range.max) {
    fail("{} is out of range; expected {}", value_.dump(), describe(range));
  }
  resolve(value_);
  return number;
}

double ConfigNode::number(Range range) const { return number_as(Form::Kind::number, range); }

std::int64_t ConfigNode::integer(Range range) const {
  const double value = number_as(Form::Kind::integer, range);
  if (value != std::floor(value) || std::abs(value) > 9e15) {
    fail("{} is not a whole number", value_.dump());
  }
  return static_cast<std::int64_t>(value);
}

std::size_t ConfigNode::choice() const {
  const Form* const form = read_as({Form::Kind::choice});
  check(form != nullptr, "a choice is read without its table of keys");
  return index_in(form->names);
}

std::size_t ConfigNode::index_in(std::span<const std::string_view> names) const {
  const std::string name = text();
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) {
    fail("unknown \"{}\"; {}one of: {}", name, did_you_mean(name, names), join_names(names));
  }
  return static_cast<std::size_t>(found - names.begin());
}

bool ConfigNode::flag() const {
  read_as({Form::Kind::flag});
  if (!value_.is_boolean()) fail("expected true or false, found {}", kind_of(value_));
  resolve(value_);
  return value_.get<bool>();
}

std::vector<ConfigNode> ConfigNode::list() const {
  read_as({Form::Kind::list});
  if (!value_.is_array()) fail("expected a list, found {}", kind_of(value_));
  resolve(value_);
  std::vector<ConfigNode> elements;
  for (std::size_t i = 0; i < value_.size(); ++i) elements.push_back(element(i));
  return elements;
}

namespace {

template <class Q>
constexpr Form::Kind kind_of_quantity = Form::Kind::time;
template <>
constexpr Form::Kind kind_of_quantity<Bytes> = Form::Kind::bytes;
template <>
constexpr Form::Kind kind_of_quantity<BytesPerSecond> = Form::Kind::bytes_per_second;
template <>
constexpr Form::Kind kind_of_quantity<FlopsPerSecond> = Form::Kind::flops_per_second;
template <>
constexpr Form::Kind kind_of_quantity<PerSecond> = Form::Kind::per_second;
template <>
constexpr Form::Kind kind_of_quantity<Watts> = Form::Kind::watts;

}  // namespace

template <class Q>
Q ConfigNode::quantity() const {
  read_as({kind_of_quantity<Q>});
  if (!value_.is_string()) {
    fail("expected a number with its unit in quotes, found {}", value_.dump());
  }
  resolve(value_);
  try {
    return parse_quantity<Q>(value_.get<std::string>());
  } catch (const ConfigError& error) {
    fail(error.what());
  }
}
template Bytes ConfigNode::quantity<Bytes>() const;
template BytesPerSecond ConfigNode::quantity<BytesPerSecond>() const;
template FlopsPerSecond ConfigNode::quantity<FlopsPerSecond>() const;
template PerSecond ConfigNode::quantity<PerSecond>() const;
template Watts ConfigNode::quantity<Watts>() const;
template Seconds ConfigNode::quantity<Seconds>() const;

ConfigReader::ConfigReader(ConfigNode node, KeyTable keys) : node_(std::move(node)) {
  if (keys != nullptr) tables_.push_back(keys);
  check(node_.is_form([&](const Form& form) { return form.is_object() && form.keys == keys; }),
        "an object is read by another table than its key's row says");
  if (!node_.json().is_object()) node_.fail("expected an object, found {}", kind_of(node_.json()));
  if (node_.pointer().empty()) return;
  // An empty object stays visible in the resolved config.
  Json& place = (*node_.resolved_)[Json::json_pointer(node_.pointer())];
  if (!place.is_object()) place = Json::object();
}

// Null without a table, and for the "type" of a policy, which stands in the table of policies.
const Key* ConfigReader::row(std::string_view key) const {
  if (tables_.empty()) return nullptr;
  for (const KeyTable table : tables_) {
    for (const Key& row : table()) {
      if (row.name == key || row.name == "*" || row.name == "/*") return &row;
    }
  }
  if (key == "type") return nullptr;
  throw std::logic_error(fmt::format("{}: no table of keys has a row for \"{}\"",
                                     node_.pointer().empty() ? "/" : node_.pointer(), key));
}

bool ConfigReader::has(std::string_view key) const { return node_.json().contains(key); }

bool ConfigReader::optional(std::string_view key) {
  row(key);
  known_.emplace(key);
  return has(key);
}

ConfigNode ConfigReader::value(std::string_view key, const Key* row, Json fallback) {
  known_.emplace(key);
  if (has(key)) fallback = node_.json().at(std::string(key));
  return node_.at(std::move(fallback), node_.pointer() + "/" + escape_pointer(key),
                  row == nullptr ? nullptr : &row->form);
}

ConfigNode ConfigReader::child(std::string_view key) {
  const Key* const found = row(key);
  if (found != nullptr && found->by_default.kind == KeyDefault::Kind::literal) {
    return value(key, found, json_or_text(found->by_default.text));
  }
  known_.emplace(key);
  if (!has(key)) {
    const std::string meaning =
        found == nullptr || found->meaning.empty() ? "" : fmt::format(" ({})", found->meaning);
    node_.fail("\"{}\" is missing{}", key, meaning);
  }
  return value(key, found, {});
}

ConfigNode ConfigReader::child_or(std::string_view key, Json fallback) {
  const Key* const found = row(key);
  check(found == nullptr || found->by_default.kind == KeyDefault::Kind::words,
        "a key has two defaults: one in code, one in the table of keys");
  return value(key, found, std::move(fallback));
}

std::string ConfigReader::text_or(std::string_view key, std::string_view fallback) {
  return child_or(key, std::string(fallback)).text();
}
double ConfigReader::number_or(std::string_view key, double fallback, Range range) {
  return child_or(key, fallback).number(range);
}
std::int64_t ConfigReader::integer_or(std::string_view key, std::int64_t fallback, Range range) {
  return child_or(key, fallback).integer(range);
}
bool ConfigReader::flag_or(std::string_view key, bool fallback) {
  return child_or(key, fallback).flag();
}

std::size_t ConfigReader::choice(std::string_view key, std::span<const std::string_view> names) {
  return child(key).index_in(names);
}

std::size_t ConfigReader::choice_or(std::string_view key, std::span<const std::string_view> names,
                                    std::size_t fallback) {
  return child_or(key, std::string(names[fallback])).index_in(names);
}

std::string_view file_of_class(std::string_view name) {
  const std::size_t colon = name.rfind(".py:");
  return colon == name.npos ? "" : name.substr(0, colon + 3);
}

bool ConfigReader::names_class() const {
  const auto type = node_.json().find("type");
  return type != node_.json().end() && type->is_string() &&
         !file_of_class(type->get_ref<const std::string&>()).empty();
}

std::size_t ConfigReader::policy(std::string_view registry,
                                 std::span<const std::string_view> names) {
  check(node_.is_form([&](const Form& form) { return form.registry == registry; }),
        "a policy is read from another table than its key's row says");
  return choice("type", names);
}

std::vector<std::string> ConfigReader::all_keys() {
  std::vector<std::string> keys;
  for (const auto& item : node_.json().items()) keys.push_back(item.key());
  known_.insert(keys.begin(), keys.end());
  return keys;
}

std::vector<std::string> ConfigReader::unread() const {
  std::vector<std::string> keys;
  for (const auto& item : node_.json().items())
    if (!known_.contains(item.key())) keys.push_back(item.key());
  return keys;
}

void ConfigReader::finish() const {
  const std::vector<std::string> keys = unread();
  if (keys.empty()) return;
  const std::vector<std::string_view> known(known_.begin(), known_.end());
  node_.fail("unknown key \"{}\"; {}known: {}", keys.front(), did_you_mean(keys.front(), known),
             join_names(known));
}

// A config is written out again, and what is not UTF-8 cannot be.
void check_utf8(std::string_view change) {
  const auto printed = [&](Json::error_handler_t invalid) {
    return Json(std::string(change)).dump(-1, ' ', false, invalid);
  };
  try {
    printed(Json::error_handler_t::strict);
  } catch (const Json::exception&) {
    throw ConfigError("--set {}: expected text in UTF-8", printed(Json::error_handler_t::replace));
  }
}

// null takes the key away, as in a JSON merge patch.
void apply_override(Json& config, std::string_view pointer_and_value) {
  const auto equals = pointer_and_value.find('=');
  const std::string pointer(pointer_and_value.substr(0, equals));
  if (equals == std::string_view::npos || !pointer.starts_with('/')) {
    throw ConfigError("--set {}: expected /pointer=value, e.g. /placement/replication=1.25",
                      pointer_and_value);
  }
  check_utf8(pointer_and_value);
  const std::string parent_pointer = pointer.substr(0, pointer.rfind('/'));
  Json changed = config;
  try {
    const Json::json_pointer place(pointer);
    Json& parent = made_object(changed, place.parent_pointer());
    if (!parent.is_object() && !parent.is_array()) {
      throw ConfigError("--set {}: {} is {}, not an object", pointer, parent_pointer,
                        kind_of(parent));
    }
    Json given = json_or_text(pointer_and_value.substr(equals + 1));
    if (given.is_null() && parent.is_object()) {
      if (parent.erase(place.back()) == 0)
        throw ConfigError("--set {}=null: there is no such key to take away", pointer);
    } else {
      Json& value = parent.is_array() ? changed.at(place) : parent[place.back()];
      value = std::move(given);
    }
  } catch (const Json::exception&) {
    throw ConfigError("--set {}: there is nothing at \"{}\" to set it in", pointer, parent_pointer);
  }
  config = std::move(changed);
}

}  // namespace moesim
