// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <tbb/parallel_for.h>

#include "tools/lab/reproduce/measure_kinds.hpp"
#include "tools/lab/reproduce/router_testbed.hpp"

namespace moesim {

namespace {

struct NamedRouter {
  std::string name;
  ConfigNode policy;
};

std::vector<NamedRouter> read_routers(const ConfigNode& routers) {
  return read_object(routers, [](ConfigReader& r) {
    std::vector<NamedRouter> list;
    for (const std::string& name : r.all_keys()) list.push_back({name, r.child(name).as_policy()});
    return list;
  });
}

std::unique_ptr<RequestRouter> bfio_router(const ConfigNode& policy) {
  const std::string type = policy.child("type").text();
  if (type == "bfio_fcfs") return bfio_fcfs();
  if (type == "bfio_round_robin") return bfio_round_robin();
  RouterContext context;
  context.ranks = 16;
  return request_routers().make(policy, context)();
}

}  // namespace

Json measure_article(const ConfigNode& node, TraceLibrary&) {
  return read_object(node, [](ConfigReader& r) {
    ArticleWorld world;
    world.ranks = static_cast<int>(r.integer_or("ranks", world.ranks, {1, 1024}));
    world.slots = r.integer_or("slots", world.slots, {1, 65536});
    const auto seeds = at(r.integer_or("seeds", 4, {1, 1000}));
    const std::vector<double> bs{0, .3, .5, 1};
    // Gains are against JSQ, so that one runs too, first.
    std::vector<NamedRouter> routers{{"jsq", ConfigNode("jsq", "article").as_policy()}};
    for (NamedRouter& router : read_routers(r.child("routers")))
      routers.push_back(std::move(router));
    std::vector<ArticleResult> results(routers.size() * seeds);
    tbb::parallel_for(std::size_t{0}, results.size(), [&](std::size_t i) {
      results[i] = article_testbed(world, routers[i / seeds].policy, bs, 1 + i % seeds);
    });
    Json answer;
    for (std::size_t router = 0; router < routers.size(); ++router) {
      Json& of = answer[routers[router].name];
      double imbalance = 0;
      std::vector<double> gains(bs.size());
      for (std::size_t seed = 0; seed < seeds; ++seed) {
        const ArticleResult& result = results[router * seeds + seed];
        imbalance += result.imbalance / static_cast<double>(seeds);
        for (std::size_t b = 0; b < bs.size(); ++b)
          gains[b] += 100 * (result.throughput[b] / results[seed].throughput[b] - 1) /
                      static_cast<double>(seeds);
      }
      of["imbalance"] = imbalance;
      for (std::size_t b = 0; b < bs.size(); ++b) of["gain"][fmt::format("{}", bs[b])] = gains[b];
    }
    return answer;
  });
}

Json measure_bfio(const ConfigNode& node, TraceLibrary&) {
  return read_object(node, [](ConfigReader& r) {
    const std::filesystem::path requests = r.path("requests");
    const std::vector<NamedRouter> routers = read_routers(r.child("routers"));
    std::vector<BfIoResult> results(routers.size());
    tbb::parallel_for(std::size_t{0}, results.size(), [&](std::size_t i) {
      results[i] = bfio_testbed(*bfio_router(routers[i].policy), requests);
    });
    Json answer;
    for (std::size_t i = 0; i < routers.size(); ++i)
      answer[routers[i].name] = {{"throughput", results[i].throughput},
                                 {"imbalance", results[i].imbalance},
                                 {"steps", results[i].steps}};
    return answer;
  });
}

}  // namespace moesim
