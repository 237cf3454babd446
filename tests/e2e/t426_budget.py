# SPDX-License-Identifier: MulanPSL-2.0
"""The overhead budget, enforced: a plugin that costs more than SYSTRACE_BUDGET_PCT records less, level by level, is
switched off at last, and says what it did in the file; within the budget nothing happens (design, section 3)."""

import re

import harness as h
import jobs

h.require(h.AGENT)
PYTHON = list(h.pythons().values())[-1]

COLLECTIVES = r"""
import time
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
c10d.init_process_group(0, 2)
def collectives(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(20):
            c10d.all_reduce(torch.Tensor(4))
        time.sleep(0.001)
"""
PROGRAM = jobs.LOOP.replace("class Model:", COLLECTIVES + "\nclass Model:")


def job_with(budget):
    job = jobs.Job(PYTHON, h.preload_env(h.tmpdir(), SYSTRACE_BUDGET_PCT=budget), PROGRAM)
    job.wait_attached()
    h.check_equal(job.ask("enable", plugin="MSPTI", event="marker").code, 0, "enable")
    return job


def notes(job):
    return re.findall(r'text: "(MSPTI took [^"]*)"', h.decode_pb(h.find_one(job.dump, "timeline/*")))


def test_over_budget():
    """Each second over the budget is one level: every 4th, 16th, 64th call, then off. The job goes on."""
    job = job_with("0.0001")
    for _ in range(40):
        job.do("collectives(0.5)")
        status = job.status()
        if status.get("plugin.mspti.state") == "off":
            break
    h.check_equal((status.get("plugin.mspti.state"), status.get("plugin.mspti.backed_off")), ("off", "switched off"),
                  "plugin in %r" % status)
    h.check(int(status.get("plugin.mspti.calls")) > 0 and int(status.get("plugin.mspti.cost_ns")) > 0, repr(status))
    job.train(2)
    job.ask("flush")
    said = [x.rsplit(": ", 1)[1] for x in notes(job)]
    h.check_equal(said, ["only every %dth call is a marker now" % n for n in (4, 16, 64)] + ["switched off"], "notes")
    h.check(all("SYSTRACE_BUDGET_PCT=0.0001" in x for x in notes(job)), "notes: %s" % notes(job))
    h.check(h.agent_log(job.dump).count("more than SYSTRACE_BUDGET_PCT") == 4, h.agent_log(job.dump))
    job.quit().ok()
    h.check_equal(jobs.steps_in(h.find_one(job.dump, "timeline/*")), [1, 2], "steps")


def test_within_budget():
    job = job_with("100")
    job.do("collectives(2.5)")
    status = job.status()
    h.check_equal((status.get("plugin.mspti.state"), status.get("plugin.mspti.backed_off")), ("on", None), "plugin")
    h.check(float(status.get("plugin.mspti.cost_pct")) > 0, repr(status))
    h.check(int(status.get("plugin.mspti.bytes")) > 0, repr(status))
    job.train(1)
    job.ask("flush")
    h.check_equal(notes(job), [], "notes")
    job.quit().ok()


h.main(test_over_budget, test_within_budget)
