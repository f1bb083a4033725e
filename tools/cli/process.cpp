// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/process.hpp"

#include <array>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hardware/config.hpp"

namespace moesim {

std::string run_program(const std::vector<std::string>& command, std::string_view advice) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw ConfigError(std::strerror(errno));
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t child = 0;
  const int error =
      ::posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  std::string text;
  std::array<char, 4096> buffer{};
  for (ssize_t n = 0; error == 0 && (n = ::read(ends[0], buffer.data(), buffer.size())) > 0;)
    text.append(buffer.data(), at(n));
  ::close(ends[0]);
  if (error != 0) {
    throw ConfigError("{} cannot be run ({}); {}", command.front(), std::strerror(error), advice);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw ConfigError("{} failed; its messages are above", command.front());
  }
  return text;
}

}  // namespace moesim
