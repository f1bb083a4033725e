# SPDX-License-Identifier: Apache-2.0
"""`python3 -m moesim VERB ...` is the command `moesim VERB ...`, which policies that are classes of Python can be named in."""
from . import main

main()
