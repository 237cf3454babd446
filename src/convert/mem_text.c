/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Tables of recorded memory; see mem_out.h. */
#include "convert/mem_out.h"

#include "convert/table_json.h"
#include "trace/session.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define FRAMES 12 /* of a stack on the terminal; JSON has all */
#define NATIVE_FRAMES 5
#define NAME_WIDTH 96

void mem_bytes(char *text, size_t room, uint64_t bytes)
{
	static const char *const units[] = { "B", "kB", "MB", "GB", "TB", "PB", "EB" };
	double value = (double)bytes;
	size_t unit = 0;

	while (value >= 999.95 && unit + 1 < sizeof(units) / sizeof(units[0])) {
		value /= 1000;
		unit++;
	}
	snprintf(text, room, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
}

void mem_process_text(const struct mem_process *process, char *text, size_t room)
{
	if (process->rank < 0)
		snprintf(text, room, process->pid > 0 ? "process %d" : "the process", process->pid);
	else if (process->worker)
		snprintf(text, room, "rank %d, worker %d", process->rank, process->pid);
	else
		snprintf(text, room, "rank %d", process->rank);
}

struct list {
	const struct mem_sum *sum;
	enum mem_view view;
	uint32_t *order; /* of sites, the largest first */
	size_t count;
	struct mem_use all;
};

static int by_bytes(const void *a, const void *b, void *arg)
{
	const struct list *list = arg;
	uint32_t i = *(const uint32_t *)a, k = *(const uint32_t *)b;
	uint64_t x = mem_use_of(list->sum, mem_site(list->sum, i), list->view).bytes;
	uint64_t y = mem_use_of(list->sum, mem_site(list->sum, k), list->view).bytes;

	return x != y ? (x < y ? 1 : -1) : (i < k ? -1 : i > k);
}

static int list_make(struct list *list, const struct mem_sum *sum, enum mem_view view)
{
	size_t i;

	*list = (struct list){ .sum = sum, .view = view };
	list->order = calloc(mem_site_count(sum) + 1, sizeof(*list->order));
	if (!list->order)
		return -ENOMEM;
	for (i = 0; i < mem_site_count(sum); i++) {
		struct mem_use use = mem_use_of(sum, mem_site(sum, i), view);

		if (!use.blocks)
			continue;
		list->order[list->count++] = (uint32_t)i;
		list->all.blocks += use.blocks;
		list->all.all_blocks += use.all_blocks;
		list->all.bytes += use.bytes;
	}
	qsort_r(list->order, list->count, sizeof(*list->order), by_bytes, list);
	return 0;
}

static double age_s(const struct mem_sum *sum, const struct mem_site *site)
{
	uint64_t end_ns = mem_process(sum, site->process)->last_ns;

	return site->oldest_ns && site->oldest_ns < end_ns ? (double)(end_ns - site->oldest_ns) / 1e9 : 0;
}

/* --- for people -------------------------------------------------------------------------------------------------------- */

/* Of a long stack the innermost frames, and what is Python's: that is where people look. */
static bool worth_showing(const char *name, size_t i)
{
	return i < NATIVE_FRAMES || strstr(name, ".py:") != NULL;
}

static void print_frame(const char *name, FILE *out)
{
	size_t len = strlen(name);

	if (len > NAME_WIDTH)
		fprintf(out, "%.*s...%s\n", NAME_WIDTH * 2 / 3, name, name + len - NAME_WIDTH / 3);
	else
		fprintf(out, "%s\n", name);
}

static void print_stack(struct ev_session *session, const struct mem_site *site, FILE *out, int indent)
{
	const uint32_t *frames;
	size_t i, shown = 0, left_out = 0, count = ev_stack_frames(session, site->stack, &frames);

	if (!count)
		fputs("(no stack)\n", out);
	for (i = 0; i < count; i++) {
		const char *name = ev_text(session, frames[i]);

		if (shown == FRAMES || !worth_showing(name, i)) {
			left_out++;
			continue;
		}
		if (left_out)
			fprintf(out, "%*s(%zu frames)\n", indent, "", left_out);
		left_out = 0;
		fprintf(out, "%*s", shown++ ? indent : 0, "");
		print_frame(name, out);
	}
	if (left_out)
		fprintf(out, "%*s(%zu frames)\n", indent, "", left_out);
}

static bool has_ages(const struct list *list)
{
	size_t i;

	for (i = 0; i < list->count; i++)
		if (mem_site(list->sum, list->order[i])->oldest_ns)
			return true;
	return false;
}

static void print_list(struct ev_session *session, const struct list *list, FILE *out, size_t most, const char *title)
{
	bool many = mem_process_count(list->sum) > 1, age = list->view == MEM_INUSE && has_ages(list);
	char text[64];
	size_t i;

	fprintf(out, "\n%s\n%10s %6s %10s%s  %-6s  %s\n", title, "bytes", "%", "blocks", age ? "    oldest" : "",
		"kind", many ? "process, stack" : "stack");
	if (!list->count)
		fprintf(out, "%10s\n", "nothing");
	for (i = 0; i < list->count && i < most; i++) {
		const struct mem_site *site = mem_site(list->sum, list->order[i]);
		struct mem_use use = mem_use_of(list->sum, site, list->view);
		int indent;

		mem_bytes(text, sizeof(text), use.bytes);
		indent = fprintf(out, "%10s %6.1f %10.0f", text,
				 list->all.bytes ? 100.0 * (double)use.bytes / (double)list->all.bytes : 0,
				 use.all_blocks);
		if (age)
			indent += fprintf(out, " %7.1f s", age_s(list->sum, site));
		indent += fprintf(out, "  %-6s  ", mem_kind_name(site));
		if (many) {
			mem_process_text(mem_process(list->sum, site->process), text, sizeof(text));
			fprintf(out, "%s\n%*s", text, indent, "");
		}
		print_stack(session, site, out, indent);
	}
	if (list->count > most)
		fprintf(out, "%10s and %zu more stacks with less\n", "", list->count - most);
}

static void print_process(const struct mem_process *process, FILE *out)
{
	char name[64], period[48], rss[48];

	mem_process_text(process, name, sizeof(name));
	mem_bytes(period, sizeof(period), process->sample_bytes);
	mem_bytes(rss, sizeof(rss), process->rss);
	fprintf(out, "%s:", name);
	if (process->sample_bytes || process->worker) /* published files have no times */
		fprintf(out, " %.1f s", (double)(process->last_ns - process->first_ns) / 1e9);
	else
		fputs(" no times in the file", out);
	if (process->sample_bytes > 1)
		fprintf(out, ", one allocation in %s sampled", period);
	else if (process->sample_bytes)
		fputs(", every allocation recorded", out);
	if (process->rss)
		fprintf(out, ", %s resident at the end", rss);
	if (!process->ended)
		fputs(process->worker ? ", a forked child: in use is what it has not freed"
				      : ", its end was not recorded: in use is what was not freed by then",
		      out);
	if (process->untracked)
		fprintf(out, ", %" PRIu64 " samples not followed: more with blocks=", process->untracked);
	fputc('\n', out);
}

/* --- as JSON ------------------------------------------------------------------------------------------------------------ */

static void json_list(struct table_json *to, struct ev_session *session, const struct list *list, const char *key)
{
	size_t i, k;

	table_json_list(to, key);
	for (i = 0; i < list->count; i++) {
		const struct mem_site *site = mem_site(list->sum, list->order[i]);
		struct mem_use use = mem_use_of(list->sum, site, list->view);
		const uint32_t *frames;
		size_t count = ev_stack_frames(session, site->stack, &frames);

		table_json_row(to);
		table_json_u64(to, "bytes", use.bytes);
		table_json_u64(to, "blocks", (uint64_t)(use.all_blocks + 0.5));
		table_json_u64(to, "samples", use.blocks);
		table_json_text(to, "kind", mem_kind_name(site));
		table_json_i64(to, "rank", mem_process(list->sum, site->process)->rank);
		table_json_i64(to, "pid", mem_process(list->sum, site->process)->pid);
		if (list->view == MEM_INUSE && site->oldest_ns)
			table_json_u64(to, "oldest_ms", (uint64_t)(age_s(list->sum, site) * 1000));
		json_key(&to->w, "stack");
		json_open(&to->w, '[');
		for (k = 0; k < count; k++)
			json_text(&to->w, ev_text(session, frames[k]), ev_text_len(session, frames[k]));
		json_close(&to->w, ']');
		table_json_row_end(to);
	}
	table_json_list_end(to);
}

static void json_processes(struct table_json *to, const struct mem_sum *sum)
{
	size_t i;

	table_json_list(to, "processes");
	for (i = 0; i < mem_process_count(sum); i++) {
		const struct mem_process *process = mem_process(sum, i);

		table_json_row(to);
		table_json_i64(to, "rank", process->rank);
		table_json_i64(to, "pid", process->pid);
		table_json_u64(to, "worker", process->worker);
		table_json_u64(to, "ended", process->ended);
		table_json_u64(to, "span_ns", process->last_ns - process->first_ns);
		table_json_u64(to, "sample_bytes", process->sample_bytes);
		table_json_u64(to, "untracked", process->untracked);
		table_json_u64(to, "rss", process->rss);
		table_json_row_end(to);
	}
	table_json_list_end(to);
}

static int write_json(struct ev_session *session, const struct list lists[2], const struct merge_stats *stats,
		      FILE *out)
{
	struct table_json to;
	int ret = table_json_begin(&to, out);

	if (ret < 0)
		return ret;
	table_json_u64(&to, "inuse_bytes", lists[MEM_INUSE].all.bytes);
	table_json_u64(&to, "inuse_blocks", (uint64_t)(lists[MEM_INUSE].all.all_blocks + 0.5));
	table_json_u64(&to, "allocated_bytes", lists[MEM_ALLOCATED].all.bytes);
	table_json_u64(&to, "allocated_blocks", (uint64_t)(lists[MEM_ALLOCATED].all.all_blocks + 0.5));
	table_json_u64(&to, "lost", stats->read.lost);
	json_processes(&to, lists[0].sum);
	json_list(&to, session, &lists[MEM_INUSE], "inuse");
	json_list(&to, session, &lists[MEM_ALLOCATED], "allocated");
	return table_json_end(&to);
}

int mem_text_write(struct ev_session *session, const struct mem_sum *sum, const struct merge_stats *stats, FILE *out,
		   const struct text_options *options, struct st_err *err)
{
	struct list lists[2] = { 0 };
	char inuse[48], allocated[48];
	size_t i;
	int ret;

	ret = list_make(&lists[MEM_INUSE], sum, MEM_INUSE);
	if (ret == 0)
		ret = list_make(&lists[MEM_ALLOCATED], sum, MEM_ALLOCATED);
	if (ret == 0 && options->json) {
		ret = write_json(session, lists, stats, out);
	} else if (ret == 0) {
		for (i = 0; i < mem_process_count(sum); i++)
			print_process(mem_process(sum, i), out);
		mem_bytes(inuse, sizeof(inuse), lists[MEM_INUSE].all.bytes);
		mem_bytes(allocated, sizeof(allocated), lists[MEM_ALLOCATED].all.bytes);
		fprintf(out,
			"allocated %s in %.0f blocks, in use at the end %s in %.0f; %" PRIu64
			" records lost while recording\n",
			allocated, lists[MEM_ALLOCATED].all.all_blocks, inuse, lists[MEM_INUSE].all.all_blocks,
			stats->read.lost);
		print_list(session, &lists[MEM_INUSE], out, options->most,
			   "In use at the end: allocated since the capture began and not freed");
		print_list(session, &lists[MEM_ALLOCATED], out, options->most, "Allocated, freed or not");
	}
	free(lists[0].order);
	free(lists[1].order);
	return ret < 0 ? err_set(err, ret, ret == -EMSGSIZE ? "a stack is too long for a row" : "out of memory") : 0;
}
