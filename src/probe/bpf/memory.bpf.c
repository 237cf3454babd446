/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What the kernel does for the memory of the targets: page faults (the software events of perf, which the kernel counts
 * at the very place where it counts for getrusage), reclaim, compaction, swapping out, OOM kills. Loaded by probe/memory.c.
 */
#include "probe/bpf/memory.h"

#include <linux/bpf.h>
#include <linux/bpf_perf_event.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

struct task_struct {
	int pid, tgid;
	unsigned long min_flt, maj_flt;
} __attribute__((preserve_access_index));

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 << 20);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32); /* tgid */
	__type(value, __u32); /* tgid of the target it belongs to: a forked worker's is its ancestor's */
} targets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32768);
	__type(key, __u32); /* tid */
	__type(value, struct memory_thread);
} threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32768);
	__type(key, __u32); /* tid */
	__type(value, __u64); /* begin_ns of a row that the loader has told already */
} told SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps");

const volatile __u64 swapbacked_bit = 0; /* PG_swapbacked as a mask; 0 = not known */
const volatile __u64 wake_bytes = 1 << 20;

char license_text[] SEC("license") = "GPL"; /* the kernel's word for programs that may call its helpers */

static __always_inline void count_lost(void)
{
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&lost, &zero);

	if (count)
		(*count)++;
}

static __always_inline void send(const struct memory_event *event)
{
	__u64 flags = BPF_RB_NO_WAKEUP;

	/* a major fault at once, while the mapping that it was in is there to be looked up */
	if (event->major || bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) >= wake_bytes)
		flags = BPF_RB_FORCE_WAKEUP;

	if (bpf_ringbuf_output(&events, (void *)event, sizeof(*event), flags))
		count_lost();
}

static __always_inline struct task_struct *current_task(void)
{
	return (struct task_struct *)bpf_get_current_task();
}

/* State of the running thread if it belongs to a target, made when there is none. */
static __always_inline struct memory_thread *mine(void)
{
	__u64 id = bpf_get_current_pid_tgid();
	__u32 tid = (__u32)id, tgid = id >> 32;
	__u32 *target = bpf_map_lookup_elem(&targets, &tgid);
	struct memory_thread *thread;

	if (!target)
		return NULL;
	thread = bpf_map_lookup_elem(&threads, &tid);
	if (!thread) {
		struct memory_thread first = { .target = *target };

		bpf_map_update_elem(&threads, &tid, &first, BPF_NOEXIST);
		thread = bpf_map_lookup_elem(&threads, &tid);
		if (!thread)
			count_lost();
	}
	return thread;
}

static __always_inline void fill(struct memory_event *event, const struct memory_thread *thread, __u16 what)
{
	__u64 id = bpf_get_current_pid_tgid();

	event->target = thread->target;
	event->tid = (__u32)id;
	event->tgid = id >> 32;
	event->what = what;
	event->major = 0;
	event->count = 0;
	event->address = 0;
	bpf_get_current_comm(event->comm, sizeof(event->comm));
}

/* --- page faults -------------------------------------------------------------------------------------------------- */

static __always_inline void send_row(struct memory_thread *thread)
{
	__u32 tid = thread->row.tid;
	__u64 *already;

	if (!thread->row.count)
		return;
	already = bpf_map_lookup_elem(&told, &tid);
	if (!already || *already != thread->row.begin_ns)
		send(&thread->row);
	thread->row.count = 0;
}

static __always_inline int fault_begins(__u64 address)
{
	struct memory_thread *thread = mine();

	if (thread) {
		thread->fault_ns = bpf_ktime_get_ns();
		thread->fault_address = address;
	}
	return 0;
}

/* x86 only, and cheaper than the software event there */
SEC("raw_tp/page_fault_user")
int fault_user(struct bpf_raw_tracepoint_args *ctx)
{
	return fault_begins(ctx->args[0]);
}

SEC("raw_tp/page_fault_kernel")
int fault_kernel(struct bpf_raw_tracepoint_args *ctx)
{
	return fault_begins(ctx->args[0]);
}

SEC("perf_event")
int fault_any(struct bpf_perf_event_data *ctx)
{
	return fault_begins(ctx->addr);
}

/* Faults since the last one that was told: this one, and those that the kernel took on itself (mlock, populate, pinning). */
static __always_inline void check_counters(struct memory_thread *thread, __u64 now_ns, int minor, int major)
{
	struct task_struct *task = current_task();
	__u64 min_flt = BPF_CORE_READ(task, min_flt), maj_flt = BPF_CORE_READ(task, maj_flt);
	struct memory_event event;

	if (thread->known) {
		__u64 more_min = min_flt - thread->min_flt - minor, more_maj = maj_flt - thread->maj_flt - major;

		if (more_min | more_maj) {
			fill(&event, thread, MEMORY_UNSEEN);
			event.begin_ns = now_ns;
			event.dur_ns = 0;
			event.count = more_min;
			if (more_min && more_min < 1ull << 32)
				send(&event);
			event.major = 1;
			event.count = more_maj;
			if (more_maj && more_maj < 1ull << 32)
				send(&event);
		}
	}
	thread->known = 1;
	thread->min_flt = min_flt;
	thread->maj_flt = maj_flt;
}

static __always_inline int fault_ends(__u64 address, int major)
{
	struct memory_thread *thread = mine();
	__u64 now_ns, begin_ns, dur_ns, away;

	if (!thread)
		return 0;
	now_ns = bpf_ktime_get_ns();
	begin_ns = thread->fault_ns ? thread->fault_ns : now_ns;
	dur_ns = now_ns - begin_ns;
	thread->fault_ns = 0;
	check_counters(thread, now_ns, !major, major);
	away = address - thread->row_last + MEMORY_NEAR;
	if (thread->row.count && !major && !thread->row.major && dur_ns < MEMORY_SLOW_NS &&
	    begin_ns - thread->row_end_ns < MEMORY_GAP_NS && away <= 2 * MEMORY_NEAR) {
		thread->row.count++;
		thread->row.dur_ns += dur_ns;
	} else {
		send_row(thread);
		fill(&thread->row, thread, MEMORY_FAULTS);
		thread->row.begin_ns = begin_ns;
		thread->row.dur_ns = dur_ns;
		thread->row.address = address;
		thread->row.major = major;
		thread->row.count = 1;
	}
	thread->row_last = address;
	thread->row_end_ns = now_ns;
	if (major || dur_ns >= MEMORY_SLOW_NS)
		send_row(thread);
	return 0;
}

SEC("perf_event")
int fault_minor(struct bpf_perf_event_data *ctx)
{
	return fault_ends(ctx->addr, 0);
}

SEC("perf_event")
int fault_major(struct bpf_perf_event_data *ctx)
{
	return fault_ends(ctx->addr, 1);
}

/* --- waits within the kernel ---------------------------------------------------------------------------------------- */

static __always_inline int wait_begins(int which)
{
	struct memory_thread *thread = mine();

	if (thread)
		thread->wait_ns[which] = bpf_ktime_get_ns();
	return 0;
}

static __always_inline int wait_ends(int which, __u16 what, __u64 count)
{
	struct memory_thread *thread = mine();
	struct memory_event event;

	if (!thread || !thread->wait_ns[which])
		return 0;
	fill(&event, thread, what);
	event.begin_ns = thread->wait_ns[which];
	event.dur_ns = bpf_ktime_get_ns() - event.begin_ns;
	event.count = count;
	thread->wait_ns[which] = 0;
	send(&event);
	return 0;
}

SEC("raw_tp/mm_vmscan_direct_reclaim_begin")
int reclaim_begin(void *ctx)
{
	return wait_begins(0);
}

SEC("raw_tp/mm_vmscan_direct_reclaim_end")
int reclaim_end(struct bpf_raw_tracepoint_args *ctx)
{
	return wait_ends(0, MEMORY_RECLAIM, ctx->args[0]);
}

SEC("raw_tp/mm_vmscan_memcg_reclaim_begin")
int memcg_begin(void *ctx)
{
	return wait_begins(1);
}

SEC("raw_tp/mm_vmscan_memcg_reclaim_end")
int memcg_end(struct bpf_raw_tracepoint_args *ctx)
{
	return wait_ends(1, MEMORY_MEMCG_RECLAIM, ctx->args[0]);
}

SEC("raw_tp/mm_compaction_begin")
int compaction_begin(void *ctx)
{
	return wait_begins(2);
}

SEC("raw_tp/mm_compaction_end")
int compaction_end(void *ctx)
{
	return wait_ends(2, MEMORY_COMPACTION, 0);
}

/* The argument is a page up to Linux 5.17, a folio since; either begins with its flags. */
static __always_inline int written(struct bpf_raw_tracepoint_args *ctx)
{
	struct memory_thread *thread;
	struct memory_event event;
	__u64 flags = 0;

	if (!swapbacked_bit || !(thread = mine()))
		return 0;
	bpf_probe_read_kernel(&flags, sizeof(flags), (void *)ctx->args[0]);
	if (!(flags & swapbacked_bit))
		return 0; /* back to its file */
	fill(&event, thread, MEMORY_SWAP_OUT);
	event.begin_ns = bpf_ktime_get_ns();
	event.dur_ns = 0;
	event.count = 1;
	send(&event);
	return 0;
}

SEC("raw_tp/mm_vmscan_write_folio")
int write_folio(struct bpf_raw_tracepoint_args *ctx)
{
	return written(ctx);
}

SEC("raw_tp/mm_vmscan_writepage")
int write_page(struct bpf_raw_tracepoint_args *ctx)
{
	return written(ctx);
}

/* The argument is the victim's pid up to Linux 6.7, the task since. Whoever runs is not the victim as a rule. */
SEC("raw_tp/mark_victim")
int mark_victim(struct bpf_raw_tracepoint_args *ctx)
{
	struct memory_event event = { .what = MEMORY_OOM_KILL };
	__u64 victim = ctx->args[0];
	__u32 *target;

	event.tgid = event.tid = victim;
	if (victim >= 1ull << 32) {
		event.tid = BPF_CORE_READ((struct task_struct *)victim, pid);
		event.tgid = BPF_CORE_READ((struct task_struct *)victim, tgid);
	}
	target = bpf_map_lookup_elem(&targets, &event.tgid);
	if (!target)
		return 0;
	event.target = *target;
	event.begin_ns = bpf_ktime_get_ns();
	send(&event);
	return 0;
}

/* --- lives -------------------------------------------------------------------------------------------------------- */

/* New threads begin with counters of zero; a forked process is followed like its parent. */
SEC("raw_tp/sched_process_fork")
int forked(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *parent = (struct task_struct *)ctx->args[0], *child = (struct task_struct *)ctx->args[1];
	__u32 parent_tgid = BPF_CORE_READ(parent, tgid), tgid = BPF_CORE_READ(child, tgid);
	__u32 tid = BPF_CORE_READ(child, pid);
	__u32 *found = bpf_map_lookup_elem(&targets, &parent_tgid);
	struct memory_thread thread = { .known = 1 };
	__u32 target;

	if (!found)
		return 0;
	target = thread.target = *found;
	if (tgid != parent_tgid)
		bpf_map_update_elem(&targets, &tgid, &target, BPF_NOEXIST);
	bpf_map_update_elem(&threads, &tid, &thread, BPF_ANY);
	return 0;
}

SEC("raw_tp/sched_process_exit")
int exited(struct bpf_raw_tracepoint_args *ctx)
{
	__u64 id = bpf_get_current_pid_tgid();
	__u32 tid = (__u32)id, tgid = id >> 32;
	struct memory_thread *thread;
	__u32 *target = bpf_map_lookup_elem(&targets, &tgid);

	if (!target)
		return 0;
	thread = bpf_map_lookup_elem(&threads, &tid);
	if (thread) {
		send_row(thread);
		check_counters(thread, bpf_ktime_get_ns(), 0, 0);
		bpf_map_delete_elem(&threads, &tid);
		bpf_map_delete_elem(&told, &tid);
	}
	if (tid == tgid && *target != tgid) /* targets themselves are the loader's to remove */
		bpf_map_delete_elem(&targets, &tgid);
	return 0;
}
