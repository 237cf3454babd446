/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What the parts of the reader of MSPTI markers share: rows become labels (markers_label.c), halves become pairs
 * (markers_pair.c), sidecar and file name say whose they are (markers_origin.c). Nobody else includes it.
 */
#ifndef TRACE_MARKERS_IMPL_H
#define TRACE_MARKERS_IMPL_H

#include "trace/input.h"
#include "trace/markers.h"

#include <stdbool.h>

#define NAME_SLOTS 1024u /* direct-mapped cache of name texts */
#define NAME_BYTES 232u /* longer texts are parsed each time */

enum { FLAG_INSTANT = 1 | 8, FLAG_BEGIN = 2 | 16, FLAG_END = 4 | 32, FLAG_ALL = 63 };

/** struct row - one line; the four columns of objects hold two numbers, written twice */
struct row {
	uint64_t flag, id, kind, source, t_ns;
	uint64_t object[4]; /* device, stream, pid, tid as written */
	const char *name;
	size_t name_len;
};

/** struct label - what a name means; texts as name ids */
struct label {
	uint32_t name; /* operation of a collective, whole text otherwise; 0 = empty */
	uint32_t group, dtype;
	bool comm;
	uint64_t count;
};

struct cached_label {
	uint64_t hash;
	uint32_t len; /* 0 = free */
	char text[NAME_BYTES];
	struct label label;
};

/** struct op - half a pair; key 0 = free slot */
struct op {
	uint64_t key; /* id * 2 + side + 1 */
	uint64_t t_ns;
	uint32_t object[2];
	bool ended; /* the end came first */
	struct label label;
};

struct markers {
	struct ev_reader base;
	struct input input;
	uint8_t column_at[32]; /* enum column of each column of a file with another header */
	unsigned int columns; /* 0 = the usual ten */
	struct op *ops;
	uint32_t ops_mask, ops_count;
	struct cached_label *labels;
	struct event *queue; /* given up or left open, to be delivered */
	uint32_t queue_at, queue_len;
	bool done;
	bool device_only; /* markers_device_only() */
	uint64_t issued; /* then: highest id whose host side began */
	uint32_t key_group, key_dtype, key_count, key_id, key_side, name_unnamed, name_lost, sides[2];
	uint64_t rows, bad_rows, odd_flags, no_time, unpaired_ends, unpaired_begins, other_kinds;
	uint64_t first_bad; /* offset */
	uint64_t last_ns; /* time of the newest row */
	uint64_t lines_end; /* offset; whole lines up to here are in the window */
	bool cut; /* the last line had no end */
	uint32_t drops, drop_at; /* of the sidecar */
	struct drop {
		uint32_t source;
		uint64_t count, from_ns, to_ns;
	} drop[16];
};

/* what a text means, from the cache where it is known */
void markers_label(struct markers *mk, const char *text, size_t len, struct label *label);

/* a whole row. Return: 1 = event, 0 = none, -ENOMEM */
int markers_take_row(struct markers *mk, const struct row *row, struct event *ev);
/* first room for pairs. Return: 0 or -ENOMEM */
int markers_pairs_init(struct markers *mk);
/* give up the oldest halves until only @keep are left; they are put into the queue. Return: 0 or -ENOMEM */
int markers_give_up(struct markers *mk, uint32_t keep);
/* everything of an event but id, duration and phase */
void markers_fill(struct markers *mk, struct event *ev, const struct label *label, unsigned int side,
		  const uint32_t object[2], uint64_t t_ns);

/* origin and drops of `<file>.meta.json`, where there is one */
void markers_read_sidecar(struct markers *mk);

#endif
