/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The plugin Mutex for processes without an agent: bpf/lock.bpf.c on the C library's functions, into the same file as the
 * agent's. A call costs two traps (docs/overhead.md), so the agent is the better way wherever it is loaded.
 */
#ifdef HAVE_BPF
#include "base/num.h"
#include "probe/bpf/lock.h"
#include "probe/bpf/lock.skel.h"
#include "probe/bpf_load.h"
#include "probe/chrome_file.h"
#include "probe/quick_probe.h"
#include "probe/user_code.h"
#include "safe/clock.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TICK_MS 200u
#define NO_PROBE 524 /* the kernel's ENOTSUPP: an instruction that it cannot replace */

_Static_assert(LOCK_PROGRAMS == LOCK_CALL_COUNT, "a pair of programs for each call of wire/record.h");

static const struct {
	const char *symbol;
	enum lock_kind kind;
} calls[LOCK_CALL_COUNT] = {
	[LOCK_MUTEX_LOCK] = { "pthread_mutex_lock", LOCK_KIND_MUTEX },
	[LOCK_MUTEX_TRYLOCK] = { "pthread_mutex_trylock", LOCK_KIND_TRY },
	[LOCK_MUTEX_TIMEDLOCK] = { "pthread_mutex_timedlock", LOCK_KIND_MUTEX },
	[LOCK_MUTEX_CLOCKLOCK] = { "pthread_mutex_clocklock", LOCK_KIND_MUTEX },
	[LOCK_RDLOCK] = { "pthread_rwlock_rdlock", LOCK_KIND_READ },
	[LOCK_TRYRDLOCK] = { "pthread_rwlock_tryrdlock", LOCK_KIND_TRY },
	[LOCK_TIMEDRDLOCK] = { "pthread_rwlock_timedrdlock", LOCK_KIND_READ },
	[LOCK_CLOCKRDLOCK] = { "pthread_rwlock_clockrdlock", LOCK_KIND_READ },
	[LOCK_WRLOCK] = { "pthread_rwlock_wrlock", LOCK_KIND_WRITE },
	[LOCK_TRYWRLOCK] = { "pthread_rwlock_trywrlock", LOCK_KIND_TRY },
	[LOCK_TIMEDWRLOCK] = { "pthread_rwlock_timedwrlock", LOCK_KIND_WRITE },
	[LOCK_CLOCKWRLOCK] = { "pthread_rwlock_clockwrlock", LOCK_KIND_WRITE },
	[LOCK_SPIN_LOCK] = { "pthread_spin_lock", LOCK_KIND_SPIN },
	[LOCK_SPIN_TRYLOCK] = { "pthread_spin_trylock", LOCK_KIND_TRY },
	[LOCK_TIMEDJOIN] = { "pthread_timedjoin_np", LOCK_KIND_WAIT },
	[LOCK_CLOCKJOIN] = { "pthread_clockjoin_np", LOCK_KIND_WAIT },
	[LOCK_TRYJOIN] = { "pthread_tryjoin_np", LOCK_KIND_TRY },
	[LOCK_YIELD] = { "sched_yield", LOCK_KIND_NONE }, /* pthread_yield calls it */
	[LOCK_SEM_WAIT] = { "sem_wait", LOCK_KIND_SEM },
	[LOCK_SEM_TIMEDWAIT] = { "sem_timedwait", LOCK_KIND_SEM },
	[LOCK_SEM_CLOCKWAIT] = { "sem_clockwait", LOCK_KIND_SEM },
	[LOCK_SEM_TRYWAIT] = { "sem_trywait", LOCK_KIND_TRY },
	[LOCK_COND_WAIT] = { "pthread_cond_wait", LOCK_KIND_WAIT },
	[LOCK_COND_TIMEDWAIT] = { "pthread_cond_timedwait", LOCK_KIND_WAIT },
	[LOCK_COND_CLOCKWAIT] = { "pthread_cond_clockwait", LOCK_KIND_WAIT },
};

struct mutex_target {
	struct probe_target *target;
	struct chrome_file *file;
	struct user_probe probes[2 * LOCK_PROGRAMS];
	struct mutex_target *next;
};

static struct {
	struct lock_bpf *skel; /* NULL = not loaded */
	uint32_t session; /* attach type of its one program for all calls; 0 = a pair of programs for each */
	struct ring_buffer *ring;
	struct mutex_target *targets;
	uint64_t drops_told, since_ns, tick_ns;
	struct probe_stats stats;
} mutex;

/* --- events into the file ----------------------------------------------------------------------------------------- */

static struct mutex_target *find(uint32_t pid)
{
	struct mutex_target *mine = mutex.targets;

	while (mine && (uint32_t)mine->target->pid != pid)
		mine = mine->next;
	return mine;
}

static void put(struct mutex_target *mine, const struct rec_lock *rec, uint32_t pid, uint32_t tid, const char *comm)
{
	if (chrome_file_put(mine->file, &rec->head, pid, tid, comm) == 0)
		mutex.stats.records++;
	else
		mutex.stats.lost++;
}

/* Semaphores return -1 and leave the reason in errno, where it is not seen from outside. */
static int32_t result_of(const struct lock_event *event)
{
	if (event->result >= 0)
		return event->result;
	if (event->call == LOCK_SEM_TRYWAIT)
		return EAGAIN; /* nothing else happens to a valid one */
	return event->call == LOCK_SEM_WAIT ? EINTR : -1;
}

static void put_event(struct mutex_target *mine, const struct lock_event *event)
{
	char comm[sizeof(event->comm) + 1] = "";
	struct rec_lock rec = {
		.head = { .bytes = sizeof(rec), .type = REC_LOCK, .step = (uint32_t)probe_target_step(mine->target) },
		.begin_ns = event->begin_ns,
		.dur_ns = event->dur_ns,
		.address = event->address,
		.caller = event->caller,
		.owner = event->owner,
		.result = result_of(event),
		.call = (uint16_t)event->call,
		.repeats = event->repeats,
	};

	memcpy(comm, event->comm, sizeof(event->comm));
	put(mine, &rec, event->pid, event->tid, comm);
}

static int take(void *ctx, void *data, size_t bytes)
{
	const struct lock_event *event = data;
	struct mutex_target *mine = bytes >= sizeof(*event) ? find(event->target) : NULL;

	if (mine && event->call < LOCK_CALL_COUNT)
		put_event(mine, event);
	return 0;
}

static void tell_drops(void)
{
	int cpus = libbpf_num_possible_cpus();
	uint64_t *counts = cpus > 0 ? calloc((size_t)cpus, sizeof(*counts)) : NULL, lost = 0;
	uint64_t now_ns = clock_mono_ns(), more;
	uint32_t zero = 0;

	if (counts && bpf_map_lookup_elem(bpf_map__fd(mutex.skel->maps.lost), &zero, counts) == 0)
		for (int i = 0; i < cpus; i++)
			lost += counts[i];
	free(counts);
	more = lost - mutex.drops_told;
	if (more && lost > mutex.drops_told) {
		for (struct mutex_target *mine = mutex.targets; mine; mine = mine->next)
			chrome_file_drops(mine->file, more, mutex.since_ns, now_ns);
		mutex.stats.lost += more;
		mutex.drops_told = lost;
	}
	mutex.since_ns = now_ns;
}

static void mutex_tick(uint64_t now_ns)
{
	if (!mutex.skel)
		return;
	ring_buffer__consume(mutex.ring);
	tell_drops();
	for (struct mutex_target *mine = mutex.targets; mine; mine = mine->next)
		if (chrome_file_write(mine->file, &mutex.stats.lost) < 0)
			mutex.stats.failures++;
}

static void mutex_flush(void)
{
	mutex_tick(clock_mono_ns());
}

static void ring_ready(int fd, void *arg)
{
	ring_buffer__consume(mutex.ring);
}

/* --- loading ------------------------------------------------------------------------------------------------------- */

static int mutex_check(struct st_err *err)
{
	return bpf_load_check("recording locks of a process without an agent", err);
}

static void fill_layout(struct lock_bpf *skel)
{
	skel->rodata->layout = (struct lock_layout){
		.mutex_lock = offsetof(pthread_mutex_t, __data.__lock),
		.mutex_owner = offsetof(pthread_mutex_t, __data.__owner),
		.rwlock_readers = offsetof(pthread_rwlock_t, __data.__readers),
		.rwlock_writer = offsetof(pthread_rwlock_t, __data.__cur_writer),
		.sem_value = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? 0 : 4, /* the lower half of 64 bits */
	};
	for (int i = 0; i < LOCK_CALL_COUNT; i++)
		skel->rodata->kinds[i] = calls[i].kind;
}

/* Programs are loaded for one way of attaching. */
static void choose_programs(struct lock_bpf *skel)
{
	uint32_t multi;
	char name[16];

	if (!user_code_many(&multi, &mutex.session))
		mutex.session = 0;
	bpf_program__set_autoload(skel->progs.session, mutex.session != 0);
	if (!mutex.session)
		return;
	bpf_program__set_expected_attach_type(skel->progs.session, (enum bpf_attach_type)mutex.session);
	for (int i = 0; i < 2 * LOCK_PROGRAMS; i++) {
		snprintf(name, sizeof(name), i % 2 ? "end_%d" : "begin_%d", i / 2);
		bpf_program__set_autoload(bpf_object__find_program_by_name(skel->obj, name), false);
	}
}

static void unload(void)
{
	if (mutex.ring)
		probe_unwatch(ring_buffer__epoll_fd(mutex.ring));
	ring_buffer__free(mutex.ring);
	lock_bpf__destroy(mutex.skel);
	mutex.ring = NULL;
	mutex.skel = NULL;
	mutex.drops_told = 0;
}

static int load(struct st_err *err)
{
	int ret;

	bpf_load_begin();
	mutex.skel = lock_bpf__open();
	if (!mutex.skel)
		return bpf_load_failed(-errno, "cannot open the eBPF program of Mutex", err);
	fill_layout(mutex.skel);
	choose_programs(mutex.skel);
	ret = lock_bpf__load(mutex.skel);
	if (ret < 0) {
		bpf_load_failed(ret, "the kernel refuses the eBPF program of Mutex", err);
		unload();
		return ret;
	}
	mutex.ring = ring_buffer__new(bpf_map__fd(mutex.skel->maps.events), take, NULL, NULL);
	ret = mutex.ring ? probe_watch(ring_buffer__epoll_fd(mutex.ring), ring_ready, NULL) : -errno;
	if (ret < 0) {
		err_set(err, ret, "cannot read the ring buffer of Mutex: %s", strerror(-ret));
		unload();
		return ret;
	}
	mutex.stats.buffer_bytes = bpf_map__max_entries(mutex.skel->maps.events);
	mutex.since_ns = clock_mono_ns();
	return 0;
}

/* --- targets ------------------------------------------------------------------------------------------------------- */

/* The programs of a call, begin_<n> and end_<n>. */
static struct bpf_program *program_of(int call, bool at_return)
{
	char name[16];

	snprintf(name, sizeof(name), at_return ? "end_%d" : "begin_%d", call);
	return bpf_object__find_program_by_name(mutex.skel->obj, name);
}

#define FUNCTION_MAX 16384u /* bytes; the largest of these functions has some 3000 */

/*
 * The kernel puts no uprobe on an instruction with the prefix `lock`, and pthread_spin_lock of x86_64 begins with
 * `lock decl (%rdi)`: the one behind it is as good, except that a lock which was free reads 0 there. Other functions are
 * probed where that is quick.
 */
static void choose_place(const struct user_code *code, struct elf_find *function)
{
#if defined(__x86_64__)
	static const uint8_t lock_decl[] = { 0xf0, 0xff, 0x0f };
	static uint8_t text[FUNCTION_MAX];
	size_t bytes = function->bytes < sizeof(text) ? function->bytes : sizeof(text);

	if (!function->found || !function->offset || bytes < function->bytes ||
	    pread(code->fd, text, bytes, (off_t)function->offset) != (ssize_t)bytes)
		return;
	if (bytes > sizeof(lock_decl) && memcmp(text, lock_decl, sizeof(lock_decl)) == 0)
		function->offset += sizeof(lock_decl);
	else
		function->offset += quick_probe(text, bytes);
#endif
}

/* A function that this kernel cannot probe is left out and told. Return: 0, or the error. */
static int left_out(const struct mutex_target *mine, int call, char *note, const struct st_err *err)
{
	if (err->code != -NO_PROBE)
		return err->code;
	probe_log("%s", err->text);
	snprintf(note, 256, "%s cannot be seen in process %d", calls[call].symbol, mine->target->pid);
	return 0;
}

static int attach_pair(struct mutex_target *mine, const struct user_code *code, const struct elf_find *find, int call,
		       struct st_err *err)
{
	struct user_probe *probes = &mine->probes[2 * call];
	int ret;

	/* the return first: with the entry alone a call would seem to last for ever */
	ret = calls[call].kind == LOCK_KIND_NONE
		      ? 0
		      : user_code_attach(&probes[1], code, find, mine->target->pid, program_of(call, true), true, err);
	if (ret == 0)
		ret = user_code_attach(&probes[0], code, find, mine->target->pid, program_of(call, false), false, err);
	return ret;
}

static int attach(struct mutex_target *mine, const struct user_code *code, const struct elf_find *finds, char *note,
		  struct st_err *err)
{
	uint64_t offsets[LOCK_CALL_COUNT], cookies[LOCK_CALL_COUNT];
	pid_t pid = mine->target->pid;
	size_t count = 0;
	int ret = 0;

	for (uint64_t i = 0; i < LOCK_CALL_COUNT; i++) {
		if (!finds[i].found || !finds[i].offset)
			continue;
		offsets[count] = finds[i].offset;
		cookies[count++] = i;
	}
	if (mutex.session && user_code_attach_many(&mine->probes[0], code, offsets, cookies, count, pid,
						   mutex.skel->progs.session, mutex.session, false, err) == 0)
		return 0;
	for (size_t at = 0; at < count && ret == 0; at++) {
		int call = (int)cookies[at];

		ret = mutex.session ? user_code_attach_many(&mine->probes[at], code, &offsets[at], &cookies[at], 1, pid,
							    mutex.skel->progs.session, mutex.session, false, err)
				    : attach_pair(mine, code, &finds[call], call, err);
		if (ret < 0)
			ret = left_out(mine, call, note, err);
	}
	return ret;
}

/* The functions of this process's C library, and what its locks look like. */
static int attach_libc(struct mutex_target *mine, uint64_t min_ns, char *note, struct st_err *err)
{
	struct elf_find finds[LOCK_CALL_COUNT + 1];
	struct lock_target target = { .min_ns = min_ns };
	uint32_t pid = (uint32_t)mine->target->pid;
	struct user_code code = { .fd = -1 };
	struct mappings maps = { 0 };
	uint64_t dev, ino;
	int ret;

	for (int i = 0; i < LOCK_CALL_COUNT; i++)
		finds[i] = (struct elf_find){ .name = calls[i].symbol };
	finds[LOCK_CALL_COUNT] = (struct elf_find){ .name = "strfromd" }; /* as new as today's rwlocks: glibc 2.25 */
	ret = mappings_read(&maps, pid);
	if (ret < 0)
		err_set(err, ret, "cannot read the mappings of process %u: %s", pid, strerror(-ret));
	else
		ret = user_code_libc(&code, &maps, finds, LOCK_CALL_COUNT + 1, err);
	mappings_fini(&maps);
	if (ret < 0)
		return ret;
	/* a libpthread of its own (before 2.34) lacks strfromd whatever its age; the clock variants came with 2.30 */
	target.old_rwlock = !finds[LOCK_CALL_COUNT].found && !finds[LOCK_CLOCKRDLOCK].found;
	for (int i = 0; i < LOCK_CALL_COUNT; i++)
		choose_place(&code, &finds[i]);
	user_code_namespace(mine->target->pid, &dev, &ino);
	target.ns_dev = dev;
	target.ns_ino = ino;
	ret = bpf_map_update_elem(bpf_map__fd(mutex.skel->maps.targets), &pid, &target, BPF_ANY);
	if (ret < 0)
		err_set(err, ret, "too many processes are recorded at once: %s", strerror(-ret));
	else
		ret = attach(mine, &code, finds, note, err);
	user_code_close(&code);
	return ret;
}

static void free_target(struct mutex_target *mine)
{
	struct mutex_target **at = &mutex.targets;

	while (*at && *at != mine)
		at = &(*at)->next;
	if (*at)
		*at = mine->next;
	chrome_file_free(mine->file);
	free(mine);
}

static void detach(struct mutex_target *mine)
{
	uint32_t pid = (uint32_t)mine->target->pid;

	bpf_map_delete_elem(bpf_map__fd(mutex.skel->maps.targets), &pid);
	user_code_detach(mine->probes, 2 * LOCK_PROGRAMS);
}

static int begin_target(struct probe_target *target, uint64_t min_ns, char *note, struct st_err *err)
{
	struct mutex_target *mine;
	int ret = user_code_may_return(target->pid, err);

	if (ret < 0)
		return ret;
	mine = calloc(1, sizeof(*mine));
	if (mine)
		mine->file = chrome_file_new(target, &sink_mutex);
	if (!mine || !mine->file) {
		free(mine);
		return err_set(err, -ENOMEM, "out of memory");
	}
	mine->target = target;
	mine->next = mutex.targets;
	mutex.targets = mine;
	ret = attach_libc(mine, min_ns, note, err);
	if (ret < 0) {
		detach(mine);
		free_target(mine);
	}
	return ret;
}

/* Failures in a row whose thread has not come again. */
static void take_rows(struct mutex_target *mine)
{
	int threads = bpf_map__fd(mutex.skel->maps.threads);
	uint32_t tid, *before = NULL, last;
	struct lock_thread thread;

	while (bpf_map_get_next_key(threads, before, &tid) == 0) {
		last = tid;
		before = &last;
		if (bpf_map_lookup_elem(threads, &tid, &thread) < 0 || thread.row.target != (uint32_t)mine->target->pid)
			continue;
		if (thread.row.repeats)
			put_event(mine, &thread.row);
	}
}

/* How often each function was called, the unstored calls included. */
static void put_counts(struct mutex_target *mine)
{
	int counts = bpf_map__fd(mutex.skel->maps.counts);
	uint32_t pid = (uint32_t)mine->target->pid;

	for (uint32_t call = 0; call < LOCK_CALL_COUNT; call++) {
		uint64_t key = (uint64_t)pid << 32 | call;
		struct rec_lock rec = {
			.head = { .bytes = sizeof(rec), .type = REC_LOCK, .flags = LOCK_COUNTED },
			.begin_ns = clock_mono_ns(),
			.call = (uint16_t)call,
		};

		if (bpf_map_lookup_elem(counts, &key, &rec.address) < 0)
			continue;
		bpf_map_delete_elem(counts, &key);
		put(mine, &rec, mine->target->inner_pid, mine->target->inner_pid, "");
	}
}

static void end_target(struct probe_target *target)
{
	struct mutex_target *mine = find((uint32_t)target->pid);

	if (!mine)
		return;
	detach(mine);
	ring_buffer__consume(mutex.ring);
	take_rows(mine);
	tell_drops();
	put_counts(mine);
	mutex.stats.bytes += chrome_file_bytes(mine->file);
	free_target(mine);
}

static void mutex_remove(struct probe_session *session, struct probe_target *target)
{
	end_target(target);
}

static void mutex_stop(struct probe_session *session)
{
	for (size_t i = 0; i < session->target_count; i++)
		end_target(session->targets[i]);
	if (!mutex.targets)
		unload();
}

static int mutex_start(struct probe_session *session, char *note, struct st_err *err)
{
	uint64_t min_us = 1;
	bool stacks = false;
	size_t begun = 0;
	int ret = mutex.skel ? 0 : load(err);

	num_u64(probe_param(session, "min_us"), &min_us);
	while (begun < session->target_count && ret == 0) {
		ret = begin_target(session->targets[begun], min_us * 1000, note, err);
		begun += ret == 0;
	}
	if (ret == 0) {
		if (probe_param(session, "stack") && num_bool(probe_param(session, "stack"), &stacks) == 0 && stacks)
			snprintf(note, 256, "without stacks, which need the agent in the process");
		if (!*note)
			snprintf(note, 256, "by uprobes: each lock call costs some microseconds (docs/overhead.md)");
		return 0;
	}
	while (begun)
		end_target(session->targets[--begun]);
	if (!mutex.targets && mutex.skel)
		unload();
	return ret;
}

static void mutex_status(struct probe_stats *stats)
{
	*stats = mutex.stats;
	for (struct mutex_target *mine = mutex.targets; mine; mine = mine->next)
		stats->bytes += chrome_file_bytes(mine->file);
}

const struct probe_kind probe_mutex = {
	.plugin = PLUGIN_MUTEX,
	.group = "lock",
	.targets = PROBE_WITHOUT_AGENT,
	.tick_ms = TICK_MS,
	.check = mutex_check,
	.start = mutex_start,
	.stop = mutex_stop,
	.remove = mutex_remove,
	.tick = mutex_tick,
	.flush = mutex_flush,
	.status = mutex_status,
};
#endif
