// SPDX-License-Identifier: Apache-2.0
// What is left of a file that a program was writing when a signal ended it? Nothing.
#include <csignal>
#include <optional>

#include <sys/wait.h>
#include <unistd.h>

#include "hardware/rng.hpp"
#include "tests/support.hpp"
#include "tests/temporary.hpp"
#include "tools/cli/output.hpp"
#include "traces/requests/request_trace.hpp"
#include "traces/routing_trace.hpp"

namespace moesim::test_output {
namespace {

using test::TemporaryFolder;

/// The signal that ended a child process which did this.
template <class Fn>
int signal_that_ended(Fn&& child) {
  const pid_t process = ::fork();
  if (process == 0) {
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) std::signal(number, SIG_DFL);
    child();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(process, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

std::ptrdiff_t files_in(const std::filesystem::path& folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

TEST_CASE("names are read from a table as they were written, and no spreadsheet computes them") {
  const std::string signs = "=+-@'\",\t\r\n x1";
  Rng rng(1, "names");
  const TemporaryFolder folder;
  for (int draw = 0; draw < 400; ++draw) {
    std::string name;
    for (auto left = 1 + rng.below(5); left > 0; --left) name += signs[rng.below(signs.size())];
    if (name.find_first_not_of(" \t") == std::string::npos) continue;  // no name
    const std::string cell = csv_cell(name);
    INFO(Json(name).dump() << " as " << cell);
    const std::string shown = cell.starts_with('"') ? cell.substr(1) : cell;
    if (name.size() > 1) CHECK(std::string("=+-@\t\r").find(shown[0]) == std::string::npos);
    const auto file =
        folder.write("t.csv", "prompt_tokens,output_tokens,class\n1,1," + cell + "\n");
    const RequestTrace trace = read_request_trace(file);
    REQUIRE(trace.rows.size() == 1);
    CHECK(trace.classes.names()[trace.rows[0].request.recorded_class] == name);
  }
  CHECK(csv_cell(Json(-1.5)) == "-1.5");
}

TEST_CASE("a signal takes along what is not whole, and nothing that is") {
  const int number = GENERATE(SIGINT, SIGTERM, SIGHUP);
  const TemporaryFolder folder;
  const int ended_by = signal_that_ended([&] {
    write_file(folder.path() / "whole", "all of it");
    OutputFile half(folder.path() / "half");
    half.write("half of it");
    std::raise(number);
  });
  CHECK(ended_by == number);
  CHECK(files_in(folder.path()) == 1);
  CHECK(std::filesystem::exists(folder.path() / "whole"));
}

TEST_CASE("a signal takes along the files of a trace that is being written") {
  const TemporaryFolder folder;
  const int ended_by = signal_that_ended([&] {
    std::array<std::optional<RemovedWhenStopped>, 3> guards;
    const auto names = unfinished_trace_files(folder.path());
    for (std::size_t i = 0; i < names.size(); ++i) {
      guards[i].emplace(names[i]);
      std::ofstream(names[i]) << "a part";
    }
    std::raise(SIGINT);
  });
  CHECK(ended_by == SIGINT);
  CHECK(files_in(folder.path()) == 0);
}

TEST_CASE("missing folders appear with a file, and go with a file that is given up") {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "new/er/file";
  require_writable(file);
  CHECK(files_in(folder.path()) == 0);
  { OutputFile given_up(file); }
  CHECK(files_in(folder.path()) == 0);
  write_file(file, "whole");
  CHECK(std::filesystem::exists(file));
  { OutputFile given_up(folder.path() / "new/given_up"); }
  CHECK(std::filesystem::exists(file));
  CHECK_THROWS_AS(require_writable(file / "file"), ConfigError);
  CHECK_THROWS_AS(write_file(file / "none" / "file", "whole"), ConfigError);
}

TEST_CASE("a file that was finished, or given up, is left alone by a later signal") {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "kept";
  const int ended_by = signal_that_ended([&] {
    { const RemovedWhenStopped guard(file); }
    std::ofstream(file) << "kept";
    std::signal(SIGTERM, SIG_DFL);
    OutputFile other(folder.path() / "other");
    std::raise(SIGTERM);
  });
  CHECK(ended_by == SIGTERM);
  CHECK(std::filesystem::exists(file));
}

}  // namespace
}  // namespace moesim::test_output
