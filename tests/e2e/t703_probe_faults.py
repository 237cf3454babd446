#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""The plugin CPU where things go wrong: a full disk, a full kernel buffer, a pid that belongs to another process by now, a
target that is gone at once, links planted in the dump path, the vendor's process list instead of agents; in the long lane
10 000 threads."""

import os
import socket
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness as h

h.own_mounts()
import ctl  # noqa: E402
import probes  # noqa: E402
from probes import Job, OsFile, Place  # noqa: E402

probes.require_probe()


def a_full_disk_is_said_counted_and_survived():
    place = Place()
    h.mount("-t", "tmpfs", "-o", "size=64k,mode=777", "none", place.dump)
    filler = os.path.join(place.dump, "filler")
    job = Job("say=up", "read", "sleep=0.2,800", "say=done", "read", "sleep=1,50", "say=more", "read", env=place.env)
    job.line()
    place.cli("enable", "CPU", "pid=%d" % job.pid).ok()
    with open(filler, "wb", buffering=0) as f:
        try:
            while f.write(b"x" * 4096):
                pass
        except OSError:
            pass
    job.go()
    h.check_equal(job.line(), "done", "job")
    h.wait_for(lambda: int(place.status()[0]["plugin.cpu.lost"]) > 0, what="lost records: %r" % place.status())
    os.unlink(filler)
    job.go()
    h.check_equal(job.line(), "more", "job")
    place.cli("disable", "CPU").ok()
    file = OsFile(place.files()[0])
    h.check(file.drops > 0, "drops told in the file")
    h.check(len(file.cycles(job.pid)) >= 50, "recorded again: %d" % len(file.cycles(job.pid)))
    h.check("No space left" in place.log_text(), place.log_text())
    job.go()
    job.end()


def what_a_small_buffer_loses_is_in_the_file():
    place = Place()
    jobs = [Job("pin=0", "say=up", "read", "yield=60000", "say=done", "read", env=place.env) for _ in range(2)]
    for job in jobs:
        job.line()
    pids = ",".join(str(j.pid) for j in jobs)
    place.cli("enable", "CPU", "pid=" + pids, "buffer_kb=64").ok()
    probe = place.probe_pid()
    os.kill(probe, 19)  # stopped: the buffer must fill
    for job in jobs:
        job.go()
    for job in jobs:
        h.check_equal(job.line(), "done", "job")
    os.kill(probe, 18)
    h.wait_for(lambda: int(place.status()[0]["plugin.cpu.lost"]) > 0, what="lost records")
    lost = int(place.status()[0]["plugin.cpu.lost"])
    h.check(any("larger buffer_kb" in v for k, v in place.status()[0].items() if k.startswith("note")), place.status())
    place.cli("disable", "CPU").ok()
    files = [OsFile(f) for f in place.files()]
    told = sum(f.drops for f in files)
    h.check(told >= lost > 1000, "told in the files: %d, status: %d" % (told, lost))
    h.check(all(len(f.cycles()) > 0 for f in files), "nothing was recorded")
    for job in jobs:
        job.go()
        job.end()


def ask(place, entries, fds):
    """An enable as sysTrace_cli would not send it."""
    conn = socket.socket(socket.AF_UNIX)
    conn.connect(os.path.join(place.sock, "sysTrace_probe_os.sock"))
    with conn:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("%di" % len(fds), *fds))]
        conn.sendmsg([ctl.frame("enable", entries)], rights if fds else [])
        head = struct.unpack("<IHHII", ctl.receive_all(conn, 16))
        return ctl.Answer(ctl.receive_all(conn, head[3]), head[2])


def a_pid_that_came_again_is_another_process():
    place = Place()
    job = Job("say=up", "read", env=place.env)
    job.line()
    place.cli("enable", "CPU", "pid=%d" % job.pid).ok()
    directory = os.open(place.dump, os.O_RDONLY | os.O_DIRECTORY)
    target = [("plugin", "CPU"), ("target", job.pid), ("target.start", 1), ("target.uid", 0), ("target.gid", 0)]
    got = ask(place, target + [("target.dir", 0)], [directory])
    h.check(got.code < 0 and "another one has its number now" in got.text, got)
    # descriptors that do not exist, no target at all
    got = ask(place, target + [("target.dir", 3)], [directory])
    h.check(got.code < 0 and "malformed" in got.text, got)
    got = ask(place, [("plugin", "CPU")], [])
    h.check(got.code < 0 and "names no process" in got.text, got)
    got = ask(place, [("plugin", "Nope"), ("target", job.pid)], [])
    h.check(got.code < 0 and "there is no plugin" in got.text, got)
    os.close(directory)
    h.check_equal(len([k for k in place.status()[0] if "session" in k]), 1, "the session goes on")
    job.go()
    job.end()
    place.wait_gone()


def a_target_may_be_gone_at_once():
    place = Place()
    jobs = [Job("say=up", "read", env=place.env), Job("say=up", env=place.env)]
    for job in jobs:
        job.line()
    h.finish(jobs[1].process)
    got = place.cli("enable", "CPU", "pid=%d,%d" % (jobs[0].pid, jobs[1].pid)).ok().out
    h.check("SUCCESS" in got and "has ended" in got, got)
    place.cli("disable", "CPU").ok()
    jobs[0].go()
    jobs[0].end()


def links_in_the_dump_path_lead_nowhere():
    place, secret = Place(), h.tmpdir()
    os.chmod(secret, 0o700)
    job = Job("say=up", "read", "sleep=1,20", "say=done", "read", user=65534, env=place.env)
    job.line()
    os.symlink(secret, place.dump + "/osprobe")
    place.cli("enable", "CPU", "pid=%d" % job.pid).ok()
    job.go()
    job.line()
    h.wait_for(lambda: int(place.status()[0]["plugin.cpu.lost"]) > 0, what="nothing can be written")
    place.cli("disable", "CPU").ok()
    h.check_equal(os.listdir(secret), [], "files below the link")
    job.go()
    job.end()


def vendors_tools_name_the_processes():
    place = Place()
    job = Job("say=up", "read", env=place.env)
    job.line()
    tools = h.tmpdir()
    table = ("| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |\\n"
             "+===========================+===============+====================================================+\\n"
             "| 0       0                 | %d         | python                   | 10240                   |\\n" % job.pid)
    h.write_file(tools + "/npu-smi", "#!/bin/sh\nprintf '%s'\n" % table)
    os.chmod(tools + "/npu-smi", 0o755)
    place.env["PATH"] = tools + ":" + place.env["PATH"]
    if place.cli("list").status != 3:
        h.skip("this machine runs agents")
    out = place.cli("enable", "CPU", "duration=5").ok().out
    h.check("SUCCESS (process %d)" % job.pid in out, out)
    place.cli("disable", "CPU").ok()
    job.go()
    job.end()


def ten_thousand_threads():
    if not h.FULL:
        h.skip("long: ST_FULL=1")
    place = Place()
    job = Job("say=up", "read", "threads=10000,8000", "say=done", "read", env=place.env)
    job.line()
    place.cli("enable", "CPU", "pid=%d" % job.pid).ok()
    job.go()
    made = int(job.line().split()[1])
    h.check_equal(job.line(), "done", "job")
    place.cli("disable", "CPU").ok()
    file = OsFile(place.files()[0])
    ended = {c["key"] for c in file.cycles() if c["flags"] & probes.EXITED}
    h.check(file.drops or len(ended) >= made, "%d of %d threads seen to their end" % (len(ended), made))
    # and all of them at once, while they are there
    job.go()
    job.end()


h.main(a_full_disk_is_said_counted_and_survived, what_a_small_buffer_loses_is_in_the_file,
       a_pid_that_came_again_is_another_process, a_target_may_be_gone_at_once, links_in_the_dump_path_lead_nowhere,
       vendors_tools_name_the_processes, ten_thousand_threads)
