// SPDX-License-Identifier: Apache-2.0
// Does a config say what it means, and does a wrong one say what is wrong?

#include "hardware/config.hpp"
#include "hardware/registry.hpp"
#include "hardware/rng.hpp"
#include "tests/support.hpp"
#include "tests/temporary.hpp"

namespace moesim::test_config {

using Catch::Matchers::Contains;
using namespace test;

namespace {

template <class Q>
std::string quantity_error(std::string_view text) {
  return config_error([&] { parse_quantity<Q>(text); });
}

struct Shape {
  virtual ~Shape() = default;
  virtual double area() const = 0;
};
struct Square : Shape {
  explicit Square(double side_length) : side(side_length) {}
  double area() const override { return side * side; }
  double side;
};
std::span<const Key> square_keys() {
  static constexpr Key keys[] = {{"side", form::number(non_negative), "1", "of the square"}};
  return keys;
}
Registry<Shape> shapes() {
  return {"shape",
          {{"square", "four equal sides",
            [](ConfigReader& options) -> std::unique_ptr<Shape> {
              return std::make_unique<Square>(options.number("side"));
            },
            square_keys}}};
}

}  // namespace

TEST_CASE("a quantity is a number with its unit") {
  CHECK(parse_quantity<BytesPerSecond>("3.35 TB/s").value() == 3.35e12);
  CHECK(parse_quantity<BytesPerSecond>("900GB/s").value() == 900e9);
  CHECK(parse_quantity<BytesPerSecond>("400 Gb/s").value() == 50e9);  // bits
  CHECK(parse_quantity<Bytes>("80 GB").value() == 80e9);
  CHECK(parse_quantity<Bytes>("40 GiB").value() == 40.0 * 1024 * 1024 * 1024);
  CHECK(parse_quantity<Bytes>("164 KiB").value() == 164 * 1024);
  CHECK(parse_quantity<Bytes>("12 B").value() == 12);
  CHECK(parse_quantity<FlopsPerSecond>("989.5 TFLOP/s").value() == 989.5e12);
  CHECK(parse_quantity<PerSecond>("12 /s").value() == 12);
  CHECK_THAT(parse_quantity<Seconds>("16 us").count(), WithinRel(16e-6, 1e-12));
  CHECK_THAT(parse_quantity<Seconds>("1.5 h").count(), WithinRel(5400.0, 1e-12));
  CHECK(parse_quantity<Seconds>("0 s").count() == 0);
}

TEST_CASE("a quantity without its unit, or with another's, is refused with an example") {
  CHECK_THAT(quantity_error<BytesPerSecond>("3.35"), Contains("no unit") && Contains("TB/s"));
  CHECK_THAT(quantity_error<BytesPerSecond>("3.35 TB"), Contains("TB"));
  CHECK_THAT(quantity_error<Bytes>("80 Gb"), Contains("Gb"));
  CHECK_THAT(quantity_error<Bytes>("eighty GB"), Contains("not a number"));
  CHECK_THAT(quantity_error<Bytes>(""), Contains("not a number"));
  CHECK_THAT(quantity_error<Bytes>("nan GB"), Contains("not a number"));
  CHECK_THAT(quantity_error<Bytes>("-1 GB"), Contains("negative"));
  CHECK_THAT(quantity_error<Bytes>("1e22 GB"), Contains("is out of range (at most "));
  CHECK_THAT(quantity_error<Seconds>("5 kg"), Contains("kg") && Contains("ms"));
  CHECK_THAT(quantity_error<Seconds>("-5 ms"), Contains("negative"));
}

TEST_CASE("a bare number where a quantity belongs is refused at its place") {
  const ConfigNode node = config(R"({"link": {"bandwidth": 50}})");
  const std::string message =
      config_error([&] { node.child("link").child("bandwidth").quantity<BytesPerSecond>(); });
  CHECK_THAT(message, Contains("inline.json:/link/bandwidth: ") && Contains("unit"));
}

TEST_CASE("an unknown key is refused with the nearest known name") {
  const ConfigNode node = config(R"({"policy": {"bandwith": 1, "latency": 2}})");
  const std::string message = config_error([&] {
    read_object(node.child("policy"), [](ConfigReader& reader) {
      reader.number_or("bandwidth", 1);
      reader.number("latency");
    });
  });
  CHECK_THAT(message, Contains("inline.json:/policy: ") && Contains("\"bandwith\"") &&
                          Contains("did you mean \"bandwidth\"?"));
}

TEST_CASE("a name that resembles nothing gets the list, not a guess") {
  const std::vector<std::string_view> names{"metro", "even", "optimal"};
  CHECK(nearest_name("metor", names) == "metro");
  CHECK(nearest_name("zzzzzzzz", names).empty());
  const ConfigNode node = config(R"({"routing": "zzzzzzzz"})");
  const std::string message = config_error([&] {
    ConfigReader reader(node);
    reader.choice("routing", names);
  });
  CHECK_THAT(message, Contains("metro, even, optimal") && !Contains("did you mean"));
}

TEST_CASE("values of the wrong kind or out of range are refused at their place") {
  const ConfigNode node =
      config(R"({"n": 1.5, "text": 3, "flag": "yes", "list": {}, "many": 11, "object": [1]})");
  CHECK_THAT(config_error([&] { node.child("n").integer(); }), Contains("/n: 1.5 is not a whole"));
  CHECK_THAT(config_error([&] { node.child("text").text(); }), Contains("/text: expected a text"));
  CHECK_THAT(config_error([&] { node.child("flag").flag(); }),
             Contains("/flag: ") && Contains("true"));
  CHECK_THAT(config_error([&] { node.child("list").list(); }), Contains("expected a list"));
  CHECK_THAT(config_error([&] {
               node.child("many").number({1, 10});
             }),
             Contains("/many: 11") && Contains("between 1 and 10"));
  CHECK_THAT(config_error([&] { ConfigReader reader(node.child("object")); }),
             Contains("/object: expected an object"));
  CHECK_THAT(config_error([&] { ConfigReader(node).child("absent"); }),
             Contains("inline.json:/: \"absent\" is missing"));
}

TEST_CASE("pointers lead through lists and escape their own syntax") {
  const ConfigNode node = config(R"({"axes": [{"a/b~c": "x"}]})");
  CHECK_THAT(config_error([&] { node.child("axes").list().at(0).child("a/b~c").number(); }),
             Contains("inline.json:/axes/0/a~1b~0c: "));
}

TEST_CASE("the resolved config holds what was read and the defaults that were taken") {
  const ConfigNode node = config(R"({"policy": {"size": 3}, "empty": {}, "unread": 1})");
  read_object(node.child("policy"), [](ConfigReader& reader) {
    reader.integer("size");
    reader.number_or("factor", 1.25);
    reader.text_or("order", "id");
    reader.optional("maybe");
  });
  read_object(node.child("empty"), [](ConfigReader&) {});
  CHECK(node.resolved() ==
        Json::parse(R"({"policy": {"size": 3, "factor": 1.25, "order": "id"}, "empty": {}})"));
}

TEST_CASE("a resolved config reads back as itself") {
  const auto read = [](const ConfigNode& node) {
    read_object(node, [](ConfigReader& reader) {
      reader.child("policy").as_policy();
      read_object(reader.child("policy").as_policy(), [](ConfigReader& policy) {
        policy.text("type");
        policy.number_or("side", 2);
      });
      reader.text_or("rate", "3 GB/s");
    });
    return node.resolved();
  };
  const Json once = read(config(R"({"policy": "square"})"));
  CHECK(once == Json::parse(R"({"policy": {"type": "square", "side": 2.0}, "rate": "3 GB/s"})"));
  CHECK(read(ConfigNode(once, "again.json")) == once);
}

TEST_CASE("a policy is a name, or an object with its options") {
  CHECK(shapes().make(config(R"("square")"))->area() == 1);
  CHECK(shapes().make(config(R"({"type": "square", "side": 3})"))->area() == 9);
  CHECK_THAT(config_error([] { shapes().make(config(R"("sqare")")); }),
             Contains("unknown \"sqare\"; did you mean \"square\"?"));
  CHECK_THAT(config_error([] { shapes().make(config(R"({"type": "square", "sid": 3})")); }),
             Contains("did you mean \"side\"?"));
  CHECK_THAT(config_error([] { shapes().make(config(R"({"type": "square", "side": -1})")); }),
             Contains("/side: -1 is out of range; expected at least 0"));
}

namespace {

std::span<const Key> wheel_keys() {
  static constexpr Key keys[] = {{"spokes", form::integer(1, 99), required, "per wheel"}};
  return keys;
}

std::span<const Key> bicycle_keys() {
  static constexpr std::array<std::string_view, 2> colours{"red", "blue"};
  static constexpr Form wheel = form::object(wheel_keys);
  static constexpr Key keys[] = {
      {"wheel", wheel, unset("none"), "one of them"},
      {"speed", form::time, "16 us", "per revolution"},
      {"bells", form::number(0, 2), "1", "on the bar"},
      {"riders", form::integer(1, 4), unset("as many as bells"), "at once"},
      {"colour", form::choice(colours), "blue", "of the frame"},
      {"spares", form::list(wheel), "[]", "carried along"}};
  return keys;
}

}  // namespace

TEST_CASE("a reader with a table takes defaults, ranges and choices from it") {
  const auto read = [](const std::string& text, auto&& use) {
    return config_error([&] { read_object(config(text), bicycle_keys, use); });
  };
  const ConfigNode node = config("{}");
  read_object(node, bicycle_keys, [](ConfigReader& r) {
    CHECK(r.quantity<Seconds>("speed") == Seconds(16e-6));
    CHECK(r.number("bells") == 1);
    CHECK(r.choice("colour") == 1);
    CHECK(r.child("spares").list().empty());
    CHECK(r.integer_or("riders", 3) == 3);
    CHECK_FALSE(r.optional("wheel"));
  });
  CHECK(node.resolved() == Json::parse(R"({"bells": 1, "colour": "blue", "riders": 3, "spares": [],
                                          "speed": "16 us"})"));
  CHECK_THAT(read(R"({"bells": 3})", [](ConfigReader& r) { r.number("bells"); }),
             Contains("/bells: 3 is out of range; expected between 0 and 2"));
  // The caller may know a narrower range than the table.
  CHECK_THAT(read(R"({"riders": 3})",
                  [](ConfigReader& r) {
                    r.integer("riders", {0, 2});
                  }),
             Contains("expected between 1 and 2"));
  CHECK_THAT(read(R"({"colour": "bleu"})", [](ConfigReader& r) { r.choice("colour"); }),
             Contains("did you mean \"blue\"?"));
  CHECK_THAT(read(R"({"spares": [{"spokes": 100}]})",
                  [](ConfigReader& r) {
                    for (const ConfigNode& wheel : r.child("spares").list())
                      read_object(wheel, wheel_keys, [](ConfigReader& w) { w.integer("spokes"); });
                  }),
             Contains("/spares/0/spokes: 100 is out of range"));
}

TEST_CASE("a key that is read otherwise than its table says is a bug, not the user's error") {
  const auto reads = [](auto&& use) {
    read_object(config(R"({"wheel": {"spokes": 1}, "bells": 1, "riders": 1})"), bicycle_keys, use);
  };
  CHECK_THROWS_AS(reads([](ConfigReader& r) { r.optional("basket"); }), std::logic_error);
  CHECK_THROWS_AS(reads([](ConfigReader& r) { r.integer("bells"); }), std::logic_error);
  CHECK_THROWS_AS(reads([](ConfigReader& r) { r.text("riders"); }), std::logic_error);
  CHECK_THROWS_AS(reads([](ConfigReader& r) { r.number_or("bells", 2); }), std::logic_error);
  CHECK_THROWS_AS(reads([](ConfigReader& r) {
                    read_object(r.child("wheel"), bicycle_keys, [](ConfigReader&) {});
                  }),
                  std::logic_error);
  CHECK_THROWS_AS(
      reads([](ConfigReader& r) { read_object(r.child("wheel"), [](ConfigReader&) {}); }),
      std::logic_error);
  CHECK_THROWS_AS(reads([](ConfigReader& r) { shapes().make(r.child("wheel")); }),
                  std::logic_error);
}

TEST_CASE("a missing file, a folder and a file that is not JSON are told apart") {
  CHECK_THAT(config_error([] { ConfigNode::from_file("/nowhere/x.json"); }),
             Contains("/nowhere/x.json: no such file"));
  CHECK_THAT(config_error([] { ConfigNode::from_file(source_dir()); }),
             Contains("not a regular file"));
  const TemporaryFile broken("broken.json", "{\"a\": }");
  CHECK_THAT(config_error([&] { ConfigNode::from_file(broken.path()); }),
             Contains("broken.json: not JSON at line 1"));
  const TemporaryFile huge("huge.json", "{\"a\": 1e999}");
  CHECK_THAT(config_error([&] { ConfigNode::from_file(huge.path()); }), Contains("not JSON"));
  const TemporaryFile empty("empty.json", "");
  CHECK_THAT(config_error([&] { ConfigNode::from_file(empty.path()); }), Contains("not JSON"));
}

TEST_CASE("a key that is there twice in one object is refused with its place") {
  const auto error = [](const char* text) {
    const TemporaryFile file("twice.json", text);
    return config_error([&] { ConfigNode::from_file(file.path()); });
  };
  CHECK_THAT(error(R"({"a": 1, "b": [{}, {"c": {"d": 1, "e/f": 2, "e/f": 2}}]})"),
             Contains("twice.json: \"/b/1/c/e~1f\" is there twice"));
  CHECK_THAT(error(R"({"a": 1, "a": 1)"), Contains("\"/a\" is there twice"));
  CHECK(error(R"([{"a": 1}, {"a": 1, "b": {"a": 1}}])").empty());
}

TEST_CASE("what a message repeats stays one line, and a name holds no NUL") {
  const ConfigNode node = config(R"({"file": "a\u0000b"})");
  const ConfigNode key = config(R"({"x\ny": 1})");
  CHECK(config_error([&] { ConfigReader(node).text("file"); }).find("\"a\\u0000b\" has a NUL") !=
        std::string::npos);
  CHECK(config_error([&] { ConfigReader(key).finish(); }).find("x\\u000ay") != std::string::npos);
}

TEST_CASE("a file that gives fewer bytes than its size says is refused") {
  // A file of sysfs says that it is a page long, whatever it holds.
  const std::filesystem::path file = "/sys/devices/system/cpu/online";
  if (!std::filesystem::is_regular_file(file) || std::filesystem::file_size(file) < 4096) {
    WARN("skipped: no sysfs");
    return;
  }
  CHECK_THAT(config_error([&] { ConfigNode::from_file(file); }),
             Contains("cpu/online: cannot be read"));
}

TEST_CASE("a path is relative to the file that names it") {
  const ConfigNode node(Json::object(), "/data/configs/a.json");
  CHECK(node.relative("../hardware/h.json") == "/data/hardware/h.json");
  CHECK(node.relative("/else/h.json") == "/else/h.json");
}

TEST_CASE("an override sets JSON where it is JSON and a text where it is not") {
  Json json = Json::parse(R"({"placement": {"replication": 1.0}, "axes": [1, 2]})");
  apply_override(json, "/placement/replication=1.5");
  apply_override(json, "/placement/type=eplb");
  apply_override(json, "/workload={\"rate\": \"12 /s\"}");
  apply_override(json, "/axes/0=7");
  apply_override(json, "/note=a=b");
  CHECK(json == Json::parse(R"({"placement": {"replication": 1.5, "type": "eplb"}, "note": "a=b",
                               "workload": {"rate": "12 /s"}, "axes": [7, 2]})"));
}

TEST_CASE("an override by null takes a key away, and not one that is missing") {
  Json json = Json::parse(R"({"placement": {"replication": 1.0, "type": "eplb"}, "axes": [1]})");
  apply_override(json, "/placement/replication=null");
  apply_override(json, "/axes=null");
  CHECK(json == Json::parse(R"({"placement": {"type": "eplb"}})"));
  CHECK_THAT(config_error([&] { apply_override(json, "/axes=null"); }), Contains("no such key"));
}

TEST_CASE("an override that leads nowhere is refused") {
  const Json before = Json::parse(R"({"placement": {"replication": 1.0}, "axes": [1, 2]})");
  Json json = before;
  const auto error = [&](std::string_view text) {
    return config_error([&] { apply_override(json, text); });
  };
  CHECK_THAT(error("/placement/replication"), Contains("/pointer=value"));
  CHECK_THAT(error("placement=1"), Contains("/pointer=value"));
  CHECK_THAT(error("/axes/2/x=1"), Contains("nothing at \"/axes/2\""));
  CHECK_THAT(error("/axes/2=1"), Contains("nothing at \"/axes\""));
  CHECK_THAT(error("/placement/replication/deep=2"), Contains("not an object"));
  CHECK(json == before);
}

TEST_CASE("an override makes the objects that it leads through") {
  Json json = Json::object();
  apply_override(json, "/kv_cache/block_size=8");
  apply_override(json, "/a/b~1c/0=true");
  CHECK(json == Json::parse(R"({"kv_cache": {"block_size": 8}, "a": {"b/c": {"0": true}}})"));
}

TEST_CASE("times enter the clock rounded, and only if they are times") {
  CHECK(to_duration(Seconds(1.5e-12)).count() == 2);
  CHECK(to_duration(Seconds(13.7e-6)).count() == 13'700'000);
  CHECK_THROWS_AS(to_duration(Seconds(-1e-9)), std::logic_error);
  CHECK_THROWS_AS(to_duration(Seconds(std::nan(""))), std::logic_error);
  CHECK_THROWS_AS(to_duration(Seconds(1e9)), std::logic_error);
}

TEST_CASE("a stream of random numbers depends on its seed and its name alone") {
  Rng a(1, "arrivals"), same(1, "arrivals"), other_name(1, "gating"), other_seed(2, "arrivals");
  const std::uint64_t first = a.bits();
  CHECK(first == same.bits());
  CHECK(first != other_name.bits());
  CHECK(first != other_seed.bits());
}

TEST_CASE("random draws have the moments of their distributions") {
  constexpr int draws = 200'000;
  const auto moments = [](auto draw) {
    double sum = 0, squares = 0;
    for (int i = 0; i < draws; ++i) {
      const double x = draw();
      sum += x;
      squares += x * x;
    }
    const double mean = sum / draws;
    return std::pair(mean, squares / draws - mean * mean);
  };
  Rng rng(7, "moments");
  // Five standard errors of 200,000 draws: 5 sigma / sqrt(200000) = 0.011 sigma.
  const auto [uniform_mean, uniform_variance] = moments([&] { return rng.uniform(); });
  CHECK_THAT(uniform_mean, WithinAbs(0.5, 0.0033));
  CHECK_THAT(uniform_variance, WithinAbs(1.0 / 12, 0.001));
  const auto [exponential_mean, exponential_variance] = moments([&] { return rng.exponential(); });
  CHECK_THAT(exponential_mean, WithinAbs(1, 0.011));
  CHECK_THAT(exponential_variance, WithinAbs(1, 0.04));
  const auto [normal_mean, normal_variance] = moments([&] { return rng.normal(); });
  CHECK_THAT(normal_mean, WithinAbs(0, 0.011));
  CHECK_THAT(normal_variance, WithinAbs(1, 0.016));
  for (const double shape : {0.3, 2.5}) {  // mean and variance of gamma are both its shape
    const auto [mean, variance] = moments([&] { return rng.gamma(shape); });
    CHECK_THAT(mean, WithinRel(shape, 0.021));
    CHECK_THAT(variance, WithinRel(shape, 0.06));
  }
}

TEST_CASE("whole numbers are drawn evenly from below their bound") {
  Rng rng(3, "below");
  std::array<int, 6> seen{};
  for (int i = 0; i < 60'000; ++i) ++seen.at(rng.below(6));
  for (const int count : seen) CHECK_THAT(count, WithinAbs(10'000, 500));  // sigma = 91
  CHECK(rng.below(1) == 0);
}

TEST_CASE("no bound is too large for an even draw") {
  // Three quarters of all 64-bit numbers: scaled down without a second draw, every third number
  // below the bound would come half of the time.
  Rng rng(3, "below");
  constexpr std::uint64_t bound = 3ULL << 62;
  std::array<int, 3> seen{};
  for (int i = 0; i < 60'000; ++i) {
    const std::uint64_t drawn = rng.below(bound);
    REQUIRE(drawn < bound);
    ++seen[drawn % 3];
  }
  for (const int count : seen) CHECK_THAT(count, WithinAbs(20'000, 600));  // sigma = 115
}

}  // namespace moesim::test_config
