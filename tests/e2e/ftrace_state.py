# SPDX-License-Identifier: MulanPSL-2.0
"""What tests of the recorder share: the kernel's tracing state, to be compared before and after, and its files.

Importing this needs nothing; tracefs() skips the test without root or without tracefs. Where tracefs is not mounted it is
mounted on a directory of the test's own, so that the machine is left as it was found.
"""

import atexit
import glob
import os
import re
import subprocess

from harness import check, check_equal, require_root, run, skip, tmpdir

KEPT = ("tracing_on", "trace_clock", "buffer_size_kb", "tracing_cpumask", "set_event", "current_tracer", "trace_options",
        "saved_cmdlines_size", "events/enable", "events/sched/enable", "events/irq/enable")

_mounted = None


def tracefs():
    """The directory of tracefs."""
    global _mounted
    require_root()
    if _mounted:
        return _mounted
    with open("/proc/self/mounts") as f:
        for line in f:
            if line.split()[2] == "tracefs":
                _mounted = line.split()[1]
                return _mounted
    place = tmpdir("st-tracefs-")
    done = subprocess.run(["mount", "-t", "tracefs", "systrace-test", place], stderr=subprocess.PIPE, text=True)
    if done.returncode:
        skip("tracefs cannot be mounted: %s" % done.stderr.strip())
    atexit.register(subprocess.run, ["umount", place])
    _mounted = place
    return place


def read(name):
    with open(os.path.join(tracefs(), name), errors="replace") as f:
        return f.read()


def write(name, text):
    with open(os.path.join(tracefs(), name), "w") as f:
        f.write(text)


def instances():
    return sorted(os.listdir(os.path.join(tracefs(), "instances")))


def own_instances():
    return [name for name in instances() if name.startswith("systrace-")]


def recording(instance):
    """Does that instance record? A new one is on before it has events."""
    try:
        events = read("instances/%s/events/enable" % instance).strip()
        return events != "0" and read("instances/%s/tracing_on" % instance).strip() == "1"
    except OSError:  # it is being made, or has gone
        return False


def state():
    """Everything that a recorder could change."""
    values = {name: read(name) for name in KEPT}
    values["instances"] = own_instances()
    with open("/proc/self/mounts") as f:
        values["mounts"] = sorted(line for line in f if "tracefs" in line.split()[2])
    values["remembered"] = glob.glob("/run/systrace/ftrace-*") + glob.glob("/run/systrace-tracefs-*")
    return values


class Unchanged:
    """with Unchanged(): the tracing state afterwards is what it was before, whatever ran."""

    def __enter__(self):
        self.before = state()

    def __exit__(self, kind, value, trace):
        if kind is None:
            after = state()
            if "expanded" in self.before["buffer_size_kb"]:  # the first user of the top level ever: the kernel makes the buffer then
                self.before.pop("buffer_size_kb")
            for name in self.before:
                check_equal(after[name], self.before[name], "tracing state %s" % name)


def report(path, *options):
    """Lines of trace-cmd report without its first one."""
    done = run(["trace-cmd", "report", *options, path], timeout=120).ok()
    return [line for line in done.out.splitlines() if not line.startswith("cpus=")]


def event_name(line):
    match = re.search(r"\[\d+\]\s+\S*\s*\d+\.\d+:\s+(\w+):", line)
    check(match, "not an event: %r" % line)
    return match.group(1)


def saved_counts(out):
    """(events, lost) of the line that systrace record prints at its end."""
    match = re.search(r": (\d+) events, [\d.]+ MB, (\d+) lost$", out, re.M)
    check(match, "no result line in %r" % out)
    return int(match.group(1)), int(match.group(2))
