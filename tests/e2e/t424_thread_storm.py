# SPDX-License-Identifier: MulanPSL-2.0
"""A thousand short threads, each recording one call: each is in the file once, with the thread's own id, or counted, and the
pool is no larger afterwards than SYSTRACE_SPOOL_MB allows."""

import re

import harness as h
import jobs

h.require(h.AGENT)

STORM = r"""
import threading
def storm(count, at_once):
    for _ in range(count // at_once):
        threads = [threading.Thread(target=lambda: torch.autograd.backward(1)) for _ in range(at_once)]
        [t.start() for t in threads]
        [t.join() for t in threads]
"""


def test_thread_storm():
    job = jobs.Job(list(h.pythons().values())[-1], h.preload_env(h.tmpdir(), SYSTRACE_SPOOL_MB="2"), STORM + jobs.LOOP)
    job.wait_attached()
    job.train(1)
    job.do("storm(1000, 20)")
    job.train(1)
    h.check_equal(job.ask("flush").code, 0, "flush")
    status = job.status()
    h.check(int(status.get("pool_bytes")) < 4 << 20, "pool: %s" % status.get("pool_bytes"))
    blocks = re.findall(r"^\w+ \{\n(.*?)^\}", h.decode_pb(h.find_one(job.dump, "timeline/*")), re.S | re.M)
    calls = [b for b in blocks if "autograd@backward" in b]
    others = [b for b in calls if re.search(r"^  tid: ", b, re.M)]  # the main thread's is the pid, and left out
    # each thread has a chunk to itself until the next flush: those that found none are counted
    lost = int(status.get("dropped"))
    h.check(1000 - lost <= len(others) <= 1000, "%d of other threads, %d lost of all kinds" % (len(others), lost))
    h.check(others, "none of 1000 recorded")  # how many depends on how often the io thread got to run
    job.quit().ok()


h.main(test_thread_storm)
