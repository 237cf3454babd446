#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
# runner: needs-root
# runner: alone
"""systrace record, native back end, on the real kernel: trace-cmd reads the same events from its file, and the tracing
state afterwards is what it was, however the recording ended.
"""

import glob
import json
import os
import re
import shutil
import signal
import subprocess
import time

import ftrace_state as ft
from harness import SYSTRACE, check, check_equal, main, require, require_root, run, skip, start, tmpdir, wait_for

require_root()
require(SYSTRACE)
NATIVE = [SYSTRACE, "record", "--backend=native"]
DIR = tmpdir()


def path(name):
    return os.path.join(DIR, name)


def started(*options, **more):
    """A recording that has begun."""
    before = ft.own_instances()
    process = start(NATIVE + ["--record-time=-1", *options], cwd=DIR, **more)
    wait_for(lambda: process.poll() is not None or
             any(ft.recording(name) for name in ft.own_instances() if name not in before), what="the recording")
    if process.poll() is not None:
        check(False, "it ended at once: %r" % (process.communicate(),))
    return process


def ended(process, sig=signal.SIGINT):
    process.send_signal(sig)
    out, err = process.communicate(timeout=60)
    check_equal(process.returncode, 0, "status after signal %d, stderr %s" % (sig, err.decode()))
    return out.decode(), err.decode()


def valid(name):
    done = run(["trace-cmd", "dump", "--validate", path(name)]).ok()
    check("is a valid trace-cmd file" in done.out, done.out)


def same_events_as_trace_cmd(compress):
    require("trace-cmd")
    name = compress + ".dat"
    marker = path("st-marker")
    shutil.copy("/bin/true", marker)
    with ft.Unchanged():
        process = started("--compress=" + compress, "--output=" + name)
        for _ in range(7):
            subprocess.run([marker], check=True)
        out, _ = ended(process)
    valid(name)
    lines = ft.report(path(name))
    events, lost = ft.saved_counts(out)
    check_equal(lost, 0, "lost events")
    check_equal(len(lines), events, "events in trace-cmd report against the kernel's count")
    names = [ft.event_name(line) for line in lines]
    check(names.count("sched_switch") > 14, "too few switches: %d" % names.count("sched_switch"))
    executed = [line for line in lines if "sched_process_exec" in line and marker in line]
    check_equal(len(executed), 7, "executions of the marker program")
    stamps = [float(re.search(r"\] +\S*? *(\d+\.\d+):", line).group(1)) for line in lines]
    check_equal(stamps, sorted(stamps), "order of time stamps")
    meta = json.load(open(path(name + ".meta.json")))
    check_equal((meta["backend"], meta["events_recorded"], meta["events_lost"]), ("native", events, 0), "sidecar")
    begin, end = meta["clocks"]
    check(begin["mono_raw_ns"] <= stamps[0] * 1e9 + 1000 and stamps[-1] * 1e9 - 1000 <= end["mono_raw_ns"] + 1e9,
          "stamps %r to %r outside of the clocks %r" % (stamps[0], stamps[-1], meta["clocks"]))


def test_zstd():
    same_events_as_trace_cmd("zstd")


def test_raw_pages():
    same_events_as_trace_cmd("none")


def text_events(text):
    """{cpu: [(task, microseconds, event with its fields)]} of the kernel's text or of trace-cmd report -N -t."""
    events = {}
    for line in text.splitlines():
        match = re.match(r" *(\S.*?-\d+) +\[(\d+)\] +(?:[^ \d]\S* +)?(\d+)\.(\d{6,9}): +(\w+): +(.*)$", line)
        if match:
            task, cpu, seconds, part, name, fields = match.groups()
            nano = int(seconds + part.ljust(9, "0"))
            events.setdefault(int(cpu), []).append((task, (nano + 500) // 1000, name, fields.strip()))  # as the kernel rounds
    return events


def test_same_as_the_kernels_text():
    """Event for event and field for field: the recorder is stopped, the kernel's text read, then the rest recorded."""
    require("trace-cmd")
    with ft.Unchanged():
        process = started("--output=text.dat", "--event=raw_syscalls")
        process.send_signal(signal.SIGSTOP)
        instance = [n for n in ft.own_instances() if n.startswith("systrace-%d-" % process.pid)][0]
        subprocess.run(["sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do ls / >/dev/null; done"], check=True)
        ft.write("instances/%s/tracing_on" % instance, "0")
        want = text_events(ft.read("instances/%s/trace" % instance))
        process.send_signal(signal.SIGCONT)
        ended(process)
    got = text_events("\n".join(ft.report(path("text.dat"), "-N", "-t")))
    check(sum(map(len, want.values())) > 1000, "hardly any events: %d" % sum(map(len, want.values())))
    compared = renamed = 0
    for cpu, events in want.items():
        mine = got[cpu][-len(events):]
        for ours, kernels in zip(mine, events):
            check_equal(ours[0].rpartition("-")[2], kernels[0].rpartition("-")[2], "pid of %r" % (kernels,))
            renamed += "<...>" not in kernels[0] and ours[0] != kernels[0]  # the kernel remembers 128 names only
            check_equal(ours[1:3], kernels[1:3], "event on CPU %d" % cpu)
            if kernels[2].startswith("sched") or kernels[2].startswith(("irq", "softirq")):
                check_equal(re.sub(r"0*(\d)", r"\1", ours[3]), re.sub(r"0*(\d)", r"\1", kernels[3]), "fields of %r" % (kernels,))
                compared += 1
    check(renamed * 20 <= sum(map(len, want.values())), "%d events with another name of the task" % renamed)
    check(compared > 100, "fields of only %d events compared" % compared)


def test_names_of_tasks():
    """Tasks that do not run meanwhile are known by name, too."""
    require("trace-cmd")
    sleeper = start(["sleep", "1000"])
    ended(started("--output=names.dat"))
    with open(path("names.dat"), "rb") as f:
        data = f.read()
    check(b"\n%d sleep\n" % sleeper.pid in data, "the sleeping task has no name in the file")
    check(not re.search(rb"\n\d+ kworker/\w+:\w+[-+]", data), "a worker's name with what it worked on")


def test_names_of_functions():
    """Events that print kernel functions bring the symbols with them; the others do not pay for that."""
    require("trace-cmd")
    with ft.Unchanged():
        process = started("--sched=0", "--irq=0", "--event=workqueue/workqueue_execute_start", "--output=work.dat")
        for _ in range(20):
            with open(path("written"), "w") as f:
                f.write("x")
                os.fsync(f.fileno())
        out, _ = ended(process)
    valid("work.dat")
    lines = ft.report(path("work.dat"))
    if not lines:
        skip("no work was queued")
    functions = [line.rsplit(None, 1)[1] for line in lines]
    check(any(re.match(r"[a-zA-Z_]", name) for name in functions), "functions are %s" % sorted(set(functions)))


def test_one_cpu():
    require("trace-cmd")
    cpu = max(os.sched_getaffinity(0))
    with ft.Unchanged():
        process = started("--cpu=%d" % cpu, "--output=one.dat")
        for each in sorted(os.sched_getaffinity(0)):
            subprocess.run(["taskset", "-c", str(each), "true"], check=True)
        ended(process)
    cpus = {re.search(r"\[(\d+)\]", line).group(1) for line in ft.report(path("one.dat"))}
    check_equal(cpus, {"%03d" % cpu}, "CPUs in the file")


def test_groups_and_events():
    require("trace-cmd")
    process = started("--sched=0", "--irq=0", "--futex", "--event=sched/sched_process_exec", "--event=none/such",
                      "--output=groups.dat")
    subprocess.run(["true"], check=True)
    _, err = ended(process)
    names = {ft.event_name(line) for line in ft.report(path("groups.dat"))}
    check(names <= {"sys_enter_futex", "sys_exit_futex", "sched_process_exec"}, "other events: %r" % names)
    check("sched_process_exec" in names, "no sched_process_exec")
    check(re.search(r"^\[[-\d]+ [\d:]+,\d{3}\] \[WARNING\]:event none/such skipped", err, re.M), err)


def test_signals_save():
    for sig in (signal.SIGTERM, signal.SIGHUP):
        with ft.Unchanged():
            out, _ = ended(started("--output=signal.dat"), sig)
        check(ft.saved_counts(out)[0] > 0, "nothing saved")


def test_record_time():
    with ft.Unchanged():
        done = run(NATIVE + ["--record_time=0.5", "--output=time.dat"], cwd=DIR).ok()
    check(ft.saved_counts(done.out)[0] > 0, "nothing saved")
    check(re.search(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\] \[INFO\]:Cleanup finished$", done.err, re.M), done.err)


def test_killed():
    """kill -9 leaves an instance, which the next recorder removes; nameless files leave nothing in the directory."""
    with ft.Unchanged():
        before = set(os.listdir(DIR))
        process = started("--output=killed.dat")
        left = ft.own_instances()
        process.kill()
        process.wait()
        check_equal(set(os.listdir(DIR)), before, "files after the kill")
        check_equal(ft.own_instances(), left, "instances after the kill")
        done = run(NATIVE + ["--record-time=0.2", "--output=next.dat"], cwd=DIR).ok()
        check("removed tracing instance" in done.err, done.err)


def test_living_recorder_stays():
    with ft.Unchanged():
        first = started("--output=first.dat")
        mine = ft.own_instances()
        run(NATIVE + ["--record-time=0.2", "--output=second.dat"], cwd=DIR).ok()
        check_equal(ft.own_instances(), mine, "the living recorder's instance")
        out, _ = ended(first)
        check(ft.saved_counts(out)[0] > 0, "the living recorder saved nothing")


def test_named_instance():
    with ft.Unchanged():
        process = start(NATIVE + ["--record-time=-1", "--instance=st_test", "--output=named.dat"], cwd=DIR)
        wait_for(lambda: "st_test" in ft.instances(), what="the instance")
        again = run(NATIVE + ["--record-time=1", "--instance=st_test", "--output=x.dat"], cwd=DIR)
        check_equal(again.status, 1, "status for an instance that exists")
        check("st_test is there already" in again.err, again.err)
        time.sleep(0.2)
        ended(process)
        check("st_test" not in ft.instances(), "the instance is left")


def test_named_instance_killed():
    with ft.Unchanged():
        process = start(NATIVE + ["--record-time=-1", "--instance=st_killed", "--output=named.dat"], cwd=DIR)
        wait_for(lambda: glob.glob("/run/systrace/ftrace-systrace-%d-*" % process.pid), what="the claim")
        process.kill()
        process.wait()
        check("st_killed" in ft.instances(), "no instance is left")
        run(NATIVE + ["--record-time=0.2", "--output=next.dat"], cwd=DIR).ok()
        check("st_killed" not in ft.instances(), "the instance is still there")


def test_losses():
    """A recorder that cannot keep up says so, by CPU, and the file marks the gap."""
    require("trace-cmd")
    with ft.Unchanged():
        process = started("--bf-size=64", "--output=loss.dat", "--event=raw_syscalls")
        process.send_signal(signal.SIGSTOP)
        subprocess.run(["python3", "-c", "import os\nfor _ in range(200000): os.getppid()"], check=True)
        process.send_signal(signal.SIGCONT)
        time.sleep(0.5)
        out, err = ended(process)
    events, lost = ft.saved_counts(out)
    check(lost > 0, "nothing lost: %s" % out)
    total = re.search(r"\[WARNING\]:tracefs stats report lost/overwritten events before reset: "
                      r"total_loss_counters=(\d+)\. Consider increasing --bf-size$", err, re.M)
    check(total, err)
    check_equal(int(total.group(1)), lost, "total of the warning")
    cpus = re.findall(r"\[WARNING\]:CPU \d+: overrun=(\d+), commit overrun=(\d+), dropped events=(\d+)", err)
    check_equal(sum(int(n) for cpu in cpus for n in cpu), lost, "sum over the CPUs")
    lines = ft.report(path("loss.dat"))
    check(any("EVENTS DROPPED" in line for line in lines), "no gap in the file")
    check_equal(len([line for line in lines if "EVENTS DROPPED" not in line]), events, "events in the file")


def small_disk(megabytes):
    place = tmpdir("st-disk-")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=%dm" % megabytes, "tmpfs", place], stderr=subprocess.PIPE)
    if done.returncode:
        skip("no tmpfs can be mounted here")
    return place


def test_disk_without_room():
    place = small_disk(4)
    try:
        with ft.Unchanged():
            done = run(NATIVE + ["--record-time=5", "--output=%s/trace.dat" % place])
        check_equal(done.status, 1, "status")
        check("less than 16 MiB are free there" in done.err, done.err)
        check_equal(os.listdir(place), [], "files left")
    finally:
        subprocess.run(["umount", place])


def test_disk_runs_full():
    """What was recorded before is saved, and the status says that it ended early."""
    require("trace-cmd")
    place = small_disk(40)
    try:
        with ft.Unchanged():
            process = start(NATIVE + ["--record-time=60", "--compress=none", "--event=raw_syscalls",
                                      "--output=%s/trace.dat" % place])
            load = start(["python3", "-c", "import os\nwhile True: os.getppid()"])
            out, err = process.communicate(timeout=90)
            load.kill()
        check_equal(process.returncode, 1, "status")
        check(b"recording ended early: No space left on device" in err, err.decode())
        done = run(["trace-cmd", "report", os.path.join(place, "trace.dat")], timeout=120).ok()
        check(done.out.count("sys_enter") > 1000, "hardly anything was saved")
    finally:
        subprocess.run(["umount", place])


def test_bad_options():
    with ft.Unchanged():
        for options, status, text in (
                (["--cpu=4096"], 1, "none of the CPUs 4096 is in this machine"),
                (["--cpu=1-"], 1, "is not a list of CPUs"),
                (["--output=/no/such/directory/x"], 1, "directory /no/such/directory: No such file"),
                (["--sched=0", "--irq=0"], 2, "nothing to record"),
                (["--record_time=soon"], 2, "it must be a number of seconds"),
                (["--bf_size=0"], 2, "it must be a size in KB"),
                (["--sched=0", "--irq=0", "--event=../../x"], 1, "is not an event")):
            done = run(NATIVE + options, cwd=DIR)
            check_equal(done.status, status, "status of %r: %r" % (options, done))
            check(text in done.err, "%r: %s" % (options, done.err))
        done = run(NATIVE + ["--cpu=0-4096", "--record-time=0.1", "--output=clamped.dat"], cwd=DIR).ok()
        check("reaches beyond this machine" in done.err, done.err)


def test_without_root():
    done = run(["setpriv", "--reuid=65534", "--clear-groups", *NATIVE], cwd="/")
    check_equal(done.status, 1, "status")
    check("needs root" in done.err, done.err)


def test_tracefs_not_mounted():
    """It is mounted for the recorder only, and nobody sees that."""
    require("trace-cmd")
    script = "umount -a -t tracefs; cd %s && %s --record-time=0.3 --output=private.dat && grep -c tracefs /proc/self/mounts"
    with ft.Unchanged():
        done = run(["unshare", "-m", "sh", "-c", script % (DIR, " ".join(NATIVE))])
    check_equal(done.out.splitlines()[-1:], ["0"], "mounts of tracefs, %r" % done)
    valid("private.dat")


def test_pid_map():
    """--NSpid: a task in a pid namespace of its own, with the id that it has inside."""
    with ft.Unchanged():
        process = started("--NSpid", "--pid_map_period=1", "--output=ns.dat")
        child = start(["unshare", "-p", "-f", "sleep", "1000"])
        inner = wait_for(lambda: subprocess.run(["pgrep", "-P", str(child.pid)], stdout=subprocess.PIPE,
                                                text=True).stdout.split(), what="the task in the namespace")[0]
        wait_for(lambda: inner in json.load(open(path("pid_mapping.json"))), what="the task in the map")
        os.kill(int(inner), signal.SIGKILL)
        child.wait()
        ended(process)
    rows = json.load(open(path("pid_mapping.json")))
    check_equal(rows[inner], {"NSpid": "1", "name": "sleep", "Tgid": inner, "PPid": str(child.pid)}, "the task")
    check_equal(rows[str(os.getpid())]["NSpid"], "", "a task outside of namespaces")


main(test_zstd, test_raw_pages, test_same_as_the_kernels_text, test_names_of_tasks, test_names_of_functions, test_one_cpu, test_groups_and_events, test_signals_save,
     test_record_time, test_killed, test_living_recorder_stays, test_named_instance, test_named_instance_killed, test_losses, test_disk_without_room,
     test_disk_runs_full, test_bad_options, test_without_root, test_tracefs_not_mounted, test_pid_map)
