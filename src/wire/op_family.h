/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * One table of communication operations: which names of torch.distributed, HCCL, NCCL, c10d and their device kernels mean
 * the same operation. Readers and analysers match a configured observation point (`HcclAllGather`) against every source
 * through it; the agent asks it whether an operation is point to point.
 */
#ifndef WIRE_OP_FAMILY_H
#define WIRE_OP_FAMILY_H

#include <stdbool.h>
#include <stddef.h>

enum op_family {
	OP_UNKNOWN,
	OP_ALL_REDUCE,
	OP_ALL_GATHER,
	OP_REDUCE_SCATTER,
	OP_BROADCAST,
	OP_REDUCE,
	OP_GATHER,
	OP_SCATTER,
	OP_ALL_TO_ALL,
	OP_BARRIER,
	OP_SEND,
	OP_RECV,
	OP_BATCH_P2P, /* sends and receives issued together: batch_isend_irecv, HcclBatchSendRecv */
	OP_FAMILY_COUNT
};

/**
 * op_family_of - family of an operation's name
 * @name: an operation (`all_gather_into_tensor`, `HcclAllGather`, `c10d::allgather_`, `nccl:all_gather`) or a device
 *	kernel (`ncclDevKernel_AllGather_RING_LL(...)`), in any case; not a whole marker name
 * @len: bytes
 *
 * Context: any, no allocation. Return: OP_UNKNOWN for anything else.
 */
enum op_family op_family_of(const char *name, size_t len);

/** op_family_name - torch.distributed's base name of a family (`all_gather`), "" for OP_UNKNOWN. Context: any. */
const char *op_family_name(enum op_family family);

/** op_family_p2p - is it between two ranks only, so that calls of a group's ranks do not correspond one to one? */
static inline bool op_family_p2p(enum op_family family)
{
	return family == OP_SEND || family == OP_RECV || family == OP_BATCH_P2P;
}

#endif
