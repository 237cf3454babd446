#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
# runner: needs-root
# runner: timeout 300
"""The plugins GIL and Mutex for processes without an agent: waits on a known schedule, counts of calls, the interpreter lock
of every CPython at hand, containers with a C library of their own, bad input, and nothing that stays in the kernel.
"""

import collections
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness as h
import probes
from probes import Place

h.own_mounts()
probes.require_probe("lock")
DIR = h.tmpdir()
HOST = h.compile_c(os.path.join(h.ROOT, "tests/fake/lock_host.c"), os.path.join(DIR, "lock_host"), "-pthread")


class Job:
    """A process that answers lines."""

    def __init__(self, *args, env=None):
        self.process = subprocess.Popen(list(args), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        h._started.append(self.process)
        self.told_pid = int(self.line())
        self.pid = self.process.pid

    def line(self):
        return self.process.stdout.readline().decode().strip()

    def go(self):
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()
        h.check_equal(self.line(), "done", "the job")

    def end(self):
        self.process.stdin.close()
        h.check_equal(self.process.wait(20), 0, "status of the job")


def enable(place, plugin, pid, *words, status=0):
    return place.cli("enable", plugin, "pid=%d" % pid, *words).ok(status).out


def disable(place, plugin, pid):
    place.cli("disable", plugin, "--pid", pid).ok()


def events_of(place, plugin):
    h.check_equal(len(place.files(plugin)), 1, "files: %r" % place.files(plugin))
    with open(place.files(plugin)[0]) as f:
        return json.load(f)["traceEvents"]


def spans(events, name):
    return [e for e in events if e["ph"] == "X" and e["name"] == name]


def calls(events):
    return {e["name"][7:]: e["args"]["calls"] for e in events if e["name"].startswith("calls: ")}


def check_schedule(events, pid):
    """The waits of lock_host, once."""
    for name, at_least in (("pthread_mutex_lock", 39000), ("pthread_rwlock_rdlock", 19000), ("sem_wait", 29000),
                           ("sem_timedwait", 10000)):
        long = [e for e in spans(events, name) if e["dur"] >= at_least and e["pid"] == pid]
        h.check_equal(len(long), 1, "%s: %r" % (name, spans(events, name)))
        h.check(re.fullmatch("0x[0-9a-f]+", long[0]["args"]["lock"]), "lock")
    tries = [e for e in spans(events, "pthread_mutex_trylock")]
    h.check_equal(sum(e["args"].get("failures", 1) for e in tries), 5, "failed trylocks: %r" % tries)
    h.check_equal({e["args"]["errno"] for e in tries}, {16}, "EBUSY")


def waits_on_a_known_schedule():
    place = Place()
    job = Job(HOST, env=place.env)
    out = enable(place, "Mutex", job.pid)
    h.check("SUCCESS (process %d" % job.pid in out, out)
    programs = probes.bpf_programs(place.probe_pid())
    job.go()
    disable(place, "Mutex", job.pid)
    events = events_of(place, "Mutex")
    check_schedule(events, job.pid)
    # 1000 free ones, 2 of main's, 2 of the others', and what the C library itself calls (few)
    got = calls(events)
    h.check(1004 <= got["pthread_mutex_lock"] <= 1050, "calls: %r" % got)
    for name, want in (("pthread_rwlock_rdlock", 101), ("pthread_rwlock_wrlock", 101), ("sem_wait", 101),
                       ("sem_timedwait", 1), ("pthread_mutex_trylock", 5), ("pthread_spin_lock", 100),
                       ("pthread_yield", 100)):
        if name in got or name != "pthread_spin_lock":  # its first instruction may be one that takes no uprobe
            h.check_equal(got.get(name), want, "calls of %s" % name)
    # free locks are not stored
    h.check(len(spans(events, "pthread_mutex_lock")) < 100, "stored: %d" % len(spans(events, "pthread_mutex_lock")))
    owner = [e for e in spans(events, "pthread_mutex_lock") if e["dur"] > 10000][0]["args"].get("owner_tid")
    h.check(owner and owner != job.pid, "owner %r" % owner)
    names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    h.check("lock_host" in names, "names of threads: %r" % names)
    said = h.run([h.SYSTRACE, "convert", "mutex", "--input", place.files("Mutex")[0]]).ok().out
    h.check("pthread_mutex_lock" in said, said)
    job.go()  # as before, and nobody looks
    job.end()
    place.wait_gone()
    h.wait_for(lambda: not probes.bpf_left(programs), what="the kernel has removed the programs")


def everything_or_long_ones():
    place = Place()
    job = Job(HOST, env=place.env)
    enable(place, "Mutex", job.pid, "min_us=0")
    job.go()
    enable(place, "Mutex", job.pid, "min_us=25000")  # the same capture, configured anew
    anew_us = time.monotonic() * 1e6
    job.go()
    disable(place, "Mutex", job.pid)
    job.end()
    place.wait_gone()
    events = events_of(place, "Mutex")
    stored = collections.Counter(e["name"] for e in events if e["ph"] == "X")
    h.check(stored["pthread_mutex_lock"] >= 1004 and stored["pthread_rwlock_wrlock"] >= 101, "stored: %r" % stored)
    later = [e for e in events if e["ph"] == "X" and e["ts"] > anew_us and e["args"].get("errno") not in (11, 16)]
    h.check(len(later) >= 3 and all(e["dur"] >= 25000 for e in later), "short ones: %r" % [e for e in later if e["dur"] < 25000][:3])


GUEST = """
import os, sys, threading, time
print(os.getpid(), flush=True)
sys.setswitchinterval(0.005)
def spin(seconds):
    while time.thread_time() < seconds:
        sum(range(1000))
for line in sys.stdin:
    threads = [threading.Thread(target=spin, args=(0.2,)) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    print("done", flush=True)
"""


def check_gil(events, what):
    holds, waits = spans(events, "GIL hold"), spans(events, "GIL wait")
    h.check(len(holds) >= 5 and len(waits) >= 3, "%s: %d holds, %d waits" % (what, len(holds), len(waits)))
    edges = sorted((e["ts"], e["ts"] + e["dur"]) for e in holds)
    h.check(all(a[1] <= b[0] + 0.002 for a, b in zip(edges, edges[1:])), "%s: holds overlap" % what)
    busy = {e["tid"] for e in holds if e["dur"] > 1000}
    h.check(len(busy) >= 3, "%s: only threads %r hold it" % (what, busy))
    h.check(sum(e["args"]["timeouts"] for e in waits) >= 3, "%s: nobody asked the holder to drop it" % what)


def interpreter_locks():
    pythons = h.pythons()
    if not pythons:
        h.skip("no CPython 3.8 to 3.13 is here")
    for version, path in pythons.items():
        place = Place()
        job = Job(path, "-c", GUEST, env=place.env)
        out = enable(place, "GIL", job.pid)
        h.check("SUCCESS (process %d" % job.pid in out, out)
        job.go()
        disable(place, "GIL", job.pid)
        job.go()
        job.end()
        place.wait_gone()
        name = os.path.basename(place.files("GIL")[0])
        h.check_equal(name, "GIL_%d_rank_0.json" % job.pid, "name")
        check_gil(events_of(place, "GIL"), "%d.%d" % version)
        said = h.run([h.SYSTRACE, "convert", "gil", "--input", place.files("GIL")[0]]).ok().out
        h.check("python" in said, said)


def copy_with_libraries(program, root):
    """The program and what it is linked with, below a root directory of its own."""
    for line in h.run(["ldd", program]).ok().out.splitlines():
        found = re.search(r"(/\S+) \(0x", line)
        if found:
            to = root + found.group(1)
            os.makedirs(os.path.dirname(to), exist_ok=True)
            shutil.copy(os.path.realpath(found.group(1)), to)
    shutil.copy(program, os.path.join(root, "lock_host"))


def a_container_with_its_own_c_library():
    place = Place()
    root = os.path.join(DIR, "root")
    os.makedirs(root)
    copy_with_libraries(HOST, root)
    os.makedirs(os.path.join(root, "dump"), exist_ok=True)
    os.makedirs(os.path.join(root, "proc"))
    job = Job("unshare", "--pid", "--mount", "--fork", "--kill-child", "sh", "-c",
              "mount -t proc proc \"$1/proc\" && exec chroot \"$1\" /lock_host", "sh", root,
              env=dict(place.env, SYSTRACE_DUMP_PATH="/dump"))
    h.check_equal(job.told_pid, 1, "pid inside")
    (pid,) = map(int, h.read_file("/proc/%d/task/%d/children" % (job.pid, job.pid)).split())
    enable(place, "Mutex", pid)
    job.go()
    disable(place, "Mutex", pid)
    job.end()
    place.wait_gone()
    path = glob.glob(os.path.join(root, "dump", "Mutex", "*"))
    h.check_equal([os.path.basename(p) for p in path], ["Mutex_1_rank_0.json"], "file below the container's root")
    with open(path[0]) as f:
        check_schedule(json.load(f)["traceEvents"], 1)


def a_killed_probe_hurts_nobody():
    place = Place()
    job = Job(HOST, env=place.env)
    enable(place, "Mutex", job.pid)
    programs = probes.bpf_programs(place.probe_pid())
    job.go()
    h.wait_for(lambda: place.files("Mutex") and os.path.getsize(place.files("Mutex")[0]) and
               spans(events_of(place, "Mutex"), "sem_timedwait"), what="data on disk")
    os.kill(place.probe_pid(), signal.SIGKILL)
    h.wait_for(lambda: not probes.bpf_left(programs), what="the kernel has removed the programs")
    h.wait_for(lambda: not place.status(), what="the probe's death")
    job.go()
    check_schedule(events_of(place, "Mutex"), job.pid)
    enable(place, "Mutex", job.pid)
    job.go()
    job.end()
    place.wait_gone()
    h.check_equal(len(spans(events_of(place, "Mutex"), "sem_timedwait")), 2, "of the captures before and after")


def targets_that_die_and_full_disks():
    place = Place()
    job = Job(HOST, env=place.env)
    enable(place, "Mutex", job.pid)
    job.go()
    job.process.kill()
    job.process.wait(20)
    place.wait_gone()
    check_schedule(events_of(place, "Mutex"), job.pid)
    # the disk is full: the job does not notice, the loss is told, the file stays whole
    place = Place()
    h.mount("-t", "tmpfs", "-o", "size=128k", "st-small", place.dump)
    job = Job(HOST, env=place.env)
    enable(place, "Mutex", job.pid, "min_us=0")
    h.wait_for(lambda: job.go() or "cannot write" in place.log_text(), what="the word about the full disk")
    h.wait_for(lambda: int(place.status()[0]["plugin.mutex.lost"]) > 0, what="lost records in the status")
    disable(place, "Mutex", job.pid)
    job.end()
    place.wait_gone()
    h.check(len(events_of(place, "Mutex")) > 100, "what had found room")


def bad_input_is_told():
    place = Place()
    sleeper = h.start(["sleep", "100"])
    for plugin, words, want in (("GIL", ["pid=%d" % sleeper.pid], "there is no CPython interpreter in process"),
                                ("GIL", ["pid=4194304"], "there is no process 4194304"),
                                ("Mutex", ["pid=4194304"], "there is no process 4194304")):
        said = place.cli("enable", plugin, *words).ok(1).out
        h.check(want in said, "%s %r: %s" % (plugin, words, said))
    static = h.compile_c(os.path.join(h.ROOT, "tests/fake/lock_host.c"), os.path.join(DIR, "static_host"), "-pthread",
                         "-static")
    job = Job(static, env=place.env)
    said = enable(place, "Mutex", job.pid, status=1)
    h.check("has no shared C library" in said, said)
    job.end()
    said = enable(place, "Mutex", job.pid, status=1)
    h.check("there is no process" in said, said)
    said = h.run(["setpriv", "--reuid=65534", "--clear-groups", h.CLI, "enable", "GIL", "pid=%d" % sleeper.pid],
                 env=place.env).ok(1).out
    h.check("CAP_BPF" in said and "as root" in said, said)
    place.wait_gone()
    h.check_equal(place.files("GIL") + place.files("Mutex"), [], "files of what did not begin")


h.main(waits_on_a_known_schedule, everything_or_long_ones, interpreter_locks, a_container_with_its_own_c_library,
       a_killed_probe_hurts_nobody, targets_that_die_and_full_disks, bad_input_is_told)
