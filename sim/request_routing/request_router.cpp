// SPDX-License-Identifier: Apache-2.0
#include "sim/request_routing/request_router.hpp"

namespace moesim {

const Registry<RequestRouter, std::uint64_t>& request_routers() {
  static const Registry<RequestRouter, std::uint64_t> table(
      "request_routing",
      {{"round_robin", "ranks in turn", make_round_robin_router},
       {"random", "a rank at random", make_random_router},
       {"jsq", "the rank with the fewest requests, waiting and running", make_jsq_router},
       {"least_kv", "the rank with the fewest KV tokens, waiting and running",
        make_least_kv_router}});
  return table;
}

}  // namespace moesim
