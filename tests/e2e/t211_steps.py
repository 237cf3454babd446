# SPDX-License-Identifier: MulanPSL-2.0
# runner: timeout 240
"""Steps of a real job (design 6, contract 20): completed optimizer steps with gradient accumulation, renumbering from the
dataloader's count, the documented stage_id beside it, forked DataLoader workers, a rank that loads no data, children that
are ranks of their own."""

import os

import harness as h
import ranks

TRAIN = os.path.join(h.ROOT, "examples", "train_ddp.py")
NEXT = "torch.utils.data.dataloader@_BaseDataLoaderIter@__next__"
FETCH = "torch.utils.data._utils.fetch@_MapDatasetFetcher@fetch"
STEPS = 6
BY_OPTIMIZER, BY_DATALOADER = 1, 2
FLAG_WORKER = 4

_dump = None


def dump():
    """A job of two ranks with two batches a step and two forked workers each."""
    global _dump
    if not _dump:
        _dump = h.tmpdir()
        builtin = h.read_file(os.path.join(h.ROOT, "src", "agent", "python", "default_list.list"))
        functions = h.write_file(os.path.join(_dump, "functions"), builtin + FETCH + "\n")
        ranks.run(_dump, 2, TRAIN, "--steps", STEPS, "--accumulate", 2, "--workers", 2, "--barrier-every", 3,
                  "--checkpoint", os.path.join(_dump, "model.pt"), "--checkpoint-every", 4,
                  SYSTRACE_ENABLE=1, SYSTRACE_PYFUNC_LIST=functions)
    return _dump


def test_optimizer_steps_are_counted():
    for rank in range(2):
        steps = ranks.last_count(ranks.Timeline(dump(), rank).steps)
        h.check_equal([s["step"] for s in steps], list(range(1, STEPS + 1)), "steps of rank %d" % rank)
        h.check_equal({s["source"] for s in steps}, {BY_OPTIMIZER}, "source")
        h.check_equal([s["microbatches"] for s in steps[1:]], [2] * (STEPS - 1), "microbatches")
        for a, b in zip(steps, steps[1:]):
            h.check_equal(b["start_ns"], a["start_ns"] + a["dur_ns"], "a step begins where the one before ended")


def test_the_dataloaders_count_is_renumbered():
    steps = ranks.Timeline(dump(), 0).steps
    h.check_equal([(s["source"], s["step"]) for s in steps[:2]], [(BY_DATALOADER, 1), (BY_OPTIMIZER, 1)], "first steps")
    h.check_equal(steps[1]["renumbered_from"], 1, "renumbered_from")


def test_stage_id_keeps_the_documented_rule():
    for rank in range(2):
        loads = ranks.Timeline(dump(), rank).stages_of(NEXT)
        h.check_equal([s["stage_id"] for s in loads], list(range(1, 2 * STEPS + 1)), "stage_id of dataloader calls")


def test_stages_lie_in_their_steps():
    timeline = ranks.Timeline(dump(), 0)
    steps = {s["step"]: s for s in ranks.last_count(timeline.steps)}
    backwards = [s for s in timeline.stages if s["stage_type"] == "torch@autograd@backward"]
    h.check_equal(len(backwards), 2 * STEPS, "backward calls")
    for stage in backwards[2:]:
        step = steps[stage["step"]]
        h.check(step["start_ns"] <= stage["start_ns"], "a stage begins before its step")
        h.check(stage["start_ns"] + stage["dur_ns"] <= step["start_ns"] + step["dur_ns"], "a stage ends after its step")


def test_sums_of_steps():
    timeline = ranks.Timeline(dump(), 1)
    reduces = [s for s in timeline.sums if s["op"] == "all_reduce"]
    h.check_equal([s["calls"] for s in reduces][1:], [1] * (STEPS - 1), "all_reduce of the loss, once a step")
    h.check_equal([s["last_seq"] for s in reduces], sorted(s["last_seq"] for s in reduces), "seq grows")
    # the barrier follows the optimizer: it belongs to the next step, and the last one to none that ended
    h.check_equal([s.get("step", 0) for s in timeline.sums if s["op"] == "barrier"], [4], "step of the barrier")


def test_checkpoints_are_stages_of_rank_0():
    h.check_equal([len(ranks.Timeline(dump(), rank).stages_of("torch@save")) for rank in range(2)], [1, 0], "torch.save")


def test_forked_workers_are_recorded():
    for rank in range(2):
        timeline = ranks.Timeline(dump(), rank)
        fetches = timeline.stages_of(FETCH)
        h.check(len(fetches) >= 2 * STEPS, "%d fetches of workers" % len(fetches))
        h.check_equal({s["flags"] for s in fetches}, {FLAG_WORKER}, "flags of a worker's stage")
        h.check_equal(len({s["pid"] for s in fetches}), 2, "worker processes")
    h.check_equal(len(ranks.timelines(dump())), 2, "workers have no file of their own")


NO_DATA = r'''
import torch, torch.distributed as dist
dist.init_process_group("gloo")
optimizers = [torch.optim.Adam([torch.nn.Parameter(torch.ones(3))]) for _ in range(2)]
for step in range(5):
    for optimizer in optimizers:
        optimizer.param_groups[0]["params"][0].sum().backward()
        optimizer.step()
    dist.barrier()
'''


def test_ranks_without_data_and_two_optimizers():
    out = h.tmpdir()
    ranks.run(out, 1, h.write_file(os.path.join(out, "job.py"), NO_DATA), SYSTRACE_ENABLE=1)
    timeline = ranks.Timeline(out, 0)
    h.check_equal([s["step"] for s in timeline.steps], [1, 2, 3, 4, 5], "one step for both optimizers' turns")
    h.check(all("microbatches" not in s for s in timeline.steps), "microbatches without a dataloader")


if __name__ == "__main__":
    h.main(test_optimizer_steps_are_counted, test_the_dataloaders_count_is_renumbered,
           test_stage_id_keeps_the_documented_rule, test_stages_lie_in_their_steps, test_sums_of_steps,
           test_checkpoints_are_stages_of_rank_0, test_forked_workers_are_recorded,
           test_ranks_without_data_and_two_optimizers)
