# SPDX-License-Identifier: MulanPSL-2.0
"""Ends out of C code that holds the GIL, as soon as it has begun: the agent's thread comes when it is too late for a turn, and
libgcc_s, which pthread_exit() needs, can't be loaded any more."""

import atexit
import resource

with open("/proc/self/statm") as f:
    size = int(f.read().split()[0]) * 4096 + 65536
atexit.register(sum, range(3000000))
resource.setrlimit(resource.RLIMIT_AS, (size, size))
