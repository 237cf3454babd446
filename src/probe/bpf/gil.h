/* SPDX-License-Identifier: MulanPSL-2.0 */
/* What gil.bpf.c and its loader (probe/gil.c) share. Times are CLOCK_MONOTONIC in ns. */
#ifndef PROBE_BPF_GIL_H
#define PROBE_BPF_GIL_H

#include <linux/types.h>

struct gil_target {
	__u64 begin, end; /* addresses of _PyRuntime */
	__u64 ns_dev, ns_ino; /* its pid namespace: events carry the ids that hold there */
};

enum gil_call {
	GIL_SIGNAL, /* pthread_cond_signal */
	GIL_TIMED_BEGIN, /* pthread_cond_timedwait */
	GIL_TIMED_END,
	GIL_WAIT_BEGIN, /* pthread_cond_wait */
	GIL_WAIT_END
};

struct gil_event {
	__u64 at_ns;
	__u64 cond, mutex;
	__u32 target; /* the host's pid of the process */
	__u32 pid, tid; /* in its own namespace */
	__s32 result;
	__u32 call; /* enum gil_call */
	char comm[16];
	__u32 reserved;
};

#endif
