#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
# runner: needs-root
# runner: alone
"""The plugin Ftrace restricted to processes: set_event_pid and set_ftrace_pid, with the threads that are born later. Not in
a pid namespace of its own, since the kernel's filter takes the host's ids.
"""

import json
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import ftrace_state as ft
import harness as h
from probes import Place

ft.tracefs()
if os.stat("/proc/self/ns/pid").st_ino != 0xeffffffc:
    h.skip("not in the host's pid namespace")
if json.loads(h.run([h.CLI, "list", "--json"]).out or "{}").get("agents"):
    h.skip("another process with an agent runs here: the log would go into its directory")

SLEEPER = """
import sys, threading, time
def nap():
    for _ in range(20):
        time.sleep(0.002)
print("up", flush=True)
sys.stdin.readline()
thread = threading.Thread(target=nap)
thread.start()
thread.join()
nap()
print(thread.native_id, flush=True)
sys.stdin.readline()
"""


def one_process_with_its_new_threads(key):
    place = Place()
    job = subprocess.Popen([sys.executable, "-c", SLEEPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    job.stdout.readline()
    with ft.Unchanged():
        place.cli("enable", "Ftrace", "cpu_list=0-4095", "events=raw_syscalls/sys_enter", "%s=%d" % (key, job.pid)).ok()
        job.stdin.write("\n")
        job.stdin.flush()
        tid = int(job.stdout.readline())
        place.cli("disable", "Ftrace").ok()
        place.wait_gone()
    job.communicate("\n")
    text = h.read_file(h.find_one(place.dump, "Ftrace/*.log"))
    pids = {int(pid) for pid in re.findall(r"^ *\S.*?-(\d+) +\[\d+\]", text, re.M)}
    h.check_equal(pids, {job.pid, tid}, "threads in the log")


def bad_pids_are_told():
    place = Place()
    for key in ("set_event_pid", "set_ftrace_pid"):
        said = place.cli("enable", "Ftrace", "cpu_list=0", "events=irq", "%s=4194304" % key).ok(1).out
        h.check("there is no process 4194304" in said, said)
    place.wait_gone()


def events_of_a_process():
    one_process_with_its_new_threads("set_event_pid")


def all_of_ftrace_of_a_process():
    one_process_with_its_new_threads("set_ftrace_pid")


h.main(events_of_a_process, all_of_ftrace_of_a_process, bad_pids_are_told)
