# SPDX-License-Identifier: MulanPSL-2.0
# runner: timeout 240
"""The flight recorder: without markers being on, a dump writes the collectives of the last minute; each is written once,
those that markers wrote already are left out, and a collective that hangs shows as a start without an end."""

import os
import time

import ctl
import harness as h
import ranks

JOB = r'''
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, where = dist.get_rank(), sys.argv[1]

def wait_for(name):
    while not os.path.exists(os.path.join(where, name)):
        time.sleep(0.01)

for n in range(5):
    dist.all_reduce(torch.ones(n + 1))
open(os.path.join(where, "first-%d" % rank), "w").close()
wait_for("more")
for n in range(3):
    dist.broadcast(torch.ones(100 + n), 0)
open(os.path.join(where, "second-%d" % rank), "w").close()
if rank == 0:
    dist.barrier()
else:
    wait_for("come")
    dist.barrier()
'''


def names(dump, rank):
    return [(m.op, m.count, m.end_ns is not None) for m in ranks.markers(dump, rank)]


def socket_of_rank(dump, rank):
    for path in sorted(os.listdir(os.path.join(dump, "sock"))):
        path = os.path.join(dump, "sock", path)
        if ctl.ask(path, "list").get("rank") == str(rank):
            return path
    return None


def any_socket(dump):
    """The only one; its agent need not know its rank yet."""
    found = os.listdir(os.path.join(dump, "sock"))
    return os.path.join(dump, "sock", found[0]) if found else None


def signal_file(dump, name):
    h.write_file(os.path.join(dump, name), "")


def wait_for_file(dump, name):
    h.wait_for(lambda: os.path.exists(os.path.join(dump, name)), 60, name)


def test_dump():
    dump = h.tmpdir()
    job = ranks.start(dump, 2, h.write_file(os.path.join(dump, "job.py"), JOB), dump, SYSTRACE_ENABLE=1)
    wait_for_file(dump, "first-0")
    sock = h.wait_for(lambda: socket_of_rank(dump, 0), 20, "socket of rank 0")
    h.check(not os.path.exists(os.path.join(dump, "mspti")), "markers without being asked for")

    answer = ctl.ask(sock, "dump")
    h.check_equal(answer.code, 0, answer.text)
    h.check_equal(answer.get("records"), "5", "markers dumped")
    h.check(answer.get("file", "").endswith("mspti-marker-10.0.0.7-0.csv"), "file is %s" % answer.get("file"))
    first = [("all_reduce", n + 1, True) for n in range(5)]
    h.check_equal(names(dump, 0), first, "after the first dump")
    h.check_equal(ctl.ask(sock, "dump").get("records"), "0", "a second dump has nothing new")

    h.check_equal(ctl.ask(sock, "enable", plugin="MSPTI", event="marker").code, 0, "enable")
    signal_file(dump, "more")
    wait_for_file(dump, "second-0")
    time.sleep(0.3)  # rank 0 is on its way into the barrier, where it stays
    answer = h.wait_for(lambda: [a for a in [ctl.ask(sock, "dump")] if a.get("records") == "1"], 20, "the open barrier")[0]
    found = names(dump, 0)
    h.check_equal(found[5:8], [("broadcast", 100 + n, True) for n in range(3)], "markers written by MSPTI, once")
    h.check_equal(found[8:], [("barrier", 0, False)], "the hanging barrier")
    marker = ranks.markers(dump, 0)[0]
    h.check(marker.pid == marker.tid and marker.pid != 0, "a dumped marker keeps process and thread")

    signal_file(dump, "come")
    h.finish(job, 60).ok()
    h.check_equal(names(dump, 0)[9:], [("barrier", 0, True)], "and when it has returned")


def test_kernels_need_a_device():
    dump = h.tmpdir()
    job = ranks.start(dump, 1, h.write_file(os.path.join(dump, "job.py"), JOB), dump, SYSTRACE_ENABLE=1)
    wait_for_file(dump, "first-0")
    sock = h.wait_for(lambda: socket_of_rank(dump, 0), 20, "socket")
    answer = ctl.ask(sock, "enable", plugin="MSPTI", event="kernel,api")
    h.check(answer.code < 0, "kernels were accepted")
    h.check("libmspti.so" in answer.text and "event=marker" in answer.text, "reason is %r" % answer.text)
    answer = ctl.ask(sock, "enable", plugin="MSPTI", event="marker,kernel,api")
    h.check_equal(answer.code, 0, "enable")
    h.check("host markers only" in answer.text, "note is %r" % answer.text)
    h.check_equal(ctl.ask(sock, "disable", plugin="MSPTI").code, 0, "disable")
    for name in ("more", "come"):
        signal_file(dump, name)
    h.finish(job, 60).ok()


def run_untraced(**env):
    """Names of rank 0's markers and steps of a job with Python tracing off; a command comes before the broadcasts."""
    dump = h.tmpdir()
    job = ranks.start(dump, 1, h.write_file(os.path.join(dump, "job.py"), JOB), dump, SYSTRACE_ENABLE=1,
                      SYSTRACE_PYTHON_TRACING="off", **env)
    wait_for_file(dump, "first-0")
    sock = h.wait_for(lambda: any_socket(dump), 20, "socket")
    if not env:
        h.check_equal(ctl.ask(sock, "enable", plugin="MSPTI", event="marker").code, 0, "enable")
    signal_file(dump, "more")
    wait_for_file(dump, "second-0")
    signal_file(dump, "come")
    h.finish(job, 60).ok()
    timeline = ranks.Timeline(dump, 0)  # notes on groups are there
    h.check_equal((timeline.stages, timeline.steps), ([], []), "stages and steps")
    return [op for op, _, _ in names(dump, 0)]


def test_markers_with_python_tracing_off():
    h.check_equal(run_untraced(), ["broadcast"] * 3 + ["barrier"], "enabled by command")
    found = run_untraced(SYSTRACE_PLUGINS="MSPTI event=marker")
    h.check_equal(found[-4:], ["broadcast"] * 3 + ["barrier"], "enabled from the start")
    h.check_equal(found[:-4], ["all_reduce"] * 5, "enabled from the start")


if __name__ == "__main__":
    h.main(test_dump, test_kernels_need_a_device, test_markers_with_python_tracing_off)
