#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""The probe and jobs with an agent: rank, dump path and run as the agent says them, training steps, and a job in a pid
namespace of its own, whose files carry both ids."""

import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness as h
import jobs
import probes
from probes import OsFile, Place

probes.require_probe()
h.require(h.AGENT)


def job_here(place, **extra):
    env = h.preload_env(place.dump, place.sock, RANK="5", SYSTRACE_RUN_ID="run-x", SYSTRACE_FORMAT="pb", **extra)
    job = jobs.Job(sys.executable, env)
    job.wait_attached()
    return job


def the_agent_says_who_and_where():
    place = Place(SYSTRACE_DUMP_PATH="/nowhere-at-all")
    job = job_here(place)
    job.train(2)
    out = place.cli("enable", "CPU", "pid=%d" % job.pid).ok().out
    h.check("process %d rank 5" % job.pid in out, out)
    job.train(3)
    shown = place.cli("status", "--pid", job.pid).ok().out
    h.check("PROBES" in shown and "CPU: on, pid %d" % job.pid in shown, shown)
    place.cli("disable", "CPU", "--pid", job.pid).ok()
    files = [f for f in place.files() if ".probe." in f]
    h.check(len(files) == 1 and "_rank_5_%d.probe.pb" % job.pid in files[0], files)
    origin = OsFile(files[0]).origins[0]
    h.check_equal((origin[1], origin[6], origin[7], origin[17]), (b"run-x", 5, 1, job.pid), "origin")
    job.quit().ok()
    place.wait_gone()


def steps_are_the_jobs():
    place = Place()
    job = job_here(place)
    job.train(2)
    got = place.cli("enable", "CPU", "pid=%d" % job.pid, "start_step=2").ok(1).out
    h.check("step 2 has passed, the job is at step 3" in got, got)
    got = place.cli("enable", "CPU", "pid=%d" % job.pid, "start_step=5", "steps=2").ok().out
    h.check("armed: starts at step 5 (now at 3)" in got, got)
    job.train(1)
    h.check("waiting" in "".join(v for k, v in place.status()[0].items() if "session" in k), place.status())
    job.train(1)
    h.wait_for(lambda: any("CPU: on" in v for k, v in place.status()[0].items() if "session" in k), what="step 5")
    job.train(2)
    place.wait_gone()
    job.quit().ok()


def a_job_in_a_namespace_of_its_own():
    h.require("unshare")
    place = Place()
    job = h.start(["unshare", "--pid", "--fork", "--kill-child", probes.sched_host(), "say=up", "read", "sleep=1,20",
                   "thread=5", "say=done", "read"], env=place.env, stdin=subprocess.PIPE)
    h.check_equal(job.stdout.readline(), b"up\n", "job")
    pid = int(h.read_file("/proc/%d/task/%d/children" % (job.pid, job.pid)).split()[0])
    place.cli("enable", "CPU", "pid=%d" % pid).ok()
    job.stdin.write(b"\n")
    job.stdin.flush()
    h.check_equal(job.stdout.readline(), b"done\n", "job")
    place.cli("disable", "CPU").ok()
    h.check(place.files()[0].endswith("_rank_0_1.probe.pb"), place.files())
    file = OsFile(place.files()[0])
    h.check_equal(file.origins[0][4], b"%d 1" % pid, "ids in every namespace")
    main = next(t for t in file.threads if t[2] == pid)
    h.check_equal(main[4], 1, "the thread's id in its namespace: %r" % file.threads)
    h.check(file.cycles(pid), "cycles by the host's id")
    h.finish(job)


h.main(the_agent_says_who_and_where, steps_are_the_jobs, a_job_in_a_namespace_of_its_own)
