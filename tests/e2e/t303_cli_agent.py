#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""sysTrace_cli and doctor against the real agent: every action, a dormant and an inert process, a killed job."""

import json
import os
import re
import signal

import harness as h

h.require(h.AGENT, h.CLI, h.SYSTRACE)
h.own_pid_namespace()

PYTHON = "/usr/bin/python3"
SLEEP = "import sys, time; print('up', flush=True); time.sleep(600)"


class Job:
    """Python processes with the agent; variables may differ from one to the next."""

    def __init__(self, *variables):
        h.require(PYTHON)
        self.dir = h.tmpdir()
        self.tools = h.tool_env(self.dir)
        self.processes = []
        for more in variables:
            process = h.start([PYTHON, "-c", SLEEP], env=h.preload_env(self.dir, **more))
            self.processes.append(process)
            h.check_equal(process.stdout.readline(), b"up\n", "the job's first line")
        self.pids = [p.pid for p in self.processes]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            h.stop(process, signal.SIGKILL)

    def cli(self, *args):
        return h.run([h.CLI, *args], env=self.tools)

    def socket(self, n):
        return os.path.join(self.dir, "sock", "sysTrace_%d.sock" % self.pids[n])


def test_every_action():
    with Job({"SYSTRACE_ENABLE": 1, "RANK": 0}, {"SYSTRACE_ENABLE": 1, "RANK": 1}) as job:
        want = "".join("[ACK] %s: SUCCESS\n" % job.socket(n) for n in (0, 1))
        h.check_equal(job.cli("enable", "MSPTI", "event=marker").ok().out, want, "enable")
        data = json.loads(job.cli("status", "--json").ok().out)
        h.check_equal([a["pid"] for a in data["agents"]], job.pids, "pids")
        h.check_equal([p["name"] for p in data["agents"][0]["plugins"]], ["MSPTI"], "plugins")
        h.check_equal({a["state"] for a in data["agents"]}, {"recording"}, "states")
        h.check_equal({a["dump_path"] for a in data["agents"]}, {job.dir}, "dump paths")
        h.check(re.search(r"^ *%d .* MSPTI " % job.pids[0], job.cli("status").ok().out, re.M), "MSPTI is not in the table")
        h.check_equal(job.cli("disable", "MSPTI").ok().out, want, "disable")
        h.check_equal(job.cli("disable", "MSPTI").ok().out, want.replace("SUCCESS", "SUCCESS (was off)"), "disable again")
        h.check_equal(job.cli("flush").ok().out, want, "flush")
        h.check("no collective in the last minute" in job.cli("dump").ok().out, "dump")
        h.check_equal(job.cli("disable", "stages", "--pid", str(job.pids[1])).ok().out,
                      "[ACK] %s: SUCCESS\n" % job.socket(1), "stages")


def test_waiting_is_shown():
    with Job({"SYSTRACE_ENABLE": 1, "RANK": 0}) as job:
        job.cli("enable", "MSPTI", "start_step=500").ok()
        out = job.cli("status").ok().out
        h.check("MSPTI (waiting for step 500)" in out, out)


def test_dormant_and_inert_processes():
    with Job({}) as job:
        got = job.cli("enable", "MSPTI").ok(3)
        h.check("1 process has libsysTrace.so loaded, but dormant" in got.err, got.err)
        h.check(re.search(r"%d +- +dormant" % job.pids[0], job.cli("list").ok().out), "dormant in list")
        got = h.run([h.SYSTRACE, "doctor", "--pid", str(job.pids[0])], env=job.tools).ok(1)
        h.check("dormant: an interpreter is here" in got.out, got.out)
        inert = h.start(["sleep", "600"], env=h.preload_env(job.dir))
        h.wait_for(lambda: h.AGENT in h.read_file("/proc/%d/maps" % inert.pid), what="the library in sleep's maps")
        got = h.run([h.SYSTRACE, "doctor", "--pid", str(inert.pid)], env=job.tools).ok(1)
        h.check("inert: neither a Python interpreter nor a device runtime" in got.out, got.out)
        h.check_equal(json.loads(job.cli("list", "--json").ok().out)["inert"], 1, "inert")
        h.stop(inert)


def test_doctor_of_an_agent():
    with Job({"SYSTRACE_ENABLE": 1, "SYSTRACE_SPOOL_MB": "many"}) as job:
        got = h.run([h.SYSTRACE, "doctor", "--pid", str(job.pids[0])], env=job.tools).ok()
        h.check(re.search(r"ok +socket +%s\n" % re.escape(job.socket(0)), got.out), got.out)
        h.check(re.search(r"no +SYSTRACE_SPOOL_MB +SYSTRACE_SPOOL_MB='many' is not a positive", got.out), got.out)
    got = h.run([h.SYSTRACE, "doctor", "--pid", str(os.getpid())], env=job.tools).ok(1)
    h.check("not in its LD_PRELOAD; start it with LD_PRELOAD=%s" % h.AGENT in got.out, got.out)
    h.run([h.SYSTRACE, "doctor", "--pid", "999999"], env=job.tools).ok(3)
    h.run([h.SYSTRACE, "doctor", "--pid", "0"], env=job.tools).ok(2)


def test_doctor_of_the_machine():
    job_dir = h.tmpdir()
    env = h.tool_env(job_dir)
    env.update(SYSTRACE_FORMAT="xml", SYSTRACE_DUMP_PATH="/etc/passwd/here")
    data = json.loads(h.run([h.SYSTRACE, "doctor", "--json"], env=env).ok().out)
    by = {(f["section"], f["name"]): f for f in data["findings"]}
    h.check_equal(by["Environment variables", "SYSTRACE_FORMAT"]["level"], "no", "a wrong value")
    h.check("pb,json" in by["Environment variables", "SYSTRACE_FORMAT"]["text"], "what is valid")
    h.check("Not a directory" in by["Places", "output"]["text"], by["Places", "output"]["text"])
    h.check_equal(by["Places", "output"]["level"], "no", "a place that cannot be made")
    h.check_equal(by["System", "agent"]["level"], "ok", "agent")
    plugins = [n for s, n in by if s == "What can be recorded here"]
    h.check_equal(plugins, ["always on", "MSPTI", "IO", "CPU", "Memory", "CacheMiss", "GIL", "Mutex", "Ftrace", "Trace",
                            "HBM"], "plugins")
    text = h.run([h.SYSTRACE, "doctor"], env=env).ok().out
    for section in ("System", "Places", "Python interpreters", "What can be recorded here", "Environment variables"):
        h.check("\n%s\n" % section in "\n" + text, "no section %s" % section)


def test_status_finishes_what_a_killed_job_left():
    with Job({"SYSTRACE_ENABLE": 1, "RANK": 0}) as job:
        job.cli("enable", "MSPTI").ok()
        spool = os.path.join(job.dir, "spool", "sysTrace.%d" % os.geteuid())
        h.check([d for d in os.listdir(spool) if "-%d-" % job.pids[0] in d], "no spool directory: %s" % os.listdir(spool))
        h.stop(job.processes[0], signal.SIGKILL)
        job.cli("status").ok(3)
        h.wait_for(lambda: not [d for d in os.listdir(spool) if "-%d-" % job.pids[0] in d], what="recovery")


h.main(test_every_action, test_waiting_is_shown, test_dormant_and_inert_processes, test_doctor_of_an_agent,
       test_doctor_of_the_machine, test_status_finishes_what_a_killed_job_left)
