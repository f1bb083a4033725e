// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/interrupt.hpp"

#include <atomic>
#include <csignal>
#include <cstring>

#include <unistd.h>

namespace moesim {

namespace {

// The globals: a signal handler can reach nothing else.
std::atomic<bool> noted = false;
std::atomic<const char*> answer_to_give = nullptr;
static_assert(std::atomic<bool>::is_always_lock_free &&
              std::atomic<const char*>::is_always_lock_free);

// A handler may not print as others do.
void say(const char* text) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text, std::strlen(text));
}

void note_and_answer(int received) {
  noted = true;
  std::signal(received, SIG_DFL);
  say("\nmoesim: stopping; ");
  say(answer_to_give);
  say("\n");
}

}  // namespace

InterruptGuard::InterruptGuard(const char* answer) {
  noted = false;  // whatever a guard before this one was told
  answer_to_give = answer;
  for (const int number : {SIGINT, SIGTERM}) std::signal(number, note_and_answer);
}

InterruptGuard::~InterruptGuard() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

bool InterruptGuard::interrupted() { return noted; }

}  // namespace moesim
