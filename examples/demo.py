#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""sysTrace in two minutes: four ranks of a PyTorch job, one of them really slowed down, and who finds it.

    bash build.sh demo            # builds first
    python3 examples/demo.py      # with the products in build/ (or ST_BUILD)

Trains examples/train_ddp.py on four ranks with the agent preloaded and its always-on recording. After some steps rank 2
gets a CPU quota (a control group; without the right to make one: busy processes on its core). Then sysTrace_cli status,
systrace failslow, localize and convert look at what was recorded. This script knows which rank it slowed and checks the
answers against it: the exit status is 0 only if they are right.
"""

import argparse
import glob
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.abspath(os.environ.get("ST_BUILD", os.path.join(os.path.dirname(HERE), "build")))
RANKS = 4
SLOWED = 2
ONSET_TOLERANCE = 10  # steps between our touching the rank and the onset that failslow names; a noisy host blurs it
STEADY = 1.4  # a host whose step times drift by more than this is busy with something else: begin again
TRIES = 3


def say(text=""):
    print(text, flush=True)


def tool(name):
    path = os.path.join(BUILD, name)
    if not os.path.exists(path):
        sys.exit("demo: %s is missing; run: bash build.sh" % path)
    return path


def cpu_seconds(pid):
    """Processor time that a process has used; 0 when it is gone."""
    try:
        with open("/proc/%d/stat" % pid) as f:
            ticks = f.read().rpartition(")")[2].split()[11:13]
    except OSError:
        return 0
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


# --- the job -------------------------------------------------------------------------------------------------------

class Job:
    """The training, started by launch.py; reads the steps that rank 0 prints."""

    def __init__(self, home, steps, grad_sync):
        os.makedirs(home, exist_ok=True)
        self.log = open(os.path.join(home, "train.log"), "w")
        self.times = []  # ms per step, as the job itself measures them
        self.used = 0
        env = dict(os.environ, SYSTRACE_DUMP_PATH=os.path.join(home, "dump"), SYSTRACE_LOG_PATH=os.path.join(home, "log"),
                   SYSTRACE_SOCKET_DIR=os.path.join(home, "sock"))
        for path in ("dump", "log", "sock"):
            os.makedirs(os.path.join(home, path))
        self.env = env
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "launch.py"), "-n", str(RANKS), "--preload", tool("libsysTrace.so"),
             os.path.join(HERE, "train_ddp.py"), "--steps", str(steps), "--grad-sync", grad_sync,
             "--layers", "2", "--width", "32", "--length", "16", "--batch", "32", "--barrier-every", "0"],
            env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.log.write(line)
            self.log.flush()
            match = re.search(r"step (\d+) .*per_step_time: ([\d.]+)ms", line)
            if match:
                self.times.append(float(match.group(2)))

    def wait_step(self, step, deadline):
        """Until that many steps are done. False: the job ended or the time is up before."""
        while len(self.times) < step:
            if self.process.poll() is not None or time.monotonic() > deadline:
                return len(self.times) >= step
            time.sleep(0.02)
        return True

    def steady(self):
        """Whether the steps so far took about the same time, the first ten left out: medians of thirds."""
        times = self.times[10:]
        third = len(times) // 3
        middles = [sorted(times[i * third:(i + 1) * third])[third // 2] for i in range(3)] if third else [1]
        return max(middles) <= STEADY * min(middles)

    def measure(self, rank, wait):
        """Part of one CPU that a rank has while wait() lasts, into self.used."""
        pid = self.pid_of(rank)
        begin, before = time.monotonic(), cpu_seconds(pid)
        wait()
        self.used = (cpu_seconds(pid) - before) / (time.monotonic() - begin)

    def pid_of(self, rank):
        """Pid of a rank: the child of launch.py that has this RANK."""
        for path in glob.glob("/proc/[0-9]*"):
            try:
                with open(path + "/stat") as f:
                    parent = int(f.read().rpartition(")")[2].split()[1])
                with open(path + "/environ", "rb") as f:
                    if parent == self.process.pid and b"RANK=%d" % rank in f.read().split(b"\0"):
                        return int(os.path.basename(path))
            except (OSError, ValueError, IndexError):
                continue
        sys.exit("demo: rank %d is gone; see the end of train.log" % rank)

    def finish(self, deadline):
        """True if the job ended by itself, with status 0."""
        try:
            self.process.wait(max(1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.end()
            return False
        return self.process.returncode == 0

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)  # launch.py ends its ranks
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


# --- the slow-down -------------------------------------------------------------------------------------------------

class Quota:
    """A control group (v2 or v1) that gives a process a share of one CPU, and at most half of what it had: on a busy host
    a fixed share would be no limit at all."""

    PERIOD_US = 20000
    LEAST_US = 1000  # the kernel takes no smaller quota
    GRAD_SYNC = "ddp"

    def __init__(self, share):
        self.share = share
        self.path = self.limits = None

    def make(self):
        """False where such a group cannot be made."""
        for root, limits in (("/sys/fs/cgroup", ("cpu.max",)),
                             ("/sys/fs/cgroup/cpu", ("cpu.cfs_period_us", "cpu.cfs_quota_us"))):
            path = "%s/systrace-demo-%d" % (root, os.getpid())
            try:
                if "cpu.max" in limits:
                    if not os.path.exists(root + "/cgroup.controllers"):
                        continue
                    with open(root + "/cgroup.subtree_control") as f:
                        if "cpu" not in f.read().split():
                            continue  # switching a controller on for the whole host is not ours to do
                os.mkdir(path)
                self.path, self.limits = path, limits
                self.limit(self.PERIOD_US)  # may we write it?
                return True
            except OSError:
                self.stop()
        return False

    def limit(self, quota_us):
        period_us = self.PERIOD_US if quota_us >= self.LEAST_US else self.PERIOD_US * self.LEAST_US // quota_us
        quota_us = max(quota_us, self.LEAST_US)
        values = ["%d %d" % (quota_us, period_us)] if len(self.limits) == 1 else [str(period_us), str(quota_us)]
        for name, value in zip(self.limits, values):
            with open("%s/%s" % (self.path, name), "w") as f:
                f.write(value)

    def start(self, pid, _others, used):
        """@used: part of one CPU that the process had until now."""
        if self.share <= 1:
            self.share = max(0.01, min(self.share, used / 2))
        self.limit(int(self.PERIOD_US * self.share))
        with open(self.path + "/cgroup.procs", "w") as f:
            f.write(str(pid))

    def stop(self):
        """Let go of the process and remove the group."""
        if not self.path:
            return
        try:
            with open(self.path + "/cgroup.procs") as f:
                pids = f.read().split()
            for pid in pids:
                with open(os.path.dirname(self.path) + "/cgroup.procs", "w") as f:
                    f.write(pid)
        except OSError:
            pass
        for _ in range(100):
            try:
                os.rmdir(self.path)
                self.path = None
                return
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.05)
        say("demo: %s could not be removed" % self.path)

    def __str__(self):
        return "a CPU quota of %d %% of one core" % (100 * self.share)


class Rivals:
    """Busy processes on the core of one rank; the other ranks keep the other cores.

    The kernel favours a task that has just waited, so that rivals spare the forward pass and hit backward, where Python sees
    no collective of DistributedDataParallel: a job with rivals sums its gradients by all_reduce (GRAD_SYNC).
    """

    GRAD_SYNC = "manual"

    COUNT = 12

    def __init__(self):
        self.processes = []

    def start(self, pid, others, _used):
        """Returns when the rivals run."""
        cores = sorted(os.sched_getaffinity(0))
        rest = set(cores[:-1]) or set(cores)
        for process, allowed in [(pid, {cores[-1]})] + [(p, rest) for p in others]:
            for tid in os.listdir("/proc/%d/task" % process):
                try:
                    os.sched_setaffinity(int(tid), allowed)
                except OSError:
                    pass  # a thread that ended meanwhile
        code = "import os; os.sched_setaffinity(0, {%d}); print(flush=True)\nwhile os.getppid() == %d: sum(range(10000))" % (
            cores[-1], os.getpid())
        # a session each: the kernel may share a core by sessions (autogroup)
        self.processes = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
                          for _ in range(self.COUNT)]
        for process in self.processes:
            process.stdout.readline()

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait()
        self.processes = []

    def __str__(self):
        return "%d busy processes on its core" % self.COUNT


# --- the tools -----------------------------------------------------------------------------------------------------

def run(args, env=None, fail=True):
    """Run one of our programs and show how it was called; its stdout."""
    shown = [os.path.basename(args[0])]
    for word in args[1:]:
        near = os.path.relpath(word) if os.path.isabs(word) else ".."
        shown.append(word if near.startswith("..") else near)
    say("\n$ " + " ".join(shown))
    done = subprocess.run(args, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    if done.stderr:
        say(done.stderr.rstrip())
    if done.returncode and fail:
        say(done.stdout)
        sys.exit("demo: %s ended with status %d" % (shown[0], done.returncode))
    return done.stdout


def result_of(directory, pattern):
    """The newest result file, as the tool wrote it."""
    files = sorted(glob.glob(os.path.join(directory, pattern)), key=os.path.getmtime)
    if not files:
        sys.exit("demo: no %s in %s" % (pattern, directory))
    with open(files[-1]) as f:
        return json.load(f)


def draw(times, onset):
    """Step times as bars, ten steps a line."""
    say("\nStep times as the job printed them (ms, median of ten steps):")
    tens = [sorted(times[begin:begin + 10]) for begin in range(0, len(times), 10)]
    middles = [part[len(part) // 2] for part in tens]
    for i, middle in enumerate(middles):
        begin, end = 10 * i + 1, 10 * i + len(tens[i])
        mark = "   <- step %d" % onset if onset is not None and begin <= onset <= end else ""
        say("  steps %3d-%3d |%-50s %6.0f%s" % (begin, end, "#" * max(1, int(50 * middle / max(middles))), middle, mark))


def convert(dump, out):
    """One timeline of all ranks for Perfetto; its path."""
    say(run([tool("systrace"), "convert", "timeline", "--input", dump, "--output", out]).rstrip())
    return out


def judge(failslow, localize, touched):
    """What is wrong with the verdicts; an empty list if nothing is."""
    wrong = []
    onset = failslow.get("onset_step")
    if failslow["anomaly_type"] != "failSlow":
        wrong.append("failslow says %s" % failslow["anomaly_type"])
    elif abs(onset - touched) > ONSET_TOLERANCE:
        wrong.append("failslow says step %d" % onset)
    accused = sorted({int(d["objectId"]) for d in localize["abnormalDetail"]})
    if accused != [SLOWED]:
        wrong.append("localize accuses %s" % (accused or "nobody"))
    return wrong


def warm_job(home, options, grad_sync, deadline):
    """A training that has done its first steps, undisturbed. On a host that is busy with other things it begins again:
    failslow would rightly name the step at which those came."""
    for attempt in range(1, TRIES + 1):
        job = Job(os.path.join(home, "job%d" % attempt) if attempt > 1 else home, options.steps, grad_sync)
        try:
            job.wait_step(options.slow_after // 2, deadline)
            job.measure(SLOWED, lambda: job.wait_step(options.slow_after, deadline))
            if len(job.times) < options.slow_after:
                sys.exit("demo: the training did not get to step %d; see %s" % (options.slow_after, job.log.name))
        except BaseException:
            job.end()
            raise
        if job.steady() or attempt == TRIES or time.monotonic() > deadline - 60:
            return job
        job.end()
        say("Something else on this machine made steps slower or faster meanwhile; beginning again ...")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=140, help="of the training (140)")
    parser.add_argument("--slow-after", type=int, default=70, help="steps before rank %d is slowed (70)" % SLOWED)
    parser.add_argument("--share", type=float, default=0.12, help="of one CPU that the slowed rank keeps (0.12)")
    parser.add_argument("--rivals", action="store_true", help="slow it by busy processes even if a quota is possible")
    options = parser.parse_args()

    home = tempfile.mkdtemp(prefix="systrace-demo-")
    deadline = time.monotonic() + 130
    slow = Quota(options.share)
    if options.rivals or not slow.make():
        slow = Rivals()
    say("sysTrace demo. Everything goes into %s" % home)
    say("Training on %d ranks (gloo, CPU) with libsysTrace.so preloaded; nothing is switched on ..." % RANKS)
    job = None
    try:
        job = warm_job(home, options, slow.GRAD_SYNC, deadline)
        pids = [job.pid_of(r) for r in range(RANKS)]
        touched = len(job.times) + 1
        slow.start(pids[SLOWED], [p for r, p in enumerate(pids) if r != SLOWED], job.used)
        say("Step %d: rank %d now gets %s." % (touched, SLOWED, slow))
        job.wait_step(touched + 10, deadline)
        say(run([tool("sysTrace_cli"), "status", "--pid", ",".join(map(str, pids))], job.env).rstrip())
        ended = job.finish(deadline)
    finally:
        if job:
            job.end()
        slow.stop()
    if not ended:
        say("demo: the training was cut short after %d steps (see %s)" % (len(job.times), job.log.name))

    dump, results = job.env["SYSTRACE_DUMP_PATH"], os.path.join(home, "result")
    say(run([tool("systrace"), "failslow", "--input", dump, "--output", results]).rstrip())
    failslow = result_of(results, "fail_slow_perception_result_*.json")
    since = ["--from", str(failslow["onset_step"])] if "onset_step" in failslow else []
    say(run([tool("systrace"), "localize", "--input", dump, "--output", results, *since]).rstrip())
    localize = result_of(results, "slow_node_result_*.json")
    trace = convert(dump, os.path.join(home, "trace.json"))

    draw(job.times, failslow.get("onset_step"))
    wrong = judge(failslow, localize, touched)
    say()
    if wrong:
        say("WRONG: rank %d was slowed from step %d on, but %s." % (SLOWED, touched, " and ".join(wrong)))
        return 1
    detail = max(localize["abnormalDetail"], key=lambda d: d["evidence"]["lost_seconds_per_step"])
    say("The job was slow from step %d on (rank %d was touched at step %d): a step took %.1f times as long as before."
        % (failslow["onset_step"], SLOWED, touched, failslow["slowdown"]))
    say("It was rank %s: %.0f ms more of its own time per step than the others, who waited for it."
        % (detail["objectId"], 1e3 * detail["evidence"]["lost_seconds_per_step"]))
    say("All ranks on one timeline: open %s in https://ui.perfetto.dev" % trace)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
