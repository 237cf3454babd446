# SPDX-License-Identifier: MulanPSL-2.0
"""Plugin GIL on every interpreter here: holds of a process never overlap, their sum is the time of a program that is bound by
the lock, waits and forced switches are there, and the file is a Chrome trace as it stands."""

import json
import os

import ctl
import harness as h
import jobs

h.require(h.AGENT)

COUNT = r"""'import threading, time\nstop = time.monotonic() + 1\ndef count():\n    while time.monotonic() < stop: pass\n'"""


def spin(job, threads):
    """Threads that are busy for a second; the job's main thread waits for them."""
    job.do("exec(%s, globals())" % COUNT)
    job.do("threads = [threading.Thread(target=count) for _ in range(%d)]; [t.start() for t in threads]; "
           "[t.join() for t in threads]" % threads)


def record(python):
    job = jobs.Job(python, h.preload_env(h.tmpdir(), RANK="1", SYSTRACE_BUDGET_PCT="100"))
    h.wait_for(lambda: os.path.exists(job.sock), what="the control socket")
    answer = job.ask("enable", plugin="GIL")
    h.check_equal(answer.code, 0, "enable: %s" % answer.text)
    spin(job, 4)
    objects = job.status().all("hook.object")
    h.check_equal(len(objects), 1, "only the object that holds _PyRuntime is touched: %s" % objects)
    h.check_equal(job.ask("disable", plugin="GIL").code, 0, "disable")
    h.check_equal(job.status().get("hooks.slots"), "0", "slots after disable")
    path = h.find_one(job.dump, "GIL/GIL_%d_rank_1.json" % job.pid)
    job.quit().ok()
    with open(path) as f:
        return [e for e in json.load(f)["traceEvents"] if e["ph"] == "X"]


def ns(us):
    return round(us * 1000)


def check_version(python):
    events = record(python)
    holds = sorted((ns(e["ts"]), ns(e["ts"]) + ns(e["dur"])) for e in events if e["name"] == "GIL hold")
    h.check(len(holds) > 50, "%d holds" % len(holds))
    for before, after in zip(holds, holds[1:]):
        h.check(before[1] <= after[0], "holds overlap: %s %s" % (before, after))
    span = holds[-1][1] - holds[0][0]
    held = sum(end - begin for begin, end in holds)
    h.check(held > 0.5 * span, "held %.3f s of %.3f s, in a program that does nothing else" % (held / 1e9, span / 1e9))
    waits = [e for e in events if e["name"] == "GIL wait"]
    h.check(len({e["tid"] for e in waits}) >= 4, "four threads wait for each other")
    h.check(any(e["args"]["timeouts"] > 0 for e in waits), "the switch interval ran out somewhere")
    h.check([e for e in events if e["name"] == "GIL forced drop"], "no forced switch between busy threads")


def test_each_interpreter():
    for version, python in h.pythons().items():
        try:
            check_version(python)
        except h.CheckFailed as e:
            raise h.CheckFailed("%d.%d: %s" % (*version, e))


if __name__ == "__main__":
    h.main(test_each_interpreter)
