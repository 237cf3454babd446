#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
# runner: needs-root
# runner: alone
"""systrace record with the text back end on the real kernel, and with trace-cmd: the real one works or says why not, a
stand-in (tests/fake/bin) shows that the top level of tracefs is put back and that other users of it are left alone.
"""

import os
import re
import signal
import subprocess

import ftrace_state as ft
from harness import ROOT, SYSTRACE, check, check_equal, main, require, require_root, run, start, tmpdir, wait_for

require_root()
require(SYSTRACE)
DIR = tmpdir()
FAKE = os.path.join(ROOT, "tests", "fake", "bin")


def lines_of(name):
    with open(os.path.join(DIR, name), errors="replace") as f:
        return f.read().splitlines()


def test_text():
    """The kernel says in the first lines how many events the text has."""
    with ft.Unchanged():
        done = run([SYSTRACE, "record", "--backend=debugfs", "--record-time=0.5"], cwd=DIR).ok()
    lines = lines_of("trace.txt")
    check_equal(lines[0], "# tracer: nop", "first line")
    shown, written = re.search(r"entries-in-buffer/entries-written: (\d+)/(\d+)", lines[2]).groups()
    events = [line for line in lines if line and not line.startswith("#")]
    check_equal((len(events), int(shown)), ft.saved_counts(done.out)[:1] * 2, "events")
    check_equal(shown, written, "entries")
    check(any(" sched_switch: prev_comm=" in line for line in events), "no sched_switch")
    for text in ("debugfs tracing disabled in", "debugfs trace snapshot copy finished: bytes=%d" %
                 os.path.getsize(os.path.join(DIR, "trace.txt")), "Trace data saved to trace.txt", "Cleanup finished"):
        check(text in done.err, "%r is missing: %s" % (text, done.err))


def test_text_keeps_its_name_and_tells_losses():
    with ft.Unchanged():
        process = start([SYSTRACE, "record", "--backend=debugfs", "--record-time=-1", "--bf-size=64",
                         "--event=raw_syscalls", "--output=given.dat"], cwd=DIR)
        wait_for(lambda: any(map(ft.recording, ft.own_instances())), what="the recording")
        subprocess.run(["python3", "-c", "import os\nfor _ in range(100000): os.getppid()"], check=True)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    events, lost = ft.saved_counts(out.decode())
    check(lost > 0, "nothing lost")
    check("total_loss_counters=%d. Consider increasing --bf-size" % lost in err.decode(), err.decode())
    check_equal(len([line for line in lines_of("given.dat") if line and not line.startswith(("#", "CPU:"))]), events,
                "events in the text")


def test_real_trace_cmd():
    require("trace-cmd")
    with ft.Unchanged():
        done = run([SYSTRACE, "record", "--backend=trace-cmd", "--record-time=1", "--output=real.dat"], cwd=DIR)
    if done.status:
        check("needs to write kernel.ftrace_enabled" in done.err or "trace-cmd ended at once" in done.err, done.err)
        check(not [n for n in os.listdir(DIR) if n.startswith("real.dat")], "files are left: %s" % os.listdir(DIR))
    else:
        run(["trace-cmd", "dump", "--validate", "real.dat"], cwd=DIR).ok()


def fake_env(**more):
    return dict(os.environ, PATH=FAKE + ":" + os.environ["PATH"], ST_TRACEFS=other_mount(), **more)


_other = []


def other_mount():
    """A second mount of tracefs: where it is not at its usual place the writes that this kernel refuses are not tried."""
    if not _other:
        _other.append(tmpdir("st-tracefs-"))
        subprocess.run(["mount", "-t", "tracefs", "systrace-test", _other[0]], check=True)
    return _other[0]


def command(*options):
    return [SYSTRACE, "record", "--tracefs=" + other_mount(), "--backend=trace-cmd", *options]


def begun(process):
    """Until the stand-in has changed everything and said so."""
    name = os.path.join(DIR, "fake.dat.%d.part.cpu0" % process.pid)
    wait_for(lambda: process.poll() is not None or os.path.exists(name), what=name)
    check(process.poll() is None, "it ended at once")


def test_trace_cmd_as_child():
    env = fake_env()
    with ft.Unchanged():
        process = start(command("--record-time=-1", "--output=fake.dat", "--cpu=0", "--bf_size=4321"), env=env, cwd=DIR)
        begun(process)
        check("[boot]" in ft.read("trace_clock"), "the stand-in did nothing")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        check_equal(process.returncode, 0, err.decode())
    words = lines_of("fake.dat")[0].split()
    check_equal(words[0], "record", "arguments")
    for option, value in (("-C", "mono_raw"), ("-b", "4321"), ("-M", "00000001"), ("-e", "sched:sched_switch")):
        check_equal(words[words.index(option) + 1], value, "value of %s" % option)
    check("irq:softirq_entry" in words, "no softirq_entry")
    for text in ("Stopping trace-cmd record process", "trace-cmd record process stopped"):
        check(text in err.decode(), err.decode())


def test_trace_cmd_killed():
    """The next recorder, of whatever kind, puts the top level back."""
    env = fake_env()
    with ft.Unchanged():
        process = start(command("--record-time=-1", "--output=fake.dat"), env=env, cwd=DIR)
        begun(process)
        process.kill()
        process.wait()
        wait_for(lambda: os.path.exists(os.path.join(DIR, "fake.dat.%d.part" % process.pid)), what="trace-cmd's end")
        check("[boot]" in ft.read("trace_clock"), "nothing is in disorder")
        done = run([SYSTRACE, "record", "--record-time=0.1", "--output=next.dat"], cwd=DIR).ok()
        check("put tracing back as it was" in done.err, done.err)


def test_top_level_in_use():
    """Somebody records at the top level: trace-cmd is sent into an instance."""
    env = fake_env()
    event = "events/sched/sched_process_hang/enable"
    ft.write(event, "1")
    try:
        with ft.Unchanged():
            done = run(command("--record-time=0.2", "--output=fake.dat"), env=env, cwd=DIR).ok()
        check("in use by others" in done.err, done.err)
        words = lines_of("fake.dat")[0].split()
        check(words[words.index("-B") + 1].startswith("systrace-"), "no instance: %r" % words)
    finally:
        ft.write(event, "0")


def test_trace_cmd_fails():
    env = fake_env(ST_TRACE_CMD="fail")
    with ft.Unchanged():
        done = run(command("--record-time=1", "--output=failed.dat"), env=env, cwd=DIR)
        check_equal(done.status, 1, "status")
        check("trace-cmd ended at once: trace-cmd: Operation not permitted   Can't enable ftrace" in done.err, done.err)
        check(not [n for n in os.listdir(DIR) if n.startswith("failed.dat")], "files are left: %s" % os.listdir(DIR))
        done = run([SYSTRACE, "record", "--tracefs=" + other_mount(), "--documented-order", "--record-time=0.2"],
                   env=env, cwd=DIR).ok()
        check("back end trace-cmd does not work here" in done.err and "trying debugfs" in done.err, done.err)
        check("back end debugfs, output trace.txt" in done.err, done.err)


try:
    main(test_text, test_text_keeps_its_name_and_tells_losses, test_real_trace_cmd, test_trace_cmd_as_child,
         test_trace_cmd_killed, test_top_level_in_use, test_trace_cmd_fails)
finally:
    for place in _other:
        subprocess.run(["umount", place])
