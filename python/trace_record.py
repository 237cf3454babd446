#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""Record the kernel's scheduling and interrupt events (ftrace): from a program, or as a script.

    import trace_record
    trace_record.ftrace_record_start(cpu_mask="0-4,7,10")
    ...
    trace_record.ftrace_record_stop(output="trace.dat")

    sudo python3 trace_record.py --record_time=30 --cpu=0-15 --NSpid

The work is done by the program `systrace record` in a process of its own; this module starts it, tells it to stop, and
takes no time of the interpreter in between. Importing it needs neither root nor the program.
"""

import argparse
import os
import shutil
import subprocess
import sys

DEFAULT_TRACE_BUFFER_SIZE = 40960  # KB per CPU
DEFAULT_RECORD_TIME = 30  # seconds
DEFAULT_PID_MAP = "pid_mapping.json"
BACKENDS = ("auto", "trace-cmd", "debugfs", "native")


class _Default(str):
    """A default that can be told from the same text given by a caller."""


DEFAULT_OUTPUT = _Default("trace.dat")  # of the text back end: trace.txt


class TraceEventConfig:
    """Which groups of events are recorded: 1 on, 0 off."""

    def __init__(self, sched=1, irq=1, futex=0):
        self.sched = sched
        self.irq = irq
        self.futex = futex

    def options(self):
        return ["--%s=%d" % (name, bool(int(getattr(self, name)))) for name in ("sched", "irq", "futex")]


def find_systrace():
    """The program systrace: beside an installed or built copy of this file, else in PATH.

    Raises FileNotFoundError with a text that says what to do.
    """
    here = os.path.dirname(os.path.realpath(__file__))
    places = [
        os.path.join(here, "systrace"),
        os.path.join(here, "..", "..", "..", "bin", "systrace"),  # <prefix>/share/systrace/python
    ]
    if os.path.exists(os.path.join(here, "..", "CMakeLists.txt")):
        places.append(os.path.join(here, "..", "build", "systrace"))
    for path in places:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return os.path.normpath(path)
    found = shutil.which("systrace")
    if not found:
        raise FileNotFoundError("the program systrace is not found: install sysTrace, or put its directory into PATH")
    return found


def _cpu_list(cpu_mask):
    """[0, 1, 4], "0-1,4" or 3 to the text that systrace takes; None: all CPUs."""
    if cpu_mask is None or isinstance(cpu_mask, str):
        return (cpu_mask or "").replace(" ", "") or None
    if isinstance(cpu_mask, int):
        return str(cpu_mask)
    return ",".join(str(int(cpu)) for cpu in cpu_mask) or None


def _backend_options(backend):
    if backend not in BACKENDS:
        raise ValueError("backend is %r; it is one of %s" % (backend, ", ".join(BACKENDS)))
    return ["--documented-order"] if backend == "auto" else ["--backend=" + backend]


def _more_options(args):
    """args of ftrace_record_start: a list of options of `systrace record`, or a namespace with NSpid and the like."""
    if args is None:
        return []
    if isinstance(args, (list, tuple)):
        return [str(arg) for arg in args]
    values = args if isinstance(args, dict) else vars(args)
    options = []
    if values.get("NSpid"):
        options.append("--NSpid")
    for name in ("pid_map", "pid_map_period", "instance", "compress"):
        if values.get(name) is not None:
            options.append("--%s=%s" % (name, values[name]))
    events = values.get("event") or []
    options += ["--event=" + event for event in ([events] if isinstance(events, str) else events)]
    return options


class _Child:
    """A process of systrace that works until its stdin ends, so that it cannot outlive us unnoticed."""

    def __init__(self, command, begun):
        self.process = subprocess.Popen([find_systrace()] + command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        universal_newlines=True, start_new_session=True)
        answer = self.process.stdout.readline()
        if not answer.startswith(begun):
            self.process.stdin.close()
            self.process.stdout.close()
            self.process.wait()
            raise RuntimeError(answer.partition(" ")[2].strip() or
                               "systrace %s ended at once with status %d" % (command[0], self.process.returncode))

    def stop(self, line):
        """Returns what it says last."""
        try:
            answer, _ = self.process.communicate(line)
        except BrokenPipeError:  # it has ended by itself; what it said is still there
            answer = self.process.stdout.read()
            self.process.wait()
        return answer


_recording = None


def ftrace_record_start(cpu_mask=None, output=DEFAULT_OUTPUT, bf_size=DEFAULT_TRACE_BUFFER_SIZE, event_cfg=None,
                        args=None, backend="auto"):
    """Begin to record; returns once the kernel records.

    cpu_mask: CPUs as a list of numbers or as "0-3,8"; None: all
    output: file; the default is trace.txt where the text back end runs
    bf_size: ring buffer of each CPU in KB
    event_cfg: TraceEventConfig
    args: more options of `systrace record`, as a list, or a namespace or dict with NSpid, event, ...
    backend: auto (trace-cmd, then debugfs), trace-cmd, debugfs or native

    Raises PermissionError without root, FileNotFoundError without the program, ValueError, RuntimeError with the reason.
    """
    global _recording
    if _recording is not None:
        raise RuntimeError("ftrace_record_start: a recording runs already; call ftrace_record_stop first")
    command = ["record", "--control", "--record-time=-1", "--bf-size=%d" % int(bf_size)]
    cpus = _cpu_list(cpu_mask)
    if cpus:
        command.append("--cpu=" + cpus)
    if not isinstance(output, _Default):
        command.append("--output=%s" % output)
    command += (event_cfg or TraceEventConfig()).options() + _backend_options(backend) + _more_options(args)
    if os.geteuid() != 0:
        raise PermissionError("recording kernel events needs root (CAP_SYS_ADMIN); run it with sudo")
    _recording = _Child(command, "recording ")


def ftrace_record_stop(output=None):
    """End the recording and save it; returns the file's name.

    output: another name than the one given at the start; None: that one
    Raises RuntimeError if nothing is recorded, or with the reason if it cannot be saved.
    """
    global _recording
    if _recording is None:
        raise RuntimeError("ftrace_record_stop: nothing is being recorded; call ftrace_record_start first")
    child, _recording = _recording, None
    answer = child.stop("stop %s\n" % output if output else "stop\n")
    word, _, text = answer.rpartition("\n")[0].rpartition("\n")[2].partition(" ")
    if word != "saved":
        raise RuntimeError(text or "systrace record ended with status %d" % child.process.returncode)
    return text


class ContainerPidMapper:
    """Writes which pids the tasks of containers have inside, for trace_convert.py --pid_mapping."""

    def __init__(self, output_file=DEFAULT_PID_MAP):
        self.output_file = output_file
        self._child = None

    def start(self, duration=None):
        """None: write the file once. N: write it every N seconds until stop()."""
        if self._child is not None:
            raise RuntimeError("ContainerPidMapper: it runs already; call stop() first")
        command = ["pidmap", "--output=%s" % self.output_file]
        if duration is not None:
            if duration <= 0:
                raise ValueError("duration is %r; it is a number of seconds, or None" % (duration,))
            self._child = _Child(command + ["--control", "--period=%d" % max(1, round(duration))], "writing")
            return
        done = subprocess.run([find_systrace()] + command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, universal_newlines=True)
        if done.returncode:
            raise RuntimeError(done.stderr.strip())

    def stop(self):
        """Write the file a last time and end; nothing happens if start(N) was not called."""
        child, self._child = self._child, None
        if child is None:
            return
        child.stop("")
        if child.process.returncode:
            raise RuntimeError("systrace pidmap ended with status %d" % child.process.returncode)


def _parser():
    parser = argparse.ArgumentParser(description="Record scheduling and interrupt events of the kernel (needs root).")

    def add(name, **more):
        """--record_time and --record-time are one option."""
        names = ["--" + name]
        if "_" in name:
            names.append("--" + name.replace("_", "-"))
        parser.add_argument(*names, dest=name, **more)

    add("cpu", help="CPUs to record, such as 0-3,8; without it all of them")
    add("output", default=DEFAULT_OUTPUT, help="file (default: trace.dat, of the text back end trace.txt)")
    add("record_time", type=float, default=DEFAULT_RECORD_TIME,
        help="seconds (default: %(default)s); 0 or less: until Ctrl-C")
    add("bf_size", type=int, default=DEFAULT_TRACE_BUFFER_SIZE, help="ring buffer of each CPU in KB (default: %(default)s)")
    add("backend", choices=BACKENDS, default="auto", help="auto: trace-cmd, else debugfs (default: %(default)s)")
    add("sched", type=int, choices=(0, 1), default=1, nargs="?", const=1, help="scheduling events (default: 1)")
    add("irq", type=int, choices=(0, 1), default=1, nargs="?", const=1, help="interrupts (default: 1)")
    add("futex", type=int, choices=(0, 1), default=0, nargs="?", const=1, help="futex calls (default: 0)")
    add("NSpid", action="store_true", help="write %s: the pids that tasks of containers have inside" % DEFAULT_PID_MAP)
    add("pid_map_period", type=int, help="how often --NSpid reads them again, in seconds")
    add("event", action="append", help="one more event, GROUP/NAME; may be repeated")
    add("instance", help="name of the tracing instance")
    return parser


def main(argv=None):
    """As a script: this process becomes `systrace record`, which takes Ctrl-C and SIGTERM itself."""
    args = _parser().parse_args(argv)
    command = ["record", "--record-time=%.3f" % args.record_time, "--bf-size=%d" % args.bf_size]
    cpus = _cpu_list(args.cpu)
    if cpus:
        command.append("--cpu=" + cpus)
    if not isinstance(args.output, _Default):
        command.append("--output=" + args.output)
    command += TraceEventConfig(args.sched, args.irq, args.futex).options()
    command += _backend_options(args.backend) + _more_options(args)
    try:
        program = find_systrace()
    except FileNotFoundError as e:
        print("trace_record.py: error: %s" % e, file=sys.stderr)
        return 1
    sys.stdout.flush()
    os.execv(program, [program] + command)
    return 1


if __name__ == "__main__":
    sys.exit(main())
