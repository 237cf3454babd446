#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
# runner: timeout 240
"""The whole agent under sanitizers, preloaded into hosts as in a job (docs/safety.md, 12): the address, undefined behaviour
and thread sanitizers find nothing while it starts, records, is controlled from several clients, forks and ends.
tools/run-tests builds build-asan/libsysTrace.so and build-tsan/libsysTrace.so for it.
"""

import glob
import os
import random
import re
import shutil
import threading

import ctl
import harness as h
import jobs
import safe_host as s

h.require("gcc")
h.own_pid_namespace()
s.PYTHON = "/usr/bin/python3"
CLIENTS = 4
TSAN_OPTIONS = "exitcode=0:report_signal_unsafe=0:history_size=4:log_path="


def runtime(name):
    """A sanitizer's library, as gcc knows it."""
    path = h.run(["gcc", "-print-file-name=" + name]).ok().out.strip()
    if not os.path.isabs(path):
        h.skip("%s is not installed" % name)
    return os.path.realpath(path)


def agent_of(lane):
    path = os.path.join(h.ROOT, "build-" + lane, "libsysTrace.so")
    if not os.path.exists(path):
        h.skip("%s is not there: tools/run-tests builds it" % os.path.relpath(path, h.ROOT))
    return path


def sanitized_host(lane, library, **extra):
    """A Python host with that lane's agent; reports go to files, so that the host's end is what is looked at last."""
    base = s.open_place()
    options = {"asan": {"ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=99:log_path=%s/report" % base,
                        "UBSAN_OPTIONS": "print_stacktrace=1:log_path=%s/report" % base},
               "tsan": {"TSAN_OPTIONS": TSAN_OPTIONS + base + "/report"}}[lane]
    prefix = ["setarch", "-R"] if lane == "tsan" and shutil.which("setarch") else []
    host = s.Host(base, prefix=prefix, preload="%s:%s" % (library, agent_of(lane)), PYTHONPATH=jobs.FAKE_TORCH, RANK="0",
                  **options, **extra)
    return host.go()


def own_race(report):
    """A race between two lines of ours? The interpreter is not instrumented: its lock is not seen, its own reads and writes
    are where it calls libc; and the sanitizer believes that all threads share one descriptor table, which ours do not."""
    if re.search("lock-order-inversion|(un|double )lock of an? |destroy of a ", report):
        # of the host's mutexes, which the sanitizer sees through our wrappers or not, as they are switched; ours is one, taken alone
        return False
    if "data race" not in report:
        return "ThreadSanitizer: reported" not in report
    if "Location is file descriptor" in report:
        return False
    accesses = re.split(r"^  (?:Previous )?(?:[Aa]tomic )?(?:[Ww]rite|[Rr]ead) ", report, flags=re.M)[1:3]
    frames = [next((f for f in re.findall(r"^    #\d+ (.*)$", a, flags=re.M) if "libtsan.so" not in f), "") for a in accesses]
    if any(frame.startswith("resolve ") and "/hook/hook.c" in frame for frame in frames):
        return False  # written before a barrier in every thread (membarrier), which the sanitizer does not know
    return all("libsysTrace.so" in frame for frame in frames)


def reports(base):
    text = "".join(h.read_file(p) for p in glob.glob(base + "/report*"))
    if "ThreadSanitizer" not in text:
        return text
    return "".join(part for part in text.split("==================") if part.strip() and own_race(part))


def check_clean(host, what):
    result = host.quit()
    found = reports(host.base)
    h.check(not found, "%s: reports:\n%s" % (what, found))
    h.check_equal(result.status, 0, what + ": status of the host, %r" % result)


def client(host, rnd, failures):
    """Requests of every kind, whole and broken, one connection after the other."""
    orders = [("list", {}), ("status", {}), ("plugins", {}), ("flush", {}), ("dump", {}), ("stacks", {}), ("debug", {"what": "stats"}),
              ("enable", {"plugin": "MSPTI", "event": "marker"}), ("disable", {"plugin": "MSPTI"}),
              *[(verb, {"plugin": plugin}) for verb in ("enable", "disable") for plugin in ("IO", "Mutex", "GIL")],
              ("enable", {"plugin": "Mutex", "min_us": "0"}), ("enable", {"plugin": "MSPTI", "start_step": "100000"}), ("disable", {"plugin": "stages"}),
              ("enable", {"plugin": "stages"})]
    try:
        for _ in range(60):
            verb, entries = rnd.choice(orders)
            if rnd.random() < 0.2:
                with ctl.connect(host.sock) as conn:
                    conn.sendall(ctl.frame(verb, entries.items())[:rnd.randrange(40)])
                continue
            ctl.ask(host.sock, verb, **entries)
    except Exception as e:  # shown by the main thread
        failures.append(e)


def exercise(lane, library, **extra):
    host = sanitized_host(lane, library, **extra).wait_socket()
    host.train(3)
    host.do("optimizer.zero = 0")
    failures = []
    threads = [threading.Thread(target=client, args=(host, random.Random(i), failures)) for i in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        host.do("exec('for batch in DataLoader(list(range(50))):\\n  torch.autograd.backward(batch); optimizer.step()')")
        if lane != "tsan":  # whose own locks a fork beside threads leaves taken
            host.do("pid = os.fork(); pid or (torch.autograd.backward(1), os._exit(7)); "
                    "assert os.waitpid(pid, 0)[1] >> 8 == 7")
        host.do("import tempfile; f = tempfile.TemporaryFile(); [(f.write(bytes(5000)), f.flush(), f.seek(0), f.read(100)) "
                "for i in range(200)]; f.close()")
        host.do("import threading; ts = [threading.Thread(target=torch.autograd.backward, args=(1,)) for i in range(8)]; "
                "[t.start() for t in ts]; [t.join() for t in ts]")
    for thread in threads:
        thread.join()
    h.check_equal(failures, [], lane + ": clients")
    h.check_equal(host.ask("enable", plugin="stages").code, 0, lane + ": stages on")
    h.check(int(host.ask("status").get("records")) > 0, lane + ": no records: %r" % host.ask("status"))
    check_clean(host, lane)


def test_address_and_undefined_behaviour():
    library = runtime("libasan.so")
    for form in ("pb", "json"):
        exercise("asan", library, SYSTRACE_FORMAT=form)


def test_threads():
    exercise("tsan", runtime("libtsan.so"))


def speaks(library, sanitizer, code, options, want):
    """A library with a fault, preloaded as the agent is: is it reported, after the filter?"""
    base = s.open_place()
    bad = h.compile_c(code, base + "/bad-libsysTrace.so", "-shared", "-fPIC", "-fsanitize=" + sanitizer)
    prefix = ["setarch", "-R"] if sanitizer == "thread" and shutil.which("setarch") else []
    env = dict(os.environ, ST_FAULT="1", PROGRAM="pass", LD_PRELOAD="", **{options[0]: options[1] + base + "/report"})
    h.run([*prefix, "sh", "-c", "LD_PRELOAD=%s:%s exec %s -c pass" % (runtime(library), bad, s.PYTHON)], env=env)
    found = reports(base)
    h.check(want in found, "no report of a fault made on purpose: %r" % found)


def test_the_sanitizers_would_speak():
    speaks("libasan.so", "address", """
#include <stdlib.h>
__attribute__((constructor)) static void go(void)
{
	volatile char *p = malloc(8);
	if (getenv("ST_FAULT"))
		p[8] = 1;
}
""", ("ASAN_OPTIONS", "detect_leaks=0:exitcode=99:log_path="), "heap-buffer-overflow")
    speaks("libtsan.so", "thread", """
#include <pthread.h>
#include <stdlib.h>
static int value;
static void *other(void *arg) { value++; return arg; }
__attribute__((constructor)) static void go(void)
{
	pthread_t thread;
	if (!getenv("ST_FAULT") || pthread_create(&thread, NULL, other, NULL))
		return;
	value++;
	pthread_join(thread, NULL);
}
""", ("TSAN_OPTIONS", TSAN_OPTIONS), "data race")


h.main(test_address_and_undefined_behaviour, test_threads, test_the_sanitizers_would_speak)
