/* SPDX-License-Identifier: MulanPSL-2.0 */
/* What lock.bpf.c and its loader (probe/mutex.c) share. Times are CLOCK_MONOTONIC in ns. */
#ifndef PROBE_BPF_LOCK_H
#define PROBE_BPF_LOCK_H

#include <linux/types.h>

#define LOCK_PROGRAMS 25 /* pairs of programs: one for each enum lock_call of wire/record.h */

/* How it is seen at the entry whether a call will have to wait. */
enum lock_kind {
	LOCK_KIND_NONE, /* cannot wait: only counted */
	LOCK_KIND_WAIT, /* a wait by its nature */
	LOCK_KIND_MUTEX,
	LOCK_KIND_READ,
	LOCK_KIND_WRITE,
	LOCK_KIND_SPIN,
	LOCK_KIND_SEM,
	LOCK_KIND_TRY /* does not wait; stored when it fails */
};

/* glibc's structures, filled in by the loader from its headers */
struct lock_layout {
	__u32 mutex_lock, mutex_owner, rwlock_readers, rwlock_writer, sem_value;
};

struct lock_target {
	__u64 min_ns; /* shortest wait that is kept; 0 = every call */
	__u64 ns_dev, ns_ino; /* its pid namespace: events carry the ids that hold there */
	__u32 old_rwlock; /* glibc before 2.25: its words say less */
	__u32 reserved;
};

struct lock_event {
	__u64 begin_ns, dur_ns;
	__u64 address, caller;
	__u32 target; /* the host's pid of the process */
	__u32 pid, tid; /* in its own namespace */
	__u32 owner; /* likewise */
	__s32 result; /* as the call returned it */
	__u32 call;
	__u32 repeats; /* failures in a row behind one that was told; 0 = this is one event */
	char comm[16];
	__u32 reserved;
};

#define LOCK_SPIN_GAP_NS 1000000u /* failures closer than this are in a row, as in the agent */
#define LOCK_SPIN_PERIOD_NS 100000000u /* and are told at least so often */

struct lock_thread {
	__u64 begin_ns, address, caller, sp; /* of the call that it is in; begin_ns 0 = none */
	__u32 owner, call;
	__u32 busy; /* it has to wait, as far as could be seen */
	__u32 free_calls; /* calls that had not to wait */
	struct lock_event row; /* failures in a row; repeats 0 = none untold */
	__u64 row_ns; /* end of the last failure */
};

#endif
