// SPDX-License-Identifier: Apache-2.0
#include "tools/python/policies.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "hardware/at.hpp"
#include "hardware/parse_json.hpp"
#include "sim/experiment/policies.hpp"
#include "sim/placement/placement_score.hpp"

namespace moesim {

namespace py = pybind11;

namespace {

// An object of Python that any thread may let go of.
using Held = std::shared_ptr<py::object>;

Held held(py::object object) {
  return {new py::object(std::move(object)), [](py::object* last) {
            const py::gil_scoped_acquire gil;
            delete last;
          }};
}

// Leaked: it may outlive the interpreter's own end.
py::object& cause() {
  static auto* const object = new py::object(py::none());
  return *object;
}

// "ZeroDivisionError: division by zero (my.py:12)", where it was raised.
std::string said_by(const py::error_already_set& error) {
  std::string place;
  py::object trace = error.trace() ? py::object(error.trace()) : py::none();
  while (!trace.is_none()) {
    const py::object code = trace.attr("tb_frame").attr("f_code");
    place = fmt::format(" ({}:{})", py::str(code.attr("co_filename")).cast<std::string>(),
                        trace.attr("tb_lineno").cast<int>());
    trace = trace.attr("tb_next");
  }
  return fmt::format("{}: {}{}", error.type().attr("__name__").cast<std::string>(),
                     py::str(error.value()).cast<std::string>(), place);
}

// Calls `body`, which holds the GIL meanwhile. What Python raises is an error at `place`, apart
// from Ctrl-C.
template <class Body>
auto call(const std::string& place, Body&& body) {
  const py::gil_scoped_acquire gil;
  try {
    return body();
  } catch (py::error_already_set& error) {
    if (error.matches(PyExc_KeyboardInterrupt)) throw;
    cause() = error.value();
    if (error.trace()) PyException_SetTraceback(cause().ptr(), error.trace().ptr());
    throw ConfigError(one_line(fmt::format("{}: {}", place, said_by(error))));
  }
}

[[noreturn]] void refuse(const std::string& place, const std::string& what) {
  throw ConfigError("{}: {}", place, what);
}

template <class T, class Values>
py::array_t<T> array_of(const Values& values) {
  py::array_t<T> array(static_cast<py::ssize_t>(std::size(values)));
  std::copy(std::begin(values), std::end(values), array.mutable_data());
  return array;
}

// A part of memory that `owner` keeps, which nobody may write to.
py::array view(std::span<const std::int32_t> values, const py::handle& owner) {
  py::array_t<std::int32_t> array(static_cast<py::ssize_t>(values.size()), values.data(), owner);
  py::detail::array_proxy(array.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
  return array;
}

// Whole numbers, as many as there should be: a list, or an array of any shape.
std::vector<std::int64_t> whole_numbers(const py::object& answer, std::size_t expected,
                                        const std::string& place, std::string_view of) {
  std::vector<std::int64_t> numbers;
  if (PyList_CheckExact(answer.ptr())) {  // of Python's own numbers, as most are
    const std::span items(PySequence_Fast_ITEMS(answer.ptr()), py::len(answer));
    if (items.size() == expected &&
        std::ranges::all_of(items, [](PyObject* item) { return PyLong_CheckExact(item) != 0; })) {
      for (PyObject* const item : items) numbers.push_back(py::handle(item).cast<std::int64_t>());
      return numbers;
    }
  }
  const py::array array = py::array::ensure(answer);
  if (!array || answer.is_none()) {
    PyErr_Clear();
    refuse(place, fmt::format("returned {}; expected {} whole numbers, {}",
                              py::str(py::type::of(answer).attr("__name__")).cast<std::string>(),
                              expected, of));
  }
  if (at(array.size()) != expected)
    refuse(place, fmt::format("returned {} numbers; expected {}, {}", array.size(), expected, of));
  if (array.dtype().kind() != 'i' && array.dtype().kind() != 'u')
    refuse(place, fmt::format("returned numbers of type {}; expected whole numbers, {}",
                              py::str(array.dtype()).cast<std::string>(), of));
  const py::array_t<std::int64_t, py::array::c_style | py::array::forcecast> whole(array);
  numbers.assign(whole.data(), whole.data() + whole.size());
  return numbers;
}

// A layer's placement as policies see it.
struct PlacementView {
  LayerPlacement placement;
  int layer;
  std::vector<std::int32_t> expert_of_slot, gpu_of_slot, first_slot;

  PlacementView(LayerPlacement of, int number) : placement(std::move(of)), layer(number) {
    for (int slot = 0; slot < placement.slots(); ++slot) {
      expert_of_slot.push_back(placement.expert_of_slot(slot));
      gpu_of_slot.push_back(placement.gpu_of_slot(slot));
    }
    for (int gpu = 0; gpu <= placement.gpus(); ++gpu)
      first_slot.push_back(placement.first_slot(gpu));
  }

  int sound(int expert) const {
    if (expert < 0 || expert >= placement.experts())
      throw py::index_error(fmt::format("expert {} of {} experts, 0 to {}", expert,
                                        placement.experts(), placement.experts() - 1));
    return expert;
  }
};

py::object view_of(const LayerPlacement& placement, int layer) {
  return py::cast(std::make_unique<PlacementView>(placement, layer));
}

// A class of Python and the options that it is made with.
struct Class {
  std::string name;   // "my.py:Mine"
  std::string place;  // of its name in a config, for messages
  Held type;
  Json options;

  // Makes one more object. Needs the GIL.
  py::object make() const {
    py::dict keywords;
    for (const auto& [key, value] : options.items()) {
      if (value.is_string()) keywords[key.c_str()] = value.get<std::string>();
      if (value.is_boolean()) keywords[key.c_str()] = value.get<bool>();
      if (value.is_number_integer()) keywords[key.c_str()] = value.get<std::int64_t>();
      if (value.is_number_float()) keywords[key.c_str()] = value.get<double>();
    }
    return call(place, [&] { return (*type)(**keywords); });
  }

  std::string method(std::string_view of) const { return fmt::format("{}.{}()", name, of); }
  std::string method(std::string_view of, int layer) const {
    return fmt::format("{}, layer {}", method(of), layer);
  }
};

constexpr Form flag_or_text = form::flag.or_a(form::text);
constexpr Form any_scalar = form::number(Range{}).or_a(flag_or_text);

std::span<const Key> class_keys() {
  static constexpr Key keys[] = {
      {"*", any_scalar, unset("as the class says"), "an argument of the class"}};
  return keys;
}

// The class that "type" names; what else nobody has read are its arguments. Makes an object, which
// shows early whether the class takes these, and asks for the methods of one of the sets.
Class read_class(ConfigReader& reader, std::string_view kind,
                 std::initializer_list<const char*> methods) {
  const ConfigNode type = reader.node().child("type");
  Class read{type.text(), fmt::format("{}:{}", type.file().string(), type.pointer()), {}, {}};
  for (const std::string& key : reader.unread()) {
    const ConfigNode option = reader.child(key);
    const Json& value = option.json();
    if (value.is_string())
      option.text();
    else if (value.is_boolean())
      option.flag();
    else
      option.number();
    read.options[key] = value;
  }
  const std::string file(file_of_class(read.name));
  const py::gil_scoped_acquire gil;
  try {
    py::module_::import("numpy");
  } catch (const py::error_already_set&) {
    type.fail("policies in Python get arrays of numpy, which is not there; install numpy");
  }
  read.type = call(read.place, [&] {
    return held(
        py::module_::import("moesim").attr("_class_of")(read.name, type.relative(file).string()));
  });
  const py::object one = read.make();
  if (std::ranges::none_of(methods, [&](const char* name) { return py::hasattr(one, name); }))
    type.fail("{} is no {}: the class has no method {}", read.name, kind,
              fmt::join(methods, " or "));
  return read;
}

class PythonTokenRouter final : public TokenRouter {
 public:
  PythonTokenRouter(Class from, const RoutingContext& context) : from_(std::move(from)) {
    const py::gil_scoped_acquire gil;
    py::object policy = from_.make();
    by_rows_ = py::hasattr(policy, "route_rows");
    global_ = !by_rows_ && call(from_.place, [&] {
      return py::getattr(policy, "needs_global_counts", py::bool_(true)).cast<bool>();
    });
    route_ = held(policy.attr(by_rows_ ? "route_rows" : "route"));
    for (const LayerPlacement& layer : context.placement)
      placements_.push_back(held(view_of(layer, static_cast<int>(placements_.size()))));
  }

  void route(const RoutingProblem& problem, SlotChoice choice) const override {
    const py::gil_scoped_acquire gil;
    by_rows_ ? route_rows(problem, choice) : route_counts(problem, choice.tokens_of_slot);
  }

  bool needs_global_counts() const override { return global_; }
  bool needs_token_rows() const override { return by_rows_; }

 private:
  void route_counts(const RoutingProblem& problem, std::span<std::int32_t> tokens_of_slot) const {
    const std::string place = from_.method("route", problem.layer);
    const std::vector<std::int64_t> answer = call(place, [&] {
      return whole_numbers(
          (*route_)(array_of<std::int32_t>(problem.tokens), *placements_[at(problem.layer)]),
          tokens_of_slot.size(), place, "the tokens of every slot");
    });
    for (std::size_t slot = 0; slot < answer.size(); ++slot) {
      if (answer[slot] < 0 || answer[slot] > std::numeric_limits<std::int32_t>::max())
        refuse(
            place,
            fmt::format(
                "slot {} is given {} tokens; expected 0 or more, and those of its expert at most",
                slot, answer[slot]));
    }
    for (int expert = 0; expert < problem.placement.experts(); ++expert) {
      std::int64_t sum = 0;
      for (const std::int32_t slot : problem.placement.slots_of(expert)) {
        sum += answer[at(slot)];
        tokens_of_slot[at(slot)] = static_cast<std::int32_t>(answer[at(slot)]);
      }
      if (sum != problem.tokens[at(expert)])
        refuse(place, fmt::format("expert {} has {} tokens, but its slots ({}) are given {}",
                                  expert, problem.tokens[at(expert)],
                                  fmt::join(problem.placement.slots_of(expert), ", "), sum));
    }
  }

  void route_rows(const RoutingProblem& problem, SlotChoice choice) const {
    const std::string place = from_.method("route_rows", problem.layer);
    const auto tokens = static_cast<py::ssize_t>(problem.rows.source_rank.size());
    const auto k = static_cast<py::ssize_t>(problem.rows.k());
    const std::vector<std::int64_t> answer = call(place, [&] {
      return whole_numbers((*route_)(array_of<std::uint16_t>(problem.rows.ids).reshape({tokens, k}),
                                     array_of<std::int32_t>(problem.rows.source_rank),
                                     *placements_[at(problem.layer)]),
                           problem.rows.ids.size(), place, "the slot of every selection");
    });
    std::ranges::fill(choice.tokens_of_slot, 0);
    for (std::size_t i = 0; i < answer.size(); ++i) {
      const bool dropped = !problem.rows.dropped.empty() && problem.rows.dropped[i] != 0;
      choice.slot_of_selection[i] = -1;
      if (dropped) continue;
      const int expert = problem.rows.ids[i];
      const auto slots = problem.placement.slots_of(expert);
      if (std::ranges::find(slots, answer[i]) == slots.end())
        refuse(place,
               fmt::format(
                   "token {} picks expert {}, but slot {} does not hold the expert; its slots: {}",
                   i / problem.rows.k(), expert, answer[i], fmt::join(slots, ", ")));
      choice.slot_of_selection[i] = static_cast<std::int32_t>(answer[i]);
      ++choice.tokens_of_slot[at(answer[i])];
    }
  }

  Class from_;
  bool by_rows_ = false, global_ = true;
  Held route_;
  std::vector<Held> placements_;  // by layer
};

TokenRouterFactory make_token_router(ConfigReader& reader) {
  return [from = read_class(reader, "token router", {"route", "route_rows"})](
             const RoutingContext& context) {
    return std::make_unique<PythonTokenRouter>(from, context);
  };
}

// The slots of a layer, checked. `experts` is [gpus, slots_per_gpu].
LayerPlacement placed(const std::vector<std::int64_t>& experts, const PlacementProblem& problem,
                      const std::string& place) {
  std::vector<std::vector<int>> on_gpu(at(problem.gpus));
  std::vector<char> has_slot(at(problem.experts));
  for (std::size_t slot = 0; slot < experts.size(); ++slot) {
    const std::int64_t expert = experts[slot];
    if (expert < 0 || expert >= problem.experts)
      refuse(place, fmt::format("slot {} holds expert {}; expected 0 to {}", slot, expert,
                                problem.experts - 1));
    on_gpu[slot / at(problem.slots_per_gpu)].push_back(static_cast<int>(expert));
    has_slot[at(expert)] = 1;
  }
  const auto none = std::ranges::find(has_slot, 0);
  if (none != has_slot.end())
    refuse(place,
           fmt::format("expert {} has no slot; every expert needs one", none - has_slot.begin()));
  return {problem.experts, on_gpu};
}

constexpr std::string_view of_slots = "the expert of every slot, GPU by GPU";

std::size_t slots_of(const PlacementProblem& problem) {
  return at(problem.gpus) * at(problem.slots_per_gpu);
}

class PythonPlacer final : public Placer {
 public:
  explicit PythonPlacer(Class from) : from_(std::move(from)) {
    const py::gil_scoped_acquire gil;
    policy_ = held(from_.make());
  }

  LayerPlacement place(const PlacementProblem& problem, const LayerStatistics& seen,
                       int layer) const override {
    const std::string place = from_.method("place", layer);
    return placed(call(place,
                       [&] {
                         return whole_numbers(
                             policy_->attr("place")(array_of<double>(seen.load), problem),
                             slots_of(problem), place, of_slots);
                       }),
                  problem, place);
  }
  bool uses_load() const override { return true; }

 private:
  Class from_;
  Held policy_;
};

std::unique_ptr<Placer> make_placer(ConfigReader& reader) {
  return std::make_unique<PythonPlacer>(read_class(reader, "placer", {"place"}));
}

// Ranks as a request router sees them: an array for each fact, [ranks].
py::object ranks_of(std::span<const RankLoad> ranks) {
  const auto each = [&](auto member) {
    std::vector<std::int64_t> values;
    std::ranges::transform(ranks, std::back_inserter(values), member);
    return array_of<std::int64_t>(values);
  };
  return py::module_::import("types").attr("SimpleNamespace")(
      py::arg("rank") = each(&RankLoad::rank), py::arg("group") = each(&RankLoad::group),
      py::arg("kv_tokens") = each(&RankLoad::kv_tokens),
      py::arg("waiting") = each(&RankLoad::waiting), py::arg("running") = each(&RankLoad::running),
      py::arg("seats") = each(&RankLoad::seats), py::arg("blocks") = each(&RankLoad::blocks),
      py::arg("total_blocks") = each(&RankLoad::total_blocks));
}

class PythonRequestRouter final : public RequestRouter {
 public:
  explicit PythonRequestRouter(Class from) : from_(std::move(from)) {
    const py::gil_scoped_acquire gil;
    policy_ = held(from_.make());
  }

  void route(const RoutingState& state, std::vector<Assignment>& assignments) override {
    const std::string place = from_.method("route");
    const PendingRequest& request = state.pending.front();
    const std::int64_t rank = call(place, [&] {
      const py::object answer = policy_->attr("route")(request, ranks_of(state.ranks));
      return answer.is_none() ? -1 : py::int_(answer).cast<std::int64_t>();
    });
    const auto found = std::ranges::find(state.ranks, rank, &RankLoad::rank);
    if (found != state.ranks.end()) {
      assignments.push_back({0, found->rank, 0});
    } else if (rank != -1) {
      refuse(place, fmt::format("there is no rank {} to route to; one of: {}", rank,
                                fmt::join(numbers_of(state.ranks), ", ")));
    }
  }

 private:
  static std::vector<int> numbers_of(std::span<const RankLoad> ranks) {
    std::vector<int> numbers;
    for (const RankLoad& load : ranks) numbers.push_back(load.rank);
    return numbers;
  }

  Class from_;
  Held policy_;
};

RequestRouterFactory make_request_router(ConfigReader& reader, const RouterContext&) {
  return [from = read_class(reader, "request router", {"route"})] {
    return std::make_unique<PythonRequestRouter>(from);
  };
}

class PythonRebalancer final : public Rebalancer {
 public:
  PythonRebalancer(Class from, PlacementProblem problem, const Mover& mover)
      : from_(std::move(from)), problem_(std::move(problem)), mover_(mover) {
    const py::gil_scoped_acquire gil;
    policy_ = held(from_.make());
    synchronous_ = call(from_.place, [&] {
      return py::getattr(*policy_, "synchronous", py::bool_(true)).cast<bool>();
    });
  }

  std::optional<RebalancePlan> after_step(const StepSeen& seen) override {
    const bool all_live = std::ranges::all_of(seen.live, [](char live) { return live != 0; });
    if (seen.moving || !all_live) return std::nullopt;
    const std::string place = from_.method("after_step");
    std::map<int, std::vector<std::int64_t>> asked;
    const bool plans = call(place, [&] {
      const auto layers = static_cast<py::ssize_t>(seen.placement.size());
      const py::object answer = policy_->attr("after_step")(
          array_of<std::int32_t>(seen.tokens).reshape({layers, py::ssize_t{problem_.experts}}),
          shown(seen.placement));
      if (answer.is_none()) return false;
      for (const auto& [layer, experts] : py::dict(answer))
        asked[py::int_(py::reinterpret_borrow<py::object>(layer)).cast<int>()] = whole_numbers(
            py::reinterpret_borrow<py::object>(experts), slots_of(problem_), place, of_slots);
      return true;
    });
    if (!plans) return std::nullopt;
    return plan(seen, asked, place);
  }

  int buffer_slots() const override { return problem_.slots_per_gpu; }

 private:
  // The placements of all layers, those made anew that have changed.
  py::tuple shown(const ExpertPlacement& now) {
    py::tuple views(now.size());
    shown_.resize(now.size());
    for (std::size_t layer = 0; layer < now.size(); ++layer) {
      if (!shown_[layer] || shown_[layer]->cast<PlacementView&>().placement != now[layer])
        shown_[layer] = held(view_of(now[layer], static_cast<int>(layer)));
      views[layer] = *shown_[layer];
    }
    return views;
  }

  RebalancePlan plan(const StepSeen& seen, const std::map<int, std::vector<std::int64_t>>& asked,
                     const std::string& place) const {
    RebalancePlan plan;
    plan.synchronous = synchronous_;
    plan.imbalance_before = 0;
    double gained = 0;
    for (std::size_t layer = 0; layer < seen.placement.size(); ++layer) {
      const auto tokens = seen.tokens.subspan(layer * at(problem_.experts), at(problem_.experts));
      const ExpertLoad load(tokens.begin(), tokens.end());
      const LayerPlacement& now = seen.placement[layer];
      const double before = imbalance(now, load);
      plan.imbalance_before += before / static_cast<double>(seen.placement.size());
      const auto wanted = asked.find(static_cast<int>(layer));
      if (wanted == asked.end()) continue;
      LayerPlacement next = mover_.arranged(
          now, placed(wanted->second, problem_, fmt::format("{}, layer {}", place, layer)));
      if (next == now) continue;
      gained += (before - imbalance(next, load)) / static_cast<double>(seen.placement.size());
      plan.changes.push_back({static_cast<int>(layer), std::move(next)});
    }
    for (const auto& [layer, experts] : asked) {
      if (layer < 0 || layer >= std::ssize(seen.placement))
        refuse(place, fmt::format("there is no layer {}; layers are 0 to {}", layer,
                                  seen.placement.size() - 1));
    }
    plan.imbalance_after = plan.imbalance_before - gained;
    return plan;
  }

  Class from_;
  PlacementProblem problem_;
  Mover mover_;
  bool synchronous_ = true;
  Held policy_;
  std::vector<Held> shown_;  // by layer
};

RebalancerFactory make_rebalancer(ConfigReader& reader, const RebalancingContext& context) {
  return
      [from = read_class(reader, "rebalancer", {"after_step"}), problem = context.problem,
       mover = context.mover] { return std::make_unique<PythonRebalancer>(from, problem, mover); };
}

// Texts of rows, which outlive the tables.
std::string_view kept(const std::string& name) {
  static std::mutex adding;
  static std::set<std::string> names;
  const std::lock_guard lock(adding);
  return *names.insert(name).first;
}

template <class Table>
void take_classes(decltype(Table::Entry::make) make) {
  Table::of_class = [make](const ConfigNode& type) {
    return typename Table::Entry{kept(type.text()), "a class of Python", make, class_keys};
  };
}

}  // namespace

py::object take_cause() { return std::exchange(cause(), py::none()); }

void add_policies(py::module_& module) {
  py::class_<PlacementView>(module, "Placement", py::dynamic_attr(),
                            "One layer's placement: the expert of every slot of each GPU.")
      .def_readonly("layer", &PlacementView::layer)
      .def_property_readonly("experts",
                             [](const PlacementView& v) { return v.placement.experts(); })
      .def_property_readonly("gpus", [](const PlacementView& v) { return v.placement.gpus(); })
      .def_property_readonly("slots", [](const PlacementView& v) { return v.placement.slots(); })
      .def_property_readonly("expert_of_slot",
                             [](const py::object& self) {
                               return view(self.cast<PlacementView&>().expert_of_slot, self);
                             })
      .def_property_readonly("gpu_of_slot",
                             [](const py::object& self) {
                               return view(self.cast<PlacementView&>().gpu_of_slot, self);
                             })
      .def_property_readonly(
          "first_slot",
          [](const py::object& self) { return view(self.cast<PlacementView&>().first_slot, self); },
          "The first slot of each GPU, and the end.")
      .def(
          "slots_of",
          [](const py::object& self, int expert) {
            const auto& v = self.cast<PlacementView&>();
            return view(v.placement.slots_of(v.sound(expert)), self);
          },
          "The slots of an expert, ascending.")
      .def(
          "hosts_of",
          [](const py::object& self, int expert) {
            const auto& v = self.cast<PlacementView&>();
            return view(v.placement.hosts_of(v.sound(expert)), self);
          },
          "The first slot of an expert on each GPU that hosts the expert, by GPU.")
      .def(
          "host_gpus_of",
          [](const py::object& self, int expert) {
            const auto& v = self.cast<PlacementView&>();
            return view(v.placement.host_gpus_of(v.sound(expert)), self);
          },
          "The GPUs of hosts_of().");
  py::class_<PlacementProblem>(module, "PlacementProblem", "Sizes that a placement is made for.")
      .def_readonly("experts", &PlacementProblem::experts)
      .def_readonly("gpus", &PlacementProblem::gpus)
      .def_readonly("slots_per_gpu", &PlacementProblem::slots_per_gpu)
      .def_readonly("nodes", &PlacementProblem::nodes)
      .def_readonly("groups", &PlacementProblem::groups);
  py::class_<PendingRequest>(module, "Request", "A request that waits for a rank.")
      .def_readonly("id", &PendingRequest::id)
      .def_readonly("prompt_tokens", &PendingRequest::prompt_tokens)
      .def_readonly("blocks", &PendingRequest::blocks);
  take_classes<Registry<TokenRouterFactory>>(make_token_router);
  take_classes<Registry<Placer>>(make_placer);
  take_classes<Registry<RequestRouterFactory, const RouterContext&>>(make_request_router);
  take_classes<Registry<RebalancerFactory, const RebalancingContext&>>(make_rebalancer);
}

}  // namespace moesim
