#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
# runner: needs-root
"""The kernel's part of the plugin Memory: page faults are as many as getrusage counts, reclaim and OOM kills of a memory
cgroup are seen, children and threads are followed, and nothing of it stays in the kernel.
"""

import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness as h
import probes
from probes import OsFile, Place

probes.require_probe()
DIR = h.tmpdir()
HOST = h.compile_c(os.path.join(h.ROOT, "tests/fake/fault_host.c"), os.path.join(DIR, "fault_host"), "-pthread")
FAULT, SWAP, VMSCAN, OOM = 0, 1, 3, 10
MAJOR = 16


class Job:
    """A process with faults by order; .line() reads what it prints, .go() lets it past a `read`."""

    def __init__(self, *words, place, before=()):
        self.process = subprocess.Popen([*before, HOST, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        env=place.env)
        h._started.append(self.process)
        self.pid = self.process.pid

    def line(self):
        return self.process.stdout.readline().decode().strip()

    def usage(self):
        return list(map(int, self.line().split()))

    def go(self):
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()


def enable(place, job, *words, status=0):
    return place.cli("enable", "Memory", "pid=%d" % job.pid, *words).ok(status).out


def disable(place, job):
    place.cli("disable", "Memory", "--pid", job.pid).ok()
    place.wait_gone()


def recorded(place):
    h.check_equal(len(place.files()), 1, "files: %r" % place.files())
    return OsFile(place.files()[0])


def faults(entries, major, pid=0):
    return sum(e["number"] for e in entries
               if e["type"] == FAULT and bool(e["flags"] & MAJOR) == major and e["pid"] == pid)


def as_many_as_getrusage_counts():
    place = Place()
    job = Job("usage", "read", "usage", "touch=3000", "threads=4,500", "populate=700", "mlock=300", "touch=1", "usage",
              "read", "usage", place=place)
    before = job.usage()
    out = enable(place, job)
    h.check("SUCCESS (process %d)" % job.pid in out, out)
    programs = probes.bpf_programs(place.probe_pid())
    h.check(programs, "the probe holds no eBPF program")
    job.go()
    begin, end = job.usage(), job.usage()
    disable(place, job)
    job.go()
    after = job.usage()
    file = recorded(place)
    for i, kind in enumerate(("minor", "major")):
        # of the moments between the counts and the capture's ends nobody knows: mostly nothing happens there
        got, least, most = faults(file.entries, bool(i)), end[i] - begin[i], after[i] - before[i]
        h.check(least <= got <= most and most - least < 100,
                "%s faults: %d, getrusage counts %d to %d" % (kind, got, least, most))
    # 700 and 300 of them the kernel took on itself: they have no address
    unseen = [e for e in file.entries if e["name"] == "by the kernel"]
    h.check(sum(e["number"] for e in unseen) >= 1000, "faults of the kernel's own: %r" % unseen)
    h.check(all(e["address"] and e["comm"] == "fault_host" for e in file.entries if e not in unseen), "addresses, names")
    h.check(len(file.entries) < 2000, "faults in a row are one entry each: %d" % len(file.entries))
    h.check_equal(len({e["key"] for e in file.entries}), 5, "threads")
    h.check(sum(e["dur_ns"] for e in file.entries) > 0, "durations")
    h.check_equal(file.drops, 0, "drops")
    h.wait_for(lambda: not probes.bpf_left(programs), what="the kernel has removed the programs")


def major_faults_name_their_file():
    place = Place()
    path = os.path.join(DIR, "data")
    with open(path, "wb") as f:
        f.write(os.urandom(1 << 20))
        f.flush()
        os.fsync(f.fileno())
    job = Job("usage", "read", "usage", "map=" + path, "usage", "read", place=place)
    job.usage()
    enable(place, job)
    job.go()
    begin, end = job.usage(), job.usage()
    disable(place, job)
    job.go()
    entries = recorded(place).entries
    h.check(faults(entries, True) >= end[1] - begin[1], "major faults: %d, getrusage counts %d" % (
        faults(entries, True), end[1] - begin[1]))
    if end[1] == begin[1]:
        h.skip("this file system keeps its files in memory")
    major = [e for e in entries if e["flags"] & MAJOR]
    named = [e for e in major if e["name"] == path]
    h.check(named, "none of %d names the file: %r" % (len(major), major[0]))
    h.check(all(e["number"] == 1 and e["dur_ns"] > 0 for e in named), "one by one, with a duration")
    h.check(not [e for e in entries if e["type"] == SWAP], "pages of a file are no swap")


def children_are_followed():
    place = Place()
    job = Job("usage", "read", "fork=2000", "usage", "read", place=place)
    job.usage()
    enable(place, job)
    job.go()
    children = job.usage()[2]
    disable(place, job)
    job.go()
    file = recorded(place)
    pids = {e["pid"] for e in file.entries} - {0}
    h.check_equal(len(pids), 1, "children: %r" % pids)
    seen = faults(file.entries, False, pids.pop())
    # what the kernel still faults in after it has told of the exit is not seen
    h.check(2000 <= seen <= children, "faults of the child: %d of %d" % (seen, children))


class Cgroup:
    """A memory cgroup of 24 MiB, without swap or with; .before: command that enters it and runs another."""

    def __init__(self, swap=False):
        name = "st-memory-%d" % os.getpid()
        for root, limit, swap_limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
                                        ("/sys/fs/cgroup", "memory.max", "memory.swap.max")):
            self.path = os.path.join(root, name)
            if root.endswith("cgroup") and not os.path.exists(os.path.join(root, "cgroup.controllers")):
                continue
            try:
                os.mkdir(self.path)
                h.write_file(os.path.join(self.path, limit), str(24 << 20))
            except OSError:
                if os.path.isdir(self.path):
                    os.rmdir(self.path)
                continue
            try:
                if not swap:
                    h.write_file(os.path.join(self.path, swap_limit), str(24 << 20 if "memsw" in swap_limit else 0))
            except OSError:
                pass  # no accounting of swap, mostly because there is none
            self.before = ["sh", "-c", "echo 0 > %s/cgroup.procs && exec \"$@\"" % self.path, "sh"]
            return
        h.skip("no memory cgroup can be made here")

    def remove(self):
        h.wait_for(lambda: not h.read_file(os.path.join(self.path, "cgroup.procs")).split(), what="empty cgroup")
        os.rmdir(self.path)


def reclaim_and_oom_kills():
    place = Place()
    cgroup = Cgroup()
    path = os.path.join(DIR, "large")
    with open(path, "wb") as f:
        f.truncate(64 << 20)
        f.write(b"x")
        f.flush()
        os.fsync(f.fileno())
    try:
        job = Job("usage", "read", "cat=" + path, "usage", "kill=12000", "read", place=place, before=cgroup.before)
        job.usage()
        out = enable(place, job)
        job.go()
        job.usage()
        _, victim, sig = job.line().split()
        disable(place, job)
        job.go()
        h.finish(job.process)
    finally:
        cgroup.remove()
    entries = recorded(place).entries
    if "reclaim of memory cgroups" not in out:
        waits = [e for e in entries if e["type"] == VMSCAN]
        h.check(waits and all(e["dur_ns"] > 0 for e in waits), "reclaim: %r" % waits[:3])
        h.check(sum(e["number"] for e in waits) > 1000, "pages reclaimed: %d" % sum(e["number"] for e in waits))
        h.check("memory cgroup at its limit" in {e["name"] for e in waits}, "names %r" % {e["name"] for e in waits})
    h.check_equal(int(sig), signal.SIGKILL, "signal that ended the child")
    if "OOM kills" not in out:
        kills = [e for e in entries if e["type"] == OOM]
        h.check_equal([e["key"] for e in kills], [int(victim)], "OOM kills")


def swapping_is_seen():
    """With a swap file for the moment of the test, and memory that is short in a cgroup only."""
    if not h.FULL:
        h.skip("the long form of the tests alone adds swap to the machine")
    place = Place()
    swap = os.path.join(DIR, "swap")
    with open(swap, "wb") as f:
        f.write(bytes(96 << 20))
    os.chmod(swap, 0o600)
    h.run(["mkswap", swap]).ok()
    if h.run(["swapon", swap]).status:
        h.skip("no swap file on this file system")
    try:
        cgroup = Cgroup(swap=True)
        job = Job("usage", "read", "usage", "again=12000", "usage", "read", place=place, before=cgroup.before)
        job.usage()
        enable(place, job)
        job.go()
        begin, end = job.usage(), job.usage()
        disable(place, job)
        job.go()
        h.finish(job.process)
        cgroup.remove()
    finally:
        h.run(["swapoff", swap]).ok()
    entries = recorded(place).entries
    swapped_in = [e for e in entries if e["type"] == SWAP and e["name"] == "in"]
    swapped_out = [e for e in entries if e["type"] == SWAP and e["name"] == "out"]
    h.check(end[1] - begin[1] > 100, "the job did not swap: %d major faults" % (end[1] - begin[1]))
    h.check(len(swapped_in) >= (end[1] - begin[1]) // 2, "pages from swap: %d" % len(swapped_in))
    h.check(sum(e["number"] for e in swapped_out) > 1000, "pages to swap: %d" % len(swapped_out))


def a_killed_probe_leaves_nothing():
    place = Place()
    job = Job("usage", "read", "touch=500", "usage", "read", place=place)
    job.usage()
    enable(place, job)
    programs = probes.bpf_programs(place.probe_pid())
    job.go()
    job.usage()
    h.wait_for(lambda: place.files() and faults(recorded(place).entries, False) >= 500, what="the faults in the file")
    os.kill(place.probe_pid(), signal.SIGKILL)
    h.wait_for(lambda: not probes.bpf_left(programs), what="the kernel has removed the programs")
    h.wait_for(lambda: not place.status(), what="the probe's death")
    before = faults(recorded(place).entries, False)
    enable(place, job)
    job.go()
    job.process.wait(20)
    place.wait_gone()
    h.check(faults(recorded(place).entries, False) >= before, "the file of before goes on")


def bad_input_is_told():
    place = Place()
    job = Job("usage", "read", place=place)
    job.usage()
    said = place.cli("enable", "Memory", "pid=4194304").ok(1).out
    h.check("there is no" in said and "4194304" in said, said)
    said = h.run(["setpriv", "--reuid=65534", "--clear-groups", h.CLI, "enable", "Memory", "pid=%d" % job.pid],
                 env=place.env).ok(1).out
    h.check("CAP_BPF" in said and "as root" in said, said)
    job.go()
    job.process.wait(20)
    said = enable(place, job, status=1)
    h.check("there is no" in said, said)
    said = h.run(["unshare", "--pid", "--fork", "--mount-proc", h.CLI, "enable", "Memory", "pid=1"],
                 env=place.env).ok(1).out
    h.check("from the host's process namespace" in said, said)


h.main(as_many_as_getrusage_counts, major_faults_name_their_file, children_are_followed, reclaim_and_oom_kills, swapping_is_seen,
       a_killed_probe_leaves_nothing, bad_input_is_told)
