# SPDX-License-Identifier: MulanPSL-2.0
# runner: timeout 300
"""Collectives' arguments are read on every CPython at hand, however they are passed: against the stand-in of torch, with
groups that are destroyed and made again, odd arguments, exceptions, and without a single line of Python code being run or
a reference being kept."""

import os

import harness as h
import ranks

JOB = r'''
import gc, sys, time
import torch
import torch.distributed.distributed_c10d as dist
from torch import Tensor, bfloat16, int64

class Loud(Tensor):
    """A tensor whose getters are Python code."""
    def numel(self):
        raise SystemExit("the agent ran Python code")

t = Tensor(12)
dist.init_process_group(1, 4)
while time.monotonic() < LIMIT:
    # until hooks are in place: calls begin to be seen
    dist.barrier()
    time.sleep(0.05)
    if seen():
        break
dist.send(Tensor(1), 99)  # from here on
dist.all_reduce(t)
dist.all_reduce(tensor=t, group=None)
pair = dist.new_group([1, 3])
dist.all_reduce(t, None, pair, True)
dist.broadcast(Tensor(5, int64), 0, group=pair)
dist.broadcast(torch.nn.parameter.Parameter(6, bfloat16), src=0)
dist.all_gather([t], Tensor(3), group=pair)
dist.all_gather_object([None], t, group=pair)
dist.batch_isend_irecv([dist.P2POp(dist.isend, Tensor(7), 2, pair)])
dist.batch_isend_irecv([])
dist.barrier(dist.GroupMember.NON_GROUP_MEMBER)
dist.all_reduce(Loud(1))
dist.all_reduce(5, group="odd")
torch._C.function_mode = True
dist.all_reduce(t)
torch._C.function_mode = False
try:
    dist.send(t, -1)
except ValueError:
    pass
try:
    dist.all_reduce()
except TypeError:
    pass
for name in range(3):  # a new object, often at the old one's address, and a new name
    dist.destroy_process_group(pair)
    del pair
    pair = dist.new_group([0, 1])
    dist.barrier(pair)
dist.destroy_process_group()
dist.init_process_group(1, 4)
dist.barrier()
wide = dist.new_group(list(range(0, 16, 2)) + [20, 21, 22, 40])
dist.barrier(group=wide)
for size in range(2, 22):  # same name, same place, as a rule the same address: other ranks
    del wide
    dist.destroy_process_group()
    dist.init_process_group(1, 4)
    wide = dist.new_group(range(size))
    dist.barrier(group=wide)

def references():
    return [sys.getrefcount(o) for o in (t, pair, t.dtype, None if sys.version_info >= (3, 12) else dist)]

before = references()
for _ in range(1000):
    dist.all_reduce(t, group=pair)
    dist.broadcast(t, 0, group=pair)
after = references()
assert before == after, (before, after)
'''

# The job waits for the hooks: the rank's marker file grows once a call is seen.
PROLOGUE = r'''
import glob, os, time
LIMIT = time.monotonic() + 20
def seen():
    return any(b"barrier" in open(p, "rb").read() for p in glob.glob(os.environ["SYSTRACE_DUMP_PATH"] + "/mspti/*.csv"))
'''

EXPECTED = [
    ("all_reduce", "0", "float32", 12), ("all_reduce", "0", "float32", 12), ("all_reduce", "1", "float32", 12),
    ("broadcast", "1", "int64", 5), ("broadcast", "0", "bfloat16", 6), ("all_gather", "1", "float32", 3),
    ("all_gather_object", "1", "na", 0), ("batch_isend_irecv", "1", "float32", 7), ("batch_isend_irecv", "", "na", 0),
    ("all_reduce", "0", "na", 0), ("all_reduce", "", "na", 0), ("all_reduce", "0", "na", 0), ("send", "0", "float32", 12),
    ("barrier", "2", "na", 0), ("barrier", "3", "na", 0), ("barrier", "4", "na", 0), ("barrier", "0", "na", 0),
    ("barrier", "1", "na", 0),
] + [("barrier", "1", "na", 0)] * 20
NOTES = ["group 0: ranks 0-3", "group 1: ranks 1,3", "group 2: ranks 0-1", "group 3: ranks 0-1", "group 4: ranks 0-1",
         "group 1: ranks 0-14:2,20-22,40"] + ["group 1: ranks 0-%d" % (size - 1) for size in range(2, 22)]


def markers_of(python):
    dump = h.tmpdir()
    script = h.write_file(os.path.join(dump, "job.py"), PROLOGUE + JOB)
    env = h.preload_env(dump, SYSTRACE_ENABLE=1, SYSTRACE_HOST_IP="10.0.0.7", RANK=1, PYTHONDONTWRITEBYTECODE=1,
                        SYSTRACE_PLUGINS="MSPTI event=marker",
                        PYTHONPATH=os.path.join(h.ROOT, "tests", "fake", "torch_pkg"))
    h.run([python, script], env=env, timeout=60).ok()
    found = [(m.op, m.group, m.dtype, m.count) for m in ranks.markers(dump, 1)]
    notes = [n["text"] for n in ranks.Timeline(dump, 1).notes if n["text"].startswith("group ")]
    h.check_equal(notes, NOTES, "notes on groups, %s" % python)
    begin = max(i for i, m in enumerate(found) if m == ("send", "0", "float32", 1))
    return found[begin + 1:]


def test_every_interpreter_reads_the_same():
    h.require(h.AGENT)
    for version, python in h.pythons().items():
        found = markers_of(python)
        # the call without arguments raises before or inside the hook, by version: it may be there, and says nothing
        found = [m for i, m in enumerate(found) if not (i == 13 and m[0] == "all_reduce")]
        h.check_equal(found[:len(EXPECTED)], EXPECTED, "CPython %d.%d" % version)
        h.check_equal(len(found), len(EXPECTED) + 2000, "markers on CPython %d.%d" % version)


if __name__ == "__main__":
    h.main(test_every_interpreter_reads_the_same)
