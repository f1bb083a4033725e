// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/trust.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "hardware/find_value.hpp"
#include "hardware/shipped.hpp"
#include "hardware/text.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/table.hpp"

namespace moesim {

namespace {

// Least and most over some runs.
struct Shares {
  double low = std::numeric_limits<double>::infinity(), high = 0;
  void add(double share) {
    low = std::min(low, share);
    high = std::max(high, share);
  }
  std::string text() const {
    const std::string most = fmt::format("{:.0f}", 100 * high),
                      least = fmt::format("{:.0f}", 100 * low);
    return least == most ? most + " %" : fmt::format("{} to {} %", least, most);
  }
};

// Shares of the time by what its prediction rests on; the rest is of measurements of the GPU's
// kernels.
constexpr const char* extrapolated_share = "/breakdown/extrapolated_share";
constexpr const char* unmeasured_share = "/breakdown/unmeasured_share";
constexpr const char* interpolated_share = "/breakdown/interpolated_share";
constexpr const char* carried_over_share = "/breakdown/carried_over_share";
constexpr const char* charged_share = "/breakdown/charged_share";
constexpr const char* engine_name = "/engine/name";
constexpr const char* kv_transfers = "/pools/kv_transfer/transfers";  // where pools are apart

std::string error_share(double error) { return percent(error, error < .1 ? 1 : 0); }

std::string joined(const Json& names) {
  return fmt::format("{}", fmt::join(names.get<std::vector<std::string>>(), ", "));
}

// "TTFT was 34 % off, mostly too short, in the median (57 % in one of ten)".
std::string figure_text(const Json& row) {
  const double median = row.at("median_error"), bias = row.value("bias", 0.0);
  const char* side = 2 * std::abs(bias) < median ? ""
                     : bias < 0                  ? ", mostly too short,"
                                                 : ", mostly too long,";
  const std::string worst =
      row.contains("p90_error")
          ? fmt::format(" ({} in one of ten)", error_share(row.at("p90_error").get<double>()))
          : "";
  return fmt::format("{} was {} off{} in the median{}", row.at("quantity").get<std::string>(),
                     error_share(median), side, worst);
}

// Null where the file is not shipped.
Json shipped_accuracy() {
  const std::filesystem::path file = data_folder() / "hardware/accuracy.json";
  return std::filesystem::exists(file) ? ConfigNode::from_file(file).json() : Json();
}

// "Qwen/Qwen3-30B-A3B", "Qwen3-30B-A3B" and "qwen3_30b_a3b" alike.
std::string plain_name(std::string_view name) {
  std::string plain;
  for (const char c : lower(name.substr(name.rfind('/') + 1)))
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) plain += c;
  return plain;
}

// The model and the GPU of an experiment as its files call them; "" where that is not known.
struct Subject {
  std::string model, gpu;
};

Subject subject_of(const Json& config) {
  Subject subject;
  for (const char* place : {"/model", "/model/name"})
    if (const std::string name = text_at(config, place); !name.empty())
      subject.model = plain_name(std::filesystem::path(name).stem().string());
  const Json* cluster = find_value(config, "/cluster");
  if (cluster == nullptr) cluster = find_value(config, "/pools/decode/cluster");
  if (cluster == nullptr) return subject;
  Json file = *cluster;
  if (file.is_string()) {
    const auto shipped = shipped_file(Shipped::cluster, file.get<std::string>());
    const std::filesystem::path path = shipped ? *shipped : file.get<std::filesystem::path>();
    if (!std::filesystem::exists(path)) return subject;
    file = ConfigNode::from_file(path).json();
  }
  for (const char* place : {"/gpu", "/gpu/name"})
    if (const std::string gpu = text_at(file, place); !gpu.empty())
      subject.gpu = plain_name(std::filesystem::path(gpu).stem().string());
  return subject;
}

// "model or of this GPU": which of an experiment's are not those of a row's runs; or "".
std::string missing_of(const Subject& subject, const Json& row) {
  const auto strange = [](const std::string& own, const Json& names) {
    return !own.empty() && std::ranges::none_of(names, [&](const Json& name) {
      const auto text = name.get<std::string>();
      const auto file = shipped_file(Shipped::model, text);  // R1 is of V3's shape
      return own.starts_with(plain_name(text)) ||
             (file && own == plain_name(file->stem().string()));
    });
  };
  const bool model = strange(subject.model, row.at("models")),
             gpu = strange(subject.gpu, row.at("gpus"));
  return model && gpu ? "model or of this GPU" : model ? "model" : gpu ? "GPU" : "";
}

// "; no constant of vllm was fitted on runs of this GPU"
std::string fitted_text(const Json& accuracy, std::string_view engine, bool apart,
                        const Subject& subject) {
  if (engine.empty() || engine == "none") return "";
  for (const Json& row : accuracy.at("fitted")) {
    if (row.at("engine") != engine || row.value("pools", false) != apart) continue;
    const std::string missing = missing_of(subject, row);
    return missing.empty()
               ? ""
               : fmt::format("; no constant of {} was fitted on runs of this {}", engine, missing);
  }
  return fmt::format("; no constant of {} was fitted on such runs", engine);
}

// "; held out were 16 runs of vllm with pools, on GB200, H100 (Kimi-K2.5, Qwen3-235B): TPOT ..":
// whose runs they were, so that nobody takes the error for that of another kind.
std::string error_text(std::string_view engine, bool apart, const Subject& subject) {
  const Json accuracy = shipped_accuracy();
  if (accuracy.is_null()) return "";
  const std::string kind = fmt::format(
      "{}, {}", engine.empty() || engine == "none" ? "of any engine, without its preset" : engine,
      apart ? "prefill and decode apart" : "aggregated");
  std::string figures;
  const Json* first = nullptr;
  for (const Json& row : accuracy.at("held_out")) {
    if (row.at("engine") != (engine.empty() ? "none" : engine) ||
        row.value("pools", false) != apart)
      continue;
    if (first == nullptr) first = &row;
    figures += (figures.empty() ? "" : "; ") + figure_text(row);
  }
  const std::string fitted = fitted_text(accuracy, engine, apart, subject);
  if (first == nullptr)
    return fmt::format("; no measured runs of this kind ({}) were held out{}", kind, fitted);
  const std::string missing = missing_of(subject, *first);
  const std::string strangers =
      missing.empty() ? "" : fmt::format(", none of them of this {},", missing);
  return fmt::format("; in {} measured runs held out ({}; {}; {}){} {}{}",
                     first->at("points").get<int>(), kind, joined(first->at("gpus")),
                     joined(first->at("models")), strangers, figures, fitted);
}

// `apart`: prefill and decode have pools.
std::string line_of(std::span<const Json* const> reports, std::string_view engine, bool apart,
                    const Subject& subject) {
  Shares here, beyond, between, carried, bare, charged;
  for (const Json* report : reports) {
    if (!report->contains("breakdown")) continue;
    const double far = number_at(*report, extrapolated_share, 0),
                 none = number_at(*report, unmeasured_share, 0);
    const double inside = number_at(*report, interpolated_share, 0),
                 other = number_at(*report, carried_over_share, 0),
                 host = number_at(*report, charged_share, 0);
    here.add(std::max(0.0, 1 - far - none - inside - other - host));
    beyond.add(far), between.add(inside), carried.add(other), bare.add(none), charged.add(host);
  }
  if (here.low > 1) return "";
  std::string text =
      fmt::format("trust: of the time {} rests on measurements of this GPU", here.text());
  const auto add = [&](const Shares& shares, const char* what) {
    if (shares.high >= .005) text += fmt::format(", {} {}", shares.text(), what);
  };
  add(between, "between points of its tables");
  add(beyond, "beyond what its constants were fitted on");
  add(carried, "carried over from another GPU");
  add(bare, "on data sheets and family defaults alone");
  add(charged, "on charges for gaps and the host");
  return indented(text + error_text(engine, apart, subject), 2);
}

}  // namespace

std::string anchor_line(const Anchor& anchor, double tpot_factor, double ttft_factor) {
  std::string text = fmt::format("anchored by {} measured {} of {}", anchor.tpot.runs,
                                 anchor.tpot.runs == 1 ? "run" : "runs", anchor.deployment);
  if (!anchor.layouts.empty()) text += fmt::format(" ({})", fmt::join(anchor.layouts, "; "));
  text += fmt::format(": TPOT x {:.3f}, TTFT x {:.3f}; leave-one-out error of TPOT {:.1f} %",
                      tpot_factor, ttft_factor, 100 * anchor.tpot.leave_one_out);
  if (anchor.ttft.runs > 0)
    text += fmt::format(", of TTFT {:.1f} %", 100 * anchor.ttft.leave_one_out);
  return paragraph(text);
}

std::vector<std::string> trust_pointers() {
  return {extrapolated_share, unmeasured_share, interpolated_share, carried_over_share,
          charged_share,      engine_name,      kv_transfers};
}

Json scores_of_choices(const std::vector<std::string>& gpus,
                       const std::vector<std::string>& engines) {
  const Json accuracy = shipped_accuracy();
  const Json* contrasts = find_value(accuracy, "/contrasts");
  if (contrasts == nullptr) return {};
  Json scores{{"signs", Json::array()}, {"regret", contrasts->at("regret").at("layouts")}};
  const auto among = [](const std::string& what, const std::vector<std::string>& names) {
    return std::ranges::any_of(names, [&](const std::string& one) {
      return std::ranges::any_of(
          names, [&](const std::string& other) { return what == one + " against " + other; });
    });
  };
  for (const Json& row : contrasts->at("signs")) {
    if (row.at("differs") == "layout" && row.at("quantity") != "TPOT")
      scores["signs"].push_back(row);
  }
  for (const Json& row : contrasts->at("pairs")) {
    const auto what = row.at("what").get<std::string>();
    if (among(what, gpus) || among(what, engines)) scores["signs"].push_back(row);
  }
  return scores;
}

std::string choices_text(const Json& scores) {
  if (scores.empty()) return "";
  std::string text =
      "choices: in pairs of measured runs, one or both held out, the better one was predicted for ";
  bool first = true;
  for (const Json& row : scores.at("signs")) {
    const int pairs = row.at("pairs").get<int>();
    text += fmt::format("{}{} in {} of {} (rule of thumb: {:.0f})", first ? "" : ", for ",
                        row.contains("what") ? row.at("what").get<std::string>() : "layouts",
                        row.at("right").get<int>(), pairs, row.at("rule_right").get<double>());
    first = false;
  }
  const Json& regret = scores.at("regret");
  text += fmt::format(
      ". The layout chosen under a TPOT limit lost {} of the best tokens/s per GPU in the mean ({} "
      "by the rule of thumb)",
      error_share(regret.at("mean").get<double>()),
      error_share(regret.at("rule_mean").get<double>()));
  return indented(text, 2);
}

std::string engine_of(const Json& config) {
  // Where pools are apart their own engine stands there; a bare text is the name.
  for (const char* place :
       {"/engine/name", "/engine", "/pools/decode/engine/name", "/pools/decode/engine"}) {
    if (std::string name = text_at(config, place); !name.empty()) return name;
  }
  return "";
}

std::string trust_line_over(std::span<const Json* const> reports, std::string_view engine) {
  const bool apart =
      std::ranges::any_of(reports, [](const Json* report) { return report->contains("pools"); });
  return line_of(reports, engine, apart, {});
}

std::string trust_line(const Json& report, const Json& config) {
  const Json* const one[] = {&report};
  return line_of(one, engine_of(config), config.contains("pools"), subject_of(config));
}

}  // namespace moesim
