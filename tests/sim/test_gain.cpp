// SPDX-License-Identifier: Apache-2.0
// Is a candidate the better one as often as its probability says?
#include <cmath>

#include "hardware/rng.hpp"
#include "sim/gain/gain.hpp"
#include "tests/support.hpp"

namespace moesim::test_gain {

using namespace moesim::test;

namespace {

std::vector<double> normals(Rng& rng, std::size_t count, double mean, double spread) {
  std::vector<double> values;
  for (std::size_t i = 0; i < count; ++i) values.push_back(mean + spread * rng.normal());
  return values;
}

}  // namespace

TEST_CASE("law 28: of two identical policies each has less with P = 1/2") {
  Rng rng(1, "identical");
  for (const std::size_t samples : {2U, 3U, 12U}) {
    const std::vector<double> ms = normals(rng, samples, 10, 1), off = normals(rng, samples, 10, 2);
    const SampledGain gain = Worlds(samples).percent({ms, off}, {ms, off});
    CHECK(gain.p_less == .5);
    CHECK(gain.change == 0);
    CHECK(gain.low == 0);
    CHECK(gain.high == 0);
  }
}

TEST_CASE(
    "law 28: a policy with less in every batch has less with P = 1, and turned around with 0") {
  Rng rng(2, "less in all");
  const std::vector<double> slow = normals(rng, 24, 10, 1);
  std::vector<double> fast = slow;
  for (double& ms : fast) ms *= 1 - .02 * rng.uniform() - .001;
  CHECK(Worlds(24).percent({fast}, {slow}).p_less == 1);
  CHECK(Worlds(24).percent({slow}, {fast}).p_less == 0);
  CHECK(Worlds(24, 4).percent({fast}, {slow}).p_less == 1);
  // Three in a row are no proof: not even if one of them is far ahead of the others.
  const SampledGain three = Worlds(3).mean(std::vector<double>{-.01, -.01, -10});
  CHECK(three.p_less >= 1 - 1. / 8);
  CHECK(three.p_less < 1);
  CHECK(Worlds(2).mean(std::vector<double>{1, 2}).p_less <= .25);
  // Nor if prices that could as well be true turn it.
  std::vector<double> turned = fast;
  for (std::size_t i = 0; i < turned.size(); i += 2) turned[i] = slow[i] * 1.2;
  const SampledGain off = Worlds(24).percent({fast, turned}, {slow, slow});
  CHECK_THAT(off.p_less, WithinAbs(.5, .06));
  CHECK(off.high > 15);
}

TEST_CASE(
    "the interval holds 0 in about 90 % of null worlds, and P below .05 is as rare as it says") {
  Rng rng(3, "null worlds");
  constexpr int trials = 400;
  for (const auto& [samples, deals] :
       {std::pair{2, 1}, {3, 1}, {5, 1}, {12, 1}, {24, 4}, {12, 2}}) {
    int held = 0, sure = 0;
    const Worlds worlds{std::size_t(samples), std::size_t(deals)};
    for (int i = 0; i < trials; ++i) {
      // What all policies share, what a deal does to one of them, and what a batch does.
      const std::vector<double> shared = normals(rng, std::size_t(samples), 10, 1);
      std::vector<double> of = shared;
      double deal = 0;
      for (int sample = 0; sample < samples; ++sample) {
        if (sample % (samples / deals) == 0 && deals > 1) deal = .2 * rng.normal();
        of[std::size_t(sample)] += deal + .1 * rng.normal();
      }
      const SampledGain gain = worlds.percent({of}, {shared});
      held += gain.low <= 0 && 0 <= gain.high ? 1 : 0;
      sure += gain.p_less < .05 || gain.p_less > .95 ? 1 : 0;
    }
    CAPTURE(samples, deals, held, sure);
    CHECK(held >= .85 * trials);
    CHECK(held <= .95 * trials);
    CHECK(sure <= .16 * trials);
  }
}

TEST_CASE("an interval is as wide as prices are off") {
  // Steps are 5 % shorter in every batch; prices move that by 3 points either way.
  const std::vector<double> slow(40, 100.0), fast(40, 95.0);
  std::vector<double> off;
  for (int i = 0; i < 40; ++i) off.push_back(i % 2 == 0 ? 92 : 98);
  const SampledGain gain = Worlds(40).percent({fast, off}, {slow, slow});
  CHECK_THAT(gain.change, WithinAbs(-5, 1e-9));
  CHECK_THAT(gain.low, WithinAbs(-8, 1e-9));
  CHECK_THAT(gain.high, WithinAbs(-2, 1e-9));
  CHECK(gain.p_less == 1);
}

TEST_CASE("Student's t holds 90 %") {
  // A table's values.
  for (const auto& [degrees, t] : {std::pair{1, 6.313752},
                                   {2, 2.919986},
                                   {3, 2.353363},
                                   {4, 2.131847},
                                   {9, 1.833113},
                                   {30, 1.697261},
                                   {1000, 1.646379}}) {
    CHECK_THAT(student_t(std::size_t(degrees)), WithinRel(t, 1e-5));
  }
}

}  // namespace moesim::test_gain
