// SPDX-License-Identifier: Apache-2.0
#include "sim/experiment/anchor.hpp"

#include <algorithm>
#include <cmath>

namespace moesim {

namespace {

constexpr Form positive = form::number(1e-6, 1e12);
constexpr Form slope = form::number(-10, 10);

std::span<const Key> center_keys() {
  static constexpr Key keys[] = {{"concurrency", positive, required, "requests in flight"},
                                 {"prompt", positive, required, "tokens"},
                                 {"output", positive, required, "tokens"}};
  return keys;
}

std::span<const Key> slope_keys() {
  static constexpr Key keys[] = {{"concurrency", slope, "0", "exponent of the requests in flight"},
                                 {"prompt", slope, "0", "exponent of the prompt's tokens"},
                                 {"output", slope, "0", "exponent of the output's tokens"}};
  return keys;
}

std::span<const Key> fit_keys() {
  static constexpr Key keys[] = {
      {"factor", positive, required, "measured over predicted, at the center"},
      {"center", form::object(center_keys), required, "geometric mean of the runs"},
      {"slope", form::object(slope_keys), "{}", "exponents of the load over the center's"},
      {"runs", form::integer(positive_count), required, "number of runs that were fitted"},
      {"leave_one_out", form::number(non_negative), required, "median error of runs left out"}};
  return keys;
}

ServingLoad read_center(ConfigReader& r) {
  return {r.number("concurrency"), r.number("prompt"), r.number("output")};
}

AnchorFit read_fit(const ConfigNode& node) {
  return read_object(node, fit_keys, [](ConfigReader& r) {
    return AnchorFit{.factor = r.number("factor"),
                     .center = read_object(r.child("center"), center_keys, read_center),
                     .slope = read_object(r.child("slope"), slope_keys, read_center),
                     .runs = static_cast<int>(r.integer("runs")),
                     .leave_one_out = r.number("leave_one_out")};
  });
}

OrderedJson to_json(const ServingLoad& load) {
  return {{"concurrency", load.concurrency}, {"prompt", load.prompt}, {"output", load.output}};
}

OrderedJson to_json(const AnchorFit& fit) {
  return {{"factor", fit.factor},
          {"center", to_json(fit.center)},
          {"slope", to_json(fit.slope)},
          {"runs", fit.runs},
          {"leave_one_out", fit.leave_one_out}};
}

double power(double value, double center, double exponent) {
  return value > 0 ? std::pow(value / center, exponent) : 1;
}

}  // namespace

double AnchorFit::at(const ServingLoad& load) const {
  return factor * power(load.concurrency, center.concurrency, slope.concurrency) *
         power(load.prompt, center.prompt, slope.prompt) *
         power(load.output, center.output, slope.output);
}

std::span<const Key> anchor_keys() {
  static constexpr Form layout_texts = form::list(form::text);
  static constexpr Key keys[] = {
      {"deployment", form::text, required, "what was measured"},
      {"tpot", form::object(fit_keys), unset("as predicted"),
       "correction of the time per output token"},
      {"ttft", form::object(fit_keys), unset("as predicted"),
       "correction of the time to first token"},
      {"model", form::text, unset("any"),
       "the measured model; experiments of other models refuse the anchor"},
      {"gpu", form::text, unset("any"),
       "the measured GPU; experiments on other GPUs refuse the anchor"},
      {"layouts", layout_texts, unset("any"), "the measured layouts; other layouts get a remark"}};
  return keys;
}

bool Anchor::holds_at(const std::string& layout) const {
  return layouts.empty() || std::ranges::find(layouts, layout) != layouts.end();
}

Anchor read_anchor(const ConfigNode& node) {
  return read_object(node, anchor_keys, [](ConfigReader& r) {
    Anchor anchor{.deployment = r.text("deployment"), .tpot = {}, .ttft = {}};
    if (r.optional("tpot")) anchor.tpot = read_fit(r.child("tpot"));
    if (r.optional("ttft")) anchor.ttft = read_fit(r.child("ttft"));
    if (r.optional("model")) anchor.model = r.text("model");
    if (r.optional("gpu")) anchor.gpu = r.text("gpu");
    if (r.optional("layouts"))
      for (const ConfigNode& layout : r.child("layouts").list())
        anchor.layouts.push_back(layout.text());
    return anchor;
  });
}

OrderedJson to_json(const Anchor& anchor) {
  OrderedJson json{{"deployment", anchor.deployment}};
  if (!anchor.model.empty()) json["model"] = anchor.model;
  if (!anchor.gpu.empty()) json["gpu"] = anchor.gpu;
  if (!anchor.layouts.empty()) json["layouts"] = anchor.layouts;
  if (anchor.tpot.runs > 0) json["tpot"] = to_json(anchor.tpot);
  if (anchor.ttft.runs > 0) json["ttft"] = to_json(anchor.ttft);
  return json;
}

}  // namespace moesim
