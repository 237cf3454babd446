# SPDX-License-Identifier: MulanPSL-2.0
# runner: alone
# runner: full
# runner: timeout 400
"""The demo finds the rank that it slowed, with DistributedDataParallel, by a quota and by rivals on its core; what it
prints holds for every reader (verdict, trace), and a demo that slows nobody down says that its verdict is wrong."""

import json
import os
import re
import shutil

import harness as h

h.require(h.AGENT, h.CLI, h.SYSTRACE)
PYTHON = h.python_with("torch")
DEMO = os.path.join(h.ROOT, "examples", "demo.py")


def demo(*args):
    """Run it; (result, directory of what it recorded)."""
    done = h.run([PYTHON, DEMO, *args], env=dict(os.environ, ST_BUILD=h.BUILD, TMPDIR=h.tmpdir()), timeout=170)
    home = re.search(r"^sysTrace demo. Everything goes into (\S+)$", done.out, flags=re.M)
    h.check(home, "no first line in %r" % done)
    return done, home.group(1)


def finds_the_slowed_rank(*args):
    done, home = demo(*args)
    done.ok()
    h.check(re.search(r"^The job was slow from step \d+ on \(rank 2 was touched at step 71\): a step took [\d.]+ times",
                      done.out, flags=re.M), "no step in %r" % done)
    h.check("It was rank 2: " in done.out, "no rank in %r" % done)
    h.check("WRONG" not in done.out, "two verdicts in %r" % done)
    with open(os.path.join(home, "trace.json")) as f:
        events = json.load(f)["traceEvents"]
    h.check({"step 1", "step 140"} <= {e["name"] for e in events}, "steps are missing in the trace")
    h.check_equal(len(re.findall(r"^ *\d+ +\d+ +recording ", done.out, flags=re.M)), 4, "ranks in status")
    shutil.rmtree(home)


def test_a_rank_with_a_quota_is_found():
    finds_the_slowed_rank()


def test_a_rank_with_rivals_is_found():
    if os.getloadavg()[0] > 4 * os.cpu_count():
        h.skip("the load is %.1f: rivals make no difference on a machine where all ranks have some" % os.getloadavg()[0])
    finds_the_slowed_rank("--rivals")


def test_a_healthy_job_is_a_wrong_verdict():
    done, _ = demo("--steps", "40", "--slow-after", "20", "--share", "1000")
    done.ok(1)
    h.check("WRONG: rank 2 was slowed from step 21 on, but failslow says normal" in done.out, "%r" % done)


h.main(test_a_rank_with_a_quota_is_found, test_a_rank_with_rivals_is_found, test_a_healthy_job_is_a_wrong_verdict)
