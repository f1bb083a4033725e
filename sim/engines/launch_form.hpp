// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "sim/engines/server.hpp"

namespace moesim {

/// Value behind a flag; nothing: the flag is left out; empty: the flag is alone.
using FlagValue = std::optional<std::string>;

/// A row of an engine's table of flags, in the order of its command.
struct Flag {
  std::string_view name;              ///< "--port"
  FlagValue (*value)(const Server&);  ///< may go on with flags that belong to this one
  std::string_view seen;              ///< the file of the engine that has it, its version and date
};

/// A value as it is written.
template <class T>
FlagValue value_of(const T& value) {
  return fmt::format("{}", value);
}
template <class T>
FlagValue value_if(bool wanted, const T& value) {
  return wanted ? value_of(value) : std::nullopt;
}
/// A number that engines take for 1 where it is left out.
inline FlagValue unless_one(int value) { return value_if(value > 1, value); }
/// A flag without a value.
inline FlagValue alone_if(bool wanted) { return value_if(wanted, ""); }

/// How an engine calls KV caches of a precision. Those in bf16 are left to the checkpoint.
struct KvCacheName {
  Precision precision;
  std::string_view name;
};
/// The name of KV caches of a precision in a table; nothing where it is not there.
FlagValue kv_cache_name(std::span<const KvCacheName>, Precision);

/// An option of the policy that holds prompts back, where it is this one, and has it.
FlagValue alignment_option(const Server&, std::string_view policy, std::string_view option);
/// Says that prompts are held back as another engine does it.
void note_alignment(const Server&, std::initializer_list<std::string_view> own, Notes&);

/// A command, broken into lines behind its program.
class Command {
 public:
  explicit Command(std::string program) : text_(std::move(program)), column_(text_.size()) {}
  /// Words that stay on one line.
  void add(std::string_view words);
  template <class T>
  void add(std::string_view flag, const T& value) {
    add(fmt::format("{} {}", flag, value));
  }
  void add(std::span<const Flag>, const Server&);
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::size_t column_;
};

/// How an engine's own benchmark is told of a load. All are copies of vLLM's.
struct BenchCommand {
  std::string_view program;       ///< up to the weights
  std::string_view random_ids{};  ///< prompts are random tokens; empty: by default
  /// Range of --random-range-ratio R of a length L: (1 - R) L to (1 + R) L, or R L to L.
  enum Range { around, up_to } range = around;
  std::string_view to_the_end{};  ///< outputs are as long as asked for; empty: by default
  std::string_view burstiness{};  ///< of arrivals, the shape of gamma gaps; empty: Poisson alone
};

/// A file that a server's command reads.
struct OptionsFile {
  std::string name, text;
};

/// How an engine is told of an experiment.
struct LaunchForm {
  /// Environment and program, up to the weights.
  std::string (*program)(const Server&) = nullptr;
  std::span<const Flag> flags{};
  /// Dispatches that the flags ask for, or that the engine takes by itself; others are noted.
  std::span<const std::string_view> dispatches{};
  std::span<const KvCacheName> kv_caches{};  ///< others are noted
  /// What the flags do not say of a server.
  Notes (*notes)(const Server&) = nullptr;
  /// The command on each node, where one does not hold the server; none: the command is the same.
  std::string (*on_nodes)(const Server&, const std::string& command) = nullptr;
  OptionsFile (*options)(const Server&) = nullptr;  ///< none: flags say all
  /// Command that joins several servers; empty with a note where nothing does.
  std::string (*router)(const Fleet&, Notes&) = nullptr;
  BenchCommand benchmark{};
  std::string_view image{};       ///< of containers; without a tag
  std::string_view rocm_image{};  ///< for GPUs of AMD; empty: the same, by another tag
  std::string_view tag_before{};  ///< what the tags of releases have before the version: "v"
  /// Way to start attention and experts on GPUs of their own; empty: nothing does.
  std::string_view afd{};
  /// Way to make decode servers copy replies to where prefill finds them; empty: nothing does.
  std::string_view decode_offload{};
  /// Way to let a server change from prefill to decode and back; empty: nothing does.
  std::string_view role_changes{};
};

/// A router of requests that is a program of its own, as vLLM's and SGLang's.
struct HttpRouter {
  std::string_view program;
  std::string_view apart;        ///< the flag of workers that prefill or decode
  int bootstrap_port_above = 0;  ///< a prefill worker's own port; 0: it has none
};
std::string http_router(const HttpRouter&, const Fleet&, Notes&);

/// True if prompt chunks share steps with decodes, whatever the order of requests.
bool mixes_chunks(const Server&);
/// "\"name\"", as notes quote what an experiment says.
std::string quoted_name(std::string_view);
/// That the experiment's placement file has not the form that the engine of that name reads.
std::string other_form(const std::filesystem::path& file, std::string_view engine);
/// That an engine moves experts by what it sees, while the experiment's placement stands still.
void note_balancer(const Server&, std::string_view how_often, Notes&);
/// That two batches do not overlap: vLLM and SGLang refuse to start so without DeepEP.
void note_two_batches(const Server&, bool deep_ep, Notes&);
/// True if tokens travel in the experts' kernel, in what decodes.
bool runs_mega_moe(const Server&);
/// That the engine computes shared experts where their tokens are.
void note_waterfill(const Server&, bool has_it, Notes&);
/// That an engine does not start with so few tokens of a step.
std::string few_tokens(std::string_view engine, std::int64_t tokens, std::int64_t sequences);
/// That the engine preempts requests where KV blocks run out.
void note_capacity(const Server&, Notes&);

}  // namespace moesim
