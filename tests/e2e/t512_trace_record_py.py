#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
# runner: needs-root
# runner: alone
"""trace_record.py as a module and as a script, and the C interface, on the real kernel."""

import json
import os
import re
import signal
import subprocess
import sys

import ftrace_state as ft
from harness import (BUILD, ROOT, SYSTRACE, check, check_equal, compile_c, main, require, require_root, run, start,
                     tmpdir, wait_for)

require_root()
require(SYSTRACE)
DIR = tmpdir()
SCRIPT = os.path.join(ROOT, "python", "trace_record.py")
ENV = dict(os.environ, PATH=BUILD + ":" + os.environ["PATH"], PYTHONPATH=os.path.join(ROOT, "python"),
           PYTHONDONTWRITEBYTECODE="1")


def python(text, **more):
    return run([sys.executable, "-c", text], env=ENV, cwd=DIR, **more)


def test_native_start_stop():
    require("trace-cmd")
    with ft.Unchanged():
        done = python("""
import subprocess, trace_record
trace_record.ftrace_record_start(cpu_mask=[0, 1], output="first.dat", bf_size=8192, backend="native",
                                 event_cfg=trace_record.TraceEventConfig(sched=1, irq=0, futex=1))
subprocess.run(["true"])
print(trace_record.ftrace_record_stop(output="second.dat"))
""").ok()
    check_equal(done.out, "second.dat\n", "name returned")
    names = {ft.event_name(line) for line in ft.report(os.path.join(DIR, "second.dat"))}
    check("sched_switch" in names and not any(n.startswith(("irq", "softirq")) for n in names), "events %r" % names)
    check(not os.path.exists(os.path.join(DIR, "first.dat")), "start's name was used as well")


def test_documented_defaults():
    """trace-cmd, then the text: whichever works, the default name is that of its format."""
    with ft.Unchanged():
        done = python("import trace_record as t\nt.ftrace_record_start()\nprint(t.ftrace_record_stop())").ok()
    check(done.out in ("trace.dat\n", "trace.txt\n"), done.out)
    check(os.path.getsize(os.path.join(DIR, done.out.strip())) > 1000, "an empty file")
    check("back end " + {"trace.dat": "trace-cmd", "trace.txt": "debugfs"}[done.out.strip()] in done.err, done.err)


def test_errors():
    done = python("""
import trace_record as t
for call in (t.ftrace_record_stop, lambda: t.ftrace_record_start(cpu_mask="9999"),
             lambda: t.ftrace_record_start(backend="none"), lambda: t.ftrace_record_start(output="/no/dir/x")):
    try:
        call()
    except Exception as e:
        print("%s: %s" % (type(e).__name__, e))
""").ok()
    for text in ("RuntimeError: ftrace_record_stop: nothing is being recorded", "RuntimeError: none of the CPUs 9999",
                 "ValueError: backend is 'none'", "RuntimeError: cannot write /no/dir/x"):
        check(text in done.out, "%r is missing: %s" % (text, done.out))


def test_without_root():
    with open(SCRIPT) as f:
        copy = f.read()
    place = tmpdir("st-user-")
    with open(os.path.join(place, "trace_record.py"), "w") as f:
        f.write(copy)
    os.chmod(place, 0o755)
    done = run(["setpriv", "--reuid=65534", "--clear-groups", "/usr/bin/python3", "-B", "-c", """
import trace_record
try:
    trace_record.ftrace_record_start()
except PermissionError as e:
    print(e)
"""], env={"PATH": os.environ["PATH"], "PYTHONPATH": place}, cwd="/").ok()
    check("needs root" in done.out, done.out)


def test_python_killed():
    """The recorder notices, saves and puts everything back."""
    with ft.Unchanged():
        process = start([sys.executable, "-c", "import time, trace_record as t\n"
                         "t.ftrace_record_start(output='orphan.dat', backend='native')\n"
                         "print('begun', flush=True)\ntime.sleep(1000)"], env=ENV, cwd=DIR)
        check_equal(process.stdout.readline(), b"begun\n", "first line")
        process.kill()
        process.wait()
        wait_for(lambda: os.path.exists(os.path.join(DIR, "orphan.dat.meta.json")) and not ft.own_instances(),
                 what="the end of the recording")
    check(os.path.getsize(os.path.join(DIR, "orphan.dat")) > 1000, "nothing was saved")


def test_script():
    with ft.Unchanged():
        process = start([sys.executable, SCRIPT, "--record_time", "-1", "--cpu=0", "--sched", "1", "--irq=0",
                         "--backend=native", "--bf-size=4096", "--NSpid", "--output=script.dat"], env=ENV, cwd=DIR)
        wait_for(lambda: any(map(ft.recording, ft.own_instances())) or
                 process.poll() is not None, what="the recording")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        check_equal(process.returncode, 0, err.decode())
    check(ft.saved_counts(out.decode())[0] > 0, "nothing recorded")
    check(str(os.getpid()) in json.load(open(os.path.join(DIR, "pid_mapping.json"))), "this process is not in the map")
    check("--record_time" in run([sys.executable, SCRIPT, "--help"], env=ENV).ok().out, "help")


def test_pid_mapper():
    done = python("""
import json, os, time, trace_record
mapper = trace_record.ContainerPidMapper(output_file="once.json")
mapper.start()
print(json.load(open("once.json"))[str(os.getpid())]["name"])
mapper = trace_record.ContainerPidMapper("often.json")
mapper.start(1)
child = os.fork()
if child == 0:
    time.sleep(1000)
while str(child) not in json.load(open("often.json")):
    time.sleep(0.05)
os.kill(child, 9)
os.waitpid(child, 0)
mapper.stop()
print(str(child) in json.load(open("often.json")))
""").ok()
    name, kept = done.out.split()
    check(name.startswith("python"), "name %r" % name)
    check_equal(kept, "True", "the task that has ended")


def test_c_interface():
    require(os.path.join(BUILD, "libsystrace-ftrace.so"))
    program = compile_c("""
#include <systrace/ftrace.h>
#include <stdio.h>
#include <unistd.h>
int main(void)
{
	struct systrace_ftrace_options opts = { .size = sizeof(opts), .output = "c.dat", .backend = SYSTRACE_FTRACE_NATIVE };
	struct systrace_ftrace_status status = { .size = sizeof(status) };
	char error[256] = "";
	struct systrace_ftrace *rec = systrace_ftrace_start(&opts, error, sizeof(error));

	if (!rec)
		return fprintf(stderr, "%s\\n", error), 1;
	usleep(300000);
	if (systrace_ftrace_status(rec, &status) < 0 || status.events == 0)
		return 2;
	if (systrace_ftrace_stop(rec, NULL, &status, error, sizeof(error)) < 0)
		return fprintf(stderr, "%s\\n", error), 3;
	printf("%s: %llu events, 0.0 MB, %llu lost\\n", status.output, (unsigned long long)status.events,
	       (unsigned long long)status.lost);
	return 0;
}
""", os.path.join(DIR, "program"), "-I" + os.path.join(ROOT, "include"), "-L" + BUILD, "-lsystrace-ftrace",
                        "-Wl,-rpath," + BUILD)
    with ft.Unchanged():
        done = run([program], cwd=DIR).ok()
    events, _ = ft.saved_counts(done.out)
    check(events > 0, "no events")
    if os.path.exists("/usr/bin/trace-cmd"):
        check_equal(len(ft.report(os.path.join(DIR, "c.dat"))), events, "events in the file")
    exported = run(["nm", "-D", "--defined-only", os.path.join(BUILD, "libsystrace-ftrace.so")]).ok().out
    names = {line.split()[-1].split("@")[0] for line in exported.splitlines()}
    check(all(re.match(r"^(systrace_|SYSTRACE_)", name) for name in names), "exports %r" % names)


main(test_native_start_stop, test_documented_defaults, test_errors, test_without_root, test_python_killed, test_script,
     test_pid_mapper, test_c_interface)
