# SPDX-License-Identifier: MulanPSL-2.0
"""Network file systems (docs/safety.md 8), played by a file system in user space: a remote dump path sends the output to
SYSTRACE_LOCAL_PATH from the first record on, `systrace collect` brings it home; a server that does not answer at all holds
up neither the job nor its exit."""

import glob
import os
import time

import fusefs
import harness as h
import jobs

h.own_mounts()
h.require(h.AGENT, h.SYSTRACE)
PYTHON = list(h.pythons().values())[-1]


def job_on(remote, local):
    env = h.preload_env(h.tmpdir(), SYSTRACE_DUMP_PATH=os.path.join(remote, "dump"), SYSTRACE_LOCAL_PATH=local,
                        XDG_STATE_HOME=None, HOME="/nonexistent", SYSTRACE_FORMAT="json")
    job = jobs.Job(PYTHON, env)
    job.wait_attached()
    return job, env


def test_local_segments():
    server, local, home = fusefs.Server(), h.tmpdir(), h.tmpdir()
    job, env = job_on(server.place, local)
    job.train(40)
    h.check_equal(job.ask("flush").code, 0, "flush")
    h.check_equal(job.status().get("dump_path"), local, "dump path in status")
    h.check(glob.glob(os.path.join(local, "timeline", "*")), "no file below the local path")
    h.check("is remote" in h.agent_log(os.path.dirname(env["SYSTRACE_LOG_PATH"])), "log")
    job.quit().ok()
    command = [h.SYSTRACE, "collect", "--from", local, "--to", home, "--spool", env["SYSTRACE_SPOOL_PATH"]]
    would = h.run(command + ["--dry-run"]).ok().out
    h.check("would be moved" in would and os.listdir(home) == [], "dry run: %s" % would)
    h.run(command).ok()
    h.check_equal([f for _, _, fs in os.walk(local) for f in fs], [], "files left behind")
    ext = h.find_one(home, "timeline/*.ext.json")
    h.check_equal(h.read_file(ext).count('"steps":['), 40, "steps")
    h.check_equal(len(glob.glob(os.path.join(home, "meta", "*", "*.json"))), 1, "meta files")


def test_silent_server():
    """Not one answer: the io thread hangs at the first look at the dump path. Training, control and exit do not."""
    server, local = fusefs.Server(), h.tmpdir()
    server.silence()
    job, env = job_on(server.place, local)
    job.train(30)
    h.wait_for(lambda: server.asked, what="a request to the silent server")
    job.train(3000)
    h.check_equal(job.status().get("step"), "3030", "step")
    h.check_equal(job.ask("list").code, 0, "list")
    begin = time.monotonic()
    job.quit().ok()
    print("exit took %.1f s" % (time.monotonic() - begin))
    # nothing could be written, nothing is lost: recover does it, to a place of its choice once that answers
    pools = glob.glob(os.path.join(env["SYSTRACE_SPOOL_PATH"], "*", "*", "pool"))
    h.check_equal(len(pools), 1, "pools that wait for recover")


h.main(test_local_segments, test_silent_server)
