/* SPDX-License-Identifier: MulanPSL-2.0 */
/* I/O entries as events; see io.h. */
#include "trace/io.h"

#include "trace/session.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

int io_state_init(struct io_state *state, struct ev_reader *reader)
{
	struct ev_session *session = reader->session;
	uint32_t i;

	*state = (struct io_state){
		.reader = reader,
		.key_file = ev_namez(session, "file"),
		.key_peer = ev_namez(session, "peer"),
		.key_bytes = ev_namez(session, "bytes"),
		.key_error = ev_namez(session, "errno"),
		.key_stage_id = ev_namez(session, "stage_id"),
		.key_offset = ev_namez(session, "offset"),
		.key_fd = ev_namez(session, "fd"),
		.key_stage = ev_namez(session, "stage_type"),
		.unknown = ev_namez(session, "(unknown)"),
	};
	for (i = 0; i < IO_TYPE_COUNT; i++)
		state->calls[i] = ev_namez(session, io_type_text(i));
	for (i = 0; i < STAGE_COUNT; i++)
		state->stages[i] = ev_namez(session, stage_type_name(i));
	return state->unknown ? 0 : -ENOMEM;
}

static struct ev_arg *add(struct event *ev, uint32_t key, enum ev_arg_type type)
{
	struct ev_arg *arg = &ev->args[ev->nargs++];

	*arg = (struct ev_arg){ .key = key, .type = type };
	return arg;
}

void io_event(struct io_state *state, const struct msg_io *entry, struct event *ev)
{
	const struct ev_origin *origin = &state->reader->origin;
	struct msg_text text = entry->is_socket ? entry->peer : entry->file_name;
	int32_t pid = entry->pid ? (int32_t)entry->pid : origin->pid ? (int32_t)origin->pid : -1;

	/* not the whole struct: args beyond nargs are never read */
	memset(ev, 0, offsetof(struct event, args));
	ev->kind = entry->is_socket ? EV_SOCKET : EV_IO;
	ev->t_ns = entry->start_ns ? entry->start_ns : entry->start_us * 1000;
	ev->dur_ns = entry->start_ns ? entry->dur_ns : entry->dur * 1000;
	ev->clock = entry->start_ns ? EV_CLOCK_MONO : EV_CLOCK_REAL; /* published fields only: wall clock */
	ev->rank = origin->known ? origin->rank : (int32_t)entry->rank;
	ev->source = state->reader->source;
	ev->step = entry->step;
	ev->quality = entry->worker ? EV_WORKER : 0;
	ev->track = (struct ev_track){ origin->host, pid, entry->tid ? (int32_t)entry->tid : pid, -1, -1, -1 };
	ev->name = state->calls[entry->io_type < IO_TYPE_COUNT ? entry->io_type : IO_UNKNOWN];
	add(ev, entry->is_socket ? state->key_peer : state->key_file, EV_ARG_NAME)->name =
		text.bytes ? ev_name(state->reader->session, text.at, text.bytes) : state->unknown;
	add(ev, state->key_bytes, EV_ARG_U64)->u64 = entry->bytes > 0 ? (uint64_t)entry->bytes : 0;
	add(ev, state->key_error, EV_ARG_U64)->u64 = entry->bytes < 0 ? (uint64_t)-entry->bytes : 0;
	add(ev, state->key_stage_id, EV_ARG_U64)->u64 = entry->stage_id;
	if (entry->stage_type && entry->stage_type < STAGE_COUNT)
		add(ev, state->key_stage, EV_ARG_NAME)->name = state->stages[entry->stage_type];
	if (entry->offset)
		add(ev, state->key_offset, EV_ARG_U64)->u64 = entry->offset;
	if (entry->fd)
		add(ev, state->key_fd, EV_ARG_U64)->u64 = entry->fd - 1;
}
