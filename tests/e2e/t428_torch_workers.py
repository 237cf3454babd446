# SPDX-License-Identifier: MulanPSL-2.0
"""PyTorch's own DataLoader with spawned and forkserver workers: every sample that they load is in their files with the step of
the training loop, and the I/O plugin, switched on by the real sysTrace_cli, follows them (docs/safety.md, property 3)."""

import glob
import os
import re

import ctl
import harness as h
import jobs

h.require(h.AGENT, h.CLI)
PYTHON = h.python_with("torch")
MODULES = h.tmpdir()

h.write_file(os.path.join(MODULES, "samples.py"), r"""
import os, time, torch

def read_sample(path):
    with open(path, "rb") as f:
        time.sleep(0.002)
        return torch.frombuffer(bytearray(f.read(16)), dtype=torch.float32).clone()

class Samples(torch.utils.data.Dataset):
    def __init__(self, path, n):
        self.path, self.n = path, n
    def __len__(self):
        return self.n
    def __getitem__(self, i):
        return read_sample(self.path)

class Gate:  # the test looks at the workers before they load anything
    def __init__(self, path):
        self.path = path
    def __call__(self, _worker):
        torch.set_num_threads(1)
        open(self.path + str(os.getpid()), "w").close()
        while not os.path.exists(self.path):
            time.sleep(0.01)
""")

PROGRAM = r"""
import sys
sys.path.insert(0, %r)
import samples, torch
torch.set_num_threads(1)
def load(kind, gate, path, n):
    loader = DataLoader(samples.Samples(path, n), batch_size=4, num_workers=2, multiprocessing_context=kind,
                        worker_init_fn=samples.Gate(gate))
    assert sum(len(batch) for batch in loader) == n
""" % MODULES

ROW = "samples@read_sample CHECKPOINT\n"


def rows_of(status):
    """Rows of the list that are attached: as many in a worker as in the rank, which has imported the same modules."""
    found = re.search(r"functions attached for (\d+) rows", status.get("python.text", ""))
    return found and found.group(1)


def load(job, kind, n, during):
    """An epoch of @n samples; the loop is in its fifth step all the time. Return: the workers."""
    gate = os.path.join(job.dump, kind)
    data = h.write_file(os.path.join(job.dump, "data"), b"\0" * 64)
    job.process.stdin.write(("load(%r, %r, %r, %d)\n" % (kind, gate, data, n)).encode())
    job.process.stdin.flush()
    h.wait_for(lambda: len(glob.glob(gate + "[0-9]*")) == 2, timeout=60, what="two workers")
    pids = [int(path[len(gate):]) for path in glob.glob(gate + "[0-9]*")]
    for pid in pids:
        path = ctl.socket_of(os.path.join(job.dump, "sock"), pid)
        h.wait_for(lambda: os.path.exists(path), what="a worker's socket")
        h.wait_for(lambda: rows_of(ctl.ask(path, "status")) == rows_of(job.status()), timeout=60, what="attached functions")
        h.check_equal(ctl.ask(path, "status").get("worker_of"), str(job.pid), "whose worker it is")
    during(pids)
    h.write_file(gate, "")
    job.expect("done")
    return pids


def test_workers():
    h.write_file(os.path.join(MODULES, "functions"), ROW + h.read_file(
        os.path.join(h.ROOT, "src", "agent", "python", "default_list.list")))
    env = h.preload_env(h.tmpdir(), RANK="2", SYSTRACE_PYFUNC_LIST=os.path.join(MODULES, "functions"))
    job = jobs.Job(PYTHON, env, PROGRAM + jobs.REAL_LOOP, fake=False)
    job.wait_attached()
    job.train(4)
    tool = h.tool_env(job.dump)
    seen = {}

    def io_on(pids):
        chosen = ",".join(map(str, pids))
        h.run([h.CLI, "enable", "IO", "path=%s/data" % job.dump, "--pid", chosen], env=tool).ok()

    for kind in ("spawn", "forkserver"):
        seen[kind] = load(job, kind, 24, io_on)
    job.quit().ok()
    for kind, pids in seen.items():
        samples, reads = 0, 0
        for pid in pids:
            text = h.decode_pb(h.find_one(job.dump, "timeline/*--00002-%d.timeline" % pid))
            mine = [b for b in re.findall(r"^pytorch_stages \{\n(.*?)^\}", text, re.S | re.M) if "read_sample" in b]
            samples += len(mine)
            for block in mine:
                h.check(re.search(r"^  step: 5$", block, re.M) and re.search(r"^  flags: 4$", block, re.M), block)
            text = h.decode_pb(h.find_one(job.dump, "io_trace/io_trace_rank2_%d.pb" % pid), "IO")
            calls = re.findall(r"^\w+ \{\n(.*?)^\}", text, re.S | re.M)
            calls = [c for c in calls if '/data"' in c]
            reads += sum("bytes: " in c for c in calls)
            for call in calls:
                h.check(re.search(r"^  step: 5$", call, re.M) and re.search(r"^  worker: true$", call, re.M), call)
        h.check_equal(samples, 24, "samples loaded by %s workers" % kind)
        h.check(reads >= 24, "%d reads by %s workers" % (reads, kind))
    h.check_equal(glob.glob(os.path.join(job.dump, "spool", "*", "*", "pool")), [], "pools left")


if __name__ == "__main__":
    h.main(test_workers)
