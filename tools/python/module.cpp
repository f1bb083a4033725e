// SPDX-License-Identifier: Apache-2.0
// The module _moesim: the verbs of the command line, in the process of Python, and policies that
// are classes of Python.
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include "hardware/shipped.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/program.hpp"
#include "tools/cli/progress.hpp"
#include "tools/python/policies.hpp"
#include "tools/run/price.hpp"

namespace moesim {

namespace py = pybind11;

namespace {

// Remarks go to Python's logging.
class LoggingSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
  void sink_it_(const spdlog::details::log_msg& message) override {
    const py::gil_scoped_acquire gil;
    constexpr int per_level = 10;  // info is 20, warn 30
    py::module_::import("logging").attr("getLogger")("moesim").attr("log")(
        per_level * message.level, "%s",
        std::string(message.payload.data(), message.payload.size()));
  }
  void flush_() override {}
};

// Tells Python how far work is, at most twenty times a second, and lets Ctrl-C end it.
class Watch {
 public:
  explicit Watch(py::object told) : told_(std::move(told)) {
    ProgressBar::watcher = [this](const std::string& what, std::int64_t done, std::int64_t total) {
      tell(what, done, total);
    };
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  ~Watch() { ProgressBar::watcher = nullptr; }

 private:
  void tell(const std::string& what, std::int64_t done, std::int64_t total) {
    using namespace std::chrono_literals;
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < 50ms && done != total) return;
    last_ = now;
    const py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (!told_.is_none()) told_(what, done, total);
  }

  py::object told_;
  std::chrono::steady_clock::time_point last_{};
};

// Progress, printed text and Ctrl-C are of the process: one call at a time.
std::unique_lock<std::mutex> alone() {
  static std::mutex running;
  std::unique_lock lock(running, std::try_to_lock);
  if (!lock)
    throw ConfigError(
        "another call of moesim is running in this process; wait for its end, or use a process for "
        "each");
  take_cause();
  return lock;
}

int run_words(std::vector<std::string> words) {
  words.insert(words.begin(), std::string(moesim_program().name));
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  return run_verb(moesim_program(), std::move(pointers));
}

// Runs a verb as the command line does, and returns its exit code and what it prints.
std::pair<int, std::string> run_and_read(std::vector<std::string> words, py::object progress) {
  const std::unique_lock lock = alone();
  const Watch watch(std::move(progress));
  const PrintedText printed;
  const py::gil_scoped_release release;
  const int code = run_words(std::move(words));
  return {code, printed.text()};
}

// Prices of the deployment that `moesim price` with these words would serve.
class PricedSteps {
 public:
  explicit PricedSteps(std::vector<std::string> words) {
    const std::unique_lock lock = alone();
    const Watch watch{py::none()};
    const py::gil_scoped_release release;
    const struct Taken {
      ~Taken() { take_priced = nullptr; }
    } taken;
    take_priced = [this](std::shared_ptr<const Deployment> priced) {
      prices_.emplace(*priced);
      deployment_ = std::move(priced);
    };
    run_words(std::move(words));
    if (!prices_) throw ConfigError("StepModel: these options print a text; leave them out");
  }

  // An answer to each batch, a line each.
  std::vector<std::string> price(const std::vector<std::string>& batches) {
    const std::unique_lock lock = alone();
    const Watch watch{py::none()};
    const py::gil_scoped_release release;
    ProgressBar progress("batches");
    std::vector<std::string> answers;
    for (const std::string& batch : batches) {
      answers.push_back(prices_->answer(batch));
      progress.update(std::ssize(answers), std::ssize(batches));
    }
    return answers;
  }

 private:
  std::shared_ptr<const Deployment> deployment_;
  std::optional<StepPrices> prices_;
};

// The command line itself.
int run_program(std::vector<std::string> words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  const py::gil_scoped_release release;
  return run_command_line(moesim_program(), static_cast<int>(pointers.size()), pointers.data());
}

}  // namespace

}  // namespace moesim

PYBIND11_MODULE(_moesim, module) {
  using namespace moesim;
  pybind11::register_exception<ConfigError>(module, "Refused");
  module.def("run_words", run_and_read, pybind11::arg("words"), pybind11::arg("progress"));
  module.def("run_program", run_program);
  pybind11::class_<PricedSteps>(module, "StepModel")
      .def(pybind11::init<std::vector<std::string>>())
      .def("price", &PricedSteps::price);
  module.def("log_to_python", [] {
    spdlog::set_default_logger(
        std::make_shared<spdlog::logger>("moesim", std::make_shared<LoggingSink>()));
  });
  module.def("take_cause", take_cause);
  module.def("data_folder", [] { return data_folder().string(); });
  module.attr("version") = MOESIM_VERSION;
  add_policies(module);
}
