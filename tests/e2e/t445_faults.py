# SPDX-License-Identifier: MulanPSL-2.0
"""Fault points of the agent, in a build of its own: whatever call fails while the agent starts, grows, writes and ends, the
job ends as it would have, prints nothing, and the agent that can't have something says so. And what needs its clock turned:
an agent that recovers what others left."""
# runner: full

import glob
import os
import signal

import harness as h
import jobs

PYTHON = list(h.pythons().values())[-1]
POINTS = ("dir.mkdir_base", "dir.open_base", "dir.mkdir", "dir.open", "dir.create", "dir.fallocate", "dir.map", "dir.guard",
          "dir.reserve", "dir.reopen", "drain.new", "out.write", "out.reopen", "out.part", "out.part_write",
          "out.part_rename", "out.truncate", "name.create", "name.open", "name.rename", "lock.open", "lock.write",
          "thread.create")
NOMEM, IO = 12, 5


def build():
    """The agent with fault points."""
    h.require("cmake", "ninja")
    directory = h.tmpdir()
    h.run(["cmake", "-S", h.ROOT, "-B", directory, "-G", "Ninja", "-DST_FAULTS=ON"], timeout=120).ok()
    h.run(["ninja", "-C", directory, "-j2", "sysTrace"], timeout=400).ok()
    h.AGENT = os.path.join(directory, "libsysTrace.so")


def ready(job):
    """Attached, or found out that this agent will never be."""
    for _ in range(100):
        if os.path.exists(job.sock) and job.attached() >= job.functions:
            return True
        job.do("time.sleep(0.01)")
    return False


def test_every_point():
    for point in POINTS:
        for nth in (1, 2, 3):
            env = h.preload_env(h.tmpdir(), SYSTRACE_FAULT="%s:%d:%d" % (point, nth, NOMEM if "map" in point else IO),
                                SYSTRACE_FORMAT="json" if nth == 2 else "pb")
            job = jobs.Job(PYTHON, env)
            attached = ready(job)
            job.train(50)
            result = job.quit().ok()
            h.check_equal(result.err, "", "stderr with %s, pass %d" % (point, nth))
            if attached and point.startswith(("dir.", "out.part", "lock.")) and nth != 2:
                steps = [n for p in glob.glob(os.path.join(job.dump, "timeline", "*")) for n in jobs.steps_in(p)]
                h.check_equal(steps, list(range(1, 51)), "steps with %s, pass %d" % (point, nth))


def test_an_agent_recovers_others():
    """Those of its own dump path, not those of another one."""
    place = h.tmpdir()
    dumps = [h.tmpdir(), h.tmpdir()]
    for dump in dumps:
        job = jobs.Job(PYTHON, h.preload_env(dump, SYSTRACE_SPOOL_PATH=place, RANK="1"))
        job.wait_attached()
        job.train(20)
        job.process.send_signal(signal.SIGKILL)
        job.process.wait()
    pools = lambda: glob.glob(os.path.join(place, "*", "*", "pool"))
    h.check_equal(len(pools()), 2, "pools of the killed")
    job = jobs.Job(PYTHON, h.preload_env(dumps[0], SYSTRACE_SPOOL_PATH=place, RANK="0", SYSTRACE_FAULT="io.recover_now:1:1"))
    job.wait_attached()
    job.train(5)
    h.check_equal(job.ask("flush").code, 0, "flush")
    h.wait_for(lambda: len(pools()) == 2, what="the first one's pool being recovered")  # the other's and its own
    h.check_equal(jobs.steps_in(h.find_one(dumps[0], "timeline/*--00001.timeline")), list(range(1, 21)), "steps")
    h.check_equal(glob.glob(os.path.join(dumps[1], "timeline", "*--00001*.timeline.ext*")), [], "nothing of the other")
    job.quit().ok()
    h.check_equal(len(pools()), 1, "pools: the other's is left")


build()
h.main(test_every_point, test_an_agent_recovers_others)
