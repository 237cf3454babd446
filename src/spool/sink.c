/* SPDX-License-Identifier: MulanPSL-2.0 */
/* What the sinks share, and the table of them; see sink.h. */
#include "spool/sink.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

extern const struct sink_ops sink_timeline_pb, sink_timeline_json, sink_timeline_ext, sink_markers, sink_io_pb,
	sink_io_json, sink_mutex, sink_gil, sink_stacks, sink_os_pb, sink_os_json;

const struct sink_ops *const sink_table[] = {
	&sink_timeline_pb, &sink_timeline_json, &sink_timeline_ext, &sink_markers, &sink_io_pb,	  &sink_io_json,
	&sink_mutex,	   &sink_gil,		&sink_stacks,	    &sink_os_pb,   &sink_os_json, NULL,
};

const char *sink_source_name(enum pool_source source)
{
	static const char *const names[POOL_SRC_COUNT] = {
		[POOL_SRC_STAGE] = "stage",   [POOL_SRC_COMM] = "comm",	  [POOL_SRC_STEP] = "step",
		[POOL_SRC_IO] = "io",	      [POOL_SRC_GIL] = "gil",	  [POOL_SRC_MUTEX] = "mutex",
		[POOL_SRC_MEMORY] = "memory", [POOL_SRC_HBM] = "hbm",	  [POOL_SRC_MSPTI] = "mspti",
		[POOL_SRC_NOTE] = "note",     [POOL_SRC_STACK] = "stack",
	};

	return (unsigned int)source < POOL_SRC_COUNT && names[source] ? names[source] : "other";
}

bool sink_note_of(const struct sink *s, const struct sink_rec *rec, const char *plugin)
{
	struct msg_text text = sink_text(s->env->head, ((const struct rec_note *)rec->head)->text);
	size_t len = strlen(plugin);

	return text.bytes > len && memcmp(text.at, plugin, len) == 0 && text.at[len] == ' ';
}

struct msg_origin sink_origin(const struct sink *s)
{
	struct msg_origin origin = *s->env->origin;

	origin.wall_minus_mono_ns = s->out.wall_minus_mono_ns;
	origin.segment = s->out.segment;
	return origin;
}

struct msg_clock sink_clock(const struct clock_snapshot *clocks)
{
	return (struct msg_clock){
		.mono_ns = clocks->mono_ns,
		.mono_raw_ns = clocks->mono_raw_ns,
		.boottime_ns = clocks->boottime_ns,
		.realtime_ns = clocks->realtime_ns,
	};
}

struct msg_text sink_text(const struct pool_header *head, uint32_t id)
{
	const struct pool_names *names = (const struct pool_names *)((const uint8_t *)head + head->names_off);

	if (!id || id >= POOL_NAMES_BYTES)
		return (struct msg_text){ "", 0 };
	return (struct msg_text){ names->text + id, strnlen(names->text + id, POOL_NAMES_BYTES - id) };
}

const char *sink_of_worker(const struct sink *s, char text[SINK_WORKER])
{
	text[0] = 0;
	if (s->env->head->worker_of & POOL_WORKER)
		snprintf(text, SINK_WORKER, "-%u", s->env->origin->pid);
	return text;
}

int sink_put_pb(struct sink *s, const struct pb_writer *w)
{
	return w->full ? -EMSGSIZE : out_put(&s->out, w->data, w->used);
}

int sink_put_json(struct sink *s, const struct json_writer *w)
{
	char *text = w->data;
	int ret;

	/* the first two bytes were left for the comma and the line break by sink_json() */
	text[0] = ',';
	text[1] = '\n';
	if (w->full)
		return -EMSGSIZE;
	ret = s->out.elements ? out_put(&s->out, text, w->used) : out_put(&s->out, text + 1, w->used - 1);
	if (ret == 0)
		s->out.elements = true;
	return ret;
}

void sink_json(struct sink *s, struct json_writer *w)
{
	json_init(w, s->env->scratch, OUT_WRITE - OUT_TAIL);
	json_raw(w, ",\n");
}

void sink_origin_json(struct json_writer *w, const struct msg_origin *origin, const struct clock_snapshot *clocks,
		      size_t count)
{
	size_t i;

	json_key(w, "origin");
	json_open(w, '[');
	json_open(w, '{');
	msg_origin_json(w, origin);
	json_key(w, "clocks");
	json_open(w, '[');
	for (i = 0; i < count; i++) {
		struct msg_clock clock = sink_clock(&clocks[i]);

		json_open(w, '{');
		msg_clock_json(w, &clock);
		json_close(w, '}');
	}
	json_close(w, ']');
	json_close(w, '}');
	json_close(w, ']');
}
