/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Memory records of os_trace and hbm_trace files as events, for the readers of those files (read_mem_pb.c, read_mem_json.c)
 * and for whoever sums them up. The keys of the arguments are fixed here.
 */
#ifndef TRACE_MEM_H
#define TRACE_MEM_H

#include "trace/timeline.h"

#define MEM_FRAMES 256u

/* arguments of EV_MEM_ALLOC and EV_MEM_FREE (of a free only the address, kind and space say something) */
enum mem_arg {
	MEM_ARG_ADDRESS,
	MEM_ARG_BYTES, /* as asked for */
	MEM_ARG_USABLE,
	MEM_ARG_WEIGHT, /* bytes that it stands for */
	MEM_ARG_KIND, /* enum mem_kind */
	MEM_ARG_SPACE, /* enum mem_space */
	MEM_ARG_FLAGS, /* MEM_UNTRACKED, MEM_REST */
	MEM_ARG_STACK, /* id in the process's stacks file */
	MEM_ARGS
};

/* arguments of EV_MEM_SITE; BYTES to KIND, SPACE and STACK as above */
enum mem_site_arg { SITE_ARG_BLOCKS = MEM_ARG_ADDRESS, SITE_ARG_OLDEST = MEM_ARG_FLAGS };

/* arguments of EV_MEM_STATE */
enum mem_state_arg {
	STATE_ARG_HEAP,
	STATE_ARG_MAPPED,
	STATE_ARG_BRK,
	STATE_ARG_RSS,
	STATE_ARG_SAMPLE_BYTES,
	STATE_ARG_UNTRACKED,
	STATE_ARG_FLAGS, /* MEM_BEGINS, MEM_ENDED */
	STATE_ARGS
};

/** struct mem_entry - one record with what stands around it */
struct mem_entry {
	enum tl_message what; /* TL_MEM_... */
	union {
		struct msg_mem_alloc alloc;
		struct msg_mem_free gone;
		struct msg_mem_site site;
		struct msg_mem_state state;
	};
	uint32_t nframes;
	struct msg_frame frames[MEM_FRAMES]; /* innermost first */
};

/** struct mem_state - of one file */
struct mem_state {
	struct ev_reader *reader;
	struct tl_state *tl; /* origin, drops, notes and threads go there */
	uint32_t keys[MEM_ARGS], site_keys[MEM_ARGS], state_keys[STATE_ARGS];
	uint32_t file_pid; /* by the file's name, 0 = unknown */
	uint32_t name_alloc, name_free, name_site, name_state;
};

/** mem_state_init - intern the keys. Context: tool. Return: 0 or -ENOMEM. */
int mem_state_init(struct mem_state *state, struct ev_reader *reader, struct tl_state *tl);

/**
 * mem_event - a record as an event; texts are interned
 * @proc: what stands around the record
 *
 * Published records have no time: they get one after the other, so that their order stays.
 */
void mem_event(struct mem_state *state, const struct msg_proc_mem *proc, const struct mem_entry *entry,
	       struct event *ev);

/**
 * mem_rank_of_name - rank in names such as hbm_trace_rank3_99.pb and os_trace_..._rank_3_99.pb
 * @pid: gets the process behind it, 0 = none
 *
 * Return: rank or EV_NO_RANK.
 */
int32_t mem_rank_of_name(const char *path, uint32_t *pid);

#endif
