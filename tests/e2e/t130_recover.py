# SPDX-License-Identifier: MulanPSL-2.0
"""A job ended by SIGKILL, then `systrace recover` (design 3): what the hooks had put into the pool is in the files once, the
JSON files are whole, and recovering again, twice at once or for show does no harm."""

import glob
import json
import os
import signal

import harness as h
import jobs

h.require(h.AGENT, h.SYSTRACE)
PYTHON = list(h.pythons().values())[-1]


def killed(steps, **extra):
    """The dump and spool directories of a job that was killed in its last step's wake."""
    job = jobs.Job(PYTHON, h.preload_env(h.tmpdir(), **extra))
    job.wait_attached()
    job.train(1)
    h.wait_for(lambda: glob.glob(os.path.join(job.dump, "timeline", "*")), what="the first flush")
    job.train(steps - 1)  # the end of these is in the pool alone
    job.process.send_signal(signal.SIGKILL)
    job.process.wait()
    return job.dump, os.path.join(job.dump, "spool")


def recover(spool, *options):
    return h.run([h.SYSTRACE, "recover", "--spool", spool, *options])


def pools(spool):
    return glob.glob(os.path.join(spool, "*", "*", "pool"))


def timeline_steps(dump):
    """Steps of a pb timeline, by protoc."""
    text = h.decode_pb(h.find_one(dump, "timeline/*.timeline"))
    found = []
    for part in text.split("\nsteps {")[1:]:
        lines = part.split("}")[0].split("\n")
        found += [int(line.split(":")[1]) for line in lines if line.strip().startswith("step:")]
    return found


def test_pb():
    dump, spool = killed(20)
    h.check_equal(len(pools(spool)), 1, "pools left by the kill")
    before = recover(spool, "--dry-run").ok()
    h.check("would be recovered" in before.out, repr(before))
    h.check_equal(len(pools(spool)), 1, "a dry run changes nothing: pools")
    first = recover(spool, "--json").ok()
    report = json.loads(first.out)
    h.check_equal((report["verdict"], report["dropped"]), ("recovered", 0), "verdict and drops")
    h.check_equal(timeline_steps(dump), list(range(1, 21)), "steps")
    h.check_equal(pools(spool), [], "pools after recovery")
    recover(spool).ok(3)


def test_json():
    dump, spool = killed(20, SYSTRACE_FORMAT="json")
    recover(spool).ok()
    for path in glob.glob(os.path.join(dump, "timeline", "*")):
        json.loads(h.read_file(path))
    ext = json.loads(h.read_file(h.find_one(dump, "timeline/*.ext.json")))
    steps = [s["step"] for message in ext["ext"] for s in message.get("steps", [])]
    h.check_equal(steps, list(range(1, 21)), "steps")


def test_twice_at_once():
    dump, spool = killed(20)
    both = [h.start([h.SYSTRACE, "recover", "--spool", spool]) for _ in range(2)]
    results = [h.finish(p) for p in both]
    h.check(all(r.status in (0, 3) for r in results), repr(results))
    h.check_equal(timeline_steps(dump), list(range(1, 21)), "steps")
    h.check_equal(pools(spool), [], "pools")


def test_live_jobs_are_left_alone():
    job = jobs.Job(PYTHON, h.preload_env(h.tmpdir()))
    job.wait_attached()
    job.train(3)
    spool = os.path.join(job.dump, "spool")
    recover(spool).ok(3)
    h.check_equal(len(pools(spool)), 1, "pools of the live job")
    job.train(3)
    h.stop(job.process)


def test_sockets():
    """The control socket that a killed job leaves goes with its pool; that of a live one stays."""
    dump, spool = killed(3)
    sockets = os.path.join(dump, "sock")
    left, = os.listdir(sockets)
    os.utime(os.path.join(sockets, left), (1000, 1000), follow_symlinks=False)  # a younger one may be about to listen
    recover(spool).ok()
    h.check_equal(os.listdir(sockets), [left], "sockets of a run that was not told about them")
    shown = recover(spool, "--sockets", sockets, "--dry-run").ok()
    h.check("%s/%s: would be removed" % (sockets, left) in shown.out, repr(shown))
    job = jobs.Job(PYTHON, h.preload_env(h.tmpdir(), SYSTRACE_SOCKET_DIR=sockets))
    job.wait_attached()
    os.utime(job.sock, (1000, 1000), follow_symlinks=False)
    report = json.loads(recover(spool, "--sockets", sockets, "--json").ok().out)
    h.check_equal((report["socket"], report["verdict"]), (os.path.join(sockets, left), "removed"), "report")
    h.check_equal(os.listdir(sockets), [os.path.basename(job.sock)], "sockets")
    h.check_equal(job.ask("list").code, 0, "the live one's answer")
    job.quit().ok()
    recover(spool, "--sockets", sockets).ok(3)


h.main(test_pb, test_json, test_twice_at_once, test_live_jobs_are_left_alone, test_sockets)
