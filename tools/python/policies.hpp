// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace moesim {

/// Adds the views that policies are given. From then on "my.py:Mine" names a class of Python where
/// a token router, a placer, a request router or a rebalancer is chosen.
void add_policies(pybind11::module_&);

/// Exception of Python behind the error that a policy was refused with, and forgets the exception;
/// None if there was none. Needs the GIL.
pybind11::object take_cause();

}  // namespace moesim
