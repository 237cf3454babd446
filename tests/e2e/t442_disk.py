# SPDX-License-Identifier: MulanPSL-2.0
"""Disks (docs/safety.md 7): full, over quota, read-only, deleted, frozen. The job goes on meanwhile, what finds no room is counted, and
the output is complete again when the disk is."""

import glob
import os
import re
import shutil
import signal
import statistics
import time

import harness as h
import jobs

h.own_mounts()
h.require(h.AGENT)
PYTHON = list(h.pythons().values())[-1]
MB = 1 << 20


def small_tmpfs(size):
    place = h.tmpdir()
    h.mount("-t", "tmpfs", "-o", "size=%d" % size, "none", place)
    return place


def real_disk(megabytes=24):
    """An ext4 of its own on a loop device; h.mount skips where there is none."""
    h.require("mkfs.ext4")
    image = os.path.join(h.tmpdir(), "image")
    with open(image, "wb") as f:
        f.truncate(megabytes * MB)
    h.run(["mkfs.ext4", "-q", "-F", image]).ok()
    place = h.tmpdir()
    h.mount("-o", "loop", image, place)
    return place


def quota_disk(limit):
    """A directory of a btrfs of its own that may hold so many bytes, also root's; skips where there is none."""
    h.require("mkfs.btrfs", "btrfs")
    image = os.path.join(h.tmpdir(), "image")
    with open(image, "wb") as f:
        f.truncate(120 * MB)
    h.run(["mkfs.btrfs", "-q", image]).ok()
    place = h.tmpdir()
    h.mount("-o", "loop", image, place)
    mine = os.path.join(place, "mine")
    h.run(["btrfs", "quota", "enable", place]).ok()
    h.run(["btrfs", "subvolume", "create", mine]).ok()
    h.run(["btrfs", "qgroup", "limit", str(limit), mine]).ok()
    return mine


def job_on(place, **extra):
    """A job whose dump path is below place, everything else elsewhere."""
    env = h.preload_env(h.tmpdir(), SYSTRACE_DUMP_PATH=os.path.join(place, "dump"), SYSTRACE_LOCAL_PATH=None,
                        XDG_STATE_HOME=os.path.join(place, "state"))
    for key, value in extra.items():
        env.pop(key, None) if value is None else env.__setitem__(key, str(value))
    job = jobs.Job(PYTHON, env)
    job.wait_attached()
    return job


def account(job, steps):
    """Each step is in the files once, or told as dropped. Returns how many were dropped."""
    found, lost = [], 0
    for path in glob.glob(os.path.join(job.dump, "timeline", "*")):
        found += jobs.steps_in(path)
        lost += sum(int(n) for n in re.findall(r'^drops \{\n  source: "step"\n  count: (\d+)', h.decode_pb(path), re.M))
    h.check_equal(len(found), len(set(found)), "steps that are there twice")
    h.check_equal(len(found) + lost, steps, "steps in the files and told as dropped (%d)" % lost)
    return lost


def times(job, steps):
    """Median seconds of ten rounds of that many steps."""
    took = []
    for _ in range(10):
        begin = time.monotonic()
        job.train(steps)
        took.append(time.monotonic() - begin)
    return statistics.median(took)


def fill_and_make_room(place, words, make_room):
    """The disk takes no more; the pool takes the rest, then drops; the disk gets room, and everything goes on."""
    job = job_on(place, SYSTRACE_SPOOL_MB=1)
    total = 0
    full = False
    while not full or int(job.status().get("dropped", "0")) == 0:
        job.train(1000)
        total += 1000
        full = full or any(words in n for n in job.status().all("note"))
        h.check(total < 500000, "full: %s, and nothing was dropped: %r" % (full, job.status()))
    h.check_equal(job.ask("list").code, 0, "list")
    make_room()
    h.check_equal(job.ask("flush", timeout=60).code, 0, "flush")
    job.train(100)
    h.check_equal(job.ask("flush").code, 0, "flush")
    h.check_equal(job.status().all("note"), [], "notes when all is well again")
    job.quit().ok()
    lost = account(job, total + 100)
    h.check(lost > 0, "no step was dropped")
    log = h.agent_log(os.path.dirname(os.path.dirname(job.sock)))
    h.check_equal(log.count(words), 1, "times it is said: %s" % log)


def test_full():
    """A tmpfs of 1 MiB."""
    place = small_tmpfs(MB)
    fill_and_make_room(place, "No space", lambda: h.mount("-o", "remount,size=%d" % (64 * MB), place))


def test_quota():
    """1 MiB of a disk that has much more."""
    place = quota_disk(MB)
    fill_and_make_room(place, "quota exceeded", lambda: h.run(["btrfs", "qgroup", "limit", "none", place]).ok())


def test_read_only():
    """Mounted read-only when the job starts; no place of the user's own either. Writable later: what the pool held is there."""
    place = small_tmpfs(8 * MB)
    os.mkdir(os.path.join(place, "dump"))
    h.mount("-o", "remount,ro", place)
    job = job_on(place)
    job.train(50)
    h.check(job.ask("flush").code < 0, "flush to a read-only file system")
    h.check(any("Read-only" in n for n in job.status().all("note")), "notes: %s" % job.status().all("note"))
    h.mount("-o", "remount,rw", place)
    h.check_equal(job.ask("flush").code, 0, "flush")
    job.train(10)
    job.quit().ok()
    h.check_equal(account(job, 60), 0, "dropped")


def test_gone():
    """The directory is deleted under the job: a new one is made, the next batch is in it."""
    job = job_on(h.tmpdir())
    job.train(20)
    h.check_equal(job.ask("flush").code, 0, "flush")
    shutil.rmtree(job.dump)
    job.train(30)
    h.check_equal(job.ask("flush").code, 0, "flush")
    job.train(10)
    job.quit().ok()
    found = jobs.steps_in(h.find_one(job.dump, "timeline/*"))
    h.check_equal(found, list(range(21, 61)), "steps after the deletion")


def test_frozen():
    """A file system that stands still: the job trains on, control answers, drops are counted; then all of it is written."""
    h.require("fsfreeze")
    place = real_disk()
    job = job_on(place, SYSTRACE_SPOOL_MB=1)
    before = times(job, 100)
    total = 1000
    h.check_equal(job.ask("flush").code, 0, "flush")
    h.run(["fsfreeze", "-f", place]).ok()
    try:
        begin = time.monotonic()
        while time.monotonic() - begin < (30 if h.FULL else 3):
            job.train(2000)
            total += 2000
            h.check_equal(job.ask("list").code, 0, "list while the disk stands still")
            if not h.FULL and total > 60000:
                break
            time.sleep(0.05)
        during = times(job, 100)
        total += 1000
        status = job.status()
    finally:
        h.run(["fsfreeze", "-u", place])
    print("100 steps: %.2f ms before, %.2f ms while the disk stood still" % (before * 1e3, during * 1e3))
    h.check(int(status.get("pending_bytes")) > 0, "nothing waits for the disk: %r" % status)
    h.check_equal(job.ask("flush", timeout=60).code, 0, "flush")
    job.train(100)
    job.quit().ok()
    lost = account(job, total + 100)
    print("%d steps, %d dropped" % (total + 100, lost))


def test_frozen_with_a_local_path():
    """The first write that took longer than two seconds sends the rest to SYSTRACE_LOCAL_PATH; collect brings it home."""
    h.require("fsfreeze", h.SYSTRACE)
    place, local = real_disk(), h.tmpdir()
    job = job_on(place, SYSTRACE_LOCAL_PATH=local)
    job.train(20)
    h.check_equal(job.ask("flush").code, 0, "flush")
    h.run(["fsfreeze", "-f", place]).ok()
    job.train(30)
    time.sleep(2.8)  # what the rule is about
    h.run(["fsfreeze", "-u", place]).ok()
    h.wait_for(lambda: job.status().get("dump_path") == local, what="the local path")
    job.train(50)
    h.check_equal(job.ask("flush").code, 0, "flush")
    h.check_equal(jobs.steps_in(h.find_one(local, "timeline/*.timeline"))[-1], 100, "last step in the local file")
    env = h.tool_env(h.tmpdir(), SYSTRACE_LOCAL_PATH=local, SYSTRACE_DUMP_PATH=job.dump)
    spool = os.path.join(os.path.dirname(os.path.dirname(job.sock)), "spool")
    command = [h.SYSTRACE, "collect", "--spool", spool]
    live = h.run(command, env=env)
    h.check("timeline: still written" in live.out and live.status in (0, 3), repr(live))
    job.quit().ok()
    moved = h.run(command, env=env).ok()
    h.check_equal([f for _, _, fs in os.walk(local) for f in fs], [], "files left behind: %r" % moved)
    account(job, 100)
    h.run(command, env=env).ok(3)
    # readers join what was written before and after, in order
    out = os.path.join(h.tmpdir(), "out.json")
    h.run([h.SYSTRACE, "convert", "timeline", "--input", job.dump, "--output", out]).ok()


def test_exit_while_frozen():
    """The job's part of the exit is over in two seconds; the kernel keeps the last thread until the disk answers."""
    h.require("fsfreeze")
    place = real_disk()
    job = job_on(place)
    job.train(20)
    h.check_equal(job.ask("flush").code, 0, "flush")
    h.run(["fsfreeze", "-f", place]).ok()
    try:
        job.train(20)
        job.process.stdin.write(b"quit\n")
        job.process.stdin.close()
        job.process.stdin = None
        h.wait_for(lambda: h.read_file("/proc/%d/stat" % job.pid).rsplit(")", 1)[1].split()[0] in "ZX",
                   what="the end of the job's own thread")
    finally:
        h.run(["fsfreeze", "-u", place])
    h.finish(job.process).ok()
    spool = os.path.join(os.path.dirname(os.path.dirname(job.sock)), "spool")
    h.run([h.SYSTRACE, "recover", "--spool", spool])
    account(job, 40)


def test_killed_while_full():
    """Full and then killed: recover waits for the disk as the agent did, and loses nothing."""
    place = small_tmpfs(256 * 1024)
    job = job_on(place)
    total = 0
    while not job.status().all("note"):
        job.train(1000)
        total += 1000
    job.process.send_signal(signal.SIGKILL)
    job.process.wait()
    spool = os.path.join(os.path.dirname(os.path.dirname(job.sock)), "spool")
    h.run([h.SYSTRACE, "recover", "--spool", spool]).ok(1)
    h.mount("-o", "remount,size=%d" % (64 * MB), place)
    h.run([h.SYSTRACE, "recover", "--spool", spool]).ok()
    account(job, total)


h.main(test_full, test_quota, test_read_only, test_gone, test_frozen, test_frozen_with_a_local_path, test_exit_while_frozen,
       test_killed_while_full)
