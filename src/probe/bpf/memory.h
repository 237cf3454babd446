/* SPDX-License-Identifier: MulanPSL-2.0 */
/* What memory.bpf.c and its loader (probe/memory.c) share. Times are CLOCK_MONOTONIC in ns, pids those of the host. */
#ifndef PROBE_BPF_MEMORY_H
#define PROBE_BPF_MEMORY_H

#include <linux/types.h>

enum memory_what {
	MEMORY_FAULTS, /* count faults in a row */
	MEMORY_UNSEEN, /* faults that the counters of the thread show and no event told: pages made present by the kernel */
	MEMORY_RECLAIM, /* direct reclaim; count = pages */
	MEMORY_MEMCG_RECLAIM, /* the same because of the limit of a memory cgroup */
	MEMORY_COMPACTION,
	MEMORY_SWAP_OUT, /* count pages written by this thread's own reclaim */
	MEMORY_OOM_KILL
};

struct memory_event {
	__u64 begin_ns;
	__u64 dur_ns; /* of faults: sum */
	__u64 address; /* of the (first) fault */
	__u32 tgid, tid;
	__u32 target; /* tgid of the target: of a forked worker its ancestor */
	__u32 count;
	__u16 what; /* enum memory_what */
	__u16 major;
	char comm[16];
	__u32 reserved;
};

#define MEMORY_GAP_NS 1000000u /* faults further apart are entries of their own */
#define MEMORY_SLOW_NS 100000u /* and so are faults that took as long as this */
#define MEMORY_NEAR (2u << 20) /* and faults further away from the one before */

/* one thread of a target */
struct memory_thread {
	__u64 fault_ns, fault_address; /* of the fault it is in; 0 = none */
	__u64 wait_ns[3]; /* begin of reclaim, memcg reclaim, compaction; 0 = none */
	__u64 min_flt, maj_flt; /* its counters at the last fault told */
	__u32 known; /* are they? */
	__u32 target;
	struct memory_event row; /* faults in a row, not yet told; count 0 = none */
	__u64 row_last, row_end_ns; /* address and end of the last one */
};

#endif
