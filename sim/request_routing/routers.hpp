// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/request_routing/request_router.hpp"

namespace moesim {

std::unique_ptr<RequestRouter> make_random_router(ConfigReader&, const RouterContext&);
std::unique_ptr<RequestRouter> make_round_robin_router(ConfigReader&, const RouterContext&);
std::unique_ptr<RequestRouter> make_power_of_two_router(ConfigReader&, const RouterContext&);
std::unique_ptr<RequestRouter> make_jsq_router(ConfigReader&, const RouterContext&);
std::unique_ptr<RequestRouter> make_vllm_router(ConfigReader&, const RouterContext&);
std::span<const Key> vllm_router_keys();
std::unique_ptr<RequestRouter> make_least_kv_router(ConfigReader&, const RouterContext&);
std::unique_ptr<RequestRouter> make_br0_router(ConfigReader&, const RouterContext&);
std::span<const Key> br0_router_keys();
std::unique_ptr<RequestRouter> make_brh_router(ConfigReader&, const RouterContext&);
std::span<const Key> brh_router_keys();
std::unique_ptr<RequestRouter> make_bfio_router(ConfigReader&, const RouterContext&);
std::span<const Key> bfio_router_keys();
std::unique_ptr<RequestRouter> make_overflow_router(ConfigReader&, const RouterContext&);
std::unique_ptr<RequestRouter> make_fast_phi_router(ConfigReader&, const RouterContext&);
std::span<const Key> fast_phi_router_keys();
std::unique_ptr<RequestRouter> make_cache_aware_router(ConfigReader&, const RouterContext&);
std::span<const Key> cache_aware_router_keys();
std::unique_ptr<RequestRouter> make_dynamo_kv_router(ConfigReader&, const RouterContext&);
std::span<const Key> dynamo_kv_router_keys();
std::unique_ptr<RequestRouter> make_joint_router(ConfigReader&, const RouterContext&);
std::span<const Key> joint_router_keys();
std::unique_ptr<RequestRouter> make_activation_aware_router(ConfigReader&, const RouterContext&);
std::span<const Key> activation_aware_router_keys();

}  // namespace moesim
