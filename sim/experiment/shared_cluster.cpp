// SPDX-License-Identifier: Apache-2.0
#include "sim/experiment/shared_cluster.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "hardware/shipped.hpp"
#include "sim/experiment/pools.hpp"

namespace moesim {

namespace {

constexpr std::array<std::string_view, 5> of_the_cluster{"cluster", "background", "power",
                                                         "deployments", "$schema"};

std::string name_of(const ConfigNode& deployment) {
  if (!deployment.json().is_object()) deployment.fail("expected an object");
  if (!deployment.json().contains("name")) {
    deployment.fail("\"name\" is missing; reports call the deployment by it");
  }
  std::string name = deployment.child("name").text();
  if (name.empty()) deployment.child("name").fail("is empty; reports call the deployment by it");
  return name;
}

ConfigNode experiment_of(const ConfigNode& node, const ConfigNode& deployment) {
  static constexpr std::array<std::string_view, 2> taken_out{"deployments", "name"};
  return part_of(node, deployment, {of_the_cluster, taken_out, "the whole cluster", "deployment"});
}

std::vector<ConfigNode> deployments_of(const ConfigNode& node) {
  const ConfigNode list = node.child("deployments");
  if (!list.json().is_array() || list.json().empty())
    list.fail("expected a list of at least one deployment");
  return list.list();
}

// Returns the first GPU from which GPUs lie in NVLink domains as they would from GPU 0 on.
int begin_of(int next_free, int gpus, int domain) {
  const int taken = next_free % domain;
  return taken == 0 || taken + gpus <= domain ? next_free : next_free + domain - taken;
}

int gpus_of(const ExperimentSpec& spec) {
  int gpus = 0;
  for (const PoolSpec& pool : spec.pools) gpus += gpus_of(pool);
  return gpus;
}

BytesPerSecond background_of(const ConfigNode& node) {
  const auto background = node.json().find("background");
  if (background == node.json().end() || !background->contains("spine")) return {};
  return node.child("background").child("spine").quantity<BytesPerSecond>();
}

}  // namespace

bool is_shared(const ConfigNode& node) {
  return node.json().is_object() && node.json().contains("deployments");
}

SharedCluster read_shared_cluster(const ConfigNode& node, const Policies& policies) {
  SharedCluster shared{.node = node, .name = {}};
  int next_free = 0;
  for (const ConfigNode& deployment : deployments_of(node)) {
    Tenant tenant{name_of(deployment), experiment_of(node, deployment)};
    if (std::ranges::find(shared.tenants, tenant.name, &Tenant::name) != shared.tenants.end()) {
      deployment.child("name").fail("two deployments are called \"{}\"; give each its own name",
                                    tenant.name);
    }
    const ExperimentSpec spec = read_spec(tenant.experiment, policies);
    if (!one_cluster(spec.pools.front(), spec.pools.back()))
      deployment.fail("all pools are on the models' one cluster; leave \"cluster\" out of them");
    for (const PoolSpec& pool : spec.pools) {
      if (pool.ffn_cluster)
        deployment.fail("all GPUs are of the models' one cluster; leave out \"ffn_cluster\"");
    }
    const ClusterSpec& cluster = spec.pools.front().cluster;
    shared.name = cluster.name;
    shared.gpus = cluster.gpus();
    tenant.gpus = gpus_of(spec);
    tenant.first_gpu = begin_of(next_free, tenant.gpus, cluster.scale_up_domain);
    next_free = tenant.first_gpu + tenant.gpus;
    if (next_free > shared.gpus) {
      deployment.fail(
          "\"{}\" needs {} GPUs from GPU {} on, but {} has {}; use fewer GPUs in a deployment",
          tenant.name, tenant.gpus, tenant.first_gpu, cluster.name, shared.gpus);
    }
    shared.tenants.push_back(std::move(tenant));
  }
  // Once every deployment has been read: then all that is common is sound.
  shared.spine =
      read_cluster(named_or_inline(node.child("cluster"), Shipped::cluster)).network.spine;
  shared.background = background_of(node);
  return shared;
}

ConfigNode tenant_experiment(const ConfigNode& node, std::string_view name) {
  std::string names;
  for (const ConfigNode& deployment : deployments_of(node)) {
    const std::string its = name_of(deployment);
    if (its == name) return experiment_of(node, deployment);
    names += fmt::format("{}{}", names.empty() ? "" : ", ", its);
  }
  node.child("deployments").fail("none is called \"{}\"; there are: {}", name, names);
}

ConfigNode beside_others(const SharedCluster& shared, const Tenant& tenant,
                         BytesPerSecond of_spine) {
  Json config = tenant.experiment.json();
  config["background"]["spine"] = fmt::format("{:.0f} B/s", (shared.background + of_spine).value());
  return {std::move(config), tenant.experiment.file(), tenant.experiment.pointer()};
}

std::span<const Key> deployment_keys() {
  static const std::vector<Key> keys = [] {
    std::vector<Key> all{{"name", form::text, required, "the deployment's name in reports"}};
    std::ranges::copy_if(experiment_keys(), std::back_inserter(all), [](const Key& key) {
      return std::ranges::find(of_the_cluster, key.name) == of_the_cluster.end();
    });
    return all;
  }();
  return keys;
}

}  // namespace moesim
