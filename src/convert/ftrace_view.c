/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Lanes, names and arguments of the slices of `convert ftrace`; see ftrace_sink.h. */
#include "convert/decimal.h"
#include "convert/ftrace_sink.h"
#include "convert/utf8.h"
#include "trace/session.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX 4096

/* ---- time, pids ----------------------------------------------------------------------------------------------------- */

uint64_t fview_time(const struct fview *view, uint64_t t_ns)
{
	return view->options->axis.points ? ftrace_axis_map(&view->options->axis, t_ns) : t_ns;
}

int32_t fview_pid(const struct fview *view, int32_t pid)
{
	const struct pid_entry *entry = view->options->pids ? pid_map_find(view->options->pids, pid) : NULL;

	return entry ? entry->pid : pid;
}

/* ---- texts ---------------------------------------------------------------------------------------------------------- */

size_t frow_escape(char *out, const char *text, size_t len)
{
	static const char shorts[] = "\b\f\n\r\t", letters[] = "bfnrt";
	const unsigned char *at = (const unsigned char *)text, *end = at + len;
	char *begin = out;
	const char *found;
	size_t n;

	while (at < end) {
		if (*at == '"' || *at == '\\') {
			*out++ = '\\';
			*out++ = (char)*at++;
		} else if (*at < 0x20) {
			*out++ = '\\';
			found = *at ? strchr(shorts, *at) : NULL;
			if (found)
				*out++ = letters[found - shorts];
			else
				out += sprintf(out, "u%04x", *at);
			at++;
		} else if ((n = utf8_valid(at, (size_t)(end - at))) != 0) {
			memcpy(out, at, n);
			out += n;
			at += n;
		} else {
			out += utf8_put_byte(out, *at++);
		}
	}
	return (size_t)(out - begin);
}

static size_t cut_utf8(const char *text, size_t len, size_t most)
{
	if (len <= most)
		return len;
	while (most && ((unsigned char)text[most] & 0xc0) == 0x80)
		most--;
	return most;
}

static bool text_init(struct ftext *to, const char *text, size_t len)
{
	len = cut_utf8(text, len, TEXT_MAX / 6);
	to->text = malloc(6 * len + 1);
	if (!to->text)
		return false;
	to->len = (uint32_t)frow_escape(to->text, text, len);
	to->text[to->len] = 0;
	return true;
}

static bool texts_grow(struct fview *view, uint32_t id)
{
	uint32_t room = ev_name_count(view->session) + 1024;
	struct ftext *more = room > id ? realloc(view->texts, room * sizeof(*more)) : NULL;

	if (!more)
		return false;
	memset(more + view->text_room, 0, (room - view->text_room) * sizeof(*more));
	view->texts = more;
	view->text_room = room;
	return true;
}

const struct ftext *fview_text(struct fview *view, uint32_t id)
{
	static const struct ftext none = { .text = "" };

	if (id < view->text_room && view->texts[id].text)
		return &view->texts[id];
	if ((id >= view->text_room && !texts_grow(view, id)) ||
	    !text_init(&view->texts[id], ev_text(view->session, id), ev_text_len(view->session, id))) {
		view->failed = -ENOMEM;
		return &none;
	}
	return &view->texts[id];
}

/* ---- lanes ---------------------------------------------------------------------------------------------------------- */

static uint32_t add_track(struct fview *view, const struct ftrack *track)
{
	uint32_t room = view->track_room ? 2 * view->track_room : 256;
	struct ftrack *more;

	if (view->track_count == view->track_room) {
		more = realloc(view->tracks, room * sizeof(*more));
		if (!more)
			return FTRACE_NO_TASK;
		view->tracks = more;
		view->track_room = room;
	}
	view->tracks[view->track_count] = *track;
	return view->track_count++;
}

static uint32_t new_cpu(struct fview *view, int32_t cpu)
{
	struct ftrack track = { .is_cpu = true, .number = cpu, .pid = -1 };
	uint32_t room = ((uint32_t)cpu | 15) + 1, index;
	uint32_t *more;
	char text[24];

	if ((uint32_t)cpu >= view->cpu_room) {
		more = realloc(view->cpu_tracks, room * sizeof(*more));
		if (!more)
			goto no_memory;
		memset(more + view->cpu_room, 0, (room - view->cpu_room) * sizeof(*more));
		view->cpu_tracks = more;
		view->cpu_room = room;
	}
	snprintf(text, sizeof(text), "CPU %03d", cpu);
	if (!text_init(&track.label, text, strlen(text)))
		goto no_memory;
	index = add_track(view, &track);
	if (index == FTRACE_NO_TASK)
		goto no_memory;
	view->cpu_tracks[cpu] = index + 1;
	return index;
no_memory:
	free(track.label.text);
	view->failed = -ENOMEM;
	return FTRACE_NO_TASK;
}

uint32_t fview_cpu(struct fview *view, int32_t cpu)
{
	if (cpu < 0)
		return FTRACE_NO_TASK;
	if ((uint32_t)cpu < view->cpu_room && view->cpu_tracks[cpu])
		return view->cpu_tracks[cpu] - 1;
	return new_cpu(view, cpu);
}

/* Threads of the kernel, by the names that it gives them. */
static bool kernel_thread(const char *comm)
{
	static const char *const begins[] = { "kworker",    "migration/", "ksoftirqd/",	     "rcu",
					      "kthreadd",   "cpuhp/",	  "watchdog/",	     "kcompactd",
					      "kswapd",	    "irq/",	  "idle_inject",     "swapper",
					      "khugepaged", "kauditd",	  "kblockd",	     "kdevtmpfs",
					      "oom_reaper", "writeback",  "pool_workqueue_", "ksmd",
					      "khungtaskd", "jbd2/",	  "xfsaild/",	     "ext4-rsv-conver" };
	size_t i;

	for (i = 0; i < sizeof(begins) / sizeof(begins[0]); i++)
		if (!strncmp(comm, begins[i], strlen(begins[i])))
			return true;
	return false;
}

static uint32_t bucket_of(const struct fview *view, uint32_t comm, int32_t pid)
{
	return ((comm * 0x9e3779b1u) ^ ((uint32_t)pid * 0x85ebca6bu)) >> 5 & view->bucket_mask;
}

static bool grow_buckets(struct fview *view)
{
	uint32_t mask = view->bucket_mask ? 2 * view->bucket_mask + 1 : 1023, i;
	uint32_t *fresh = calloc((size_t)mask + 1, sizeof(*fresh));

	if (!fresh)
		return false;
	free(view->buckets);
	view->buckets = fresh;
	view->bucket_mask = mask;
	for (i = 0; i < view->track_count; i++) {
		struct ftrack *track = &view->tracks[i];
		uint32_t *head = &fresh[bucket_of(view, track->comm, track->number)];

		if (track->is_cpu)
			continue;
		track->next = *head;
		*head = i + 1;
	}
	return true;
}

/* Is there another task of this name and this number inside a container? */
static bool label_taken(const struct fview *view, const struct ftrack *track)
{
	uint32_t i;

	if (!view->options->pids)
		return false;
	for (i = 0; i < view->track_count; i++)
		if (!view->tracks[i].is_cpu && view->tracks[i].pid == track->pid && view->tracks[i].comm == track->comm)
			return true;
	return false;
}

static bool task_label(struct fview *view, struct ftrack *track)
{
	size_t len = cut_utf8(ev_text(view->session, track->comm), ev_text_len(view->session, track->comm), 512);
	const char *comm = ev_text(view->session, track->comm);
	char text[600];
	int n;

	if (!len) {
		comm = track->number ? "<...>" : "<idle>";
		len = strlen(comm);
	}
	memcpy(text, comm, len);
	/* pids of two namespaces may meet: then the host's pid tells them apart */
	if (label_taken(view, track))
		n = snprintf(text + len, sizeof(text) - len, "@%d:%d", track->number, track->pid);
	else
		n = snprintf(text + len, sizeof(text) - len, ":%d", track->pid);
	return text_init(&track->label, text, len + (size_t)n);
}

uint32_t fview_task(struct fview *view, uint32_t comm, int32_t pid)
{
	struct ftrack track = { .number = pid, .comm = comm };
	uint32_t at = view->buckets ? view->buckets[bucket_of(view, comm, pid)] : 0;

	for (; at; at = view->tracks[at - 1].next)
		if (view->tracks[at - 1].number == pid && view->tracks[at - 1].comm == comm)
			return at - 1;
	track.pid = fview_pid(view, pid);
	track.hidden = pid == 0 || (view->options->hide_kernel && kernel_thread(ev_text(view->session, comm)));
	if (!task_label(view, &track) ||
	    ((!view->buckets || view->track_count > view->bucket_mask) && !grow_buckets(view))) {
		free(track.label.text);
		view->failed = -ENOMEM;
		return FTRACE_NO_TASK;
	}
	track.next = view->buckets[bucket_of(view, comm, pid)];
	at = add_track(view, &track);
	if (at == FTRACE_NO_TASK) {
		free(track.label.text);
		view->failed = -ENOMEM;
		return at;
	}
	view->buckets[bucket_of(view, comm, pid)] = at + 1;
	return at;
}

/* ---- order of the database -------------------------------------------------------------------------------------------- */

char *fview_utf8(const struct fview *view, const struct ftrack *track)
{
	char *out = malloc((size_t)track->label.len + 1), *to = out;
	const char *at = track->label.text, *end = at + track->label.len;
	static const char letters[] = "bfnrt", shorts[] = "\b\f\n\r\t";
	const char *found;
	unsigned int code;

	if (!out)
		return NULL;
	while (at < end) {
		if (*at != '\\') {
			*to++ = *at++;
			continue;
		}
		at++;
		found = strchr(letters, *at);
		if (*at == 'u' && sscanf(at + 1, "%4x", &code) == 1) {
			*to++ = (char)code; /* only control characters are written so */
			at += 5;
		} else {
			*to++ = found ? shorts[found - letters] : *at;
			at++;
		}
	}
	*to = 0;
	return out;
}

struct order_key {
	bool is_cpu;
	char *text;
	uint32_t index;
};

static int by_text(const void *left, const void *right)
{
	const struct order_key *a = left, *b = right;
	int order;

	if (a->is_cpu != b->is_cpu)
		return a->is_cpu ? -1 : 1;
	order = strcmp(a->text, b->text);
	return order ? order : (a->index > b->index) - (a->index < b->index);
}

uint32_t fview_order(struct fview *view, uint32_t **order)
{
	struct order_key *keys = calloc((size_t)view->track_count + 1, sizeof(*keys));
	uint32_t i, n = 0;

	*order = calloc((size_t)view->track_count + 1, sizeof(**order));
	if (!keys || !*order)
		goto no_memory;
	for (i = 0; i < view->track_count; i++) {
		const struct ftrack *track = &view->tracks[i];

		if (!track->rows)
			continue;
		keys[n] = (struct order_key){ .is_cpu = track->is_cpu, .index = i };
		keys[n].text = fview_utf8(view, track);
		if (!keys[n++].text)
			goto no_memory;
	}
	qsort(keys, n, sizeof(*keys), by_text);
	for (i = 0; i < n; i++) {
		(*order)[i] = keys[i].index;
		free(keys[i].text);
	}
	free(keys);
	return n;
no_memory:
	view->failed = -ENOMEM;
	for (i = 0; keys && i < n; i++)
		free(keys[i].text);
	free(keys);
	return 0;
}

void fview_fini(struct fview *view)
{
	uint32_t i;

	for (i = 0; i < view->track_count; i++) {
		free(view->tracks[i].label.text);
		free(view->tracks[i].own);
	}
	for (i = 0; i < view->text_room; i++)
		free(view->texts[i].text);
	free(view->tracks);
	free(view->buckets);
	free(view->cpu_tracks);
	free(view->texts);
	*view = (struct fview){ 0 };
}

/* ---- names ---------------------------------------------------------------------------------------------------------- */

#define TEXT(literal)                                                 \
	{                                                             \
		.text = (char *)(literal), .len = sizeof(literal) - 1 \
	}

struct ftext frow_name(struct fview *view, const struct frow *row)
{
	static const struct ftext names[ROW_KINDS] = {
		[ROW_SWITCH] = TEXT("sched_switch"), [ROW_IRQ] = TEXT("irq"),	  [ROW_SOFTIRQ] = TEXT("softirq"),
		[ROW_GAP] = TEXT("lost events"),     [ROW_FUTEX] = TEXT("futex"),
	};
	static const struct ftext states[] = {
		[TASK_UNKNOWN] = TEXT("Unknown"),   [TASK_RUNNING] = TEXT("Running"),
		[TASK_RUNNABLE] = TEXT("Runnable"), [TASK_SLEEPING] = TEXT("Sleeping"),
		[TASK_EXITED] = TEXT("Exited"),
	};
	static const struct ftext locks[2][2] = {
		{ TEXT("mmap_lock wait (read)"), TEXT("mmap_lock wait (write)") },
		{ TEXT("mmap_lock held (read)"), TEXT("mmap_lock held (write)") },
	};

	switch (row->kind) {
	case ROW_ON_CPU:
		return view->tracks[row->task].label;
	case ROW_STATE:
		return states[row->state];
	case ROW_LOCK_WAIT:
	case ROW_LOCK_HOLD:
		return locks[row->kind == ROW_LOCK_HOLD][(row->flags & SPAN_WRITE) != 0];
	default:
		return names[row->kind];
	}
}

/* ---- arguments ------------------------------------------------------------------------------------------------------ */

/* Builds {"key": "value", ...} with blanks as Python writes it, which MindStudio Insight's own files have. */
static char *put(char *out, const char *text, size_t len)
{
	memcpy(out, text, len);
	return out + len;
}

#define PUT(out, literal) put(out, literal, sizeof(literal) - 1)
/* the key with what stands around it; the first one opens the object */
#define KEY(out, key) PUT(out, ", \"" key "\": \"")
#define FIRST(out, key) PUT(out, "{\"" key "\": \"")

static char *put_text(struct fview *view, char *out, uint32_t id)
{
	const struct ftext *text = fview_text(view, id);

	return put(out, text->text, text->len);
}

static char *put_label(struct fview *view, char *out, uint32_t task)
{
	if (task == FTRACE_NO_TASK)
		return PUT(out, "unknown");
	return put(out, view->tracks[task].label.text, view->tracks[task].label.len);
}

static char *put_cpu(char *out, int32_t cpu)
{
	if (cpu < 100)
		*out++ = '0';
	if (cpu < 10)
		*out++ = '0';
	return decimal_i64(out, cpu);
}

/* What is not as it looks; "" when all is. */
static const char *note_of(uint32_t flags)
{
	if (flags & SPAN_CUT_LOST)
		return "cut by lost events";
	if (flags & SPAN_END_UNSEEN)
		return flags & SPAN_BEGIN_UNSEEN ? "whole trace" : "open at the end";
	if (flags & SPAN_BEGIN_UNSEEN)
		return "begin not seen";
	if (flags & ROW_OUTSIDE)
		return "goes on outside the window";
	return "";
}

static char *put_note(char *out, uint32_t flags)
{
	const char *note = note_of(flags);

	if (!*note)
		return out;
	out = PUT(out, "\", \"note\": \"");
	return put(out, note, strlen(note));
}

static char *on_cpu_args(struct fview *view, const struct frow *row, char *out)
{
	out = FIRST(out, "host_pid");
	out = decimal_i64(out, view->tracks[row->task].number);
	out = PUT(out, "\", \"total_runtime\": \"");
	out = decimal_u64(out, row->on_cpu.runtime_ns);
	if (row->on_cpu.vruntime) {
		out = PUT(out, " [ns]\", \"vruntime\": \"");
		out = decimal_i64(out, row->on_cpu.vruntime);
		out = PUT(out, " [ns]\", \"end_state\": \"");
	} else {
		out = PUT(out, " [ns]\", \"vruntime\": 0, \"end_state\": \"");
	}
	out = row->on_cpu.end_state ? put_text(view, out, row->on_cpu.end_state) : PUT(out, "unknown");
	out = PUT(out, "\", \"prio\": \"");
	out = row->on_cpu.prio < 0 ? PUT(out, "unknown") : decimal_i64(out, row->on_cpu.prio);
	return put_note(out, row->flags);
}

static char *switch_args(struct fview *view, const struct frow *row, char *out)
{
	out = FIRST(out, "prev_comm");
	out = put_text(view, out, row->sw.prev_comm);
	out = PUT(out, "\", \"prev_pid\": \"");
	out = decimal_i64(out, fview_pid(view, row->sw.prev_pid));
	out = PUT(out, "\", \"prev_prio\": \"");
	out = decimal_i64(out, row->sw.prev_prio);
	out = PUT(out, "\", \"prev_state\": \"");
	out = put_text(view, out, row->sw.prev_state);
	out = PUT(out, "\", \"next_comm\": \"");
	out = put_text(view, out, row->sw.next_comm);
	out = PUT(out, "\", \"next_pid\": \"");
	out = decimal_i64(out, fview_pid(view, row->sw.next_pid));
	out = PUT(out, "\", \"next_prio\": \"");
	return decimal_i64(out, row->sw.next_prio);
}

static char *irq_args(struct fview *view, const struct frow *row, char *out)
{
	bool soft = row->kind == ROW_SOFTIRQ;

	out = soft ? FIRST(out, "vec") : FIRST(out, "irq");
	out = decimal_i64(out, row->irq.number);
	out = soft ? PUT(out, "\", \"action\": \"") : PUT(out, "\", \"name\": \"");
	out = put_text(view, out, row->irq.label);
	out = PUT(out, "\", \"task\": \"");
	out = put_label(view, out, row->task);
	if (!soft) {
		out = PUT(out, "\", \"ret\": \"");
		out = row->irq.result ? put_text(view, out, row->irq.result) : PUT(out, "unknown");
	}
	return put_note(out, row->flags);
}

static char *state_args(struct fview *view, const struct frow *row, char *out)
{
	char *begin = out;

	if (row->cpu >= 0) {
		out = KEY(out, "cpu");
		out = put_cpu(out, row->cpu);
		*out++ = '"';
	}
	if (row->state == TASK_SLEEPING && row->state_of.sleep) {
		out = KEY(out, "sleep");
		out = put_text(view, out, row->state_of.sleep);
		*out++ = '"';
	}
	if (row->state == TASK_RUNNABLE && row->flags & (SPAN_PREEMPTED | SPAN_NEW_TASK))
		out = row->flags & SPAN_PREEMPTED ? PUT(out, ", \"why\": \"preempted\"")
						  : PUT(out, ", \"why\": \"new task\"");
	if (row->state_of.waker_pid >= 0) {
		out = KEY(out, "waker");
		out = row->state_of.waker_pid ? put_text(view, out, row->state_of.waker_comm) : PUT(out, "<idle>");
		*out++ = ':';
		out = decimal_i64(out, fview_pid(view, row->state_of.waker_pid));
		*out++ = '"';
	}
	if (row->flags & SPAN_EXITED)
		out = PUT(out, ", \"end\": \"exited\"");
	if (*note_of(row->flags)) {
		out = KEY(out, "note");
		out = put(out, note_of(row->flags), strlen(note_of(row->flags)));
		*out++ = '"';
	}
	if (out == begin)
		return out;
	/* the first ", " becomes the bracket */
	memmove(begin + 1, begin + 2, (size_t)(out - begin - 2));
	*begin = '{';
	out[-1] = '}';
	return out;
}

static char *lock_args(const struct frow *row, char *out)
{
	out = FIRST(out, "mm");
	out = PUT(out, "0x");
	out += sprintf(out, "%llx", (unsigned long long)row->irq.number);
	if (row->flags & SPAN_FAILED)
		out = PUT(out, "\", \"result\": \"not taken");
	return put_note(out, row->flags);
}

char *frow_args(struct fview *view, const struct frow *row, char *out)
{
	char *begin = out;

	switch (row->kind) {
	case ROW_ON_CPU:
		out = on_cpu_args(view, row, out);
		break;
	case ROW_SWITCH:
		out = switch_args(view, row, out);
		break;
	case ROW_IRQ:
	case ROW_SOFTIRQ:
		out = irq_args(view, row, out);
		break;
	case ROW_STATE:
		return state_args(view, row, out);
	case ROW_GAP:
		out = FIRST(out, "count");
		out = row->count ? decimal_u64(out, row->count) : PUT(out, "unknown");
		break;
	case ROW_LOCK_WAIT:
	case ROW_LOCK_HOLD:
		out = lock_args(row, out);
		break;
	default:
		break;
	}
	if (out != begin)
		out = PUT(out, "\"}");
	return out;
}
