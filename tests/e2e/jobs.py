# SPDX-License-Identifier: MulanPSL-2.0
"""Small training jobs for end-to-end tests of the agent. They print a line when they have come somewhere and go on when
they get one, so that tests wait for facts and never for time.
"""

import os
import re
import subprocess

import ctl
import harness as h

FAKE_TORCH = os.path.join(h.ROOT, "tests", "fake", "torch_pkg")

# steps N: N steps, then "done N". Each further line of stdin is Python text that is run; "quit" or the end leaves.
LOOP = r"""
import os, sys, time
import torch
from torch.utils.data import DataLoader

class Model:
    def train(self, steps):
        for batch in DataLoader(list(range(steps))):
            torch.autograd.backward(batch)
            optimizer.step()

optimizer = torch.optim.SGD([])
model = Model()
say = lambda *words: (sys.stdout.write(" ".join(map(str, words)) + "\n"), sys.stdout.flush())
say("pid", os.getpid())
for line in sys.stdin:
    if line.strip() == "quit":
        break
    exec(line)
    say("done")
"""

REAL_LOOP = LOOP.replace("torch.optim.SGD([])", "torch.optim.SGD([torch.nn.Parameter(torch.ones(4))], lr=0.1)").replace(
    "torch.autograd.backward(batch)", "(optimizer.param_groups[0]['params'][0] * batch.sum()).sum().backward()").replace(
    "list(range(steps))", "torch.ones(steps, 4)")


class Job:
    """A running job; do("python text") runs it there and waits until it is done."""

    def __init__(self, python, env, program=LOOP, fake=True):
        env = dict(env)
        if fake:
            env["PYTHONPATH"] = FAKE_TORCH
        env["PYTHONDONTWRITEBYTECODE"] = "1"
        self.process = h.start([python, "-c", program], env=env, stdin=subprocess.PIPE)
        self.pid = self.process.pid
        self.functions = 7 if fake else 5  # those of tests/fake/torch_pkg; of PyTorch more, a few at a time
        self.expect("pid")
        self.sock = ctl.socket_of(env["SYSTRACE_SOCKET_DIR"], self.pid)
        self.dump = env["SYSTRACE_DUMP_PATH"]

    def expect(self, word):
        line = self.process.stdout.readline().decode()
        if not line.startswith(word):
            h.stop(self.process)
            raise h.CheckFailed("the job said %r, not %r: %s" % (line, word, self.process.stderr.read().decode()))
        return line

    def do(self, text):
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()
        return self.expect("done")

    def train(self, steps):
        self.do("model.train(%d)" % steps)

    def attached(self):
        """How many Python functions the agent traces in it."""
        found = re.search(r"(\d+) functions attached", self.status().get("python.text", ""))
        return int(found.group(1)) if found else 0

    def wait_attached(self):
        """Until the agent traces the functions that a job of this file calls, and garbage collections."""
        h.wait_for(lambda: os.path.exists(self.sock), what="the control socket")
        h.wait_for(lambda: self.attached() >= self.functions, what="%d attached functions" % self.functions)

    def ask(self, verb, **entries):
        return ctl.ask(self.sock, verb, **entries)

    def status(self):
        return self.ask("status")

    def quit(self):
        """End it the usual way; returns its Result."""
        self.process.stdin.write(b"quit\n")
        self.process.stdin.close()
        self.process.stdin = None
        return h.finish(self.process)

    def threads(self):
        names = []
        for tid in os.listdir("/proc/%d/task" % self.pid):
            names.append(h.read_file("/proc/%d/task/%s/comm" % (self.pid, tid)).strip())
        return sorted(names)


def steps_in(path):
    """Numbers of the steps in a timeline, by protoc."""
    text = h.decode_pb(path)
    return [int(n) for block in re.findall(r"^steps \{\n(.*?)^\}", text, re.S | re.M)
            for n in re.findall(r"^  step: (\d+)", block, re.M)]
