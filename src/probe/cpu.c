/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The plugin CPU: follows the targets' threads through the scheduler (bpf/cpu.bpf.c) and writes what happened to them into
 * the os_trace files. One load of the programs serves all sessions; each target has a slot, and its events go to its own
 * file only. Called by the frame.
 */
#include "probe/probe.h"

#ifdef HAVE_BPF
#include "base/num.h"
#include "probe/bpf/cpu.h"
#include "probe/bpf/cpu.skel.h"
#include "probe/os_file.h"
#include "safe/clock.h"
#include "safe/rawio.h"

#include <bpf/bpf.h>
#include <dirent.h>
#include <errno.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BTF "/sys/kernel/btf/vmlinux"
#define TICK_MS 100
#define PID_LIMIT 4194304u /* the kernel's on 64 bits */
#define TASKS_BYTES (whole_pages(CPU_TASKS * sizeof(struct cpu_task)))
#define SCANS 8 /* of a process's threads, until no new one is found */
#define TAKERS_SLOT (CPU_SLOTS - 1) /* counts lost events that belong to no single target */

/** struct slot - a target that is followed */
struct slot {
	struct probe_target *target; /* NULL = free */
	struct os_file *file;
	uint64_t told_lost; /* of the kernel's counter */
	uint64_t lost_since_ns; /* what came before has been told */
	uint64_t undone; /* lost here: the file can't be written */
};

static struct {
	struct cpu_bpf *skel;
	struct ring_buffer *ring;
	unsigned users; /* sessions */
	struct slot slots[CPU_SLOTS];
	uint32_t slot_count; /* highest one in use + 1 */
	uint32_t next_slot; /* ids are not used again at once: events of the last user may be in the ring */
	uint64_t told_takers;
	struct probe_stats stats;
	uint64_t ring_bytes;
	struct cpu_task *tasks; /* shared with the kernel's side */
	struct cpu_tids *tids;
	size_t tids_bytes;
	uint32_t tid_max;
} cpu;

static size_t whole_pages(size_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	return (bytes + page - 1) / page * page;
}

/* --- can it run here? --------------------------------------------------------------------------------------------------- */

static int cpu_check(struct st_err *err)
{
	static const int few[] = { 39, 38, -1 }; /* CAP_BPF and CAP_PERFMON */
	static const int all[] = { CAP_SYS_ADMIN, -1 };
	int ret = probe_need_caps("tracing context switches", all, few, err);

	if (ret < 0)
		return ret;
	ret = probe_need_host("tracing context switches", err);
	if (ret < 0)
		return ret;
	if (access(BTF, R_OK) < 0)
		return err_set(err, -ENOTSUP,
			       "this kernel has no type information (" BTF
			       "), which the CPU plugin needs; use a kernel with "
			       "CONFIG_DEBUG_INFO_BTF, or record with: systrace record --sched");
	return 0;
}

/* --- events into files ------------------------------------------------------------------------------------------------ */

static struct msg_text comm_text(const char *comm)
{
	return (struct msg_text){ comm, strnlen(comm, CPU_COMM) };
}

static void put(struct slot *slot, struct msg_os *entry)
{
	if (os_file_put(slot->file, entry) < 0)
		slot->undone++;
	else
		cpu.stats.records++;
}

static uint32_t entry_flags(const struct cpu_cycle *ev)
{
	return (ev->flags & CPU_F_UNSEEN ? OS_BEGIN_UNSEEN : 0) | (ev->flags & CPU_F_PREEMPTED ? OS_PREEMPTED : 0) |
	       (ev->flags & CPU_F_EXITED ? OS_EXITED : 0) | (ev->flags & CPU_F_GUESSED ? OS_ON_GUESSED : 0);
}

/* A cycle. @open: OS_OFF_OPEN or OS_ON_OPEN, when the capture ended within it. */
static void put_cycle(struct slot *slot, const struct cpu_cycle *ev, uint32_t open)
{
	uint64_t delay_ns = ev->delay_out_ns > ev->delay_off_ns ? ev->delay_out_ns - ev->delay_off_ns : 0;
	/* one that was running when the capture began has no span off the CPU */
	bool ran_all_along = ev->on_ns < ev->off_ns;
	uint64_t on_ns = ran_all_along ? ev->off_ns : ev->on_ns;
	struct msg_os entry = {
		.key = ev->tid,
		.rundelay = ev->delay_off_ns,
		.OS_event_type = OS_OFFCPU,
		.comm = comm_text(ev->comm),
		.nxt_comm = comm_text(ev->nxt_comm),
		.nxt_pid = ev->nxt_tid,
		.nxt_tgid = ev->nxt_tgid,
		.start_ns = ev->off_ns,
		.dur_ns = on_ns - ev->off_ns,
		.on_ns = ev->out_ns - on_ns,
		.delay_ns = delay_ns,
		.cpu = ev->cpu + 1u,
		.from_cpu = ev->from_cpu != ev->cpu && !(ev->flags & CPU_F_UNSEEN) ? ev->from_cpu + 1u : 0,
		.migrations = ev->migrations,
		.state = ev->state,
		.wake_ns = ev->flags & CPU_F_WOKEN ? delay_ns : 0,
		.waker_pid = ev->waker_tid,
		.waker_comm = ev->waker_tid ? comm_text(ev->waker_comm) : (struct msg_text){ 0 },
		.irq_ns = ev->irq_ns,
		.irqs = ev->irqs,
		.softirq_ns = ev->softirq_ns,
		.softirqs = ev->softirqs,
		.flags = entry_flags(ev) | open,
		.pid = ev->tgid == (uint32_t)slot->target->pid ? 0 : ev->tgid,
	};

	if (open & OS_OFF_OPEN) {
		entry.dur_ns = ev->out_ns - ev->off_ns;
		entry.on_ns = 0;
		entry.cpu = 0;
	}
	if (ev->flags & CPU_F_FIRST)
		os_file_thread(slot->file, ev->tgid, ev->tid, probe_inner_tid(slot->target, ev->tgid, ev->tid),
			       ev->comm);
	put(slot, &entry);
}

static void put_hit(struct slot *slot, const struct cpu_hit *ev, uint32_t type)
{
	struct msg_os entry = {
		.key = ev->tid,
		.OS_event_type = type,
		.comm = comm_text(ev->comm),
		.start_ns = ev->begin_ns,
		.dur_ns = ev->dur_ns,
		.cpu = ev->cpu + 1u,
		.name = comm_text(ev->name),
		.number = type == OS_TAKER ? 0 : ev->number + 1u,
		.pid = ev->tgid == (uint32_t)slot->target->pid ? 0 : ev->tgid,
	};

	put(slot, &entry);
}

static void put_taker(const struct cpu_hit *ev)
{
	for (uint32_t i = 0; i < cpu.slot_count; i++) {
		uint32_t lane = i % CPU_LANES;

		if (cpu.slots[i].target && (ev->lanes[lane / 4] >> (16 * (lane % 4)) & 0xffff))
			put_hit(&cpu.slots[i], ev, OS_TAKER);
	}
}

static int on_event(void *ctx, void *data, size_t bytes)
{
	const struct cpu_hit *hit = data;
	uint32_t slot = hit->slot;

	if (bytes < sizeof(*hit) || slot >= CPU_SLOTS)
		return 0;
	if (hit->type == CPU_TAKER)
		put_taker(hit);
	else if (!cpu.slots[slot].target)
		return 0; /* of a target that has been taken out meanwhile */
	else if (hit->type == CPU_CYCLE && bytes >= sizeof(struct cpu_cycle))
		put_cycle(&cpu.slots[slot], data, 0);
	else if (hit->type == CPU_IRQ)
		put_hit(&cpu.slots[slot], hit, OS_IRQ);
	else if (hit->type == CPU_SOFTIRQ)
		put_hit(&cpu.slots[slot], hit, OS_SOFTIRQ);
	return 0;
}

/* What the kernel's side could not hand over, and what the files could not take. */
static void tell_losses(struct slot *slot, uint64_t now_ns)
{
	uint64_t lost = cpu.skel->bss->lost[slot - cpu.slots], write_lost = 0, more;

	os_file_write(slot->file, &write_lost);
	slot->undone += write_lost;
	cpu.stats.records -= write_lost < cpu.stats.records ? write_lost : cpu.stats.records;
	cpu.stats.failures += write_lost != 0;
	more = lost - slot->told_lost + slot->undone;
	if (!more)
		slot->lost_since_ns = now_ns;
	else if (os_file_drops(slot->file, "cpu", more, slot->lost_since_ns, now_ns) == 0 &&
		 os_file_write(slot->file, NULL) == 0) {
		cpu.stats.lost += more;
		slot->told_lost = lost;
		slot->undone = 0;
		slot->lost_since_ns = now_ns;
	}
}

static void drain(uint64_t now_ns)
{
	uint64_t takers = cpu.skel->bss->lost[TAKERS_SLOT];

	ring_buffer__consume(cpu.ring);
	for (uint32_t i = 0; i < cpu.slot_count; i++) {
		struct slot *slot = &cpu.slots[i];

		if (!slot->target)
			continue;
		if (takers != cpu.told_takers)
			os_file_drops(slot->file, "cpu takers", takers - cpu.told_takers, slot->lost_since_ns, now_ns);
		tell_losses(slot, now_ns);
	}
	cpu.stats.lost += takers - cpu.told_takers;
	cpu.told_takers = takers;
}

static void cpu_tick(uint64_t now_ns)
{
	drain(now_ns);
}

static void cpu_flush(void)
{
	if (cpu.skel)
		drain(clock_mono_ns());
}

/* The kernel's side wakes us early when the ring is half full. */
static void ring_ready(int fd, void *arg)
{
	ring_buffer__consume(cpu.ring);
}

/* --- threads that are there already ------------------------------------------------------------------------------------ */

/* CPU time and run delay so far, from schedstat. */
static void thread_times(uint32_t tgid, uint32_t tid, uint64_t *ran_ns, uint64_t *delay_ns)
{
	unsigned long long ran = 0, delay = 0;
	char path[64], text[96];

	snprintf(path, sizeof(path), "/proc/%u/task/%u/schedstat", tgid, tid);
	if (sys_read_file(path, text, sizeof(text)) > 0 && sscanf(text, "%llu %llu", &ran, &delay) != 2)
		ran = delay = 0;
	*ran_ns = ran;
	*delay_ns = delay;
}

/* Return: 1 = it is new, 0 = known, -errno. */
static int follow_thread(uint32_t slot, uint32_t tgid, uint32_t tid)
{
	int queue = bpf_map__fd(cpu.skel->maps.free_tasks);
	unsigned short *number, none = 0;
	struct cpu_task *task;
	uint64_t ran, delay;
	uint32_t mine = 0;

	if (tid >= cpu.tid_max)
		return -ERANGE;
	number = &cpu.tids[tid / CPU_TIDS].task[tid % CPU_TIDS];
	if (__atomic_load_n(number, __ATOMIC_ACQUIRE))
		return 0;
	if (bpf_map_lookup_and_delete_elem(queue, NULL, &mine) < 0)
		return -E2BIG;
	thread_times(tgid, tid, &ran, &delay);
	task = &cpu.tasks[mine];
	*task = (struct cpu_task){ .tid = tid,
				   .slot = slot,
				   .tgid = tgid,
				   .flags = CPU_F_FIRST | CPU_F_UNSEEN,
				   .off_ns = clock_mono_ns(),
				   .ran_ns = ran,
				   .delay_off_ns = delay };
	/* release: whoever sees the number sees what is behind it */
	if (__atomic_compare_exchange_n(number, &none, (unsigned short)mine, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
		return 1;
	task->tid = 0;
	bpf_map_update_elem(queue, NULL, &mine, BPF_ANY);
	return 0;
}

static int scan_threads(uint32_t slot, uint32_t tgid, int *found)
{
	struct dirent *entry;
	char path[32];
	int ret = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%u/task", tgid);
	dir = opendir(path);
	if (!dir)
		return -ESRCH;
	*found = 0;
	while (ret >= 0 && (entry = readdir(dir))) {
		uint64_t tid;

		if (num_u64(entry->d_name, &tid) < 0)
			continue;
		ret = follow_thread(slot, tgid, (uint32_t)tid);
		*found += ret > 0;
	}
	closedir(dir);
	return ret < 0 ? ret : 0;
}

/* Those that are born meanwhile of one that is followed already follow by themselves (on_fork); others in the next scan. */
static int follow_process(uint32_t slot, uint32_t tgid, struct st_err *err)
{
	int found = 1, ret = 0;

	cpu.skel->bss->maybe[tgid & (CPU_MAYBE - 1)] = 1;
	for (int i = 0; i < SCANS && found && ret == 0; i++)
		ret = scan_threads(slot, tgid, &found);
	if (ret == -ESRCH)
		return err_set(err, ret, "process %u has ended", tgid);
	if (ret == -E2BIG)
		return err_set(err, ret, "more than %d threads to follow at once", CPU_TASKS);
	return ret < 0 ? err_set(err, ret, "cannot follow the threads of process %u: %s", tgid, strerror(-ret)) : 0;
}

/* The children that the process has already: data loader workers record into its file, too. */
static int follow_children(uint32_t slot, uint32_t tgid, struct st_err *err)
{
	char path[64], text[65536], *at, *end;

	snprintf(path, sizeof(path), "/proc/%u/task/%u/children", tgid, tgid);
	if (sys_read_file(path, text, sizeof(text)) <= 0)
		return 0;
	for (at = text; *at; at = end) {
		unsigned long pid = strtoul(at, &end, 10);
		int ret;

		if (end == at)
			break;
		ret = follow_process(slot, (uint32_t)pid, err);
		if (ret < 0 && ret != -ESRCH)
			return ret;
	}
	return 0;
}

/* --- threads at the end of a capture ------------------------------------------------------------------------------------ */

static void read_comm(uint32_t tgid, uint32_t tid, char *comm)
{
	char path[64], text[64];

	snprintf(path, sizeof(path), "/proc/%u/task/%u/comm", tgid, tid);
	comm[0] = '\0';
	if (sys_read_file(path, text, sizeof(text)) > 0)
		snprintf(comm, CPU_COMM, "%.*s", (int)strcspn(text, "\n"), text);
}

/* Where a thread stands when the capture ends: its last span, cut there. */
static void put_open(struct slot *slot, uint32_t tid, const struct cpu_task *task, uint64_t now_ns)
{
	struct cpu_cycle ev = {
		.tgid = task->tgid,
		.tid = tid,
		.off_ns = task->off_ns,
		.on_ns = task->on_ns,
		.out_ns = now_ns,
		.delay_off_ns = task->delay_off_ns,
		.irq_ns = task->irq_ns,
		.softirq_ns = task->softirq_ns,
		.nxt_tid = task->nxt_tid,
		.nxt_tgid = task->nxt_tgid,
		.waker_tid = task->woken ? task->waker_tid : 0,
		.state = task->state,
		.irqs = task->irqs,
		.softirqs = task->softirqs,
		.cpu = task->cpu,
		.from_cpu = task->from_cpu,
		.migrations = task->migrations,
		.flags = (unsigned short)(task->flags | (task->woken ? CPU_F_WOKEN : 0)),
	};
	uint64_t ran, delay;
	bool is_on = task->on_ns > task->off_ns;

	thread_times(task->tgid, tid, &ran, &delay);
	ev.delay_out_ns = delay;
	memcpy(ev.nxt_comm, task->nxt_comm, CPU_COMM);
	memcpy(ev.waker_comm, task->waker_comm, CPU_COMM);
	read_comm(task->tgid, tid, ev.comm);
	if (!ev.comm[0])
		return; /* gone without a last switch that we saw */
	/* never seen leaving or coming: its CPU time tells which */
	if (!task->on_ns && task->flags & CPU_F_UNSEEN && ran > task->ran_ns) {
		is_on = true;
		ev.on_ns = ev.off_ns;
	}
	put_cycle(slot, &ev, is_on ? OS_ON_OPEN : OS_OFF_OPEN);
}

static void unfollow(uint32_t index, bool tell)
{
	int queue = bpf_map__fd(cpu.skel->maps.free_tasks);
	uint64_t now_ns = clock_mono_ns();

	for (uint32_t number = 1; number < CPU_TASKS; number++) {
		struct cpu_task task = cpu.tasks[number];
		unsigned short *where;

		if (!task.tid || task.slot != index || task.tid >= cpu.tid_max)
			continue;
		where = &cpu.tids[task.tid / CPU_TIDS].task[task.tid % CPU_TIDS];
		if (__atomic_exchange_n(where, 0, __ATOMIC_ACQ_REL) != number)
			continue; /* it ended this very moment, and its entry is free already */
		if (tell)
			put_open(&cpu.slots[index], task.tid, &task, now_ns);
		cpu.tasks[number].tid = 0;
		bpf_map_update_elem(queue, NULL, &number, BPF_ANY);
	}
}

/* --- slots ------------------------------------------------------------------------------------------------------------- */

static int slot_of(const struct probe_target *target)
{
	for (uint32_t i = 0; i < cpu.slot_count; i++)
		if (cpu.slots[i].target == target)
			return (int)i;
	return -1;
}

static int slot_new(struct probe_target *target, struct st_err *err)
{
	for (uint32_t n = 0; n < TAKERS_SLOT; n++) {
		uint32_t i = (cpu.next_slot + n) % TAKERS_SLOT;

		if (cpu.slots[i].target)
			continue;
		cpu.slots[i] = (struct slot){ .target = target,
					      .file = os_file_get(target),
					      .told_lost = cpu.skel->bss->lost[i],
					      .lost_since_ns = clock_mono_ns() };
		if (!cpu.slots[i].file)
			break;
		cpu.next_slot = i + 1;
		cpu.slot_count = i + 1 > cpu.slot_count ? i + 1 : cpu.slot_count;
		return (int)i;
	}
	return err_set(err, -ENOMEM, "out of memory, or more than %d processes at once", TAKERS_SLOT);
}

static void slot_free(uint32_t index, bool tell)
{
	struct slot *slot = &cpu.slots[index];

	ring_buffer__consume(cpu.ring);
	unfollow(index, tell);
	ring_buffer__consume(cpu.ring);
	tell_losses(slot, clock_mono_ns());
	os_file_drop(slot->file);
	*slot = (struct slot){ 0 };
}

/* --- loading ------------------------------------------------------------------------------------------------------------ */

static int libbpf_says(enum libbpf_print_level level, const char *format, va_list ap)
{
	char text[400];

	if (level > LIBBPF_WARN)
		return 0;
	vsnprintf(text, sizeof(text), format, ap);
	text[strcspn(text, "\n")] = '\0';
	probe_log("%s", text);
	return 0;
}

static uint64_t ring_size(const struct probe_session *session)
{
	uint64_t kb = 0, bytes = 64 << 10;

	num_u64(probe_param(session, "buffer_kb"), &kb);
	while (bytes < kb << 10 && bytes < 1u << 30)
		bytes <<= 1;
	return bytes;
}

static void unload(void)
{
	if (cpu.ring)
		probe_unwatch(ring_buffer__epoll_fd(cpu.ring));
	ring_buffer__free(cpu.ring);
	if (cpu.tasks)
		munmap(cpu.tasks, TASKS_BYTES);
	if (cpu.tids)
		munmap(cpu.tids, cpu.tids_bytes);
	cpu_bpf__destroy(cpu.skel);
	cpu.tasks = NULL;
	cpu.tids = NULL;
	cpu.ring = NULL;
	cpu.skel = NULL;
	cpu.slot_count = cpu.next_slot = 0;
	cpu.told_takers = 0;
}

static void *share(const struct bpf_map *map, size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, bpf_map__fd(map), 0);

	return at == MAP_FAILED ? NULL : at;
}

/* The tables of threads, seen from here, and all of their entries free. */
static int share_tables(void)
{
	int queue = bpf_map__fd(cpu.skel->maps.free_tasks);

	cpu.tasks = share(cpu.skel->maps.tasks, TASKS_BYTES);
	cpu.tids = share(cpu.skel->maps.tids, cpu.tids_bytes);
	if (!cpu.tasks || !cpu.tids)
		return -errno;
	for (uint32_t number = 1; number < CPU_TASKS; number++)
		if (bpf_map_update_elem(queue, NULL, &number, BPF_ANY) < 0)
			return -errno;
	return 0;
}

static uint32_t highest_tid(void)
{
	char text[32];
	uint64_t most;

	if (sys_read_file("/proc/sys/kernel/pid_max", text, sizeof(text)) <= 0)
		return PID_LIMIT;
	text[strcspn(text, "\n")] = '\0';
	return num_u64(text, &most) == 0 && most <= PID_LIMIT ? (uint32_t)most : PID_LIMIT;
}

static int load(const struct probe_session *session, struct st_err *err)
{
	int ret;

	libbpf_set_print(libbpf_says);
	cpu.skel = cpu_bpf__open();
	if (!cpu.skel)
		return err_set(err, -errno, "cannot prepare the eBPF programs: %s", strerror(errno));
	cpu.ring_bytes = ring_size(session);
	cpu.skel->rodata->wake_at = cpu.ring_bytes / 2;
	bpf_map__set_max_entries(cpu.skel->maps.ring, (uint32_t)cpu.ring_bytes);
	cpu.tid_max = highest_tid();
	cpu.tids_bytes = whole_pages((cpu.tid_max / CPU_TIDS + 1) * sizeof(struct cpu_tids));
	bpf_map__set_max_entries(cpu.skel->maps.tids, cpu.tid_max / CPU_TIDS + 1);
	ret = cpu_bpf__load(cpu.skel);
	if (ret == 0)
		ret = share_tables();
	if (ret == 0)
		ret = cpu_bpf__attach(cpu.skel);
	if (ret < 0) {
		unload();
		return err_set(err, ret, "the kernel refuses the eBPF programs: %s (the probe's log says more)",
			       strerror(-ret));
	}
	cpu.ring = ring_buffer__new(bpf_map__fd(cpu.skel->maps.ring), on_event, NULL, NULL);
	ret = cpu.ring ? probe_watch(ring_buffer__epoll_fd(cpu.ring), ring_ready, NULL) : -ENOMEM;
	if (ret < 0) {
		unload();
		return err_set(err, ret, "cannot read the eBPF ring: %s", strerror(-ret));
	}
	return 0;
}

/* --- the frame's callbacks ---------------------------------------------------------------------------------------------- */

static int add_target(struct probe_target *target, struct st_err *err)
{
	int slot = slot_new(target, err), ret;

	if (slot < 0)
		return slot;
	if (!target->pid)
		return 0;
	ret = follow_process((uint32_t)slot, (uint32_t)target->pid, err);
	if (ret == 0)
		ret = follow_children((uint32_t)slot, (uint32_t)target->pid, err);
	if (ret < 0)
		slot_free((uint32_t)slot, false);
	return ret;
}

static void cpu_remove(struct probe_session *session, struct probe_target *target)
{
	int slot = slot_of(target);

	if (slot >= 0)
		slot_free((uint32_t)slot, true);
}

static void cpu_stop(struct probe_session *session)
{
	for (size_t i = 0; i < session->target_count; i++)
		cpu_remove(session, session->targets[i]);
	if (--cpu.users == 0)
		unload();
}

static int cpu_start(struct probe_session *session, char *note, struct st_err *err)
{
	int ret = cpu.users ? 0 : load(session, err);
	size_t gone = 0;

	if (ret < 0)
		return ret;
	cpu.users++;
	for (size_t i = 0; i < session->target_count && ret == 0; i++) {
		ret = add_target(session->targets[i], err);
		if (ret == -ESRCH) {
			gone++;
			ret = 0;
		}
	}
	if (ret == 0 && gone == session->target_count)
		ret = err->code;
	if (ret < 0)
		cpu_stop(session);
	return ret;
}

static void cpu_status(struct probe_stats *stats)
{
	*stats = cpu.stats;
	stats->bytes = os_file_bytes();
	if (!cpu.skel)
		return;
	stats->buffer_bytes = cpu.ring_bytes + TASKS_BYTES + cpu.tids_bytes;
	for (uint32_t i = 0; i < cpu.slot_count; i++)
		if (cpu.slots[i].target)
			stats->lost += cpu.skel->bss->lost[i] - cpu.slots[i].told_lost + cpu.slots[i].undone;
	if (stats->lost)
		snprintf(stats->text, sizeof(stats->text),
			 "events were lost: a larger buffer_kb= holds more (it is %llu KB), or the disk is full",
			 (unsigned long long)cpu.ring_bytes >> 10);
}

const struct probe_kind probe_cpu = {
	.plugin = PLUGIN_CPU,
	.group = "os",
	.targets = PROBE_EVERY,
	.tick_ms = TICK_MS,
	.check = cpu_check,
	.start = cpu_start,
	.stop = cpu_stop,
	.remove = cpu_remove,
	.tick = cpu_tick,
	.flush = cpu_flush,
	.status = cpu_status,
};
#endif
