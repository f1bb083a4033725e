// SPDX-License-Identifier: Apache-2.0
#include "tools/sweep/slurm.hpp"

#include <fmt/format.h>

#include "tools/cli/output.hpp"
#include "tools/cli/process.hpp"

namespace moesim {

namespace {

namespace fs = std::filesystem;

// Quotes as one word of a shell.
std::string quoted(const std::string& text) {
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

fs::path shard_file(const fs::path& folder, const std::string& place, std::size_t shards) {
  return folder / fmt::format("shard-{}-of-{}.sqlite", place, shards);
}

// `exec`, so that the signal with which Slurm announces a requeue reaches moesim.
std::string array_script(const fs::path& program, const fs::path& config, const fs::path& folder,
                         const SlurmOptions& options) {
  const std::string store = shard_file(folder, "PLACE", options.tasks).string();
  const auto place = store.rfind("PLACE");
  return fmt::format(
      "#!/bin/bash\n"
      "exec {} sweep {} -o {}\"$SLURM_ARRAY_TASK_ID\"{} --shard \"$SLURM_ARRAY_TASK_ID/{}\" -j "
      "{}\n",
      quoted(program.string()), quoted(config.string()), quoted(store.substr(0, place)),
      quoted(store.substr(place + 5)), options.tasks, options.cpus);
}

std::string merge_script(const fs::path& program, const fs::path& folder, const fs::path& store,
                         const SlurmOptions& options) {
  std::string script = "#!/bin/bash\nexec " + quoted(program.string()) + " sweep --merge";
  for (std::size_t i = 1; i <= options.tasks; ++i)
    script += " \\\n  " + quoted(shard_file(folder, std::to_string(i), options.tasks).string());
  return script + " \\\n  -o " + quoted(store.string()) + "\n";
}

// The job's id: what --parsable prints before a ';' with the cluster's name.
std::string submit(const std::vector<std::string>& options, const fs::path& script,
                   const SlurmOptions& how) {
  std::vector<std::string> command{"sbatch", "--parsable", "--ntasks=1", "--open-mode=append"};
  command.insert(command.end(), options.begin(), options.end());
  if (!how.partition.empty()) command.push_back("--partition=" + how.partition);
  if (!how.time.empty()) command.push_back("--time=" + how.time);
  command.insert(command.end(), how.more.begin(), how.more.end());
  command.push_back(script.string());
  const std::string answer = run_program(
      command, "submit from a machine that has Slurm's commands, or leave out --launcher");
  return answer.substr(0, answer.find_first_of(";\n"));
}

}  // namespace

SlurmJobs submit_to_slurm(const fs::path& program, const fs::path& config, const fs::path& store,
                          const SlurmOptions& options) {
  const fs::path output = fs::absolute(store);
  require_writable_folder(output);
  SlurmJobs jobs;
  jobs.folder = output;
  jobs.folder += ".slurm";
  const fs::path array = jobs.folder / "array.sh";
  const fs::path merge = jobs.folder / "merge.sh";
  write_file(array, array_script(program, fs::absolute(config), jobs.folder, options));
  write_file(merge, merge_script(program, jobs.folder, output, options));

  // Slurm replaces "%" and a letter in names of output files.
  std::string log;
  for (const char c : (jobs.folder / "log-").string()) log += c == '%' ? "%%" : std::string(1, c);
  const std::string name = output.stem().string();
  jobs.array = submit({fmt::format("--array=1-{}", options.tasks), "--requeue",
                       fmt::format("--cpus-per-task={}", options.cpus), "--job-name=sweep-" + name,
                       "--output=" + log + "%A-%a.txt"},
                      array, options);
  // afterany: a task that ran out of time or memory leaves points that the others' need not wait
  // for. They are pending in the merged store, and the same command runs them.
  jobs.merge = submit({"--dependency=afterany:" + jobs.array, "--job-name=merge-" + name,
                       "--output=" + log + "merge-%j.txt"},
                      merge, options);
  return jobs;
}

}  // namespace moesim
