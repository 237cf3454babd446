# SPDX-License-Identifier: MulanPSL-2.0
"""Hosts for the tests of what other users may do to an agent: a program that waits with a known pid before the library is
loaded, so that a test can put something in the agent's place first; runs as any user, with copies that user may read.
"""

import os
import re
import shutil
import subprocess

import ctl
import harness as h

NOBODY = 65534
FAKE_FUNCTIONS = 7  # of tests/fake/torch_pkg
PYTHON = "/usr/bin/python3"  # readable by every user
AS_NOBODY = ["setpriv", "--reuid=%d" % NOBODY, "--regid=%d" % NOBODY, "--clear-groups"]

PROGRAM = r"""
import os, sys
print("up", flush=True)
for line in sys.stdin:
    if line.strip() == "quit":
        break
    exec(line)
    print("done", flush=True)
"""


def open_place():
    """A directory that every user may enter, and agents' places in it that everybody may write to, as in /tmp."""
    base = h.tmpdir()
    os.chmod(base, 0o755)
    for name in ("sock", "spool", "log", "dump", "state", "local"):
        os.mkdir(os.path.join(base, name))
        os.chmod(os.path.join(base, name), 0o1777)
    for source in (h.AGENT, h.CLI, h.SYSTRACE):
        shutil.copy(source, base)
        os.chmod(os.path.join(base, os.path.basename(source)), 0o755)
    return base


def environment(base, **extra):
    env = {k: v for k, v in os.environ.items() if not k.startswith("SYSTRACE_")}
    env.update(SYSTRACE_DUMP_PATH=base + "/dump", SYSTRACE_LOG_PATH=base + "/log", SYSTRACE_SOCKET_DIR=base + "/sock",
               SYSTRACE_SPOOL_PATH=base + "/spool", XDG_STATE_HOME=base + "/state", SYSTRACE_ENABLE="1",
               PYTHONDONTWRITEBYTECODE="1")
    env.update(extra)
    return env


class Host:
    """pid is known when this returns; go() loads the library."""

    def __init__(self, base, prefix=(), preload=None, program=PROGRAM, python=PYTHON, wrapper="", **extra):
        self.base = base
        self.env = environment(base, **extra)
        script = "echo $$; read line; LD_PRELOAD=%s exec %s -c \"$PROGRAM\"" % (
            preload or base + "/libsysTrace.so", python)
        self.env["PROGRAM"] = program
        self.process = h.start([*prefix, "sh", "-c", wrapper + script], env=self.env, stdin=subprocess.PIPE)
        self.pid = int(self.process.stdout.readline())  # as it sees itself
        self.sock = ctl.socket_of(self.env["SYSTRACE_SOCKET_DIR"], self.pid)

    def go(self):
        self.tell("")
        self.expect("up")
        return self

    def tell(self, text):
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def expect(self, word):
        line = self.process.stdout.readline().decode()
        if not line.startswith(word):
            h.stop(self.process)
            raise h.CheckFailed("the host said %r, not %r: %s" % (line, word, self.process.stderr.read().decode()))

    def do(self, text):
        self.tell(text)
        self.expect("done")

    def train(self, steps):
        """Steps with the stand-in for torch (PYTHONPATH=jobs.FAKE_TORCH), traced."""
        self.do("import torch; from torch.utils.data import DataLoader; "
                "optimizer = globals().get('optimizer') or torch.optim.SGD([])")
        h.wait_for(lambda: self.attached() >= FAKE_FUNCTIONS, what="%d attached functions" % FAKE_FUNCTIONS)
        self.do("exec('for batch in DataLoader(list(range(%d))):\\n  torch.autograd.backward(batch); optimizer.step()')" %
                steps)

    def attached(self):
        found = re.search(r"(\d+) functions attached", self.ask("status").get("python.text", ""))
        return int(found.group(1)) if found else 0

    def wait_socket(self):
        h.wait_for(lambda: os.path.exists(self.sock), what="the control socket %s" % self.sock)
        h.wait_for(lambda: _answers(self.sock), what="an answer")
        return self

    def ask(self, verb, **entries):
        return ctl.ask(self.sock, verb, **entries)

    def ctl_fds(self):
        """What the agent's control thread has open, as the kernel shows it."""
        for tid in os.listdir("/proc/%d/task" % self.pid):
            if h.read_file("/proc/%d/task/%s/comm" % (self.pid, tid)).strip() == "systrace/ctl":
                place = "/proc/%d/task/%s/fd" % (self.pid, tid)
                return sorted(_link(os.path.join(place, fd)) for fd in os.listdir(place))
        raise h.CheckFailed("there is no thread systrace/ctl")

    def quit(self):
        self.tell("quit")
        self.process.stdin.close()
        self.process.stdin = None
        return h.finish(self.process)


def as_nobody(code, *args):
    """Run Python text as nobody."""
    return h.run([*AS_NOBODY, PYTHON, "-c", code, *args]).ok()


class Listener:
    """A process of another user that listens under a name and writes down what it gets."""

    def __init__(self, path, prefix=AS_NOBODY):
        code = ("import os, socket, sys\n"
                "s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); os.chmod(sys.argv[1], 0o777); s.listen(64)\n"
                "print('up', flush=True)\n"
                "while 1:\n"
                "    c = s.accept()[0]\n"
                "    print('got', c.recv(100), flush=True)\n")
        self.process = h.start([*prefix, PYTHON, "-c", code, path])
        h.check_equal(self.process.stdout.readline(), b"up\n", "the listener")

    def heard(self):
        """Everything that was sent to it so far, [] = connections without a byte at most."""
        h.stop(self.process)
        return [line for line in self.process.stdout.read().decode().splitlines() if line != "got b''"]


def _link(path):
    try:
        return os.readlink(path)
    except OSError:
        return "gone"


def _answers(path):
    try:
        return ctl.ask(path, "list").code == 0
    except OSError:
        return False
