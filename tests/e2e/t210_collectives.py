# SPDX-License-Identifier: MulanPSL-2.0
# runner: timeout 240
"""Each kind of torch.distributed call appears as a host marker with its operation, group, dtype and count (contract 19),
on the ranks of its group and nowhere else; sums of steps say the same."""

import os

import harness as h
import ranks

JOB = r'''
import torch, torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
tensor = torch.ones(3, 4)
pair = dist.new_group([0, 1])

def attempt(function, *args, **kwargs):
    """Some operations gloo does not have: the call is made and raises."""
    try:
        function(*args, **kwargs)
    except RuntimeError as error:
        print("declined:", function.__name__, str(error).splitlines()[0])

dist.barrier()
dist.all_reduce(tensor)
dist.all_reduce(tensor=tensor[0], group=dist.group.WORLD)
dist.broadcast(torch.zeros(7, dtype=torch.int64), 0)
dist.reduce(tensor, 0)
dist.all_gather([torch.zeros(3, 4) for _ in range(size)], tensor)
dist.gather(tensor, [torch.zeros(3, 4) for _ in range(size)] if rank == 0 else None, dst=0)
dist.scatter(torch.zeros(2), [torch.zeros(2) for _ in range(size)] if rank == 0 else None, src=0)
dist.all_gather_object([None] * size, {"rank": rank})
dist.broadcast_object_list([rank], src=0)
dist.all_reduce_coalesced([tensor, torch.ones(2)])
attempt(dist.reduce_scatter, torch.zeros(3), [torch.zeros(3) for _ in range(size)])
attempt(dist.reduce_scatter_tensor, torch.zeros(3), torch.zeros(3 * size))
attempt(dist.all_gather_into_tensor, torch.zeros(4 * size), torch.zeros(4))
dist.all_to_all_single(torch.zeros(2 * size), torch.zeros(2 * size))
dist.broadcast(torch.ones(5), 1, group=pair)
dist.barrier(pair)
if rank == 0:
    dist.send(torch.zeros(6), 1)
    dist.isend(torch.zeros(8, dtype=torch.float64), 1).wait()
    ops = [dist.P2POp(dist.isend, torch.zeros(9, dtype=torch.uint8), 1, pair)]
elif rank == 1:
    dist.recv(torch.zeros(6), 0)
    dist.irecv(torch.zeros(8, dtype=torch.float64), 0).wait()
    ops = [dist.P2POp(dist.irecv, torch.zeros(9, dtype=torch.uint8), 0, pair)]
if rank < 2:
    for work in dist.batch_isend_irecv(ops):
        work.wait()
parameter = torch.nn.Parameter(torch.ones(11))
dist.broadcast(parameter.data, 0)
optimizer = torch.optim.SGD([parameter], lr=0.1)
parameter.sum().backward()
optimizer.step()
dist.destroy_process_group()
'''

SIZE = 3
COMMON = [("barrier", "0", "na", 0), ("all_reduce", "0", "float32", 12), ("all_reduce", "0", "float32", 4),
          ("broadcast", "0", "int64", 7), ("reduce", "0", "float32", 12), ("all_gather", "0", "float32", 12),
          ("gather", "0", "float32", 12), ("scatter", "0", "float32", 2), ("all_gather_object", "0", "na", 0),
          ("broadcast_object_list", "0", "na", 0), ("all_reduce_coalesced", "0", "float32", 12),
          ("reduce_scatter", "0", "float32", 3), ("reduce_scatter_tensor", "0", "float32", 3),
          ("all_gather_into_tensor", "0", "float32", 4), ("all_to_all_single", "0", "float32", 2 * SIZE)]
PAIR = [("broadcast", "1", "float32", 5), ("barrier", "1", "na", 0)]
SEND = [("send", "0", "float32", 6), ("isend", "0", "float64", 8), ("batch_isend_irecv", "1", "uint8", 9)]
RECV = [("recv", "0", "float32", 6), ("irecv", "0", "float64", 8), ("batch_isend_irecv", "1", "uint8", 9)]
LAST = [("broadcast", "0", "float32", 11)]
EXPECTED = [COMMON + PAIR + SEND + LAST, COMMON + PAIR + RECV + LAST, COMMON + LAST]

_dump = None


def dump():
    """The job's output; it runs once for all tests."""
    global _dump
    if not _dump:
        _dump = h.tmpdir()
        ranks.run(_dump, SIZE, h.write_file(os.path.join(_dump, "job.py"), JOB), SYSTRACE_ENABLE=1,
                  SYSTRACE_PLUGINS="MSPTI event=marker")
    return _dump


def test_every_call_is_a_marker():
    for rank in range(SIZE):
        found = [(m.op, m.group, m.dtype, m.count) for m in ranks.markers(dump(), rank)]
        h.check_equal(found, EXPECTED[rank], "markers of rank %d" % rank)


def test_markers_end_and_overlap_across_ranks():
    all_ranks = [ranks.markers(dump(), rank) for rank in range(SIZE)]
    h.check(all(m.end_ns for markers in all_ranks for m in markers), "a marker without an end row")
    # nobody leaves a barrier before the last one came
    barriers = [markers[0] for markers in all_ranks]
    h.check(min(m.end_ns for m in barriers) >= max(m.start_ns for m in barriers), "a rank left the barrier too early")


def test_sums_agree_with_markers():
    for rank in range(SIZE):
        sums = {(s["op"], s.get("group", "")): s for s in ranks.Timeline(dump(), rank).sums if s.get("group")}
        for op, group in {(op, group) for op, group, _, _ in EXPECTED[rank]}:
            calls = [e for e in EXPECTED[rank] if e[:2] == (op, group)]
            found = sums.get((op, group))
            h.check(found, "rank %d has no sum of %s in group %s" % (rank, op, group))
            h.check_equal(found["calls"], len(calls), "calls of %s" % op)
            h.check_equal(found.get("elements", 0), sum(c[3] for c in calls), "elements of %s" % op)


def test_sequence_numbers_match_across_ranks():
    numbers = []
    for rank in range(SIZE):
        sums = ranks.Timeline(dump(), rank).sums
        numbers.append([s["last_seq"] for s in sums if s["op"] == "broadcast" and s["group"] == "0"])
    # 16 collectives on the default group, whatever was sent and received beside them
    h.check_equal(numbers, [[16]] * SIZE, "seq of the last broadcast")


def test_groups_are_named_and_ranks_known():
    for rank in range(SIZE):
        timeline = ranks.Timeline(dump(), rank)
        notes = [n["text"] for n in timeline.notes]
        h.check("group 0: ranks 0-2" in notes, "rank %d: notes are %s" % (rank, notes))
        h.check_equal("group 1: ranks 0-1" in notes, rank < 2, "rank %d knows group 1" % rank)
        h.check_equal(timeline.rank, rank, "rank")


if __name__ == "__main__":
    h.main(test_every_call_is_a_marker, test_markers_end_and_overlap_across_ranks, test_sums_agree_with_markers,
           test_sequence_numbers_match_across_ranks, test_groups_are_named_and_ranks_known)
