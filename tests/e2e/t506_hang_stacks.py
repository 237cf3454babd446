# SPDX-License-Identifier: MulanPSL-2.0
# runner: timeout 240
"""A rank that never comes to a collective: the diagnosis names it with its last stage, and asks its process, which is alive,
where it is; of one that answers nothing, or is gone, it says so and judges all the same."""

import glob
import json
import os
import re
import signal

import ctl
import harness as h
import ranks

h.require(h.AGENT, h.SYSTRACE)

JOB = r'''
import os, sys, threading, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, where = dist.get_rank(), sys.argv[1]
layer = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

def said(name):
    open(os.path.join(where, "%s-%d" % (name, rank)), "w").close()

def background():
    time.sleep(10000)

def fetch_shard():
    said("stuck")
    time.sleep(10000)

for step in range(40):
    batch = torch.ones(4, 8)
    if rank == 1 and step == 35:
        threading.Thread(target=background, name="helper", daemon=True).start()
        fetch_shard()
    layer(batch).sum().backward()
    for p in layer.parameters():
        dist.all_reduce(p.grad)
    optimizer.step()
    if step == 34:
        said("last")
'''


class Hanging:
    """A job of two ranks, the second of which waits for ever in fetch_shard()."""

    def __init__(self):
        self.dump = h.tmpdir()
        self.job = ranks.start(self.dump, 2, h.write_file(os.path.join(self.dump, "job.py"), JOB), self.dump, SYSTRACE_ENABLE=1)
        for name in ("stuck-1", "last-0"):
            h.wait_for(lambda n=name: os.path.exists(os.path.join(self.dump, n)), 100, name)
        self.config = h.write_file(h.tmpdir() + "/model_config.json", json.dumps({"hang_times_mins_thr": 0.02}))
        self.env = h.tool_env(self.dump)

    def meta(self, rank):
        """Name of its meta file, and what that says."""
        for path in glob.glob(self.dump + "/meta/*/*.json"):
            meta = json.loads(h.read_file(path))
            if meta["rank_known"] and meta["rank"] == rank:
                return path, meta
        raise h.CheckFailed("no meta file of rank %d" % rank)

    def pid(self, rank=1):
        return self.meta(rank)[1]["pid"]

    def end(self):
        for pid in self.pid(0), self.pid(1):
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        h.finish(self.job, 60)

    def record(self):
        """What both recorded goes into files: the calls of the last minute, too."""
        for path in glob.glob(self.dump + "/sock/*"):
            ctl.ask(path, "dump")

    def localize(self, *words):
        return h.run([h.SYSTRACE, "localize", "--input", self.dump, "--output", h.tmpdir(), "--config", self.config,
                      "--until", "now", *words], env=self.env)

    def finding(self):
        done = self.localize("--json")
        found = json.loads(done.out)["abnormalDetail"] if done.status == 0 else []
        return found[0] if found and found[0]["kpiId"] == "Hang" else None

    def wait_finding(self):
        def found():
            self.record()
            return self.finding()
        return h.wait_for(found, 60, "the finding")


def functions(thread):
    return [f.get("function", "?").rsplit(".", 1)[-1] for f in thread["frames"] if f["kind"] == "python"]


def test_stacks_of_the_rank_that_hangs():
    hanging = Hanging()
    found = hanging.wait_finding()
    h.check_equal(found["objectId"], "1", "who")
    evidence = found["evidence"]
    h.check_equal(evidence["waiting_ranks"], 1, "the other one waits")
    h.check("stacks" in evidence, "stacks: %s" % evidence)
    pid = hanging.pid()
    h.check_equal((evidence["pid"], evidence["stacks"]["pid"], evidence["stacks"]["rank"]), (pid, pid, 1), "whose stacks")
    threads = evidence["stacks"]["threads"]
    main = next(t for t in threads if t["tid"] == pid)
    h.check_equal(functions(main)[0], "fetch_shard", "where its main thread is")
    h.check("native" in [f["kind"] for f in main["frames"]], "native frames: %s" % main)
    h.check("background" in [n for t in threads for n in functions(t)], "the other thread")
    h.check("Optimizer" in evidence["last_stage"]["name"] and evidence["last_stage"]["ended"] > 0, "%s" % evidence["last_stage"])
    out = hanging.localize().ok().out
    h.check("Rank 1 is process %d." % pid in out and "py  fetch_shard at " in out, out)
    h.check("Thread \"" in out and "background at " in out and "last stage that it finished was torch.optim" in out, out)
    check_one_without_answer(hanging, pid)


def alive(pid):
    """Not one that ended and was not waited for yet."""
    try:
        return h.read_file("/proc/%d/stat" % pid).rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def check_one_without_answer(hanging, pid):
    """Stopped, elsewhere, gone: the same finding, and why there are no stacks."""
    os.kill(pid, signal.SIGSTOP)
    evidence = hanging.finding()["evidence"]
    h.check_equal((evidence["pid"], "stacks" in evidence), (pid, False), "of a stopped process")
    h.check(evidence["no_stacks"], "a reason")
    check_recorded_elsewhere(hanging)
    other = hanging.pid(0)
    os.kill(other, signal.SIGSTOP)  # its call would fail and so end
    os.kill(pid, signal.SIGKILL)
    h.wait_for(lambda: not alive(pid), what="its end")
    evidence = hanging.finding()["evidence"]
    h.check_equal(("pid" in evidence, "stacks" in evidence), (False, False), "of a process that is gone")
    reason = r"its process (is gone, or cannot be seen from here|ended, and its parent has not noticed yet)"
    h.check(re.fullmatch(reason, evidence["no_stacks"]), evidence["no_stacks"])
    h.check(re.search(r"No stacks of rank 1: %s\." % reason, hanging.localize().ok().out), "the same in words")
    hanging.end()


def check_recorded_elsewhere(hanging):
    """Its meta file, which a stopped process writes no more, says another boot."""
    path = hanging.meta(1)[0]
    before = h.read_file(path)
    h.write_file(path, json.dumps(dict(json.loads(before), boot_id="00000000-0000-0000-0000-000000000000")))
    evidence = hanging.finding()["evidence"]
    h.check(evidence["no_stacks"].startswith("its process runs on another machine"), "%s" % evidence)
    h.check_equal(("pid" in evidence, "stacks" in evidence), (False, False), "of a process elsewhere")
    h.write_file(path, before)


if __name__ == "__main__":
    h.main(test_stacks_of_the_rank_that_hangs)
