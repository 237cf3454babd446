#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""The plugin CPU by the probe: one process per host, sessions of jobs, ends, files and their owner, bad input."""

import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness as h
import probes
from probes import EXITED, Job, OsFile, Place

probes.require_probe()

def spans_threads_and_children_are_recorded():
    place = Place()
    job = Job("say=up", "read", "sleep=5,20", "thread=20", "fork=20", "say=done", "read", env=place.env)
    job.line()
    out = place.cli("enable", "CPU", "pid=%d" % job.pid).ok().out
    h.check("SUCCESS (process %d)" % job.pid in out, out)
    h.check("[ACK] %s/" % place.sock in out, out)
    programs = probes.bpf_programs(place.probe_pid())
    h.check(programs, "the probe holds no eBPF program")
    job.go()
    child = int(job.line().split()[1])
    h.check_equal(job.line(), "done", "job")
    place.cli("disable", "CPU").ok()
    h.check_equal(len(place.files()), 1, "files")
    name = os.path.basename(place.files()[0])
    h.check(name.startswith("os_trace_20") and name.endswith("_rank_0_%d.probe.pb" % job.pid), name)
    file = OsFile(place.files()[0])
    main = file.cycles(job.pid)
    naps = [c for c in main if c["state"] & 0xff == 1 and 4.9e6 < c["dur_ns"]]
    h.check(len(naps) >= 20, "naps: %d" % len(naps))
    tids = {c["key"] for c in file.cycles()}
    h.check(child in tids and len(tids) >= 3, "threads %r" % tids)
    child_cycles = file.cycles(child)
    h.check_equal({c["pid"] for c in child_cycles}, {child}, "process of the child's cycles")
    h.check(child_cycles[-1]["flags"] & EXITED, "the child's end")
    h.check(sum(c["on_ns"] for c in child_cycles) >= 20e6, "the child's time")
    h.check_equal(file.drops, 0, "drops")
    h.check_equal(len(file.origins), 1, "origins")
    # published fields: microseconds since 1970, the sum of run delays
    h.check(all(c["start_us"] * 1000 - c["start_ns"] > 1.6e18 for c in main), "start_us is wall clock")
    delays = [c["rundelay"] for c in main]
    h.check_equal(delays, sorted(delays), "rundelay only grows")
    job.go()
    job.end()
    place.wait_gone()
    h.wait_for(lambda: not probes.bpf_left(programs), what="the kernel has removed the programs")


def two_jobs_share_a_probe_and_see_their_own():
    place, other = Place(), h.tmpdir()
    os.chmod(other, 0o777)
    one = Job("name=one", "say=up", "read", "sleep=2,20", "say=done", "read", env=place.env)
    two = Job("name=two", "say=up", "read", "sleep=2,20", "say=done", "read", user=65534,
              env=dict(place.env, SYSTRACE_DUMP_PATH=other, RANK="3"))
    for job in (one, two):
        job.line()
        place.cli("enable", "CPU", "pid=%d" % job.pid).ok()
    probe = place.probe_pid()
    h.check_equal(sum("session" in k for k in place.status()[0]), 2, "sessions")
    for job in (one, two):
        job.go()
        job.line()
    place.cli("disable", "CPU", "--pid", one.pid).ok()
    h.check_equal(place.probe_pid(), probe, "still the same probe")
    place.cli("disable", "CPU").ok()
    for job, dump, rank, uid in ((one, place.dump, 0, 0), (two, other, 3, 65534)):
        path = place.files(dump=dump)[0]
        file = OsFile(path)
        h.check(path.endswith("_rank_%d_%d.probe.pb" % (rank, job.pid)), path)
        h.check_equal({c["key"] for c in file.cycles()}, {job.pid}, "whose cycles")
        h.check_equal(os.stat(path).st_uid, uid, "owner of %s" % path)
        h.check_equal(os.stat(os.path.dirname(path)).st_uid, uid, "owner of its directory")
        h.check(len(file.cycles()) >= 20, "cycles: %d" % len(file.cycles()))
        job.end()


def it_ends_with_its_targets_and_after_duration():
    place = Place()
    short = Job("say=up", "read", env=place.env)
    short.line()
    place.cli("enable", "CPU", "pid=%d" % short.pid).ok()
    short.end()
    place.wait_gone()
    h.check(not os.path.exists(os.path.join(place.sock, "sysTrace_probe_os.sock")), "the socket is left")
    cycles = OsFile(place.files()[0]).cycles(short.pid)
    h.check(cycles[-1]["flags"] & EXITED, "the end of the process: %r" % cycles[-1:])
    timed = Job("say=up", "read", env=place.env)
    timed.line()
    place.cli("enable", "CPU", "pid=%d" % timed.pid, "duration=0.3").ok()
    place.wait_gone()
    timed.end()


def a_killed_probe_leaves_nothing_and_its_data_can_be_read():
    place = Place()
    job = Job("say=up", "read", "sleep=2,50", "say=done", "read", env=place.env)
    job.line()
    place.cli("enable", "CPU", "pid=%d" % job.pid).ok()
    probe = place.probe_pid()
    programs = probes.bpf_programs(probe)
    job.go()
    job.line()
    h.wait_for(lambda: place.files() and os.path.getsize(place.files()[0]) > 1000, what="data of the first tick")
    os.kill(probe, signal.SIGKILL)
    h.wait_for(lambda: not probes.bpf_left(programs), what="the kernel has removed the programs")
    h.check(len(OsFile(place.files()[0]).cycles(job.pid)) > 20, "what was recorded before the kill")
    out = place.cli("enable", "CPU", "pid=%d" % job.pid).ok().out
    h.check(place.probe_pid() != probe, out)
    h.check_equal(len(place.files()), 1, "the next one goes on in the same file")
    place.cli("disable", "CPU").ok()
    h.check(OsFile(place.files()[0]).origins, "origin")
    job.go()
    job.end()


def errors_say_what_to_do():
    place = Place()
    got = place.cli("enable", "CPU", "pid=4194303").ok(1).out
    h.check("there is no process 4194303" in got, got)
    got = place.cli("enable", "CPU", "pid=x").ok(2).err
    h.check("pid" in got, got)
    job = Job("say=up", "read", env=place.env)
    job.line()
    got = place.cli("enable", "CPU", "pid=%d" % job.pid, "start_step=5").ok(1).out
    h.check("an agent in the process publishes" in got, got)
    got = h.run(["setpriv", "--reuid=65534", "--clear-groups", h.CLI, "enable", "CPU", "pid=%d" % job.pid],
                env=place.env).ok(1).out
    h.check("needs CAP_SYS_ADMIN, or CAP_PERFMON and CAP_BPF" in got or
            "needs CAP_SYS_ADMIN, or CAP_BPF and CAP_PERFMON" in got, got)
    got = place.cli("disable", "CPU").ok().out
    h.check("SUCCESS (was off)" in got, got)
    place.wait_gone()
    got = h.run([h.SYSTRACE, "probe", "--status"], env=place.env).ok(3).err
    h.check("no probe runs" in got, got)
    job.end()


def a_json_file_is_whole_at_any_time():
    import json
    place = Place(SYSTRACE_FORMAT="json")
    job = Job("say=up", "read", "sleep=2,30", "say=done", "read", env=place.env)
    job.line()
    place.cli("enable", "CPU", "pid=%d" % job.pid).ok()
    job.go()
    job.line()
    h.wait_for(lambda: place.files() and os.path.getsize(place.files()[0]) > 1000, what="data of the first tick")
    json.loads(h.read_file(place.files()[0]))
    place.cli("disable", "CPU").ok()
    data = json.loads(h.read_file(place.files()[0]))
    h.check(len(data["OSprobe_entries"]) >= 30, "entries: %d" % len(data["OSprobe_entries"]))
    h.check_equal(data["dropped"], 0, "dropped")
    # a later capture of the same process goes on in the file
    place.cli("enable", "CPU", "pid=%d" % job.pid).ok()
    job.go()
    job.end()
    place.wait_gone()
    h.check_equal(len(place.files()), 1, "files")
    more = json.loads(h.read_file(place.files()[0]))
    h.check(len(more["OSprobe_entries"]) > len(data["OSprobe_entries"]), "appended")


h.main(spans_threads_and_children_are_recorded, two_jobs_share_a_probe_and_see_their_own,
       it_ends_with_its_targets_and_after_duration, a_killed_probe_leaves_nothing_and_its_data_can_be_read,
       errors_say_what_to_do, a_json_file_is_whole_at_any_time)
