# SPDX-License-Identifier: MulanPSL-2.0
# runner: timeout 120
"""Plugin GIL on every interpreter here: holds of a process never overlap, their sum covers the processor time of a program
that is bound by the lock, waits and forced switches are there, what the end of a capture cuts is told, forked children and
interpreters with a lock of their own too; the file is a Chrome trace as it stands, `systrace convert gil` sums it up."""

import json
import os
import time

import ctl
import harness as h
import jobs

h.require(h.AGENT, h.SYSTRACE)

COUNT = r"""
import threading, time
used = []
def count(stop):
    begin = time.thread_time()
    while time.monotonic() < stop:
        pass
    used.append(time.thread_time() - begin)
def spin(threads, seconds):
    stop = time.monotonic() + seconds
    ts = [threading.Thread(target=count, args=(stop,), name="busy") for _ in range(threads)]
    [t.start() for t in ts]
    [t.join() for t in ts]
def fork():
    pid = os.fork()
    if not pid:
        for i in range(20):
            time.sleep(0.001)
        os._exit(0)
    os.waitpid(pid, 0)
"""

INTERPRETER = r"""
import %s as interpreters, threading
a = interpreters.create()
t = threading.Thread(target=interpreters.run_string, args=(a, '''
import time
for i in range(50):
    time.sleep(0.001)
'''))
t.start()
t.join()
"""


def job_of(python):
    job = jobs.Job(python, h.preload_env(h.tmpdir(), RANK="1", SYSTRACE_BUDGET_PCT="100"))
    h.wait_for(lambda: os.path.exists(job.sock), what="the control socket")
    job.do("exec(%r, globals())" % COUNT)
    return job


def switch(job, verb):
    answer = job.ask(verb, plugin="GIL")
    h.check_equal(answer.code, 0, "%s: %s" % (verb, answer.text))


def trace_of(job):
    with open(h.find_one(job.dump, "GIL/GIL_%d_rank_1.json" % job.pid)) as f:
        return json.load(f)["traceEvents"]


def slices(events, name=None, **args):
    return [e for e in events if e["ph"] == "X" and name in (None, e["name"])
            and all(e["args"].get(k) == v for k, v in args.items())]


def ns(us):
    return round(us * 1000)


def spans(holds):
    return sorted((ns(e["ts"]), ns(e["ts"]) + ns(e["dur"])) for e in holds)


def check_apart(holds):
    """No two holds of one lock at a time."""
    for before, after in zip(spans(holds), spans(holds)[1:]):
        h.check(before[1] <= after[0], "holds overlap: %s %s" % (before, after))


def check_named(events):
    """Each process and thread with slices has a name, as viewers want it."""
    processes = {e["pid"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    for e in slices(events):
        h.check(e["pid"] in processes and (e["pid"], e["tid"]) in threads, "no name: %s" % e)


def check_busy(python):
    """Threads that do nothing but count: together they hold the lock for as long as they get the processor."""
    job = job_of(python)
    switch(job, "enable")
    job.do("spin(4, 0.5)")
    job.do("fork()")
    job.do("print(sum(used), file=open(%r, 'w'))" % (job.dump + "/used"))
    objects = job.status().all("hook.object")
    h.check_equal(len(objects), 1, "only the object that holds _PyRuntime is touched: %s" % objects)
    switch(job, "disable")
    h.check_equal(job.status().get("hooks.slots"), "0", "slots after disable")
    job.quit().ok()
    events = trace_of(job)
    used_ns = 1e9 * float(h.read_file(job.dump + "/used"))
    check_named(events)
    child = [e for e in slices(events, "GIL hold") if e["pid"] != job.pid]
    h.check(len(child) > 10, "%d holds of a forked child" % len(child))
    check_apart(child)
    holds = [e for e in slices(events, "GIL hold") if e["pid"] == job.pid]
    check_apart(holds)
    held = sum(end - begin for begin, end in spans(holds))
    h.check(held >= 0.98 * used_ns, "held %.3f s, computed %.3f s" % (held / 1e9, used_ns / 1e9))
    waits = slices(events, "GIL wait")
    h.check(len({e["tid"] for e in waits}) >= 4, "four threads wait for each other")
    h.check(any(e["args"]["timeouts"] > 0 for e in waits), "the switch interval ran out somewhere")
    h.check(slices(events, "GIL hold", forced=1), "no forced switch between busy threads")
    busy = {e["tid"] for e in waits if e["args"]["timeouts"] > 0}
    some = spans(e for e in holds if e["tid"] in busy)
    return sum(end - begin for begin, end in some) / (some[-1][1] - some[0][0])


def each(check):
    for version, python in h.pythons().items():
        try:
            check(python)
        except h.CheckFailed as e:
            raise h.CheckFailed("%d.%d: %s" % (*version, e))


def test_each_interpreter():
    each(check_busy)


def check_sum(python):
    """On a quiet machine what is left over are the times between a drop and the next take."""
    shares = []
    for _ in range(5):
        shares.append(check_busy(python))
        if shares[-1] >= 0.98:
            return
    raise h.CheckFailed("held %s of the time, want 0.98" % shares)


def test_sum_of_holds():
    if not h.FULL:
        h.skip("needs a quiet machine: the long form")
    each(check_sum)


def state_of(pid, comm):
    """State letters of the threads of that name."""
    states = []
    for tid in os.listdir("/proc/%d/task" % pid):
        name, _, rest = h.read_file("/proc/%d/task/%s/stat" % (pid, tid)).partition("(")[2].rpartition(")")
        if name == comm:
            states.append(rest.split()[0])
    return states


def check_open(python):
    """A thread takes the lock and keeps it until after the capture; one that is busy otherwise waits until after, too."""
    job = job_of(python)
    wire = os.path.join(job.dump, "wire")
    os.mkfifo(wire)
    # a call of this library keeps the lock
    job.do("import ctypes; library = ctypes.PyDLL(None); fd = os.open(%r, os.O_RDWR); room = ctypes.create_string_buffer(1)" % wire)
    job.do("stop = time.monotonic() + 600")
    switch(job, "enable")
    job.do("w = threading.Thread(target=lambda: (library.prctl(15, b'busy'), count(stop)), daemon=True); w.start()")
    job.process.stdin.write(b"library.read(fd, room, 1); stop = 0\n")
    job.process.stdin.flush()
    h.wait_for(lambda: state_of(job.pid, "busy") == ["S"], what="a waiting thread")
    time.sleep(0.1)
    # it looks again now and then, and may have to wait for a CPU to do so
    h.wait_for(lambda: state_of(job.pid, "busy") == ["S"], what="a thread that goes on waiting")
    switch(job, "disable")
    h.write_file(wire, "x")
    job.expect("done")
    job.process.kill()
    job.process.wait()
    events = trace_of(job)
    held = slices(events, "GIL hold", cut="went on after it")
    waited = slices(events, "GIL wait", cut="went on after it")
    h.check_equal([e["tid"] for e in held], [job.pid], "who held it at the end")
    h.check([e for e in waited if e["tid"] != job.pid], "who waited at the end: %s" % waited)
    check_named(events)
    check_apart(slices(events, "GIL hold"))


def test_what_the_end_cuts():
    for python in list(h.pythons().values())[::1 if h.FULL else 3]:
        check_open(python)


def test_interpreters_of_their_own():
    """From 3.12 on interpreters may have a lock each."""
    found = h.pythons(lowest=(3, 12))
    for version, python in found.items():
        job = job_of(python)
        switch(job, "enable")
        job.do("exec(%r, globals())" % (INTERPRETER % ("_interpreters" if version >= (3, 13) else "_xxsubinterpreters")))
        switch(job, "disable")
        job.quit()
        events = trace_of(job)
        own = slices(events, "GIL hold", interpreter=1)
        h.check(len(own) >= 45, "%d.%d: %d holds of the other interpreter's lock" % (*version, len(own)))
        check_apart(own)
        check_apart([e for e in slices(events, "GIL hold") if "interpreter" not in e["args"]])
    if not found:
        h.skip("no interpreter of 3.12 or later here")


def test_convert():
    job = job_of(list(h.pythons().values())[-1])
    switch(job, "enable")
    job.do("spin(3, 0.3)")
    switch(job, "disable")
    job.quit().ok()
    env = h.tool_env(job.dump)
    events = trace_of(job)
    data = json.loads(h.run([h.SYSTRACE, "convert", "gil", "--input", job.dump, "--json"], env=env).ok().out)
    for name, key in (("GIL hold", "hold_ns"), ("GIL wait", "wait_ns")):
        per_thread = {}
        for e in slices(events, name):
            per_thread[e["tid"]] = per_thread.get(e["tid"], 0) + ns(e["dur"])
        h.check_equal({t["tid"]: t[key] for t in data["threads"] if t[key]}, per_thread, "totals of " + name)
    # the convoy, counted the slow way
    want = {}
    for waiter, w_begin, w_end in ((e["tid"], *spans([e])[0]) for e in slices(events, "GIL wait")):
        for holder, h_begin, h_end in ((e["tid"], *spans([e])[0]) for e in slices(events, "GIL hold")):
            both = min(w_end, h_end) - max(w_begin, h_begin)
            if both > 0 and waiter != holder:
                want[holder, waiter] = want.get((holder, waiter), 0) + both
    h.check_equal({(p["holder_tid"], p["waiter_tid"]): p["waited_ns"] for p in data["convoy"]}, want, "the convoy")
    text = h.run([h.SYSTRACE, "convert", "gil", "--input", job.dump], env=env).ok().out
    h.check("rank 1, process %d: held " % job.pid in text, "tables: %s" % text)
    out = os.path.join(job.dump, "gil.json")
    h.run([h.SYSTRACE, "convert", "gil", "--input", job.dump, "--output", out], env=env).ok()
    with open(out) as f:
        made = json.load(f)["traceEvents"]
    names = [e["name"] for e in made if e["ph"] == "X"]
    h.check_equal((names.count("GIL hold"), names.count("GIL wait")),
                  (len(slices(events, "GIL hold")), len(slices(events, "GIL wait"))), "slices")
    values = [e["args"]["threads"] for e in made if e["ph"] == "C"]
    h.check_equal(len(values), 2 * names.count("GIL wait"), "one value more, one less for each wait")
    h.check(values[-1] == 0 and 2 <= max(values) <= 5, "threads that wait: %s" % values)
    tracks = [e["args"]["name"] for e in made if e["ph"] == "M" and e["name"] == "thread_name"]
    h.check(any(t.startswith("GIL thread %d (" % job.pid) for t in tracks), "tracks: %s" % tracks)
    proto = os.path.join(job.dump, "gil.pftrace")
    h.run([h.SYSTRACE, "convert", "gil", "--input", job.dump, "--output", proto], env=env).ok()
    h.check(os.path.getsize(proto) > 1000, "a Perfetto trace")


if __name__ == "__main__":
    h.main(test_each_interpreter, test_sum_of_holds, test_what_the_end_cuts, test_interpreters_of_their_own, test_convert)
