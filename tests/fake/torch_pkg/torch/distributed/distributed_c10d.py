# SPDX-License-Identifier: MulanPSL-2.0
"""torch.distributed.distributed_c10d of the stand-in: groups are kept as the real one keeps them, calls do nothing."""

import functools

_pg_names = {}
_pg_group_ranks = {}
_group_count = 0


class ProcessGroup:
    def __init__(self, rank):
        self._rank = rank

    def rank(self):
        return self._rank


class GroupMember:
    NON_GROUP_MEMBER = object()


class P2POp:
    def __init__(self, op, tensor, peer, group=None, tag=0):
        self.op, self.tensor, self.peer, self.group, self.tag = op, tensor, peer, group, tag


def _add(ranks, rank):
    global _group_count
    group = ProcessGroup(rank)
    _pg_names[group] = str(_group_count)
    _pg_group_ranks[group] = {global_rank: n for n, global_rank in enumerate(ranks)}
    _group_count += 1
    return group


def init_process_group(rank, world_size):
    return _add(range(world_size), rank)


def new_group(ranks):
    return _add(ranks, 0)


def destroy_process_group(group=None):
    global _group_count
    if group is None:
        _pg_names.clear()
        _pg_group_ranks.clear()
        _group_count = 0
    else:
        del _pg_names[group], _pg_group_ranks[group]


def _logged(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapper


def all_reduce(tensor, op=None, group=None, async_op=False):
    return tensor


@_logged
def broadcast(tensor, src, group=None, async_op=False):
    return tensor


def all_gather(tensor_list, tensor, group=None, async_op=False):
    return tensor_list


def all_gather_object(object_list, obj, group=None):
    return all_gather([Tensor(8)], Tensor(8), group)


def barrier(group=None, async_op=False, device_ids=None):
    pass


def send(tensor, dst, group=None, tag=0):
    if dst < 0:
        raise ValueError("no such rank")


def batch_isend_irecv(p2p_op_list):
    return [op.op(op.tensor, op.peer, op.group, op.tag) for op in p2p_op_list]


def isend(tensor, dst, group=None, tag=0):
    pass


from torch._tensor import Tensor  # noqa: E402  used by all_gather_object
