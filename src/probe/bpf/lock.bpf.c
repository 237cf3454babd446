/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Waits for locks in processes without an agent: uprobes at entry and return of the C library's functions. One pair of
 * programs for each function, since cookies of uprobes come with Linux 5.15 only. Loaded by probe/mutex.c.
 */
#include "probe/bpf/lock.h"

#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 << 20);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32); /* tgid */
	__type(value, struct lock_target);
} targets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32); /* tid */
	__type(value, struct lock_thread);
} threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32768);
	__type(key, __u64); /* tgid << 32 | call */
	__type(value, __u64);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps");

const volatile struct lock_layout layout = { 0 };
const volatile __u32 kinds[LOCK_PROGRAMS] = { 0 }; /* enum lock_kind */
const volatile __u64 wake_bytes = 512 << 10;

/* What a call seems to take that need not wait: two traps, of which the timestamps see a part. Measured all the time. */
__u64 free_ns = 0;

char license_text[] SEC("license") = "GPL"; /* the kernel's word for programs that may call its helpers */

static __always_inline void count_lost(void)
{
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&lost, &zero);

	if (count)
		(*count)++;
}

static __always_inline void send(const struct lock_event *event)
{
	__u64 flags = bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) < wake_bytes ? BPF_RB_NO_WAKEUP
										 : BPF_RB_FORCE_WAKEUP;

	if (bpf_ringbuf_output(&events, (void *)event, sizeof(*event), flags))
		count_lost();
}

static __always_inline void count_call(__u32 tgid, __u32 call)
{
	__u64 key = (__u64)tgid << 32 | call, one = 1;
	__u64 *count = bpf_map_lookup_elem(&counts, &key);

	if (count)
		__sync_fetch_and_add(count, 1);
	else if (bpf_map_update_elem(&counts, &key, &one, BPF_NOEXIST)) {
		count = bpf_map_lookup_elem(&counts, &key); /* another CPU was first */
		if (count)
			__sync_fetch_and_add(count, 1);
	}
}

static __always_inline __u32 word(__u64 at)
{
	__u32 value = 0;

	bpf_probe_read_user(&value, sizeof(value), (void *)at);
	return value;
}

/* Is the lock taken? Read without it, as a look and not as a promise. */
static __always_inline __u32 busy(const struct lock_target *target, __u32 kind, __u64 lock, __u32 tid, __u32 *owner)
{
	__u32 readers;

	*owner = 0;
	switch (kind) {
	case LOCK_KIND_MUTEX:
		*owner = word(lock + layout.mutex_owner);
		return word(lock + layout.mutex_lock) != 0 && *owner != tid;
	case LOCK_KIND_READ:
	case LOCK_KIND_WRITE:
		*owner = word(lock + layout.rwlock_writer);
		readers = word(lock + layout.rwlock_readers);
		if (target->old_rwlock)
			return *owner || readers || word(lock + layout.rwlock_readers + 4);
		/* bit 1: a writer has or wants it; the readers are counted from bit 3 on */
		return kind == LOCK_KIND_READ ? readers & 2 : (readers & 2) || readers >> 3;
	case LOCK_KIND_SPIN:
		return word(lock) != 0; /* on x86_64 seen behind the first attempt, which leaves 0 when it was free */
	case LOCK_KIND_SEM:
		return word(lock + layout.sem_value) == 0;
	default:
		return 1;
	}
}

#if defined(__TARGET_ARCH_x86)
#define POPPED 8 /* a return takes its address from the stack */
#else
#define POPPED 0
#endif

static __always_inline __u64 return_address(struct pt_regs *ctx)
{
#if defined(__TARGET_ARCH_x86)
	__u64 at = 0;

	bpf_probe_read_user(&at, sizeof(at), (void *)PT_REGS_SP(ctx));
	return at;
#else
	return PT_REGS_RET(ctx);
#endif
}

static __always_inline struct lock_thread *thread_of(__u32 tid)
{
	struct lock_thread *thread = bpf_map_lookup_elem(&threads, &tid);

	if (!thread) {
		static const struct lock_thread none;

		bpf_map_update_elem(&threads, &tid, &none, BPF_NOEXIST);
		thread = bpf_map_lookup_elem(&threads, &tid);
		if (!thread)
			count_lost();
	}
	return thread;
}

/* Return: 1 when nobody wants to see the call return, else 0. */
static __always_inline int begins(struct pt_regs *ctx, __u32 call)
{
	__u64 id = bpf_get_current_pid_tgid(), sp = PT_REGS_SP(ctx);
	__u32 tid = (__u32)id, tgid = id >> 32, kind = kinds[call];
	struct lock_target *target = bpf_map_lookup_elem(&targets, &tgid);
	struct lock_thread *thread;

	if (!target)
		return 1;
	if (kind == LOCK_KIND_NONE) {
		count_call(tgid, call);
		return 1;
	}
	thread = thread_of(tid);
	if (!thread)
		return 1;
	/* one of the functions calling another: the outer one counts. A call that was left by longjmp lies further up. */
	if (thread->begin_ns && sp < thread->sp)
		return 1;
	/* where the kernel can look at it, a spinning lock comes by again and again */
	if (kind == LOCK_KIND_SPIN && thread->begin_ns && thread->call == call && thread->sp == sp)
		return 1;
	count_call(tgid, call);
	thread->begin_ns = 0;
	thread->address = PT_REGS_PARM1(ctx);
	thread->busy = busy(target, kind, thread->address, tid, &thread->owner);
	/* some calls of free locks are followed, to know what a look at them costs */
	if (target->min_ns && !thread->busy && (thread->free_calls++ & 63))
		return 1;
	thread->caller = return_address(ctx);
	thread->call = call;
	thread->sp = sp;
	thread->begin_ns = bpf_ktime_get_ns();
	return 0;
}

static __always_inline void fill(struct lock_event *event, const struct lock_target *target,
				 const struct lock_thread *thread, __s32 result)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct bpf_pidns_info inner = { 0 };

	event->target = id >> 32;
	event->pid = id >> 32;
	event->tid = (__u32)id;
	if (bpf_get_ns_current_pid_tgid(target->ns_dev, target->ns_ino, &inner, sizeof(inner)) == 0) {
		event->pid = inner.tgid;
		event->tid = inner.pid;
	}
	event->reserved = 0;
	event->address = thread->address;
	event->caller = thread->caller;
	event->call = thread->call;
	event->owner = thread->owner;
	event->result = result;
	event->repeats = 0;
	event->begin_ns = thread->begin_ns;
	event->dur_ns = 0;
	bpf_get_current_comm(event->comm, sizeof(event->comm));
}

static __always_inline void send_row(struct lock_thread *thread)
{
	if (thread->row.repeats)
		send(&thread->row);
	thread->row.repeats = 0;
}

/* A call that does not wait has failed. The first one is told as it comes, those right behind it as one. */
static __always_inline void failed(const struct lock_target *target, struct lock_thread *thread, __u64 now_ns,
				   __s32 result)
{
	struct lock_event *row = &thread->row;

	if (row->address == thread->address && row->caller == thread->caller && row->call == thread->call &&
	    now_ns - thread->row_ns < LOCK_SPIN_GAP_NS) {
		if (!row->repeats++)
			row->begin_ns = now_ns;
		row->dur_ns = now_ns - row->begin_ns;
		if (row->dur_ns >= LOCK_SPIN_PERIOD_NS)
			send_row(thread);
	} else {
		send_row(thread);
		fill(row, target, thread, result);
		send(row);
	}
	thread->row_ns = now_ns;
}

static __always_inline int ends(struct pt_regs *ctx, __u32 call)
{
	__u64 id = bpf_get_current_pid_tgid(), now_ns = bpf_ktime_get_ns(), dur_ns;
	__u32 tid = (__u32)id, tgid = id >> 32, kind = kinds[call];
	struct lock_target *target = bpf_map_lookup_elem(&targets, &tgid);
	struct lock_thread *thread = bpf_map_lookup_elem(&threads, &tid);
	__s32 result = (__s32)PT_REGS_RC(ctx);
	struct lock_event event;

	if (!target || !thread || !thread->begin_ns || thread->call != call || PT_REGS_SP(ctx) != thread->sp + POPPED)
		return 0;
	dur_ns = now_ns - thread->begin_ns;
	if (!thread->busy || kind == LOCK_KIND_TRY) {
		if (!free_ns || dur_ns < free_ns)
			free_ns = dur_ns;
		else if (dur_ns < 2 * free_ns) /* slowly up again: the clock of the CPU changes */
			free_ns += (dur_ns - free_ns) >> 8;
	}
	dur_ns = dur_ns > free_ns ? dur_ns - free_ns : 0;
	if (kind == LOCK_KIND_TRY && result && target->min_ns) {
		failed(target, thread, now_ns, result);
	} else if (!target->min_ns || (kind != LOCK_KIND_TRY && thread->busy && dur_ns >= target->min_ns)) {
		fill(&event, target, thread, result);
		event.dur_ns = dur_ns;
		if (kind == LOCK_KIND_TRY && !result)
			event.owner = 0;
		send(&event);
	}
	thread->begin_ns = 0;
	return 0;
}

/* Linux 6.13 and later: one program for all, which is spared the return of calls that do not wait. */
SEC("uprobe")
int session(struct pt_regs *ctx)
{
	__u64 call = bpf_get_attach_cookie(ctx);

	if (call >= LOCK_PROGRAMS)
		return 1;
	if (PT_REGS_IP(ctx) == bpf_get_func_ip(ctx))
		return begins(ctx, call);
	return ends(ctx, call);
}

#define PAIR(n)                            \
	SEC("uprobe")                      \
	int begin_##n(struct pt_regs *ctx) \
	{                                  \
		return begins(ctx, n);     \
	}                                  \
	SEC("uretprobe")                   \
	int end_##n(struct pt_regs *ctx)   \
	{                                  \
		return ends(ctx, n);       \
	}

PAIR(0)
PAIR(1)
PAIR(2)
PAIR(3)
PAIR(4)
PAIR(5)
PAIR(6)
PAIR(7)
PAIR(8)
PAIR(9)
PAIR(10)
PAIR(11)
PAIR(12)
PAIR(13)
PAIR(14)
PAIR(15)
PAIR(16)
PAIR(17)
PAIR(18)
PAIR(19)
PAIR(20)
PAIR(21)
PAIR(22)
PAIR(23)
PAIR(24)
