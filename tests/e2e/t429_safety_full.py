# SPDX-License-Identifier: MulanPSL-2.0
# runner: full
"""The long forms of t420 to t428."""

import t422_forks as forks
import harness as h


def test_a_thousand_recording_children():
    forks.test_forks_of_a_training_job(1000)


def test_ten_thousand_forks():
    env = h.preload_env(h.tmpdir(), SYSTRACE_ENABLE="1")
    result = h.run([forks.HOST, "many", "10000"], env=env, timeout=300)
    h.check_equal((result.status, result.err), (28, ""), "10000 forks")


h.main(test_a_thousand_recording_children, test_ten_thousand_forks)
