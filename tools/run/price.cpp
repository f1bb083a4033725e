// SPDX-License-Identifier: Apache-2.0
#include "tools/run/price.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <optional>
#include <span>
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
#include "sim/serving/padding.hpp"
#include "sim/serving/speculation.hpp"
#include "sim/serving/step_sampler.hpp"
#include "tools/cli/interrupt.hpp"
#include "tools/cli/output.hpp"

namespace moesim {

namespace {

// --- what a caller sends -------------------------------------------------------------------------

/// Work of a rank, by sequence. Without `prompt` a sequence of one new token decodes if it
/// has a context, and takes any place of a recording.
struct AskedRank {
  std::vector<std::int32_t> new_tokens, context, prompt, request;

  bool decodes(std::size_t i) const {
    return prompt.empty() ? new_tokens[i] == 1 && context[i] > 0 : context[i] >= prompt[i];
  }
};

struct ListOfRank {
  std::string_view key;
  std::vector<std::int32_t> AskedRank::*list;
  std::int64_t least, most;
};
constexpr std::array lists_of_rank{ListOfRank{"new", &AskedRank::new_tokens, 1, 1 << 20},
                                   ListOfRank{"context", &AskedRank::context, 0, 1 << 24},
                                   ListOfRank{"prompt", &AskedRank::prompt, 1, 1 << 24},
                                   ListOfRank{"request", &AskedRank::request, 0, (1 << 24) - 1}};

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

  void read(std::vector<AskedRank>& ranks) const {
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

  void read_rank(const Json& rank, const std::string& pointer, AskedRank& asked) const {
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

  void check_lengths(const AskedRank& rank, const std::string& pointer) const {
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

// --- what a step costs ---------------------------------------------------------------------------

/// Prices the steps of one caller as an EP group of a run prices its own.
class Pricer {
 public:
  explicit Pricer(const Deployment& deployment)
      : deployment_(deployment),
        rows_(deployment.trace, deployment.prefill_trace, deployment.bind_odd_only, deployment.seed,
              deployment.binding),
        speculation_(deployment),
        asked_(at(deployment.parallel.dp)) {
    if (deployment.sampled) {
      sampler_.emplace(deployment);
    } else {
      models_.emplace(deployment);
    }
    batch_.ranks.resize(asked_.size());
  }

  /// The answer to a line. Throws ConfigError, and then has priced nothing.
  std::string answer(std::string_view text) {
    ++lines_;
    Line(text, fmt::format("batch {}", lines_)).read(asked_);
    compose();
    price();
    return to_text();
  }

 private:
  void compose() {
    batch_.start = now_;
    batch_.rows.clear();
    std::int64_t prefill = 0, decode = 0;
    for (std::size_t r = 0; r < asked_.size(); ++r) {
      const AskedRank& asked = asked_[r];
      RankStep& rank = batch_.ranks[r];
      rank.sequences.clear();
      rank.tokens = rank.sampled = rank.padding = 0;
      rank.dummy = false;
      for (std::size_t i = 0; i < asked.new_tokens.size(); ++i) {
        const std::int32_t tokens = asked.new_tokens[i];
        const bool decodes = asked.decodes(i);
        (decodes ? decode : prefill) += tokens;
        rank.sequences.push_back({tokens, asked.context[i], decodes && tokens > 1});
        rank.tokens += tokens;
        const bool ends = asked.prompt.empty() || asked.context[i] + tokens >= asked.prompt[i];
        rank.sampled += decodes ? tokens : ends ? 1 : 0;
        if (!sampler_) take_rows(asked, i, static_cast<std::int32_t>(r));
      }
      if (rank.tokens > 0) continue;
      // An idle rank runs one token, so that the collectives complete.
      rank = {{{1, 0}}, 1, 0, 0, true};
      if (!sampler_) batch_.rows.push_back(rows_.dummy(static_cast<std::int32_t>(r)));
    }
    kind_ = prefill == 0 ? StepKind::decode : decode == 0 ? StepKind::prefill : StepKind::mixed;
    rule_ = rule_kind(deployment_.mixed, kind_, prefill);
    pad(deployment_, kind_, batch_);
  }

  // Requests are bound to recordings in the order of their numbers, as those of a run in the order
  // of arrival.
  const Binding& binding_of(std::size_t request) {
    while (bindings_.size() <= request) bindings_.push_back(rows_.bind());
    return bindings_[request];
  }

  void take_rows(const AskedRank& asked, std::size_t i, std::int32_t rank) {
    const Binding binding = asked.request.empty() ? rows_.bind() : binding_of(at(asked.request[i]));
    const std::int32_t tokens = asked.new_tokens[i], context = asked.context[i];
    RoutingCoverage ignored;
    if (asked.prompt.empty()) {
      const Phase phase = asked.decodes(i) ? Phase::decode : Phase::prefill;
      const std::int64_t place =
          phase == Phase::decode ? rows_.random_place(binding, phase) : context;
      rows_.append(binding, {phase, rank, tokens, place}, batch_.rows, ignored);
      return;
    }
    const std::int32_t of_prompt = std::clamp(asked.prompt[i] - context, 0, tokens);
    if (of_prompt > 0)
      rows_.append(binding, {Phase::prefill, rank, of_prompt, context}, batch_.rows, ignored);
    if (of_prompt < tokens) {
      rows_.append(binding,
                   {Phase::decode, rank, tokens - of_prompt, context + of_prompt - asked.prompt[i]},
                   batch_.rows, ignored);
    }
  }

  // Tokens that were generated before each single token of the step, in its order.
  std::span<const std::int32_t> places() {
    places_.clear();
    for (std::size_t r = 0; r < asked_.size(); ++r) {
      const AskedRank& asked = asked_[r];
      if (batch_.ranks[r].dummy) places_.push_back(0);
      for (std::size_t i = 0; i < asked.new_tokens.size(); ++i) {
        if (asked.new_tokens[i] != 1) continue;
        const std::int64_t place =
            !asked.prompt.empty() ? std::max(0, asked.context[i] - asked.prompt[i])
            : asked.decodes(i)    ? rows_.random_place(rows_.bind(), Phase::decode)
                                  : 0;
        places_.push_back(static_cast<std::int32_t>(place));
      }
    }
    return places_;
  }

  void price() {
    if (sampler_) {
      sampler_->price(
          rule_, batch_, [this] { return places(); }, cost_);
    } else {
      models_->of(rule_).price(step_input(deployment_, rule_, batch_, rows_), cost_);
      speculation_.clear_tally();
      speculation_.draft(step_input(deployment_, StepKind::decode, batch_, rows_), cost_);
    }
    if (deployment_.two_term) {
      const auto ranks = static_cast<int>(asked_.size());
      scale_times(cost_, deployment_.two_term->of(batch_, ranks) / cost_.total);
    }
    if (deployment_.anchored_tpot != 1) scale_times(cost_, deployment_.anchored_tpot);
    now_ += to_duration(cost_.total);
  }

  // Mean wait of a rank's GPUs.
  double wait(int rank) const {
    const ParallelPlan& plan = deployment_.parallel;
    double sum = 0;
    for (int stage = 0; stage < plan.pp; ++stage) {
      for (int i = 0; i < plan.tp; ++i)
        sum += cost_.idle[at(stage * plan.stage_gpus() + rank * plan.tp + i)];
    }
    return sum / (plan.pp * plan.tp);
  }

  // Adds what a MoE layer activated: experts with a token, and slots with one of each EP rank.
  void count(const LayerOutcome& layer) {
    active_ += layer.active_experts;
    activated_.resize(layer.load.activated.size());
    for (std::size_t r = 0; r < activated_.size(); ++r) activated_[r] += layer.load.activated[r];
  }

  std::string to_text() {
    active_ = 0;
    activated_.assign(activated_.size(), 0);
    for (const LayerOutcome& layer : cost_.layers) count(layer);
    for (const StepSample* sample : cost_.samples) {
      for (int layer = 0; layer < sample->moe_layers; ++layer) count(sample->layer(layer));
    }
    const double layers = std::max(1, deployment_.model.moe_layers() * cost_.passes);
    for (double& slots : activated_) slots /= layers;
    waits_.clear();
    for (int rank = 0; rank < deployment_.parallel.dp; ++rank) waits_.push_back(wait(rank));
    const double total = cost_.total.count();
    std::string text = fmt::format("{{\"seconds\":{},\"holds\":\"{}\",\"rank_seconds\":[", total,
                                   step_kind_names[at(kind_)]);
    for (std::size_t r = 0; r < waits_.size(); ++r)
      fmt::format_to(std::back_inserter(text), "{}{:.9f}", r == 0 ? "" : ",", total - waits_[r]);
    fmt::format_to(
        std::back_inserter(text),
        "],\"wait_seconds\":[{:.9f}],\"active_experts\":{:.3f},\"activated\":[{:.3f}]}}\n",
        fmt::join(waits_, ","), active_ / layers, fmt::join(activated_, ","));
    return text;
  }

  const Deployment& deployment_;
  RowSource rows_;
  std::optional<StepSampler> sampler_;
  std::optional<StepModels> models_;  // without a sampler
  Speculation speculation_;
  std::vector<Binding> bindings_;  // by request
  std::vector<AskedRank> asked_;   // [dp]
  StepBatch batch_;
  StepCost cost_;
  StepKind kind_{}, rule_{};
  Time now_{};
  std::uint64_t lines_ = 0;
  std::vector<std::int32_t> places_;
  double active_ = 0;
  std::vector<double> activated_;  // [EP ranks]
  std::vector<double> waits_;      // [dp]
};

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
    if (size > 0) lines.append(piece.data(), static_cast<std::size_t>(size));
    if (size <= 0 && !lines.empty() && lines.back() != '\n') lines += '\n';
    std::size_t begin = 0;
    for (std::size_t end; (end = lines.find('\n', begin)) != lines.npos; begin = end + 1) {
      const std::string_view line(lines.data() + begin, end - begin);
      if (line.find_first_not_of(" \t\r") != line.npos) answers += answer(line);
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
    text.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    throw ConfigError(
        fmt::format("--socket {}: the path has {} characters; a socket's has at most {}", path,
                    path.size(), sizeof address.sun_path - 1));
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
    throw ConfigError(
        fmt::format("--socket {}: {}; name a path that does not exist, in a folder "
                    "that does",
                    path, std::strerror(errno)));
  }
  spdlog::info("{}: a batch a line, an answer a line; Ctrl-C ends", path);
  while (wait_for(listener.number())) {
    const Descriptor caller(::accept4(listener.number(), nullptr, nullptr, SOCK_CLOEXEC));
    if (caller.number() < 0) continue;
    Pricer pricer(deployment);
    answer_lines(
        caller.number(),
        [&](std::string_view line) -> std::string {
          try {
            return pricer.answer(line);
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
  Pricer pricer(deployment);
  answer_lines(
      STDIN_FILENO, [&](std::string_view line) { return pricer.answer(line); },
      [](std::string_view text) {
        print(text);
        return std::fflush(stdout) == 0;
      });
}

}  // namespace moesim
