// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>

#include "sim/experiment/experiment.hpp"
#include "tools/cli/experiment_options.hpp"
#include "tools/cli/remarks.hpp"
#include "tools/cli/verbs.hpp"
#include "tools/run/price.hpp"

namespace moesim {

namespace {

struct PriceOptions {
  ExperimentOptions experiment;
  std::string pool, socket;
};

const Deployment& pool_of(const Experiment& experiment, const std::string& pool) {
  if (pool.empty() || pool == "decode") return experiment.decode();
  if (experiment.pools.size() == 1)
    throw ConfigError("--pool prefill: the experiment has one pool; leave out --pool");
  return experiment.pools.front();
}

// Refuses deployments that do something between steps.
void refuse_what_moves(const Deployment& e) {
  if (e.in_decode)
    throw ConfigError("price does not move experts between steps; leave out \"decode_ep\"");
}

int price_batches(const PriceOptions& options) {
  TraceLibrary traces;
  const auto experiment = std::make_shared<const Experiment>(
      Remarks().say_of(load_experiment(options.experiment.read(), traces)));
  const Deployment& deployment = pool_of(*experiment, options.pool);
  refuse_what_moves(deployment);
  if (take_priced) {
    take_priced({experiment, &deployment});
  } else if (options.socket.empty()) {
    price_stdin(deployment);
  } else {
    serve_prices(deployment, options.socket);
  }
  return 0;
}

}  // namespace

Action setup_price(CLI::App& command) {
  const auto options = std::make_shared<PriceOptions>();
  options->experiment.add_with_deployment(command);
  command.add_option("--socket", options->socket,
                     "listen on a Unix socket of this path instead of reading stdin; one caller "
                     "after another, each beginning anew");
  option(command, "--pool", options->pool,
         "whose steps, where prefill and decode have pools of their own (default: decode)",
         CLI::IsMember({"prefill", "decode"}));
  command.footer(
      "A batch is a line: {\"ranks\": [{\"new\": [1, 1, 512], \"context\": [900, 70, 0]}, {}]}. "
      "Each DP rank has an object with a number for each sequence: new tokens, and tokens in the "
      "KV cache. An idle rank is {}.\n"
      "\"prompt\": tokens of each prompt. A sequence with that context decodes, and further new "
      "tokens are drafts. Without \"prompt\" one new token after a context decodes.\n"
      "\"request\": numbers of requests in order of arrival, from 0. The tokens of a request "
      "follow one recording, as in a run. Without \"request\" each step takes any recording.\n"
      "The answer is a line. \"seconds\" of the step, \"holds\": its kind. \"rank_seconds\": what "
      "each rank computes and sends. \"wait_seconds\": what each rank waits for others. "
      "\"active_experts\": of a MoE layer. \"activated\": slots of a layer on each EP rank.\n"
      "Experts are placed as at the start of a run. \"fidelity\": \"sampled\" in CONFIG answers "
      "many times faster. Bad input ends the program on stdin; on a socket the answer is "
      "{\"error\": ...}.");
  return [options] { return price_batches(*options); };
}

}  // namespace moesim
