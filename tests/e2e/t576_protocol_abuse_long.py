#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
# runner: full
"""t571_protocol_abuse for longer: 4 x 25 000 changed requests, from other seeds each time, to jobs that train."""

import os
import time

os.environ["ST_ABUSE_ROUNDS"] = "25000"

import harness as h
import t571_protocol_abuse as abuse


def rounds():
    begin = int(os.environ.get("ST_SEED", str(int(time.time()))))
    for seed in range(begin, begin + 4):
        os.environ["ST_SEED"] = str(seed)
        abuse.test_fuzzed_requests_to_a_living_job()


h.main(rounds, abuse.test_a_thousand_idle_clients, abuse.test_lengths_that_lie)
