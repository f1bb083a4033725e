// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/interrupt.hpp"

#include <array>
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

constexpr std::array noted_signals{SIGINT, SIGTERM};
std::array<struct sigaction, noted_signals.size()> handled_before;

// A handler may not print as others do.
void say(const char* text) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text, std::strlen(text));
}

void note_and_answer(int received) {
  noted = true;
  ::sigaction(received, &handled_before[received == SIGINT ? 0 : 1], nullptr);
  say("\nmoesim: stopping; ");
  say(answer_to_give);
  say("\n");
}

}  // namespace

InterruptGuard::InterruptGuard(const char* answer) {
  noted = false;  // whatever a guard before this one was told
  answer_to_give = answer;
  for (std::size_t i = 0; i < noted_signals.size(); ++i) {
    ::sigaction(noted_signals[i], nullptr, &handled_before[i]);
    std::signal(noted_signals[i], note_and_answer);
  }
}

InterruptGuard::~InterruptGuard() {
  for (std::size_t i = 0; i < noted_signals.size(); ++i)
    ::sigaction(noted_signals[i], &handled_before[i], nullptr);
}

bool InterruptGuard::interrupted() { return noted; }

}  // namespace moesim
