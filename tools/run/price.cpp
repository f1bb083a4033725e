// SPDX-License-Identifier: Apache-2.0
#include "tools/run/price.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "hardware/at.hpp"
#include "tools/cli/interrupt.hpp"
#include "tools/cli/output.hpp"

namespace moesim {

namespace {

// --- what a caller sends -------------------------------------------------------------------------

struct ListOfRank {
  std::string_view key;
  std::vector<std::int32_t> RankWork::*list;
  std::int64_t least, most;
};
constexpr std::array lists_of_rank{ListOfRank{"new", &RankWork::new_tokens, 1, 1 << 20},
                                   ListOfRank{"context", &RankWork::context, 0, 1 << 24},
                                   ListOfRank{"prompt", &RankWork::prompt, 1, 1 << 24},
                                   ListOfRank{"request", &RankWork::request, 0, (1 << 24) - 1}};

// Reads by hand, since a caller asks thousands of times a second: a node for each number takes
// longer than the price of a step.
class Line {
 public:
  Line(std::string_view text, std::string name) : name_(std::move(name)) {
    json_ = Json::parse(text, nullptr, false);
    if (json_.is_discarded()) fail("", "is not JSON; give {\"ranks\": [...]} in one line");
    if (!json_.is_object() || json_.size() != 1 || !json_.contains("ranks") ||
        !json_["ranks"].is_array())
      fail("", "expected an object with one key, \"ranks\", and a list as its value");
  }

  void read(std::vector<RankWork>& ranks) const {
    const Json& asked = json_["ranks"];
    if (asked.size() != ranks.size()) {
      fail("/ranks", fmt::format("has {} ranks, and the deployment {}; an idle rank is {{}}",
                                 asked.size(), ranks.size()));
    }
    bool any = false;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      read_rank(asked[r], fmt::format("/ranks/{}", r), ranks[r]);
      any = any || !ranks[r].new_tokens.empty();
    }
    if (!any) fail("/ranks", "no rank has a new token; give at least one");
  }

 private:
  [[noreturn]] void fail(const std::string& pointer, std::string_view message) const {
    ConfigNode({}, name_, pointer).fail(message);
  }

  void read_rank(const Json& rank, const std::string& pointer, RankWork& asked) const {
    if (!rank.is_object()) fail(pointer, "expected an object, as {\"new\": [1], \"context\": [9]}");
    std::size_t known = 0;
    for (const auto& [key, list, least, most] : lists_of_rank) {
      (asked.*list).clear();
      const auto found = rank.find(key);
      if (found == rank.end()) continue;
      ++known;
      const std::string place = fmt::format("{}/{}", pointer, key);
      if (!found->is_array()) fail(place, "expected a list, a number for each sequence");
      for (const Json& number : *found) {
        const bool whole = number.is_number_integer();
        const auto value = whole ? number.get<std::int64_t>() : -1;
        if (!whole || value < least || value > most) {
          fail(fmt::format("{}/{}", place, (asked.*list).size()),
               fmt::format("expected a whole number from {} to {}", least, most));
        }
        (asked.*list).push_back(static_cast<std::int32_t>(value));
      }
    }
    if (known != rank.size()) fail(pointer, "has other keys than new, context, prompt, request");
    check_lengths(asked, pointer);
  }

  void check_lengths(const RankWork& rank, const std::string& pointer) const {
    const std::size_t sequences = rank.new_tokens.size();
    if (rank.context.size() != sequences)
      fail(pointer, "\"new\" and \"context\" must have a number for each sequence");
    for (const auto* given : {&rank.prompt, &rank.request}) {
      if (!given->empty() && given->size() != sequences)
        fail(pointer,
             "\"prompt\" and \"request\" must have a number for each sequence, or be left out");
    }
    if (!rank.request.empty() && rank.prompt.empty())
      fail(pointer, "\"request\" needs \"prompt\", the tokens of each prompt");
  }

  std::string name_;
  Json json_;
};

}  // namespace

// --- what it is answered -------------------------------------------------------------------------

StepPrices::StepPrices(const Deployment& deployment)
    : deployment_(deployment), pricer_(deployment), asked_(at(deployment.parallel.dp)) {}

std::string StepPrices::answer(std::string_view text) {
  ++lines_;
  Line(text, fmt::format("batch {}", lines_)).read(asked_);
  return to_text(pricer_.price(asked_));
}

double StepPrices::wait(const StepCost& cost, int rank) const {
  const ParallelPlan& plan = deployment_.parallel;
  double sum = 0;
  for (int stage = 0; stage < plan.pp; ++stage) {
    for (int i = 0; i < plan.tp; ++i)
      sum += cost.idle[at(stage * plan.stage_gpus() + rank * plan.tp + i)];
  }
  return sum / (plan.pp * plan.tp);
}

void StepPrices::count(const LayerOutcome& layer) {
  active_ += layer.active_experts;
  activated_.resize(layer.load.activated.size());
  for (std::size_t r = 0; r < activated_.size(); ++r)
    activated_[r] += layer.load.activated[r] + layer.load.sliced;
}

std::string StepPrices::to_text(const StepCost& cost) {
  active_ = 0;
  activated_.assign(activated_.size(), 0);
  for (const LayerOutcome& layer : cost.layers) count(layer);
  for (const StepSample* sample : cost.samples) {
    for (int layer = 0; layer < sample->moe_layers; ++layer) count(sample->layer(layer));
  }
  const double layers = std::max(1, deployment_.model.moe_layers() * cost.passes);
  for (double& slots : activated_) slots /= layers;
  waits_.clear();
  for (int rank = 0; rank < deployment_.parallel.dp; ++rank) waits_.push_back(wait(cost, rank));
  const double total = cost.total.count();
  std::string text = fmt::format("{{\"seconds\":{},\"holds\":\"{}\",\"rank_seconds\":[", total,
                                 step_kind_names[at(pricer_.kind())]);
  for (std::size_t r = 0; r < waits_.size(); ++r)
    fmt::format_to(std::back_inserter(text), "{}{:.9f}", r == 0 ? "" : ",", total - waits_[r]);
  fmt::format_to(std::back_inserter(text),
                 "],\"wait_seconds\":[{:.9f}],\"active_experts\":{:.3f},\"activated\":[{:.3f}]}}\n",
                 fmt::join(waits_, ","), active_ / layers, fmt::join(activated_, ","));
  return text;
}

namespace {

// --- who asks ------------------------------------------------------------------------------------

/// A file descriptor, closed with the object.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int number() const { return number_; }

 private:
  int number_;
};

// True if something can be read before the program is told to stop.
bool wait_for(int descriptor) {
  constexpr int ms = 100;  // until it is seen that the program is told to stop
  pollfd asked{descriptor, POLLIN, 0};
  while (!InterruptGuard::interrupted()) {
    if (::poll(&asked, 1, ms) > 0) return true;
  }
  return false;
}

using Send = std::function<bool(std::string_view)>;

// Answers line after line until there are no more. What a caller sent at once is answered at once.
void answer_lines(int descriptor, const std::function<std::string(std::string_view)>& answer,
                  const Send& send) {
  std::array<char, 1 << 16> piece{};
  std::string lines, answers;
  while (wait_for(descriptor)) {
    const ssize_t size = ::read(descriptor, piece.data(), piece.size());
    if (size < 0 && errno == EINTR) continue;
    if (size > 0) lines.append(piece.data(), at(size));
    if (size <= 0 && !lines.empty() && lines.back() != '\n') lines += '\n';
    std::size_t begin = 0;
    for (std::size_t end; (end = lines.find('\n', begin)) != lines.npos; begin = end + 1) {
      const std::string_view line(lines.data() + begin, end - begin);
      if (line.find_first_not_of(" \t\r") == line.npos) continue;
      try {
        answers += answer(line);
      } catch (...) {
        send(answers);  // to the lines before
        throw;
      }
    }
    lines.erase(0, begin);
    if (!send(answers) || size <= 0) return;
    answers.clear();
  }
}

bool send_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = ::send(descriptor, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    text.remove_prefix(at(sent));
  }
  return true;
}

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    throw ConfigError("--socket {}: the path has {} characters; a socket's has at most {}", path,
                      path.size(), sizeof address.sun_path - 1);
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

}  // namespace

void serve_prices(const Deployment& deployment, const std::string& path) {
  const sockaddr_un address = address_of(path);
  const InterruptGuard guard("the socket is removed");
  const Descriptor listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::bind(listener.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener.number(), SOMAXCONN) != 0) {
    throw ConfigError("--socket {}: {}; name a path that does not exist, in a folder that does",
                      path, std::strerror(errno));
  }
  spdlog::info("{}: a batch a line, an answer a line; Ctrl-C ends", path);
  while (wait_for(listener.number())) {
    const Descriptor caller(::accept4(listener.number(), nullptr, nullptr, SOCK_CLOEXEC));
    if (caller.number() < 0) continue;
    StepPrices prices(deployment);
    answer_lines(
        caller.number(),
        [&](std::string_view line) -> std::string {
          try {
            return prices.answer(line);
          } catch (const ConfigError& error) {
            return Json{{"error", error.what()}}.dump(-1, ' ', false,
                                                      Json::error_handler_t::replace) +
                   "\n";
          }
        },
        [&](std::string_view text) { return send_all(caller.number(), text); });
  }
  ::unlink(path.c_str());
}

void price_stdin(const Deployment& deployment) {
  const InterruptGuard guard("all that was read is answered");
  StepPrices prices(deployment);
  answer_lines(
      STDIN_FILENO, [&](std::string_view line) { return prices.answer(line); },
      [](std::string_view text) {
        print(text);
        return std::fflush(stdout) == 0;
      });
}

}  // namespace moesim
