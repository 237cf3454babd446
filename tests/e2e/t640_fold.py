# SPDX-License-Identifier: MulanPSL-2.0
"""GIL and Mutex of several ranks: when the capture is over their files become one, that of the lowest local rank, by a
process that sysTrace_cli starts; aggregate=0 keeps them apart. Nothing is lost when the folding is killed, when a process
records again, or when it writes meanwhile."""

import glob
import json
import os
import shutil
import signal
import time

import ctl
import harness as h
import jobs

h.require(h.AGENT, h.CLI, h.SYSTRACE)
h.own_pid_namespace()


class Ranks:
    """Two jobs with one dump path, as the ranks of a host."""

    def __init__(self):
        self.dump = h.tmpdir()
        self.env = h.preload_env(self.dump, WORLD_SIZE="2", SYSTRACE_RUN_ID="one", SYSTRACE_BUDGET_PCT="100")
        python = list(h.pythons().values())[-1]
        self.jobs = [jobs.Job(python, dict(self.env, RANK=str(r), LOCAL_RANK=str(r))) for r in (1, 0)]
        for job in self.jobs:
            h.wait_for(lambda: os.path.exists(job.sock), what="the control socket")
        self.tool = h.tool_env(self.dump)
        self.first = self.path(0, 1)

    def path(self, rank, job):
        return os.path.join(self.dump, "GIL", "GIL_%d_rank_%d.json" % (self.jobs[job].pid, rank))

    def cli(self, *words):
        return h.run([h.CLI, *words, "--pid", ",".join(str(j.pid) for j in self.jobs)], env=self.tool).ok()

    def work(self):
        for job in self.jobs:
            job.do("[time.sleep(0.001) for i in range(20)]")

    def quit(self):
        for job in self.jobs:
            job.quit().ok()

    def files(self):
        return sorted(os.path.basename(p) for p in glob.glob(os.path.join(self.dump, "GIL", "*")))

    def wait_folded(self, count):
        h.wait_for(lambda: len(self.files()) == count and os.path.exists(self.first) and "folded" in read(self.first),
                   what="folding (%s)" % self.files())

    def holds(self):
        """Per pid, by the converter."""
        out = h.run([h.SYSTRACE, "convert", "gil", "--input", self.dump, "--json"], env=self.tool).ok().out
        sums = {}
        for t in json.loads(out)["threads"]:
            sums[t["pid"]] = sums.get(t["pid"], 0) + t["holds"]
        return sums


def read(path):
    with open(path) as f:
        return json.load(f)


def holds_in(path):
    sums = {}
    for e in read(path)["traceEvents"]:
        if e["ph"] == "X" and e["name"] == "GIL hold":
            sums[e["pid"]] = sums.get(e["pid"], 0) + 1
    return sums


def test_folded():
    ranks = Ranks()
    ranks.cli("enable", "GIL")
    ranks.work()
    ranks.cli("disable", "GIL")
    ranks.wait_folded(1)
    whole = holds_in(ranks.first)
    h.check_equal(sorted(whole), sorted(j.pid for j in ranks.jobs), "processes in the file")
    h.check(min(whole.values()) >= 20, "holds: %s" % whole)
    names = {e["pid"]: e["args"]["name"].split()[:2] for e in read(ranks.first)["traceEvents"] if e["name"] == "process_name"}
    h.check_equal(names, {ranks.jobs[0].pid: ["rank", "1"], ranks.jobs[1].pid: ["rank", "0"]}, "names of processes")
    h.check_equal(len(read(ranks.first)["origin"]), 2, "origins")
    h.check_equal(ranks.holds(), whole, "the converter's sums")
    out = os.path.join(ranks.dump, "out.json")
    h.run([h.SYSTRACE, "convert", "gil", "--input", ranks.first, "--output", out], env=ranks.tool).ok()
    names = sorted(e["args"]["name"].split()[1] for e in read(out)["traceEvents"] if e["name"] == "process_name")
    h.check_equal(names, ["0", "1"], "ranks in the picture")
    # a later capture is folded, too; the file of before is kept
    ranks.cli("enable", "GIL", "duration=0.5")
    ranks.work()
    h.wait_for(lambda: all(j.status().get("plugin.gil.state") == "off" for j in ranks.jobs), what="its end")
    ranks.wait_folded(2)
    again = holds_in(ranks.first)
    h.check_equal(ranks.holds(), {pid: whole[pid] + again[pid] for pid in whole}, "both captures")
    ranks.quit()


def test_kept_apart():
    ranks = Ranks()
    ranks.cli("enable", "GIL", "duration=0.3", "aggregate=0")
    ranks.work()
    h.wait_for(lambda: all(j.status().get("plugin.gil.state") == "off" for j in ranks.jobs), what="its end")
    time.sleep(1.5)
    h.check_equal(len(ranks.files()), 2, "files: %s" % ranks.files())
    ranks.quit()


def test_killed_at_any_point():
    ranks = Ranks()
    ranks.cli("enable", "GIL", "aggregate=0")
    ranks.work()
    for job in ranks.jobs:
        h.check_equal(job.ask("disable", plugin="GIL").code, 0, "disable")
    want = ranks.holds()
    spare = os.path.join(ranks.dump, "spare")
    shutil.copytree(os.path.join(ranks.dump, "GIL"), spare)
    command = [h.SYSTRACE, "fold", "--plugin", "GIL", "--pid", ",".join(str(j.pid) for j in ranks.jobs)]
    shutil.move(spare, ranks.dump + "-spare")
    for i in range(12):
        process = h.start(command, env=ranks.tool)
        time.sleep(0.01 * i)
        h.stop(process, signal.SIGKILL)
        h.check_equal(ranks.holds(), want, "killed after %d ms: %s" % (10 * i, ranks.files()))
    # between the two steps, the file that was folded is still there
    h.run(command, env=ranks.tool).ok()
    h.check_equal(ranks.holds(), want, "folded")
    shutil.copy2(os.path.join(ranks.dump + "-spare", os.path.basename(ranks.path(1, 0))), ranks.path(1, 0))
    h.check_equal(ranks.holds(), want, "what is in two files is read once")
    shutil.rmtree(ranks.dump + "-spare")
    ranks.quit()


def test_usage():
    env = h.tool_env(h.tmpdir())
    h.run([h.SYSTRACE, "fold", "--plugin", "IO", "--pid", "1"], env=env).ok(2)
    h.run([h.SYSTRACE, "fold", "--plugin", "GIL"], env=env).ok(2)
    h.run([h.SYSTRACE, "fold", "--plugin", "GIL", "--pid", "1,x"], env=env).ok(2)


if __name__ == "__main__":
    h.main(test_folded, test_kept_apart, test_killed_at_any_point, test_usage)
