// SPDX-License-Identifier: Apache-2.0
// Are patterns of module names matched as Python's re.match and fnmatch match them?
#include <stdexcept>

#include "models/quantization/name_pattern.hpp"
#include "tests/support.hpp"

namespace moesim::test_patterns {

using Catch::Matchers::Contains;

namespace {

bool regex(const char* pattern, const char* name) {
  return NamePattern::regex(pattern).matches(name);
}
bool glob(const char* pattern, const char* name) {
  return NamePattern::glob(pattern).matches(name);
}
std::string refused(const std::string& pattern) {
  try {
    NamePattern::regex(pattern);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a regular expression matches from the beginning, to any end") {
  CHECK(regex("model", "model.layers.0"));
  CHECK_FALSE(regex("layers", "model.layers.0"));
  CHECK(regex(".*layers", "model.layers.0"));
  CHECK_FALSE(regex(".*gate$", "mlp.gate_proj"));
  CHECK(regex(".*gate$", "mlp.gate"));
  CHECK(regex("", "a"));
}

TEST_CASE("groups, classes, repetitions and looks around are Python's") {
  CHECK(regex(R"(.*\.(q|k|v)_proj$)", "a.k_proj"));
  CHECK_FALSE(regex(R"(.*\.(q|k|v)_proj$)", "a.o_proj"));
  CHECK(regex(R"(l\.(?:[0-9]|1[0-5])\.)", "l.12."));
  CHECK_FALSE(regex(R"(l\.(?:[0-9]|1[0-5])\.)", "l.16."));
  CHECK(regex(R"(a{2,3}b)", "aaab"));
  CHECK_FALSE(regex(R"(a{2,3}b)", "ab"));
  CHECK_FALSE(regex(R"(a{2}b)", "aaab"));
  CHECK(regex("a{b", "a{b"));
  CHECK(regex(R"(^(?!.*experts).*)", "mlp.gate"));
  CHECK_FALSE(regex(R"(^(?!.*experts).*)", "mlp.experts.0"));
  CHECK(regex(R"(.*(?<!shared_)expert)", "mlp.experts"));
  CHECK_FALSE(regex(R"(.*(?<!shared_)expert)", "mlp.shared_expert"));
  CHECK(regex(R"(.*(?<=mlp\.)e(?=x))", "mlp.experts"));
  CHECK(regex(R"((?i)SELF_[A-C]ttn)", "self_attn"));
  CHECK(regex(R"(.*\bexperts\b)", "mlp.experts.0"));
  CHECK_FALSE(regex(R"(.*\bexpert\b)", "mlp.experts.0"));
  CHECK(regex(R"([^.]+\.[]a-]+\Z)", "mlp.a-]"));
  CHECK(regex(R"((?P<layer>\d+)\.\w*?x)", "17.abx"));
  CHECK(regex("(a*)*b", "aab"));
}

TEST_CASE("no pattern takes long, and what is not known is refused") {
  const std::string name(200, 'a');
  CHECK_FALSE(regex("(a*)*(a*)*(a+)+b", name.c_str()));
  for (const char* pattern : {R"((a)\1)", "(?>a)", "a++", R"(\p{L})", "(a", "a)", "[a", "*a",
                              "(?x)a", "a{5000}", "((a{1000}){1000}){1000}"}) {
    CAPTURE(pattern);
    CHECK_FALSE(refused(pattern).empty());
  }
  CHECK_FALSE(refused(std::string(1000, '(')).empty());
}

TEST_CASE("a glob matches the whole name") {
  CHECK(glob("*self_attn*", "model.layers.0.self_attn.q_proj"));
  CHECK_FALSE(glob("self_attn*", "model.layers.0.self_attn.q_proj"));
  CHECK(glob("l.?.x", "l.3.x"));
  CHECK_FALSE(glob("l.?.x", "l.13.x"));
  CHECK(glob("e.[0-2].*", "e.1.up"));
  CHECK_FALSE(glob("e.[!0-2].*", "e.1.up"));
  CHECK(glob("[]]", "]"));
  CHECK(glob("a[b", "a[b"));
  CHECK_FALSE(glob("a.c", "abc"));
}

}  // namespace moesim::test_patterns
