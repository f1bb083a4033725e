// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hardware/kernels/kernel.hpp"

namespace moesim {

// What attention kernels of all kinds have in common: a KV cache, and queries that see a part of
// its tokens.

/// Bytes of an element of a cache in a precision as tables name it.
double cache_bytes(std::string_view precision);

/// True if a decode's caches are so much larger than the L2 that they come from HBM. Of four times
/// its capacity at most a quarter is there. Tables hold such points apart, as groups of their own.
bool reads_from_hbm(double cached_bytes, const GpuSpec&);
/// The name of such a group, of the one of the smaller caches.
std::string from_hbm(std::string_view group);
/// Points of caches as large come first, in every precision; then points of smaller caches.
void put_from_hbm_first(std::vector<std::string>& groups);

/// The tokens of a whole prompt with so many query-key pairs: a prompt behind a prefix is as well
/// used as that.
double length_of(double pairs);

/// The rough time of an attention kernel that loads `bytes` and multiplies in bf16.
double attention_rough_us(double bytes, double flops, const GpuSpec&);
/// Least time of attention: kernels may multiply a cache of eight bits as such. What a call before
/// this one read may be in the L2 still, as much as it holds.
double attention_least_us(double cached_bytes, double flops, double kv_bytes, const GpuSpec&);

/// True if a row multiplies in bf16: caches of eight bits that are multiplied as such are faster
/// than the rooflines assume.
bool multiplies_bf16(const TableRow&);
/// A call of such work for the roofline, which knows no tiles of attention kernels.
RooflineCall untiled(bool prefill, std::string shape, const Work&);

}  // namespace moesim
