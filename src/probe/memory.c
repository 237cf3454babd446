/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The probe's part of the plugin Memory: page faults, swapping, reclaim, compaction and OOM kills of the targets, by
 * bpf/memory.bpf.c, into the os_trace file that CPU uses too (probe/os_file.h). docs/formats/osprobe.md.
 */
#ifdef HAVE_BPF
#include "probe/bpf/memory.h"

#include "probe/bpf/memory.skel.h"
#include "probe/bpf_load.h"
#include "probe/mappings.h"
#include "probe/os_file.h"
#include "probe/probe.h"
#include "safe/clock.h"

#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <bpf/libbpf.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <linux/perf_event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TICK_MS 200u
#define NAMED 1024
#define OLD_NS 1000000000u /* a row of faults that is this old is told before its thread comes again */

/* what this kind keeps for a target */
struct memory_target {
	struct probe_target *target;
	struct os_file *file;
	struct mappings mappings;
	uint64_t named[NAMED]; /* threads told, by tid: hash of the name, tid */
	unsigned users; /* sessions */
	struct memory_target *next;
};

static struct {
	struct memory_bpf *skel; /* NULL = not loaded */
	struct ring_buffer *ring;
	struct bpf_link **links; /* of the perf events */
	size_t link_count;
	struct memory_target *targets;
	unsigned sessions;
	uint64_t old_checked_ns;
	uint64_t drops_told; /* of lost_in_kernel() */
	uint64_t since_ns; /* when drops were told last */
	struct probe_stats stats;
} mem;

/* --- events into the file ----------------------------------------------------------------------------------------- */

static struct memory_target *find(uint32_t pid)
{
	struct memory_target *mine = mem.targets;

	while (mine && (uint32_t)mine->target->pid != pid)
		mine = mine->next;
	return mine;
}

static void put(struct memory_target *mine, struct msg_os *entry)
{
	if (os_file_put(mine->file, entry) == 0)
		mem.stats.records++;
	else
		mem.stats.lost++;
}

/* Told once for each name of a thread; asking /proc every time would be dear. */
static void name_thread(struct memory_target *mine, const struct memory_event *event)
{
	char comm[sizeof(event->comm) + 1] = "";
	uint64_t *slot = &mine->named[event->tid % NAMED];
	uint64_t name = 0;

	memcpy(comm, event->comm, sizeof(event->comm));
	for (const char *at = comm; *at; at++)
		name = name * 31 + (unsigned char)*at;
	name = name << 32 | event->tid;
	if (!comm[0] || *slot == name)
		return;
	*slot = name;
	os_file_thread(mine->file, event->tgid, event->tid, probe_inner_tid(mine->target, event->tgid, event->tid),
		       comm);
}

static void put_event(struct memory_target *mine, const struct memory_event *event)
{
	static const struct {
		uint32_t type;
		const char *name;
	} rows[] = {
		[MEMORY_FAULTS] = { OS_PAGE_FAULT, NULL },
		[MEMORY_UNSEEN] = { OS_PAGE_FAULT, "by the kernel" },
		[MEMORY_RECLAIM] = { OS_VMSCAN, "direct reclaim" },
		[MEMORY_MEMCG_RECLAIM] = { OS_VMSCAN, "memory cgroup at its limit" },
		[MEMORY_COMPACTION] = { OS_COMPACTION, NULL },
		[MEMORY_SWAP_OUT] = { OS_SWAP_PAGE, "out" },
		[MEMORY_OOM_KILL] = { OS_OOM_KILL, NULL },
	};
	const char *mapping = "";
	struct msg_os entry = {
		.key = event->tid,
		.pid = event->tgid == (uint32_t)mine->target->pid ? 0 : event->tgid,
		.start_ns = event->begin_ns,
		.dur_ns = event->dur_ns,
		.comm = { event->comm, strnlen(event->comm, sizeof(event->comm)) },
		.flags = event->major ? OS_MAJOR : 0,
		.number = event->count,
		.address = event->address,
	};

	if (event->what >= sizeof(rows) / sizeof(rows[0]))
		return;
	name_thread(mine, event);
	entry.OS_event_type = rows[event->what].type;
	entry.name = msg_text(rows[event->what].name);
	if (event->what == MEMORY_FAULTS) {
		mapping = mappings_name(&mine->mappings, event->tgid, event->address);
		entry.name = msg_text(mapping);
	}
	put(mine, &entry);
	/* a page that is not of a file and has to be read: from swap */
	if (event->what == MEMORY_FAULTS && event->major && mapping && (!mapping[0] || mapping[0] == '[')) {
		entry.OS_event_type = OS_SWAP_PAGE;
		entry.flags = 0;
		entry.name = msg_text("in");
		put(mine, &entry);
	}
}

static int take(void *ctx, void *data, size_t bytes)
{
	const struct memory_event *event = data;
	struct memory_target *mine;
	uint64_t begin_ns;

	if (bytes < sizeof(*event))
		return 0;
	mine = find(event->target);
	if (!mine)
		return 0; /* removed meanwhile */
	if (event->what == MEMORY_FAULTS && clock_mono_ns() - event->begin_ns >= OLD_NS &&
	    bpf_map_lookup_elem(bpf_map__fd(mem.skel->maps.told), &event->tid, &begin_ns) == 0 &&
	    begin_ns == event->begin_ns)
		return 0;
	put_event(mine, event);
	return 0;
}

/* Rows of faults whose threads have not come again. @target: of this one, all of them; NULL: the old ones of all. */
static void take_rows(const struct memory_target *target)
{
	int threads = bpf_map__fd(mem.skel->maps.threads), told = bpf_map__fd(mem.skel->maps.told);
	uint64_t now_ns = clock_mono_ns(), begin_ns;
	struct memory_thread thread;
	uint32_t tid, *before = NULL, last;

	while (bpf_map_get_next_key(threads, before, &tid) == 0) {
		struct memory_target *mine;

		last = tid;
		before = &last;
		if (bpf_map_lookup_elem(threads, &tid, &thread) < 0 || !thread.row.count)
			continue;
		if (target ? thread.target != (uint32_t)target->target->pid : now_ns - thread.row_end_ns < OLD_NS)
			continue;
		mine = find(thread.target);
		begin_ns = 0;
		if (!mine || (bpf_map_lookup_elem(told, &tid, &begin_ns) == 0 && begin_ns == thread.row.begin_ns))
			continue;
		bpf_map_update_elem(told, &tid, &thread.row.begin_ns, BPF_ANY);
		put_event(mine, &thread.row);
	}
}

static uint64_t lost_in_kernel(void)
{
	int cpus = libbpf_num_possible_cpus();
	uint64_t *counts = cpus > 0 ? calloc((size_t)cpus, sizeof(*counts)) : NULL, sum = 0;
	uint32_t zero = 0;

	if (counts && bpf_map_lookup_elem(bpf_map__fd(mem.skel->maps.lost), &zero, counts) == 0)
		for (int i = 0; i < cpus; i++)
			sum += counts[i];
	free(counts);
	return sum;
}

/* They may have been anybody's: every file tells them. */
static void tell_drops(void)
{
	uint64_t lost = lost_in_kernel(), more = lost - mem.drops_told, now_ns = clock_mono_ns();

	if (more)
		for (struct memory_target *mine = mem.targets; mine; mine = mine->next)
			os_file_drops(mine->file, "memory", more, mem.since_ns, now_ns);
	mem.stats.lost += more;
	mem.drops_told = lost;
	mem.since_ns = now_ns;
}

static void write_files(void)
{
	uint64_t lost;

	for (struct memory_target *mine = mem.targets; mine; mine = mine->next) {
		lost = 0;
		if (os_file_write(mine->file, &lost) < 0)
			mem.stats.failures++;
		mem.stats.lost += lost;
	}
}

static void ring_ready(int fd, void *arg)
{
	ring_buffer__consume(mem.ring);
}

static void memory_tick(uint64_t now_ns)
{
	if (!mem.skel)
		return;
	ring_buffer__consume(mem.ring);
	if (now_ns - mem.old_checked_ns >= OLD_NS) {
		mem.old_checked_ns = now_ns;
		take_rows(NULL);
		tell_drops();
	}
	write_files();
}

static void memory_flush(void)
{
	memory_tick(clock_mono_ns());
}

/* --- the counters of threads --------------------------------------------------------------------------------------- */

static bool read_counters(uint32_t tgid, uint32_t tid, uint64_t *min_flt, uint64_t *maj_flt)
{
	char path[64], line[512], *end;
	FILE *in;
	bool good;

	snprintf(path, sizeof(path), "/proc/%" PRIu32 "/task/%" PRIu32 "/stat", tgid, tid);
	in = fopen(path, "re");
	if (!in)
		return false;
	good = fgets(line, sizeof(line), in) && (end = strrchr(line, ')')) &&
	       sscanf(end + 1, " %*c %*d %*d %*d %*d %*d %*u %" SCNu64 " %*u %" SCNu64, min_flt, maj_flt) == 2;
	fclose(in);
	return good;
}

static void each_thread(uint32_t tgid, void (*act)(struct memory_target *mine, uint32_t tgid, uint32_t tid),
			struct memory_target *mine)
{
	char path[32];
	struct dirent *entry;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%" PRIu32 "/task", tgid);
	dir = opendir(path);
	while (dir && (entry = readdir(dir)))
		if (atoi(entry->d_name) > 0)
			act(mine, tgid, (uint32_t)atoi(entry->d_name));
	if (dir)
		closedir(dir);
}

/* Where the counters of a thread stand before its first fault is seen. */
static void begin_thread(struct memory_target *mine, uint32_t tgid, uint32_t tid)
{
	struct memory_thread thread = { .known = 1, .target = (uint32_t)mine->target->pid };
	uint64_t min_flt, maj_flt;

	if (!read_counters(tgid, tid, &min_flt, &maj_flt))
		return;
	thread.min_flt = min_flt;
	thread.maj_flt = maj_flt;
	bpf_map_update_elem(bpf_map__fd(mem.skel->maps.threads), &tid, &thread, BPF_NOEXIST);
}

/* Faults that the kernel took on itself after the last one that was seen. */
static void end_thread(struct memory_target *mine, uint32_t tgid, uint32_t tid)
{
	int threads = bpf_map__fd(mem.skel->maps.threads);
	struct memory_event event = { .tgid = tgid, .tid = tid, .what = MEMORY_UNSEEN, .begin_ns = clock_mono_ns() };
	struct memory_thread before, after;
	uint64_t min_flt, maj_flt;

	/* the state is read around the counters: whoever faults meanwhile is counted by the kernel's side */
	if (bpf_map_lookup_elem(threads, &tid, &before) < 0 || !read_counters(tgid, tid, &min_flt, &maj_flt) ||
	    bpf_map_lookup_elem(threads, &tid, &after) < 0 || !before.known || before.min_flt != after.min_flt ||
	    before.maj_flt != after.maj_flt)
		return;
	event.count = (uint32_t)(min_flt - after.min_flt);
	if (event.count && min_flt > after.min_flt)
		put_event(mine, &event);
	event.major = 1;
	event.count = (uint32_t)(maj_flt - after.maj_flt);
	if (event.count && maj_flt > after.maj_flt)
		put_event(mine, &event);
}

/* --- loading ------------------------------------------------------------------------------------------------------- */

static int memory_check(struct st_err *err)
{
	return bpf_load_check("recording page faults and reclaim", err);
}

/* PG_swapbacked's place among the flags of a page differs by kernel and configuration. */
static uint64_t swapbacked_bit(void)
{
	struct btf *btf = btf__load_vmlinux_btf();
	const struct btf_type *type;
	uint64_t bit = 0;
	int id = btf ? btf__find_by_name_kind(btf, "pageflags", BTF_KIND_ENUM) : -ENOENT;

	if (id > 0) {
		type = btf__type_by_id(btf, (uint32_t)id);
		for (int i = 0; i < btf_vlen(type); i++)
			if (strcmp(btf__name_by_offset(btf, btf_enum(type)[i].name_off), "PG_swapbacked") == 0)
				bit = 1ull << btf_enum(type)[i].val;
	}
	btf__free(btf);
	return bit;
}

/* A software event of perf on every CPU, each hit of which runs the program. */
static int attach_perf(struct bpf_program *program, uint64_t config, struct st_err *err)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_SOFTWARE, .size = sizeof(attr), .config = config, .sample_period = 1
	};
	int cpus = libbpf_num_possible_cpus(), some = 0;

	for (int cpu = 0; cpu < cpus; cpu++) {
		int fd = (int)syscall(SYS_perf_event_open, &attr, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC);
		struct bpf_link **more, *link;

		if (fd < 0 && errno == ENODEV)
			continue; /* offline */
		if (fd < 0)
			return err_set(err, -errno, "cannot open the software event of page faults on CPU %d: %s", cpu,
				       strerror(errno));
		more = realloc(mem.links, (mem.link_count + 1) * sizeof(*more));
		link = more ? bpf_program__attach_perf_event(program, fd) : NULL;
		if (more)
			mem.links = more;
		if (!link) {
			int ret = more ? -errno : -ENOMEM;

			close(fd);
			return bpf_load_failed(ret, "cannot attach to page faults", err);
		}
		mem.links[mem.link_count++] = link;
		some++;
	}
	return some ? 0 : err_set(err, -ENODEV, "no CPU takes software events");
}

/* Return: 1 attached, 0 this kernel has no such tracepoint, -errno. */
static int attach(struct bpf_program *program, struct bpf_link **link, struct st_err *err)
{
	int ret;

	*link = bpf_program__attach(program);
	if (*link)
		return 1;
	ret = -errno;
	return ret == -ENOENT || ret == -EINVAL ? 0 : bpf_load_failed(ret, bpf_program__name(program), err);
}

static void join(char *note, const char *what)
{
	size_t used = strlen(note);

	snprintf(note + used, 256 - used, "%s%s", used ? ", " : "this kernel does not tell: ", what);
}

/* Lives first: a thread that is born between two of these steps has to be known. */
static int attach_all(char *note, struct st_err *err)
{
	struct memory_bpf *skel = mem.skel;
	const struct {
		struct bpf_program *begin, *end;
		struct bpf_link **begin_link, **end_link;
		const char *what;
	} rows[] = {
		{ skel->progs.exited, skel->progs.forked, &skel->links.exited, &skel->links.forked, "new threads" },
		{ skel->progs.reclaim_end, skel->progs.reclaim_begin, &skel->links.reclaim_end,
		  &skel->links.reclaim_begin, "direct reclaim" },
		{ skel->progs.memcg_end, skel->progs.memcg_begin, &skel->links.memcg_end, &skel->links.memcg_begin,
		  "reclaim of memory cgroups" },
		{ skel->progs.compaction_end, skel->progs.compaction_begin, &skel->links.compaction_end,
		  &skel->links.compaction_begin, "compaction" },
		{ skel->progs.mark_victim, NULL, &skel->links.mark_victim, NULL, "OOM kills" },
	};
	int ret, begun;

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		ret = attach(rows[i].begin, rows[i].begin_link, err);
		if (ret > 0 && rows[i].end)
			ret = attach(rows[i].end, rows[i].end_link, err);
		if (ret < 0)
			return ret;
		if (ret == 0)
			join(note, rows[i].what);
	}
	ret = attach(skel->progs.write_folio, &skel->links.write_folio, err);
	if (ret == 0)
		ret = attach(skel->progs.write_page, &skel->links.write_page, err);
	if (ret < 0)
		return ret;
	if (ret == 0 || !skel->rodata->swapbacked_bit)
		join(note, "swapping out");
	begun = attach(skel->progs.fault_user, &skel->links.fault_user, err);
	if (begun > 0)
		begun = attach(skel->progs.fault_kernel, &skel->links.fault_kernel, err);
	ret = begun < 0 ? begun : 0;
	if (begun == 0)
		ret = attach_perf(skel->progs.fault_any, PERF_COUNT_SW_PAGE_FAULTS, err);
	if (ret == 0)
		ret = attach_perf(skel->progs.fault_minor, PERF_COUNT_SW_PAGE_FAULTS_MIN, err);
	if (ret == 0)
		ret = attach_perf(skel->progs.fault_major, PERF_COUNT_SW_PAGE_FAULTS_MAJ, err);
	return ret;
}

static void detach(void)
{
	for (size_t i = 0; i < mem.link_count; i++)
		bpf_link__destroy(mem.links[i]);
	free(mem.links);
	mem.links = NULL;
	mem.link_count = 0;
	if (mem.skel)
		memory_bpf__detach(mem.skel);
}

static void unload(void)
{
	detach();
	if (mem.ring)
		probe_unwatch(ring_buffer__epoll_fd(mem.ring));
	ring_buffer__free(mem.ring);
	memory_bpf__destroy(mem.skel);
	mem.ring = NULL;
	mem.skel = NULL;
	mem.drops_told = 0;
}

static int load(struct st_err *err)
{
	int ret;

	bpf_load_begin();
	mem.skel = memory_bpf__open();
	if (!mem.skel)
		return bpf_load_failed(-errno, "cannot open the eBPF program of Memory", err);
	mem.skel->rodata->swapbacked_bit = swapbacked_bit();
	ret = memory_bpf__load(mem.skel);
	if (ret < 0) {
		bpf_load_failed(ret, "the kernel refuses the eBPF program of Memory", err);
		unload();
		return ret;
	}
	mem.ring = ring_buffer__new(bpf_map__fd(mem.skel->maps.events), take, NULL, NULL);
	ret = mem.ring ? probe_watch(ring_buffer__epoll_fd(mem.ring), ring_ready, NULL) : -errno;
	if (ret < 0) {
		err_set(err, ret, "cannot read the ring buffer of Memory: %s", strerror(-ret));
		unload();
		return ret;
	}
	mem.stats.buffer_bytes = bpf_map__max_entries(mem.skel->maps.events);
	mem.since_ns = clock_mono_ns();
	return 0;
}

/* --- sessions and targets --------------------------------------------------------------------------------------------- */

/* No event of it comes from here on. */
static void forget_pids(const struct memory_target *mine)
{
	int targets = bpf_map__fd(mem.skel->maps.targets);
	uint32_t pid, target, *before = NULL, last;

	while (bpf_map_get_next_key(targets, before, &pid) == 0) {
		if (bpf_map_lookup_elem(targets, &pid, &target) == 0 && target == (uint32_t)mine->target->pid) {
			each_thread(pid, end_thread, (struct memory_target *)mine);
			bpf_map_delete_elem(targets, &pid);
			before = NULL; /* the key to go on from is gone */
			continue;
		}
		last = pid;
		before = &last;
	}
}

static void forget_threads(const struct memory_target *mine)
{
	int threads = bpf_map__fd(mem.skel->maps.threads);
	uint32_t tid, *before = NULL, last;
	struct memory_thread thread;

	while (bpf_map_get_next_key(threads, before, &tid) == 0) {
		if (bpf_map_lookup_elem(threads, &tid, &thread) == 0 && thread.target == (uint32_t)mine->target->pid) {
			bpf_map_delete_elem(threads, &tid);
			bpf_map_delete_elem(bpf_map__fd(mem.skel->maps.told), &tid);
			before = NULL;
			continue;
		}
		last = tid;
		before = &last;
	}
}

static void end_target(struct probe_target *target)
{
	struct memory_target *mine = find((uint32_t)target->pid), **at = &mem.targets;

	if (!mine || --mine->users)
		return;
	forget_pids(mine);
	ring_buffer__consume(mem.ring);
	take_rows(mine);
	tell_drops();
	forget_threads(mine);
	while (*at != mine)
		at = &(*at)->next;
	*at = mine->next;
	mappings_fini(&mine->mappings);
	os_file_drop(mine->file);
	free(mine);
}

static int begin_target(struct probe_target *target, struct st_err *err)
{
	struct memory_target *mine = find((uint32_t)target->pid);
	uint32_t pid = (uint32_t)target->pid;
	int ret;

	if (mine) {
		mine->users++;
		return 0;
	}
	mine = calloc(1, sizeof(*mine));
	if (mine)
		mine->file = os_file_get(target);
	if (!mine || !mine->file) {
		free(mine);
		return err_set(err, -ENOMEM, "out of memory");
	}
	mine->target = target;
	mine->users = 1;
	mine->next = mem.targets;
	mem.targets = mine;
	mappings_read(&mine->mappings, pid);
	each_thread(pid, begin_thread, mine);
	if (bpf_map_update_elem(bpf_map__fd(mem.skel->maps.targets), &pid, &pid, BPF_ANY) == 0)
		return 0;
	ret = err_set(err, -errno, "too many processes are recorded at once: %s", strerror(errno));
	end_target(target);
	return ret;
}

static void memory_stop(struct probe_session *session)
{
	for (size_t i = 0; i < session->target_count; i++)
		end_target(session->targets[i]);
	if (--mem.sessions == 0)
		unload();
}

static int memory_start(struct probe_session *session, char *note, struct st_err *err)
{
	bool first = mem.sessions == 0;
	size_t begun = 0;
	int ret = first ? load(err) : 0;

	if (ret < 0)
		return ret;
	mem.sessions++;
	while (begun < session->target_count && ret == 0) {
		ret = begin_target(session->targets[begun], err);
		begun += ret == 0;
	}
	if (ret == 0 && first)
		ret = attach_all(note, err);
	if (ret == 0)
		return 0;
	while (begun)
		end_target(session->targets[--begun]);
	if (--mem.sessions == 0)
		unload();
	return ret;
}

static void memory_remove(struct probe_session *session, struct probe_target *target)
{
	end_target(target);
}

static void memory_status(struct probe_stats *stats)
{
	*stats = mem.stats;
	stats->bytes = os_file_bytes();
}

const struct probe_kind probe_memory = {
	.plugin = PLUGIN_MEMORY,
	.group = "os",
	.targets = PROBE_EVERY,
	.tick_ms = TICK_MS,
	.check = memory_check,
	.start = memory_start,
	.stop = memory_stop,
	.remove = memory_remove,
	.tick = memory_tick,
	.flush = memory_flush,
	.status = memory_status,
};
#endif
