# SPDX-License-Identifier: MulanPSL-2.0
"""Where the records go and how a process may end: contract 1 to 4, design 3. Every exit path keeps its status and loses
nothing that was recorded; files of other processes and earlier runs are left alone."""

import glob
import json
import os
import re
import signal
import socket

import ctl
import harness as h
import jobs

h.require(h.AGENT)
PYTHON = list(h.pythons().values())[-1]
HOST = socket.gethostname()


def trained(steps, **extra):
    """A job that has run that many steps, its agent having been ready before the first."""
    job = jobs.Job(PYTHON, h.preload_env(h.tmpdir(), **extra))
    job.wait_attached()
    job.train(steps)
    return job


def end(job, text):
    """Let the job run text, which ends it; returns its Result."""
    job.process.stdin.write(text.encode() + b"\n")
    job.process.stdin.close()
    job.process.stdin = None
    return h.finish(job.process)


def check_clean(job, dump):
    h.check(not os.path.exists(job.sock), "the socket stayed behind")
    left = [d for d, _, fs in os.walk(os.path.join(dump, "spool")) if any("pool" in f for f in fs)]
    h.check_equal(left, [], "spool directories left behind")


def test_exit_paths():
    for text, status in (("sys.exit(0)", 0), ("sys.exit(3)", 3), ("raise RuntimeError('x')", 1),
                         ("import threading; threading.Thread(target=time.sleep, args=(0.3,)).start(); sys.exit(4)", 4)):
        job = trained(6)
        end(job, text).ok(status)
        h.check_equal(jobs.steps_in(h.find_one(job.dump, "timeline/*")), [1, 2, 3, 4, 5, 6], "steps after %s" % text)
        check_clean(job, job.dump)


def test_abrupt_ends():
    """_exit and signals leave files and spool as they are; the status is the job's own."""
    for text, status in (("os._exit(5)", 5), ("os.kill(os.getpid(), 15)", -15), ("os.kill(os.getpid(), 9)", -9),
                         ("os.abort()", -6)):
        job = trained(4)
        job.ask("flush")
        end(job, text).ok(status)
        h.check_equal(jobs.steps_in(h.find_one(job.dump, "timeline/*")), [1, 2, 3, 4], "steps after %s" % text)


def test_kill_and_recover():
    """What was committed to the pool when SIGKILL came is in the file after recover."""
    h.require(h.SYSTRACE)
    job = trained(3)
    job.ask("flush")
    end(job, "model.train(20); os.kill(os.getpid(), 9)")
    env = h.tool_env(job.dump)
    done = h.run([h.SYSTRACE, "recover", "--spool", env["SYSTRACE_SPOOL_PATH"]], env=env)
    done.ok()
    h.check_equal(jobs.steps_in(h.find_one(job.dump, "timeline/*")), list(range(1, 24)), "steps after recover")
    check_clean(jobs_socket_gone(job), job.dump)


def jobs_socket_gone(job):
    if os.path.exists(job.sock):
        os.unlink(job.sock)  # a killed process cannot; the next of that pid replaces it (t012)
    return job


def test_names_and_meta():
    job = trained(2, RANK="5", WORLD_SIZE="16", LOCAL_RANK="1", SYSTRACE_RUN_ID="run 1/a")
    job.quit().ok()
    h.check_equal(os.listdir(os.path.join(job.dump, "timeline")), ["%s--00005.timeline" % HOST], "timeline")
    path = h.find_one(job.dump, "meta/*/*.json")
    h.check_equal(os.path.relpath(path, job.dump), "meta/run_1_a/%s--5--%d.json" % (HOST, job.pid), "meta file")
    meta = json.loads(h.read_file(path))
    got = [meta[k] for k in ("run", "rank", "rank_known", "local_rank", "world_size", "host", "pid", "ended", "started_by",
                             "recorded_by", "files", "dropped")]
    h.check_equal(got, ["run 1/a", 5, True, 1, 16, HOST, job.pid, True, "framework", "step",
                        ["timeline/%s--00005.timeline" % HOST], 0], "meta file")
    h.check(meta["clocks"]["realtime_ns"] > 10**18 and meta["clocks"]["mono_ns"] > 0, "clocks: %r" % meta["clocks"])
    text = h.decode_pb(h.find_one(job.dump, "timeline/*"))
    h.check('run: "run 1/a"' in text and "rank: 5" in text, "origin: %s" % text[:600])


def test_json_format():
    job = trained(3, SYSTRACE_FORMAT="json")
    job.ask("flush")
    data = json.loads(h.read_file(h.find_one(job.dump, "timeline/*.timeline")))
    h.check(data, "empty JSON")
    job.quit().ok()
    json.loads(h.read_file(h.find_one(job.dump, "timeline/*.timeline")))


def test_two_jobs_at_once():
    """Two live processes of one name: both keep their records, in files of their own."""
    directory = h.tmpdir()
    env = h.preload_env(directory, RANK="0")
    both = [jobs.Job(PYTHON, env) for _ in range(2)]
    for n, job in enumerate(both):
        job.wait_attached()
        job.train(3 + n)
        job.ask("flush")
    names = sorted(os.listdir(os.path.join(directory, "timeline")))
    h.check_equal(len(names), 2, "files of two live jobs: %s" % names)
    for job in both:
        job.quit().ok()
    got = sorted(len(jobs.steps_in(os.path.join(directory, "timeline", n))) for n in names)
    h.check_equal(got, [3, 4], "steps in %s" % names)


def test_second_run():
    """A file of an earlier process is renamed with its time, not appended to."""
    directory = h.tmpdir()
    env = h.preload_env(directory, RANK="0")
    for steps in (2, 5):
        job = jobs.Job(PYTHON, env)
        job.wait_attached()
        job.train(steps)
        job.quit().ok()
    documented = os.path.join(directory, "timeline", HOST + "--00000.timeline")
    old = [n for n in glob.glob(documented + ".*") if re.search(r"\.\d{9,}$", n)]
    h.check_equal(len(old), 1, "renamed files: %s" % os.listdir(os.path.dirname(documented)))
    h.check_equal((len(jobs.steps_in(documented)), len(jobs.steps_in(old[0]))), (5, 2), "steps of the new and the old run")


def test_impossible_dump_path():
    """A dump path that cannot be made: the user's state directory, said once in the log, and `status` tells."""
    directory = h.tmpdir()
    h.write_file(os.path.join(directory, "file"), "")
    state = os.path.join(directory, "state")
    env = h.preload_env(directory, XDG_STATE_HOME=state)
    env["SYSTRACE_DUMP_PATH"] = os.path.join(directory, "file", "dump")
    job = jobs.Job(PYTHON, env)
    job.wait_attached()
    job.train(3)
    h.check_equal(job.ask("flush").code, 0, "flush")
    h.check_equal(job.status().get("dump_path"), os.path.join(state, "sysTrace"), "dump path in status")
    job.quit().ok()
    h.check_equal(len(jobs.steps_in(h.find_one(state, "sysTrace/timeline/*"))), 3, "steps")
    h.check_equal(h.agent_log(directory).count("cannot write to"), 1, "said in the log: %s" % h.agent_log(directory))


def test_nowhere_to_write():
    """Neither: the job runs on, the answer gives the reason."""
    directory = h.tmpdir()
    h.write_file(os.path.join(directory, "file"), "")
    env = h.preload_env(directory, XDG_STATE_HOME=os.path.join(directory, "file", "state"))
    env["SYSTRACE_DUMP_PATH"] = os.path.join(directory, "file", "dump")
    job = jobs.Job(PYTHON, env)
    job.wait_attached()
    job.train(3)
    answer = job.ask("flush")
    h.check(answer.code < 0 and answer.text, "flush: %r" % answer)
    h.check(any("dump" in n for n in job.status().all("note")), "notes: %s" % job.status().all("note"))
    job.train(3)
    result = job.quit().ok()
    h.check_equal(result.err, "", "stderr")


def test_nothing_lost_in_silence():
    """More than the pool holds at once: each step is in the file or in the count of lost ones."""
    job = trained(12000, SYSTRACE_SPOOL_MB="1")
    job.ask("flush")
    status = job.status()
    job.quit().ok()
    steps = jobs.steps_in(h.find_one(job.dump, "timeline/*"))
    h.check_equal(sorted(set(steps)), steps, "steps in order, each once")
    h.check_equal(len(steps) + int(status.get("dropped.step", "0")), 12000, "steps written and lost")


def test_no_log_place():
    """No log file can be made anywhere: nothing is printed, nothing fails."""
    directory = h.tmpdir()
    h.write_file(os.path.join(directory, "file"), "")
    env = h.preload_env(directory, XDG_STATE_HOME=os.path.join(directory, "file", "x"))
    env["SYSTRACE_LOG_PATH"] = os.path.join(directory, "file", "log")
    env["SYSTRACE_LOG_LEVEL"] = "DEBUG"
    job = jobs.Job(PYTHON, env)
    job.wait_attached()
    job.train(2)
    result = job.quit().ok()
    h.check_equal(result.err, "", "stderr")
    h.check_equal(len(jobs.steps_in(h.find_one(job.dump, "timeline/*"))), 2, "steps")


def test_bad_values():
    """Values that are refused: the default holds, the log says so, the job runs."""
    job = trained(2, SYSTRACE_FORMAT="xml", SYSTRACE_SPOOL_MB="-3", SYSTRACE_MAX_MB="many", SYSTRACE_BUDGET_PCT="0",
                  RANK="two")
    h.check_equal(job.status().get("format"), "pb", "format")
    job.quit().ok()
    log = h.agent_log(job.dump)
    for name in ("SYSTRACE_FORMAT='xml'", "SYSTRACE_SPOOL_MB", "SYSTRACE_MAX_MB", "SYSTRACE_BUDGET_PCT", "RANK='two'"):
        h.check(name in log, "%s is not in the log: %s" % (name, log))


h.main(test_exit_paths, test_abrupt_ends, test_kill_and_recover, test_names_and_meta, test_json_format,
       test_two_jobs_at_once, test_second_run, test_impossible_dump_path, test_nowhere_to_write,
       test_nothing_lost_in_silence, test_no_log_place,
       test_bad_values)
