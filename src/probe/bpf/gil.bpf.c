/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The interpreter lock of processes without an agent: uprobes on the three functions that it is made of, as far as they
 * are called with addresses inside _PyRuntime. What they mean is found out by probe/gil_track.c.
 */
#include "probe/bpf/gil.h"

#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 << 20);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32); /* tgid */
	__type(value, struct gil_target);
} targets SEC(".maps");

/* the condition that a thread waits for now */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32); /* tid */
	__type(value, __u64);
} waits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps");

const volatile __u64 wake_bytes = 1 << 20;

char license_text[] SEC("license") = "GPL"; /* the kernel's word for programs that may call its helpers */

static __always_inline void count_lost(void)
{
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&lost, &zero);

	if (count)
		(*count)++;
}

static __always_inline void send(const struct gil_target *target, __u32 call, __u64 cond, __u64 mutex, __s32 result)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct bpf_pidns_info inner = { 0 };
	struct gil_event event = {
		.at_ns = bpf_ktime_get_ns(),
		.cond = cond,
		.mutex = mutex,
		.target = id >> 32,
		.pid = id >> 32,
		.tid = (__u32)id,
		.result = result,
		.call = call,
	};
	__u64 flags;

	if (bpf_get_ns_current_pid_tgid(target->ns_dev, target->ns_ino, &inner, sizeof(inner)) == 0) {
		event.pid = inner.tgid;
		event.tid = inner.pid;
	}
	bpf_get_current_comm(event.comm, sizeof(event.comm));
	flags = bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) < wake_bytes ? BPF_RB_NO_WAKEUP : BPF_RB_FORCE_WAKEUP;
	if (bpf_ringbuf_output(&events, &event, sizeof(event), flags))
		count_lost();
}

/* The target whose _PyRuntime holds that address. */
static __always_inline struct gil_target *target_of(__u64 cond)
{
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct gil_target *target = bpf_map_lookup_elem(&targets, &tgid);

	return target && cond >= target->begin && cond < target->end ? target : NULL;
}

SEC("uprobe")
int signal(struct pt_regs *ctx)
{
	struct gil_target *target = target_of(PT_REGS_PARM1(ctx));

	if (target)
		send(target, GIL_SIGNAL, PT_REGS_PARM1(ctx), 0, 0);
	return 0;
}

static __always_inline int begins(struct pt_regs *ctx, __u32 call)
{
	__u64 cond = PT_REGS_PARM1(ctx);
	__u32 tid = (__u32)bpf_get_current_pid_tgid();
	struct gil_target *target = target_of(cond);

	if (!target)
		return 0;
	send(target, call, cond, PT_REGS_PARM2(ctx), 0);
	if (bpf_map_update_elem(&waits, &tid, &cond, BPF_ANY))
		count_lost();
	return 0;
}

static __always_inline int ends(struct pt_regs *ctx, __u32 call)
{
	__u32 tid = (__u32)bpf_get_current_pid_tgid();
	__u64 *cond = bpf_map_lookup_elem(&waits, &tid);
	struct gil_target *target = cond ? target_of(*cond) : NULL;

	if (target)
		send(target, call, *cond, 0, PT_REGS_RC(ctx));
	if (cond)
		bpf_map_delete_elem(&waits, &tid);
	return 0;
}

SEC("uprobe")
int timed_begin(struct pt_regs *ctx)
{
	return begins(ctx, GIL_TIMED_BEGIN);
}

SEC("uretprobe")
int timed_end(struct pt_regs *ctx)
{
	return ends(ctx, GIL_TIMED_END);
}

SEC("uprobe")
int wait_begin(struct pt_regs *ctx)
{
	return begins(ctx, GIL_WAIT_BEGIN);
}

SEC("uretprobe")
int wait_end(struct pt_regs *ctx)
{
	return ends(ctx, GIL_WAIT_END);
}
