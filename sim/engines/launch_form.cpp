// SPDX-License-Identifier: Apache-2.0
#include "sim/engines/launch_form.hpp"

#include <algorithm>

#include "hardware/quoting.hpp"

namespace moesim {

void Command::add(std::string_view words) {
  constexpr std::size_t columns = 96;
  if (column_ + 1 + words.size() > columns) {
    text_ += " \\\n   ";
    column_ = 3;
  }
  text_ += ' ';
  text_ += words;
  column_ += 1 + words.size();
}

void Command::add(std::span<const Flag> flags, const Server& server) {
  for (const Flag& flag : flags) {
    const FlagValue value = flag.value(server);
    if (!value) continue;
    if (value->empty())
      add(flag.name);
    else
      add(flag.name, *value);
  }
}

bool mixes_chunks(const Server& server) {
  constexpr std::string_view mixing[] = {"chunked_prefill", "priority", "earliest_deadline",
                                         "expert_groups"};
  return std::ranges::find(mixing, server.scheduling) != std::end(mixing);
}

std::string quoted_name(std::string_view name) { return fmt::format("\"{}\"", name); }

std::string other_form(const std::filesystem::path& file, std::string_view engine) {
  return fmt::format(
      "/placement/file: the engine cannot read the format of {0}; this writes one: "
      "moesim place --placement {0} --format {1}",
      shell_path(file.string()), engine);
}

void note_balancer(const Server& server, std::string_view how_often, Notes& notes) {
  if (server.rebalancing == "none")
    notes.push_back(fmt::format(
        "/placement: fixed in the experiment; the engine moves experts {}, by the load it sees",
        how_often));
}

void note_two_batches(const Server& server, bool deep_ep, Notes& notes) {
  if (server.two_batches && !deep_ep)
    notes.push_back("/overlap: \"two_batch\" without an all-to-all; theirs needs DeepEP");
}

bool runs_mega_moe(const Server& server) {
  return server.spreads_experts() && server.parallel.dp > 1 && server.decode_dispatch == "mega_moe";
}

void note_waterfill(const Server& server, bool has_it, Notes& notes) {
  if (server.waterfill && !has_it)
    notes.push_back("/shared_expert: \"waterfill\"; SGLang alone has it, with DeepEP");
}

FlagValue kv_cache_name(std::span<const KvCacheName> names, Precision precision) {
  const auto found = std::ranges::find(names, precision, &KvCacheName::precision);
  return found == names.end() ? std::nullopt : value_of(found->name);
}

FlagValue alignment_option(const Server& server, std::string_view policy, std::string_view option) {
  const auto& options = server.alignment_options;
  if (server.prefill_alignment != policy || !options.contains(option)) return std::nullopt;
  return options.at(std::string(option)).dump();
}

void note_alignment(const Server& server, std::initializer_list<std::string_view> own,
                    Notes& notes) {
  const std::string& policy = server.prefill_alignment;
  if (policy == "none" || std::ranges::find(own, policy) != own.end()) return;
  notes.push_back(fmt::format(
      "/prefill_alignment: \"{}\"; this engine holds no prompts back in this way", policy));
}

std::string few_tokens(std::string_view engine, std::int64_t tokens, std::int64_t sequences) {
  return fmt::format(
      "/scheduling/max_num_batched_tokens: {}; {} does not start with fewer tokens than "
      "max_num_seqs, which is {}",
      tokens, engine, sequences);
}

void note_capacity(const Server& server, Notes& notes) {
  if (!server.evicts)
    notes.push_back(
        "/scheduling/capacity_scheduler_policy: TensorRT-LLM alone keeps room for all output "
        "tokens");
}

namespace {

// The policy of the routers that is the experiment's.
std::string router_policy(const Server& server, Notes& notes) {
  for (const char* known : {"random", "round_robin", "power_of_two", "cache_aware"})
    if (server.request_routing == known) return known;
  notes.push_back(fmt::format("/request_routing: {}; the router sends requests in turn",
                              quoted_name(server.request_routing)));
  return "round_robin";
}

}  // namespace

std::string http_router(const HttpRouter& router, const Fleet& fleet, Notes& notes) {
  Command command{std::string(router.program)};
  command.add("--policy", router_policy(fleet.servers.back(), notes));
  if (!fleet.apart()) {
    command.add("--worker-urls");
    for (const Server& server : fleet.servers) command.add(server.url());
  } else {
    command.add(router.apart);
    for (const Server* server : fleet.of_role("prefill")) {
      const int above = router.bootstrap_port_above;
      const std::string bootstrap = above > 0 ? fmt::format(" {}", server->port() + above) : "";
      command.add(fmt::format("--prefill {}{}", server->url(), bootstrap));
    }
    for (const Server* server : fleet.of_role("decode")) command.add("--decode", server->url());
  }
  command.add("--host 0.0.0.0 --port 8000");
  return command.text() + "\n";
}

}  // namespace moesim
