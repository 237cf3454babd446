# SPDX-License-Identifier: MulanPSL-2.0
"""Tests of probes: each has sockets, logs and dump directories of its own, so that a probe of the machine or of another
test is never met; what the kernel holds (eBPF programs, tracing instances) is compared before and after."""

import json
import os
import re
import subprocess

import harness as h

GROUP_SOCKET = "sysTrace_probe_%s.sock"


def require_probe(group="os"):
    """Skip where this build or this machine cannot run the probe."""
    h.require_root()
    h.require(h.CLI, h.SYSTRACE)
    said = h.run([h.SYSTRACE, "probe", "none"]).err
    if "has no probe" in said or not re.search(r"\b%s\b" % group, said.rsplit("are", 1)[-1]):
        h.skip("this build has no probe '%s'" % group)
    if not os.path.exists("/sys/kernel/btf/vmlinux"):
        h.skip("this kernel has no type information")
    if os.stat("/proc/self/ns/pid").st_ino != 0xeffffffc:
        h.skip("eBPF programs see the host's process ids, which are not known in this pid namespace")


class Place:
    """A host of our own, as far as sysTrace is concerned: socket directory, logs, dump path."""

    def __init__(self, **extra):
        self.dir = h.tmpdir()
        self.sock, self.log, self.dump = (os.path.join(self.dir, d) for d in ("sock", "log", "dump"))
        for d in (self.sock, self.log, self.dump):
            os.mkdir(d)
            os.chmod(d, 0o777)
        os.chmod(self.dir, 0o755)
        self.env = {"PATH": os.environ["PATH"], "SYSTRACE_SOCKET_DIR": self.sock, "SYSTRACE_LOG_PATH": self.log,
                    "SYSTRACE_DUMP_PATH": self.dump, "SYSTRACE_FORMAT": "pb", **extra}

    def cli(self, *words):
        return h.run([h.CLI, *words], env=self.env)

    def status(self):
        """What the probes say, a list of dicts; empty when none runs."""
        return json.loads(h.run([h.SYSTRACE, "probe", "--status", "--json"], env=self.env).out)["probes"]

    def probe_pid(self):
        return int(self.status()[0]["pid"])

    def wait_gone(self):
        h.wait_for(lambda: not self.status(), what="end of the probe: %r" % self.status())

    def files(self, folder="osprobe", dump=None):
        place = os.path.join(dump or self.dump, folder)
        return sorted(os.path.join(place, f) for f in os.listdir(place)) if os.path.isdir(place) else []

    def log_text(self):
        return "".join(h.read_file(os.path.join(self.log, f)) for f in os.listdir(self.log))


def bpf_programs(pid):
    """Ids of the eBPF programs that a process holds."""
    ids = set()
    for fd in os.listdir("/proc/%d/fdinfo" % pid):
        found = re.search(r"^prog_id:\s*(\d+)", h.read_file("/proc/%d/fdinfo/%s" % (pid, fd)), re.M)
        if found:
            ids.add(int(found.group(1)))
    return ids


def bpf_left(ids):
    """Which of these programs the kernel still has."""
    shown = json.loads(subprocess.run(["bpftool", "-j", "prog", "show"], capture_output=True).stdout or b"[]")
    return ids & {p["id"] for p in shown}


# --- os_trace files ----------------------------------------------------------------------------------------------------

def _fields(data):
    """(number, value) of a protobuf message; bytes for length-delimited fields."""
    at = 0

    def varint():
        nonlocal at
        shift = value = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7f) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
        elif tag & 7 == 2:
            size = varint()
            yield tag >> 3, data[at:at + size]
            at += size
        else:
            raise h.CheckFailed("wire type %d at offset %d" % (tag & 7, at))


NAMES = {1: "key", 2: "start_us", 3: "dur", 4: "rundelay", 5: "type", 6: "rank", 7: "comm", 8: "nxt_comm", 9: "nxt_pid",
         20: "start_ns", 21: "dur_ns", 22: "step", 23: "delay_ns", 24: "on_ns", 25: "cpu", 26: "from_cpu",
         27: "migrations", 28: "state", 29: "wake_ns", 30: "waker_pid", 31: "waker_comm", 32: "nxt_tgid", 33: "irq_ns",
         34: "irqs", 35: "softirq_ns", 36: "softirqs", 37: "flags", 38: "pid", 39: "name", 40: "number", 41: "address"}
TEXTS = {"comm", "nxt_comm", "waker_comm", "name"}
OFFCPU, IRQ, SOFTIRQ, TAKER = 4, 8, 9, 11
UNSEEN, OFF_OPEN, ON_OPEN, EXITED, PREEMPTED = 1, 2, 4, 8, 32


class OsFile:
    """A file as read by this independent reader: entries (dicts), origins, threads, drops."""

    def __init__(self, path):
        self.entries, self.origins, self.threads, self.drops = [], [], [], 0
        with open(path, "rb") as f:
            data = f.read()
        for number, value in _fields(data):
            if number == 1:
                entry = dict.fromkeys(NAMES.values(), 0)
                entry.update({t: "" for t in TEXTS})
                for n, v in _fields(value):
                    entry[NAMES[n]] = v.decode(errors="replace") if isinstance(v, bytes) else v
                self.entries.append(entry)
            elif number == 33:
                self.threads.append(dict(_fields(value)))
            elif number == 100:
                self.origins.append(dict(_fields(value)))
            elif number == 101:
                self.drops += dict(_fields(value)).get(2, 0)

    def cycles(self, tid=None):
        """Off-and-on cycles in order of their begin."""
        found = [e for e in self.entries if e["type"] == OFFCPU and (tid is None or e["key"] == tid)]
        return sorted(found, key=lambda e: e["start_ns"])


# --- programs to record --------------------------------------------------------------------------------------------------

_host = None


def sched_host():
    """tests/fake/sched_host.c as a program."""
    global _host
    if not _host:
        _host = os.path.join(h.tmpdir(), "sched_host")
        h.compile_c(os.path.join(h.ROOT, "tests/fake/sched_host.c"), _host, "-O1", "-pthread")
    return _host


class Job:
    """A process with a schedule; .line() reads what it prints, .go() lets it past a `read`."""

    def __init__(self, *words, env=None, user=None):
        args = [sched_host(), *words]
        if user:
            args = ["setpriv", "--reuid=%d" % user, "--regid=%d" % user, "--clear-groups", *args]
        self.process = h.start(args, env=env, stdin=subprocess.PIPE)
        self.pid = self.process.pid

    def line(self):
        return self.process.stdout.readline().decode().strip()

    def go(self):
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def end(self):
        return h.finish(self.process)
