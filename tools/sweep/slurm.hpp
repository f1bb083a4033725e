// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace moesim {

/// How a sweep is given to Slurm. Empty texts leave the choice to the cluster.
struct SlurmOptions {
  std::size_t tasks = 8;  ///< of the job array, each with a shard of the points
  int cpus = 1;           ///< of each task
  std::string partition;
  std::string time;               ///< limit of each task, as sbatch writes it: "30", "2:00:00"
  std::vector<std::string> more;  ///< further options of sbatch: "--account=lab"
};

struct SlurmJobs {
  std::string array, merge;      ///< job ids
  std::filesystem::path folder;  ///< shards, job scripts and logs
};

/// Submits `program sweep config --shard I/N` as a job array, each task with a store of its own in
/// the folder STORE.slurm. Submits a job that depends on it and merges them into `store`. A task
/// that Slurm requeues continues where it was stopped; the merge job waits for it. All files are
/// named by absolute paths, which the nodes must share. Throws ConfigError if the folder cannot be
/// written or sbatch is missing or refuses.
SlurmJobs submit_to_slurm(const std::filesystem::path& program, const std::filesystem::path& config,
                          const std::filesystem::path& store, const SlurmOptions&);

}  // namespace moesim
