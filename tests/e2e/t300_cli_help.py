#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""sysTrace_cli without any agent: the documented help, messages that teach, exit statuses, an output that is checked."""

import os
import pty

import harness as h

h.require(h.CLI, h.SYSTRACE)
h.own_pid_namespace()

# User guide 7.2.3, verbatim but for its misprints (a blank was missing before the dash of overlong lines)
DOCUMENTED = """\
=========================================================
USAGE:
  sysTrace_cli <action> <plugin> [key=value ...]
ACTIONS:
  enable   Start or update a plugin's configuration
  disable  Stop a plugin and flush data to disk
COMMON PARAMETERS:
  duration=<sec>    - Capture duration in seconds (0 for infinite)
PLUGINS & SPECIFIC PARAMETERS:
  MSPTI       NVIDIA/Atlas Activity Tracing (HCCL, Kernels)
    event=<types>   - Comma-separated: marker, kernel, api
  IO          Disk and Network I/O Latency/Throughput
  CPU         CPU Utilization and Context Switch Trace
  Memory      Memory Allocation and Leak Detection
  CacheMiss   Hardware Cache Miss Rates and Memory Access Efficiency
    args=-p <pid> -e <events> --timeout <ms> - Standard perf-stat arguments for hardware event monitoring
  GIL         Python Global Interpreter Lock (GIL) Contention and Latency Trace
    pid=<pid>       - trace target python process
  Mutex       Pthread Synchronization Latency (Mutex/RWLock/Spinlock/Sem)
    pid=<pid>       - trace target process
  Ftrace      Linux Kernel Ftrace (Events, Function Graph, and Sched Tracing)
    cpu_list="0-15" - Trace specific CPUs (e.g., "0-3,5")
    events="<group>/<event>,<group>/<event>" - Enable tracepoints: irq, sched, syscalls, raw_syscalls, vmscan, compaction
    function_tracer="function_graph|function" - Set ftrace tracer (default: nop)
    func="func1 func2" - Filter kernel functions to trace (wildcards supported: "*mmap")
    func_stack_trace=1 - Enable kernel stack trace for functions (use with function_tracer=function)
    event_stack_trace=1 - Enable kernel stack trace for events (use with events!=null)
  Trace       A command-line interface for interacting with the Linux kernel's Ftrace subsystem to record and analyze \
system performance and kernel events.
    args=<args>     - trace-cmd args
EXAMPLES:
  sysTrace_cli enable MSPTI event=marker,kernel,api duration=10
  sysTrace_cli enable IO duration=10
  sysTrace_cli enable Memory duration=10
  sysTrace_cli enable CacheMiss duration=10 args="-p 12345 -e cache-misses"
  sysTrace_cli enable GIL duration=10
  sysTrace_cli enable Trace args="record -e sched sleep 5"
  sysTrace_cli disable CPU
  sysTrace_cli enable Mutex duration=10
  sysTrace_cli enable CacheMiss args=" -e branch-misses,cache-misses,cache-references --timeout 5000"
  sysTrace_cli enable Ftrace duration=10 cpu_list=0-31 events="syscalls/sys_enter_futex,syscalls/sys_exit_futex"
=========================================================
"""


def help_is_as_documented():
    out = h.run([h.CLI, "-h"]).ok().out
    lines = out.splitlines()
    at = 0
    for line in DOCUMENTED.splitlines():
        h.check(line in lines[at:], "missing, or out of order: %r" % line)
        at += lines[at:].index(line) + 1
    h.check("HBM" in out and "set_event_pid=" in out and "set_ftrace_pid=" in out and "buffer_size_kb=" in out, out)
    h.check_equal(h.run([h.CLI, "--help"]).ok().out, out, "--help")
    h.check_golden("sysTrace_cli_help.txt", out)


def help_of_one_plugin():
    out = h.run([h.CLI, "enable", "ftrace", "--help"]).ok().out
    h.check(out.startswith("Ftrace - Linux Kernel Ftrace"), out)
    h.check("cpu_list=" in out and "duration=" in out and "sysTrace_cli enable Ftrace" in out, out)
    h.check("min_us" not in out, out)


def wrong_usage_is_2_and_says_what_is_valid():
    rows = [
        (["enabel", "IO"], "did you mean enable?"),
        (["enable"], "sysTrace_cli enable IO"),
        (["enable", "Mutx"], "did you mean Mutex?"),
        (["enable", "Network"], "MSPTI, IO, CPU, Memory, CacheMiss, GIL, Mutex, Ftrace, Trace, HBM"),
        (["enable", "IO", "durtion=1"], "did you mean duration?"),
        (["enable", "IO", "duration"], "key=value"),
        (["enable", "IO", "duration=ten"], "a number of seconds"),
        (["enable", "IO", "duration=1", "duration=2"], "twice"),
        (["enable", "IO", "--duration", "10"], "without dashes: duration=VALUE"),
        (["enable", "MSPTI", "event=markers"], "marker, kernel, api"),
        (["enable", "Ftrace", "events=irq"], "cpu_list"),
        (["enable", "CacheMiss", "args=-p 1"], "-e cache-misses"),
        (["enable", "GIL", "pid=abc"], "process ids separated by commas"),
        (["disable", "IO", "duration=1"], "disable takes no 'duration=1'"),
        (["status", "--pid", "x"], "1234,5678"),
        (["status", "--timeout=soon"], "a number of seconds"),
        (["status", "--tmeout=1"], "did you mean --timeout?"),
        ([], "give an action"),
    ]
    for args, want in rows:
        got = h.run([h.CLI, *args]).ok(2)
        h.check(want in got.err, "%s: want %r in %r" % (args, want, got.err))
        h.check("See: sysTrace_cli" in got.err, got.err)
        h.check_equal(got.out, "", "stdout of %s" % args)


def no_agent_is_3_and_says_what_to_do():
    for args in (["enable", "IO", "duration=10"], ["disable", "IO"], ["status"], ["list"], ["flush"], ["dump"], ["stacks"]):
        got = h.run([h.CLI, *args]).ok(3)
        h.check("no process on this host has libsysTrace.so loaded" in got.err, got.err)
        h.check("LD_PRELOAD=" in got.err and "libsysTrace.so python train.py" in got.err, got.err)
    h.check_equal(h.run([h.CLI, "list", "--json"]).ok(3).out, '{"agents": []}\n', "JSON")


def full_disk_is_an_error():
    for args in ([h.CLI, "-h"], [h.SYSTRACE], [h.SYSTRACE, "--help"]):
        with open("/dev/full", "wb") as full:
            process = h.start(args, stdout=full)
            got = h.finish(process)
        h.check(got.status not in (0, 3), "%s: status %d with a full disk" % (args, got.status))
        h.check("No space left on device" in got.err, got.err)


def versions_and_command_list():
    version = h.run([h.CLI, "--version"]).ok().out
    h.check(version.startswith("sysTrace "), version)
    h.check_equal(h.run([h.SYSTRACE, "--version"]).ok().out, version, "version")
    h.check("convert" in h.run([h.SYSTRACE, "--list-commands"]).ok().out.split(), "no convert")
    h.check("did you mean convert?" in h.run([h.SYSTRACE, "convret"]).ok(2).err, "no hint")
    h.run([h.SYSTRACE]).ok(2)
    h.run([h.SYSTRACE, "--help"]).ok(0)


def on_terminal(args, **variables):
    """What a command prints to a terminal."""
    master, slave = pty.openpty()
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TERM")}
    env.update(variables)
    process = h.start(args, env=env, stdout=slave)
    os.close(slave)
    h.check_equal(h.finish(process).status, 0, "status")
    out = os.read(master, 1 << 20).decode()
    os.close(master)
    return out


def colour_only_on_terminals_that_want_it():
    args = [h.SYSTRACE, "--help"]
    h.check("\x1b[" in on_terminal(args, TERM="xterm"), "no colour on a terminal")
    h.check("\x1b[" not in on_terminal(args, TERM="xterm", NO_COLOR="1"), "colour in spite of NO_COLOR")
    h.check("\x1b[" not in on_terminal(args, TERM="dumb"), "colour on a dumb terminal")
    h.check("\x1b[" not in h.run(args).ok().out, "colour in a pipe")


def an_unknown_kind_is_answered_with_the_kinds():
    done = h.run([h.SYSTRACE, "convert", "xyzzy"]).ok(2)
    h.check("no systrace convert 'xyzzy'; the kinds are timeline, mspti" in done.err, done.err)


def every_command_has_help_and_a_manual_page():
    for name in h.run([h.SYSTRACE, "--list-commands"]).ok().out.splitlines():
        words = name.split()
        text = h.run([h.SYSTRACE, *words, "--help"]).ok().out
        h.check(text.startswith("systrace %s - " % name) and "USAGE" in text, text)
        page = h.run([h.SYSTRACE, *words, "--man"]).ok().out
        h.check('.TH "systrace-%s" 1' % name.replace(" ", "-") in page and ".SH SYNOPSIS" in page, page)
    h.check('.TH "sysTrace_cli" 1' in h.run([h.CLI, "--man"]).ok().out, "no manual page of sysTrace_cli")


h.main(help_is_as_documented, help_of_one_plugin, wrong_usage_is_2_and_says_what_is_valid,
       no_agent_is_3_and_says_what_to_do, full_disk_is_an_error, versions_and_command_list,
       an_unknown_kind_is_answered_with_the_kinds, colour_only_on_terminals_that_want_it,
       every_command_has_help_and_a_manual_page)
