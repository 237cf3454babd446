/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Memory records as events; see mem.h. */
#include "trace/mem.h"

#include "trace/session.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int mem_state_init(struct mem_state *state, struct ev_reader *reader, struct tl_state *tl)
{
	static const char *const keys[MEM_ARGS] = { "address", "bytes", "usable", "weight",
						    "kind",    "space", "flags",  "stack" };
	static const char *const site_keys[MEM_ARGS] = { "blocks", "bytes", "usable",	 "weight",
							 "kind",   "space", "oldest_ns", "stack" };
	static const char *const state_keys[STATE_ARGS] = { "heap",	    "mapped",	 "brk",	 "rss",
							    "sample_bytes", "untracked", "flags" };
	struct ev_session *session = reader->session;
	int i;

	*state = (struct mem_state){
		.reader = reader,
		.tl = tl,
		.name_alloc = ev_namez(session, "allocate"),
		.name_free = ev_namez(session, "free"),
		.name_site = ev_namez(session, "live blocks"),
		.name_state = ev_namez(session, "memory"),
	};
	for (i = 0; i < MEM_ARGS; i++) {
		state->keys[i] = ev_namez(session, keys[i]);
		state->site_keys[i] = ev_namez(session, site_keys[i]);
	}
	for (i = 0; i < STATE_ARGS; i++)
		state->state_keys[i] = ev_namez(session, state_keys[i]);
	return state->name_state ? 0 : -ENOMEM;
}

/* As people read it: "f (train.py:12)", "libtorch.so+0x1f40", "0x7f0012345678". */
static uint32_t frame_name(struct mem_state *state, const struct msg_frame *frame)
{
	char text[1024];
	int n;

	if (frame->function.bytes)
		n = snprintf(text, sizeof(text), "%.*s (%.*s:%" PRIu64 ")", (int)(frame->function.bytes & 511),
			     frame->function.at, (int)(frame->so_name.bytes & 255), frame->so_name.at, frame->address);
	else if (frame->so_name.bytes)
		n = snprintf(text, sizeof(text), "%.*s+0x%" PRIx64, (int)(frame->so_name.bytes & 511),
			     frame->so_name.at, frame->address);
	else
		n = snprintf(text, sizeof(text), "0x%" PRIx64, frame->address);
	return ev_name(state->reader->session, text, (size_t)n);
}

static uint32_t stack_of(struct mem_state *state, const struct mem_entry *entry)
{
	uint32_t names[MEM_FRAMES], i;

	for (i = 0; i < entry->nframes; i++)
		names[i] = frame_name(state, &entry->frames[i]);
	return entry->nframes ? ev_stack(state->reader->session, names, entry->nframes) : 0;
}

static void put_args(struct event *ev, const uint32_t *keys, const uint64_t *values, uint8_t count)
{
	uint8_t i;

	for (i = 0; i < count; i++)
		ev->args[i] = (struct ev_arg){ .key = keys[i], .type = EV_ARG_U64, .u64 = values[i] };
	ev->nargs = count;
}

static void alloc_event(struct mem_state *state, uint32_t space, const struct mem_entry *entry, struct event *ev)
{
	const struct msg_mem_alloc *m = &entry->alloc;
	const uint64_t values[MEM_ARGS] = {
		m->alloc_ptr,
		m->mem_size,
		m->usable ? m->usable : m->mem_size,
		m->weight ? m->weight : m->mem_size,
		m->kind,
		space,
		m->flags,
		m->stack,
	};

	ev->kind = EV_MEM_ALLOC;
	ev->name = state->name_alloc;
	ev->t_ns = m->start_ns;
	ev->step = m->step;
	put_args(ev, state->keys, values, MEM_ARGS);
}

static void free_event(struct mem_state *state, uint32_t space, const struct mem_entry *entry, struct event *ev)
{
	const uint64_t values[MEM_ARGS] = { entry->gone.alloc_ptr, 0, 0, 0, entry->gone.kind, space, 0, 0 };

	ev->kind = EV_MEM_FREE;
	ev->name = state->name_free;
	ev->t_ns = entry->gone.start_ns;
	ev->step = entry->gone.step;
	put_args(ev, state->keys, values, MEM_ARGS);
}

static void site_event(struct mem_state *state, uint32_t space, const struct mem_entry *entry, struct event *ev)
{
	const struct msg_mem_site *m = &entry->site;
	const uint64_t values[MEM_ARGS] = { m->blocks, m->bytes, m->usable,    m->weight,
					    m->kind,   space,	 m->oldest_ns, m->stack };

	ev->kind = EV_MEM_SITE;
	ev->name = state->name_site;
	ev->t_ns = m->start_ns;
	put_args(ev, state->site_keys, values, MEM_ARGS);
}

static void state_event(struct mem_state *state, const struct mem_entry *entry, struct event *ev)
{
	const struct msg_mem_state *m = &entry->state;
	const uint64_t values[STATE_ARGS] = { m->heap,	       m->mapped,    m->brk,  m->rss,
					      m->sample_bytes, m->untracked, m->flags };

	ev->kind = EV_MEM_STATE;
	ev->name = state->name_state;
	ev->t_ns = m->start_ns;
	ev->step = m->step;
	put_args(ev, state->state_keys, values, STATE_ARGS);
}

void mem_event(struct mem_state *state, const struct msg_proc_mem *proc, const struct mem_entry *entry,
	       struct event *ev)
{
	const struct ev_origin *origin = &state->reader->origin;
	/* published files name the thread only: what one of them allocates another one may free */
	uint32_t pid = proc->tgid ? proc->tgid : origin->pid ? origin->pid : state->file_pid;
	int32_t tid = (int32_t)(proc->pid ? proc->pid : pid);

	memset(ev, 0, offsetof(struct event, args));
	ev->phase = EV_INSTANT;
	ev->clock = EV_CLOCK_MONO;
	ev->rank = origin->rank;
	ev->source = state->reader->source;
	ev->track = (struct ev_track){ origin->host, pid ? (int32_t)pid : -1, tid ? tid : -1, -1, -1, -1 };
	ev->quality = origin->pid && pid != origin->pid ? EV_WORKER : 0;
	if (entry->what == TL_MEM_ALLOC)
		alloc_event(state, proc->space, entry, ev);
	else if (entry->what == TL_MEM_FREE)
		free_event(state, proc->space, entry, ev);
	else if (entry->what == TL_MEM_SITE)
		site_event(state, proc->space, entry, ev);
	else
		state_event(state, entry, ev);
	ev->stack = stack_of(state, entry);
	if (!ev->t_ns)
		ev->t_ns = state->tl->last_ns + 1;
	if (ev->t_ns > state->tl->last_ns)
		state->tl->last_ns = ev->t_ns;
}

int32_t mem_rank_of_name(const char *path, uint32_t *pid)
{
	const char *at = strrchr(path, '/');
	char *end;
	long rank;

	*pid = 0;
	for (at = at ? at : path; (at = strstr(at, "rank")) != NULL;) {
		at += 4;
		at += *at == '_';
		if (!isdigit((unsigned char)*at))
			continue;
		rank = strtol(at, &end, 10);
		if (*end == '_')
			*pid = (uint32_t)strtoul(end + 1, NULL, 10);
		return rank < INT32_MAX ? (int32_t)rank : EV_NO_RANK;
	}
	return EV_NO_RANK;
}
