#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""sysTrace_cli against fake agents: the documented lines, agents that misbehave in every way, 64 of them at once."""

import json
import os
import re
import signal
import socket
import subprocess

import harness as h

h.require(h.CLI, h.SYSTRACE)
h.own_pid_namespace()

FAKE = os.path.join(h.ROOT, "tests", "fake", "fake_agent.py")


class Fakes:
    """A with-block in which fake agents run; .pid[n] in the order of the behaviours."""

    def __init__(self, *behaviours, env=None):
        self.behaviours, self.dir = behaviours, h.tmpdir()
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("SYSTRACE_")}
        self.env["SYSTRACE_SOCKET_DIR"] = self.dir
        self.env.update(env or {})

    def __enter__(self):
        self.process = subprocess.Popen(["python3", FAKE, self.dir, *self.behaviours], env=self.env, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        lines = [self.process.stdout.readline().split(None, 1) for _ in self.behaviours]
        self.by = {}
        for pid, behaviour in lines:
            self.by.setdefault(behaviour.strip(), []).append(int(pid))
        self.pid = []
        left = {k: sorted(v) for k, v in self.by.items()}
        for behaviour in self.behaviours:
            self.pid.append(left[behaviour].pop(0))
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(20)
        self.process.stdout.close()

    def socket(self, n):
        return os.path.join(self.dir, "sysTrace_%d.sock" % self.pid[n])


def documented_lines():
    with Fakes("ok", "ok") as fakes:
        got = h.run([h.CLI, "enable", "HBM", "duration=10"]).ok()
        want = "".join("[ACK] %s: SUCCESS\n" % fakes.socket(n) for n in sorted((0, 1), key=lambda n: fakes.pid[n]))
        h.check_equal(got.out, want, "lines")
        h.check_equal(got.err, "", "stderr")


def default_socket_directory_is_tmp():
    with Fakes("ok", env={"SYSTRACE_SOCKET_DIR": ""}) as fakes:
        got = h.run([h.CLI, "status"]).ok(3)  # the fake falls back to its own directory, not to /tmp
        h.check("dormant" in got.err, got.err)
    path = "/tmp"
    with Fakes("ok", env={"SYSTRACE_SOCKET_DIR": path}) as fakes:
        line = "[ACK] /tmp/sysTrace_%d.sock: SUCCESS\n" % fakes.pid[0]
        try:
            h.check_equal(h.run([h.CLI, "disable", "IO"]).ok().out, line, "line")
        finally:
            os.unlink("/tmp/sysTrace_%d.sock" % fakes.pid[0])


def parameters_arrive():
    with Fakes("ok:echo") as fakes:
        got = h.run([h.CLI, "enable", "mspti", "event=marker, kernel", "Duration=10", "start-step=5"]).ok()
        h.check_equal(got.out, "[ACK] %s: SUCCESS (plugin=MSPTI event=marker,kernel duration=10 start_step=5)\n"
                      % fakes.socket(0), "request")
        got = h.run([h.CLI, "enable", "GIL", "pid=%d" % fakes.pid[0], "duration=0"]).ok()
        h.check("(plugin=GIL duration=0)" in got.out, got.out)
        h.check("(plugin=stages)" in h.run([h.CLI, "disable", "Stages"]).ok().out, "stages")
        h.check("no parameters" in h.run([h.CLI, "enable", "stages", "duration=1"]).ok(2).err, "parameters of stages")
        h.check("(plugin=IO)" in h.run([h.CLI, "disable", "IO"]).ok().out, "disable")


def agents_of_another_version_may_know_more():
    with Fakes("knows:Power=watts,min_us", "knows:IO=min_us,path,depth") as fakes:
        out = h.run([h.CLI, "enable", "Power", "watts=5", "duration=10", "--pid", str(fakes.pid[0])]).ok().out
        h.check("(plugin=Power watts=5 duration=10)" in out, out)
        out = h.run([h.CLI, "enable", "IO", "depth=3", "--pid", str(fakes.pid[1])]).ok().out
        h.check("(plugin=IO depth=3)" in out, out)
        h.check("there is no plugin 'Powr'" in h.run([h.CLI, "enable", "Powr"]).ok(2).err, "unknown plugin")
        h.check("has no parameter 'deep'" in h.run([h.CLI, "enable", "IO", "deep=3"]).ok(2).err, "unknown key")
        h.check("there is no plugin" in h.run([h.CLI, "enable", "Power", "volts=1"]).ok(2).err, "unknown key of theirs")


def each_gets_its_own_verdict():
    rows = {
        "ok": r"SUCCESS",
        "ok:was off": r"SUCCESS \(was off\)",
        "error:no device here; use IO": r"FAILED: no device here; use IO",
        "version:0": r"SUCCESS",
        "version:2": r"SUCCESS",
        "version:9": r"FAILED: its agent speaks protocol version 9, this sysTrace_cli speaks version 1; use .*",
        "silent": r"FAILED: no answer within 1 s: .*--timeout",
        "half": r"FAILED: no answer within 1 s: .*",
        "close": r"FAILED: its agent closed the connection without an answer; .*",
        "stale": r"FAILED: its agent does not listen.*",
        "garbage": r"FAILED: what answered is not a sysTrace agent.*",
        "badverb": r"FAILED: what answered is not a sysTrace agent.*",
        "badseq": r"FAILED: what answered is not a sysTrace agent.*",
        "badpayload": r"FAILED: what answered is not a sysTrace agent.*",
        "nocode": r"FAILED: what answered is not a sysTrace agent.*",
        "huge": r"FAILED: what answered is not a sysTrace agent.*",
        "dribble": r"SUCCESS",
        "slow:0.3": r"SUCCESS",
        "error:\x1b[2J\x07hostile": r"FAILED: \?\[2J\?hostile",
    }
    with Fakes(*rows) as fakes:
        got = h.run([h.CLI, "enable", "IO", "--timeout", "1"]).ok(1)
        lines = {re.search(r"_(\d+)\.sock", line).group(1): line for line in got.out.splitlines()}
        h.check_equal(len(lines), len(rows), "lines")
        for n, (behaviour, want) in enumerate(rows.items()):
            line = lines[str(fakes.pid[n])]
            h.check(re.fullmatch(r"\[ACK\] %s: %s" % (re.escape(fakes.socket(n)), want), line),
                    "%s: %r does not match %r" % (behaviour, line, want))
        got = h.run([h.CLI, "enable", "IO", "--timeout", "1", "--json"]).ok(1)
        data = json.loads(got.out)
        h.check_equal((data["action"], data["plugin"], data["ok"]), ("enable", "IO", False), "JSON head")
        by_pid = {a["pid"]: a for a in data["agents"]}
        h.check_equal(by_pid[fakes.pid[0]]["ok"], True, "ok")
        h.check_equal(by_pid[fakes.pid[2]]["text"], "no device here; use IO", "text")


def an_agent_that_does_not_listen_yet_is_asked_again():
    with Fakes("late:0.1") as fakes:
        h.check_equal(h.run([h.CLI, "disable", "IO"]).ok().out, "[ACK] %s: SUCCESS\n" % fakes.socket(0), "line")


def sixty_four_at_once():
    with Fakes(*["slow:1"] * 64) as fakes:
        got = h.run([h.CLI, "enable", "IO", "duration=10", "--timeout", "30"]).ok()
        h.check_equal(len(got.out.splitlines()), 64, "lines")
        h.check(all(line.endswith(": SUCCESS") for line in got.out.splitlines()), got.out)
        # each answers after 1 s: asked one after the other they would need 64 s, more than --timeout allows
        h.check_equal([int(re.search(r"_(\d+)\.sock", x).group(1)) for x in got.out.splitlines()], sorted(fakes.pid), "order")


def pid_chooses():
    with Fakes("ok", "ok", "dormant") as fakes:
        got = h.run([h.CLI, "enable", "IO", "--pid", str(fakes.pid[1])]).ok()
        h.check_equal(got.out, "[ACK] %s: SUCCESS\n" % fakes.socket(1), "line")
        got = h.run([h.CLI, "enable", "IO", "--pid", "%d,%d,999999" % (fakes.pid[0], fakes.pid[2])]).ok(1)
        lines = got.out.splitlines()
        h.check_equal(lines[0], "[ACK] %s: SUCCESS" % fakes.socket(0), "line")
        h.check(lines[1].startswith("[ACK] process %d: FAILED: dormant" % fakes.pid[2]), got.out)
        h.check("SYSTRACE_ENABLE=1" in lines[1], got.out)
        h.check_equal(lines[2], "[ACK] process 999999: FAILED: there is no such process", "line")
        got = h.run([h.CLI, "enable", "IO", "--pid", str(os.getpid())]).ok(1)
        h.check("libsysTrace.so is not loaded there" in got.out and "LD_PRELOAD=" in got.out, got.out)
        out = h.run([h.CLI, "list", "--pid", str(fakes.pid[0])]).ok().out
        h.check_equal(len(out.splitlines()), 2, "lines of %r" % out)
        got = h.run([h.CLI, "enable", "Mutex", "pid=%d" % fakes.pid[0]]).ok()
        h.check_equal(len(got.out.splitlines()), 1, "lines")


def dormant_alone_is_no_agent():
    with Fakes("dormant") as fakes:
        got = h.run([h.CLI, "enable", "IO"]).ok(3)
        h.check("dormant" in got.err and "SYSTRACE_ENABLE=1" in got.err, got.err)
        got = h.run([h.CLI, "list"]).ok()
        h.check(re.search(r"^ *%d +- +dormant +python3" % fakes.pid[0], got.out, re.M), got.out)
        data = json.loads(h.run([h.CLI, "list", "--json"]).ok().out)
        h.check_equal([d["pid"] for d in data["dormant"]], fakes.pid, "dormant")


def a_socket_of_another_process_gets_nothing():
    """A file of the right name in which someone else listens: SO_PEERCRED must stop us before we send."""
    with Fakes("dormant") as fakes:
        impostor = socket.socket(socket.AF_UNIX)
        impostor.bind(os.path.join(fakes.dir, "sysTrace_%d.sock" % fakes.pid[0]))
        impostor.listen(1)
        got = h.run([h.CLI, "enable", "IO"]).ok(1)
        h.check("FAILED: the socket belongs to process %d of user" % os.getpid() in got.out, got.out)
        impostor.settimeout(10)
        conn, _ = impostor.accept()
        h.check_equal(conn.recv(100), b"", "bytes sent to the impostor")
        conn.close()
        impostor.close()


def not_a_socket():
    with Fakes("dormant") as fakes:
        path = h.write_file(os.path.join(fakes.dir, "sysTrace_%d.sock" % fakes.pid[0]), "text")
        got = h.run([h.CLI, "enable", "IO"]).ok(1)
        h.check("cannot open its socket: Socket operation on non-socket" in got.out, got.out)
        os.unlink(path)
        os.symlink(os.path.join(fakes.dir, "elsewhere"), path)
        got = h.run([h.CLI, "enable", "IO"]).ok(1)
        h.check("[ACK] %s: FAILED:" % path in got.out, got.out)


def a_stopped_process_is_named():
    with Fakes("silent") as fakes:
        os.kill(fakes.pid[0], signal.SIGSTOP)
        got = h.run([h.CLI, "enable", "IO", "--timeout", "0.3"]).ok(1)
        h.check("the process is stopped by a signal or a debugger" in got.out, got.out)


def forked_children_go_with_their_parent():
    with Fakes("fork") as fakes:
        got = h.run([h.CLI, "enable", "IO"]).ok()
        h.check_equal(len(got.out.splitlines()), 1, "lines")
        h.check_equal(json.loads(h.run([h.CLI, "list", "--json"]).ok().out)["children"], 1, "children")
        h.check("1 forked child records through the processes above" in h.run([h.CLI, "list"]).ok().out, "list")
        child = int(h.read_file("/proc/%d/task/%d/children" % (fakes.pid[0], fakes.pid[0])).split()[0])
        got = h.run([h.CLI, "enable", "IO", "--pid", str(child)]).ok(1)
        h.check("it was forked from process %d and records through that one" % fakes.pid[0] in got.out, got.out)


def a_replaced_library_is_found_and_named():
    with Fakes("ok") as fakes:
        os.unlink(os.path.join(fakes.dir, "libsysTrace.so"))
        h.run([h.CLI, "enable", "IO"]).ok()
        out = h.run([h.CLI, "status"]).ok().out
        h.check("%d: runs a libsysTrace.so that was replaced since it started" % fakes.pid[0] in out, out)


def only_that_very_library_counts():
    """A file whose path merely contains the name is no agent."""
    with Fakes("ok") as fakes:
        os.rename(os.path.join(fakes.dir, "libsysTrace.so"), os.path.join(fakes.dir, "libsysTrace.so.bak"))
        h.run([h.CLI, "list"]).ok(3)


def status_for_people_and_programs():
    with Fakes("ok", "ok", "error:busy") as fakes:
        got = h.run([h.CLI, "status"]).ok(1)
        h.check(re.search(r"PID +RANK +STATE +STEP +PLUGINS ON +RECORDS +LOST +OWN COST +WRITES TO", got.out), got.out)
        row = r"%d +0 +recording +100 +IO, Mutex \(waiting\) +12345 +5 +0\.21 %% +/home/sysTrace \(pb\)" % fakes.pid[0]
        h.check(re.search(row, got.out), got.out)
        h.check("%d: /home/sysTrace/timeline/node1--00000.timeline, 1.2 MB" % fakes.pid[0] in got.out, got.out)
        h.check("both processes: not crash-safe: /dev/shm is full" in got.out, got.out)
        h.check("3 listed Python functions cannot be traced" in got.out, got.out)
        h.check("%s: busy" % fakes.socket(2) in got.out, got.out)
        data = json.loads(h.run([h.CLI, "status", "--json"]).ok(1).out)
        agent = [a for a in data["agents"] if a["pid"] == fakes.pid[1]][0]
        for key, want in {"ok": True, "rank": 1, "state": "recording", "step": 101, "records": 12345, "dropped": 5,
                          "dropped_by": {"io": 5}, "cost_pct": 0.21, "format": "pb", "container": False,
                          "notes": ["not crash-safe: /dev/shm is full"]}.items():
            h.check_equal(agent[key], want, key)
        h.check_equal([(p["name"], p["state"]) for p in agent["plugins"]], [("IO", "on"), ("Mutex", "waiting")], "plugins")
        h.check_equal(agent["files"][0]["bytes"], 1234567, "bytes")


def list_for_people_and_programs():
    with Fakes("ok") as fakes:
        got = h.run([h.CLI, "list"]).ok()
        h.check(re.search(r"^ *%d +0 +recording +python3 +job-7 +%s$" % (fakes.pid[0], fakes.socket(0)), got.out, re.M),
                got.out)
        data = json.loads(h.run([h.CLI, "list", "--json"]).ok().out)
        h.check_equal(data["agents"][0]["run"], "job-7", "run")
        h.check_equal((data["inert"], data["children"], data["dormant"]), (0, 0, []), "others")


def has_probe():
    return "has no probe" not in h.run([h.SYSTRACE, "probe", "none"]).err


def memory_says_when_its_probe_is_missing():
    if has_probe():
        h.skip("this build has the probe")
    with Fakes("ok", "ok:agent part only: needs root", "error:no") as fakes:
        out = h.run([h.CLI, "enable", "Memory"]).ok(1).out
        h.check("%s: SUCCESS (agent part only: 'systrace probe' is not in this build)\n" % fakes.socket(0) in out, out)
        h.check("%s: SUCCESS (agent part only: needs root)\n" % fakes.socket(1) in out, out)
        h.check("systrace probe" not in h.run([h.CLI, "disable", "Memory"]).ok(1).out, "disable")


def what_only_a_probe_records_is_refused_clearly():
    if has_probe():
        h.skip("this build has the probe")
    with Fakes("ok"):
        for args in (["CPU"], ["CacheMiss", "args=-e cycles --timeout 10"], ["Trace", "args=record -e sched sleep 1"],
                     ["Ftrace", "cpu_list=0", "events=irq"]):
            got = h.run([h.CLI, "enable", *args]).ok(1)
            h.check("%s is not in this build" % args[0] in got.err and "systrace probe" in got.err, got.err)


h.main(documented_lines, default_socket_directory_is_tmp, parameters_arrive,
       agents_of_another_version_may_know_more, each_gets_its_own_verdict,
       an_agent_that_does_not_listen_yet_is_asked_again, sixty_four_at_once, pid_chooses, dormant_alone_is_no_agent, a_socket_of_another_process_gets_nothing, not_a_socket,
       a_stopped_process_is_named, forked_children_go_with_their_parent, a_replaced_library_is_found_and_named,
       only_that_very_library_counts, status_for_people_and_programs, list_for_people_and_programs,
       memory_says_when_its_probe_is_missing, what_only_a_probe_records_is_refused_clearly)
