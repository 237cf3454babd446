/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The plugin GIL for processes without an agent: bpf/gil.bpf.c on three functions of the C library, gil_track.c to
 * understand them, into the same file as the agent's.
 */
#ifdef HAVE_BPF
#include "probe/bpf/gil.h"
#include "probe/bpf/gil.skel.h"
#include "probe/bpf_load.h"
#include "probe/chrome_file.h"
#include "probe/gil_track.h"
#include "probe/user_code.h"
#include "safe/clock.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TICK_MS 200u
#define LINKS 5

struct gil_process {
	struct probe_target *target;
	struct chrome_file *file;
	struct gil_track track;
	struct user_probe probes[LINKS];
	struct gil_process *next;
};

static struct {
	struct gil_bpf *skel; /* NULL = not loaded */
	uint32_t multi; /* attach type of its programs; 0 = perf */
	struct ring_buffer *ring;
	struct gil_process *processes;
	uint64_t drops_told, since_ns;
	struct probe_stats stats;
} gil;

/* --- events into the file ----------------------------------------------------------------------------------------- */

static struct gil_process *find(uint32_t pid)
{
	struct gil_process *mine = gil.processes;

	while (mine && (uint32_t)mine->target->pid != pid)
		mine = mine->next;
	return mine;
}

static void put(void *ctx, const struct gil_event *event, const struct rec_gil *rec)
{
	struct gil_process *mine = ctx;
	char comm[sizeof(event->comm) + 1] = "";

	memcpy(comm, event->comm, sizeof(event->comm));
	if (chrome_file_put(mine->file, &rec->head, event->pid, event->tid, comm) == 0)
		gil.stats.records++;
	else
		gil.stats.lost++;
}

static int take(void *ctx, void *data, size_t bytes)
{
	const struct gil_event *event = data;
	struct gil_process *mine = bytes >= sizeof(*event) ? find(event->target) : NULL;

	if (mine && gil_track_event(&mine->track, event, put, mine) < 0)
		gil.stats.lost++;
	return 0;
}

static void tell_drops(void)
{
	int cpus = libbpf_num_possible_cpus();
	uint64_t *counts = cpus > 0 ? calloc((size_t)cpus, sizeof(*counts)) : NULL, lost = 0;
	uint64_t now_ns = clock_mono_ns();
	uint32_t zero = 0;

	if (counts && bpf_map_lookup_elem(bpf_map__fd(gil.skel->maps.lost), &zero, counts) == 0)
		for (int i = 0; i < cpus; i++)
			lost += counts[i];
	free(counts);
	if (lost > gil.drops_told) {
		for (struct gil_process *mine = gil.processes; mine; mine = mine->next) {
			chrome_file_drops(mine->file, lost - gil.drops_told, gil.since_ns, now_ns);
			gil_track_lost(&mine->track);
		}
		gil.stats.lost += lost - gil.drops_told;
		gil.drops_told = lost;
	}
	gil.since_ns = now_ns;
}

static void gil_tick(uint64_t now_ns)
{
	if (!gil.skel)
		return;
	ring_buffer__consume(gil.ring);
	tell_drops();
	for (struct gil_process *mine = gil.processes; mine; mine = mine->next)
		if (chrome_file_write(mine->file, &gil.stats.lost) < 0)
			gil.stats.failures++;
}

static void gil_flush(void)
{
	gil_tick(clock_mono_ns());
}

static void ring_ready(int fd, void *arg)
{
	ring_buffer__consume(gil.ring);
}

/* --- loading ------------------------------------------------------------------------------------------------------- */

static int gil_check(struct st_err *err)
{
	return bpf_load_check("recording the interpreter lock of a process without an agent", err);
}

static void unload(void)
{
	if (gil.ring)
		probe_unwatch(ring_buffer__epoll_fd(gil.ring));
	ring_buffer__free(gil.ring);
	gil_bpf__destroy(gil.skel);
	gil.ring = NULL;
	gil.skel = NULL;
	gil.drops_told = 0;
}

static int load(struct st_err *err)
{
	struct bpf_program *program;
	uint32_t session;
	int ret;

	bpf_load_begin();
	gil.skel = gil_bpf__open();
	if (!gil.skel)
		return bpf_load_failed(-errno, "cannot open the eBPF program of GIL", err);
	if (!user_code_many(&gil.multi, &session))
		gil.multi = 0;
	bpf_object__for_each_program(program, gil.skel->obj)
		bpf_program__set_expected_attach_type(program, (enum bpf_attach_type)gil.multi);
	ret = gil_bpf__load(gil.skel);
	if (ret < 0) {
		bpf_load_failed(ret, "the kernel refuses the eBPF program of GIL", err);
		unload();
		return ret;
	}
	gil.ring = ring_buffer__new(bpf_map__fd(gil.skel->maps.events), take, NULL, NULL);
	ret = gil.ring ? probe_watch(ring_buffer__epoll_fd(gil.ring), ring_ready, NULL) : -errno;
	if (ret < 0) {
		err_set(err, ret, "cannot read the ring buffer of GIL: %s", strerror(-ret));
		unload();
		return ret;
	}
	gil.stats.buffer_bytes = bpf_map__max_entries(gil.skel->maps.events);
	gil.since_ns = clock_mono_ns();
	return 0;
}

/* --- targets ------------------------------------------------------------------------------------------------------- */

/* Where the lock is. Return: 0 or -errno with @err. */
static int find_runtime(const struct mappings *maps, struct gil_target *target, struct st_err *err)
{
	struct elf_find finds[] = { { .name = "_PyRuntime" }, { .name = "_Py_MergeZeroLocalRefcount" } };
	struct user_code code = { .fd = -1 };
	int ret = user_code_python(&code, maps, finds, 2, err);

	user_code_close(&code);
	if (ret < 0)
		return ret;
	if (finds[1].found)
		return err_set(err, -ENOTSUP, "process %u runs a free-threaded CPython: it has no interpreter lock",
			       maps->pid);
	target->begin = finds[0].value + code.bias;
	target->end = target->begin + finds[0].bytes;
	return 0;
}

static int attach(struct gil_process *mine, const struct mappings *maps, struct st_err *err)
{
	struct elf_find finds[] = { { .name = "pthread_cond_signal" },
				    { .name = "pthread_cond_timedwait" },
				    { .name = "pthread_cond_wait" } };
	const struct {
		struct bpf_program *program;
		int function;
		bool at_return;
	} rows[LINKS] = {
		/* ends before begins: whoever waits already when the first ones come is not taken for another wait */
		{ gil.skel->progs.timed_end, 1, true },	   { gil.skel->progs.wait_end, 2, true },
		{ gil.skel->progs.timed_begin, 1, false }, { gil.skel->progs.wait_begin, 2, false },
		{ gil.skel->progs.signal, 0, false },
	};
	struct user_code code = { .fd = -1 };
	int ret = user_code_libc(&code, maps, finds, 3, err);

	if (ret >= 0 && ret < 3)
		ret = err_set(err, -ENOTSUP,
			      "the C library of process %u lacks functions that the interpreter lock uses", maps->pid);
	for (int i = 0; i < LINKS && ret >= 0; i++) {
		const struct elf_find *function = &finds[rows[i].function];

		ret = gil.multi ? user_code_attach_many(&mine->probes[i], &code, &function->offset, NULL, 1,
							mine->target->pid, rows[i].program, gil.multi,
							rows[i].at_return, err)
				: user_code_attach(&mine->probes[i], &code, function, mine->target->pid,
						   rows[i].program, rows[i].at_return, err);
	}
	user_code_close(&code);
	return ret < 0 ? ret : 0;
}

static void detach(struct gil_process *mine)
{
	uint32_t pid = (uint32_t)mine->target->pid;

	bpf_map_delete_elem(bpf_map__fd(gil.skel->maps.targets), &pid);
	user_code_detach(mine->probes, LINKS);
}

static void free_process(struct gil_process *mine)
{
	struct gil_process **at = &gil.processes;

	while (*at && *at != mine)
		at = &(*at)->next;
	if (*at)
		*at = mine->next;
	gil_track_fini(&mine->track);
	chrome_file_free(mine->file);
	free(mine);
}

static int begin_process(struct gil_process *mine, struct st_err *err)
{
	uint32_t pid = (uint32_t)mine->target->pid;
	struct gil_target target = { 0 };
	struct mappings maps = { 0 };
	uint64_t dev, ino;
	int ret = user_code_may_return(mine->target->pid, err);

	if (ret < 0)
		return ret;
	ret = mappings_read(&maps, pid);
	if (ret < 0)
		err_set(err, ret, "cannot read the mappings of process %u: %s", pid, strerror(-ret));
	else
		ret = find_runtime(&maps, &target, err);
	user_code_namespace(mine->target->pid, &dev, &ino);
	target.ns_dev = dev;
	target.ns_ino = ino;
	if (ret == 0) {
		ret = bpf_map_update_elem(bpf_map__fd(gil.skel->maps.targets), &pid, &target, BPF_ANY);
		if (ret < 0)
			err_set(err, ret, "too many processes are recorded at once: %s", strerror(-ret));
	}
	if (ret == 0)
		ret = attach(mine, &maps, err);
	mine->track.begin_ns = clock_mono_ns();
	mappings_fini(&maps);
	return ret;
}

static int begin_target(struct probe_target *target, struct st_err *err)
{
	struct gil_process *mine = calloc(1, sizeof(*mine));
	int ret;

	if (mine)
		mine->file = chrome_file_new(target, &sink_gil);
	if (!mine || !mine->file) {
		free(mine);
		return err_set(err, -ENOMEM, "out of memory");
	}
	mine->target = target;
	mine->next = gil.processes;
	gil.processes = mine;
	ret = begin_process(mine, err);
	if (ret < 0) {
		detach(mine);
		free_process(mine);
	}
	return ret;
}

static void end_target(struct probe_target *target)
{
	struct gil_process *mine = find((uint32_t)target->pid);

	if (!mine)
		return;
	detach(mine);
	ring_buffer__consume(gil.ring);
	tell_drops();
	gil_track_end(&mine->track, clock_mono_ns(), put, mine);
	gil.stats.bytes += chrome_file_bytes(mine->file);
	free_process(mine);
}

static void gil_remove(struct probe_session *session, struct probe_target *target)
{
	end_target(target);
}

static void gil_stop(struct probe_session *session)
{
	for (size_t i = 0; i < session->target_count; i++)
		end_target(session->targets[i]);
	if (!gil.processes)
		unload();
}

static int gil_start(struct probe_session *session, char *note, struct st_err *err)
{
	size_t begun = 0;
	int ret = gil.skel ? 0 : load(err);

	while (begun < session->target_count && ret == 0) {
		ret = begin_target(session->targets[begun], err);
		begun += ret == 0;
	}
	if (ret == 0)
		return 0;
	while (begun)
		end_target(session->targets[--begun]);
	if (!gil.processes && gil.skel)
		unload();
	return ret;
}

static void gil_status(struct probe_stats *stats)
{
	*stats = gil.stats;
	for (struct gil_process *mine = gil.processes; mine; mine = mine->next)
		stats->bytes += chrome_file_bytes(mine->file);
}

const struct probe_kind probe_gil = {
	.plugin = PLUGIN_GIL,
	.group = "lock",
	.targets = PROBE_WITHOUT_AGENT,
	.tick_ms = TICK_MS,
	.check = gil_check,
	.start = gil_start,
	.stop = gil_stop,
	.remove = gil_remove,
	.tick = gil_tick,
	.flush = gil_flush,
	.status = gil_status,
};
#endif
