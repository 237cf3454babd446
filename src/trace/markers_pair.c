/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Begin and end of a marker, paired by (source kind, id) in an open-addressed table; see markers_impl.h. Either half may come
 * first, and what is never paired is told as open or counted.
 */
#include "trace/markers_impl.h"

#include "base/hash64.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define OPEN_MAX_OPS 4096u /* begun and not yet ended; the older half is given up beyond */

static uint32_t op_slot(const struct markers *mk, uint64_t key)
{
	return (uint32_t)hash64_mix(key, 0x9e3779b97f4a7c15u) & mk->ops_mask;
}

/* Slot of a key: where it is, or the free one where it would go. */
static struct op *op_find(struct markers *mk, uint64_t key)
{
	uint32_t at = op_slot(mk, key);

	while (mk->ops[at].key && mk->ops[at].key != key)
		at = (at + 1) & mk->ops_mask;
	return &mk->ops[at];
}

/* Take an op out; the ones behind move up, so that no tombstones are left. */
static void op_remove(struct markers *mk, struct op *op)
{
	uint32_t hole = (uint32_t)(op - mk->ops);
	uint32_t at = hole;
	uint32_t home;

	for (;;) {
		at = (at + 1) & mk->ops_mask;
		if (!mk->ops[at].key)
			break;
		home = op_slot(mk, mk->ops[at].key);
		if (((at - home) & mk->ops_mask) >= ((at - hole) & mk->ops_mask)) {
			mk->ops[hole] = mk->ops[at];
			hole = at;
		}
	}
	mk->ops[hole].key = 0;
	mk->ops_count--;
}

static int ops_grow(struct markers *mk)
{
	struct op *old = mk->ops;
	uint32_t old_slots = mk->ops ? mk->ops_mask + 1 : 0;
	uint32_t slots = old_slots ? old_slots * 2 : 256;
	uint32_t i;

	mk->ops = calloc(slots, sizeof(*mk->ops));
	if (!mk->ops) {
		mk->ops = old;
		return -ENOMEM;
	}
	mk->ops_mask = slots - 1;
	for (i = 0; i < old_slots; i++)
		if (old[i].key)
			*op_find(mk, old[i].key) = old[i];
	free(old);
	return 0;
}

void markers_fill(struct markers *mk, struct event *ev, const struct label *label, unsigned int side,
		  const uint32_t object[2], uint64_t t_ns)
{
	memset(ev, 0, offsetof(struct event, args));
	ev->t_ns = t_ns;
	ev->track = (struct ev_track){ mk->base.origin.host, -1, -1, -1, -1, -1 };
	if (side) {
		ev->track.device = (int32_t)object[0];
		ev->track.stream = (int32_t)object[1];
	} else {
		ev->track.pid = (int32_t)object[0];
		ev->track.tid = (int32_t)object[1];
	}
	ev->rank = mk->base.origin.rank;
	ev->kind = label->comm ? EV_COMM : EV_OTHER;
	ev->name = label->name ? label->name : mk->name_unnamed;
	ev->clock = EV_CLOCK_REAL;
	ev->source = mk->base.source;
	if (label->comm) {
		ev->args[0] = (struct ev_arg){ .key = mk->key_group, .type = EV_ARG_NAME, .name = label->group };
		ev->args[1] = (struct ev_arg){ .key = mk->key_dtype, .type = EV_ARG_NAME, .name = label->dtype };
		ev->args[2] = (struct ev_arg){ .key = mk->key_count, .type = EV_ARG_U64, .u64 = label->count };
		ev->nargs = 3;
	}
}

static void add_id(struct markers *mk, struct event *ev, uint64_t id, unsigned int side)
{
	ev->args[ev->nargs++] = (struct ev_arg){ .key = mk->key_id, .type = EV_ARG_U64, .u64 = id };
	ev->args[ev->nargs++] = (struct ev_arg){ .key = mk->key_side, .type = EV_ARG_NAME, .name = mk->sides[side] };
}

/* Half a pair whose other half will not come. An end alone says nothing but that it ended. */
static void give_up(struct markers *mk, const struct op *op)
{
	struct event *ev;

	if (op->ended) {
		mk->unpaired_ends++;
		return;
	}
	mk->unpaired_begins++;
	ev = &mk->queue[mk->queue_len++];
	markers_fill(mk, ev, &op->label, (op->key - 1) & 1, op->object, op->t_ns);
	add_id(mk, ev, (op->key - 1) >> 1, (op->key - 1) & 1);
	ev->phase = EV_BEGIN;
	ev->quality = EV_CUT_END;
}

static int by_time(const void *left, const void *right)
{
	uint64_t a = ((const struct op *)left)->t_ns, b = ((const struct op *)right)->t_ns;

	return a < b ? -1 : a > b;
}

/* Give up the oldest ops until only @keep are left. Return: 0 or -ENOMEM. */
int markers_give_up(struct markers *mk, uint32_t keep)
{
	struct op *all = malloc((mk->ops_count + 1) * sizeof(*all));
	uint32_t i, n = 0;

	if (!all)
		return -ENOMEM;
	if (!mk->queue) {
		mk->queue = malloc(OPEN_MAX_OPS * sizeof(*mk->queue));
		if (!mk->queue) {
			free(all);
			return -ENOMEM;
		}
	}
	mk->queue_at = mk->queue_len = 0;
	for (i = 0; i <= mk->ops_mask; i++)
		if (mk->ops[i].key)
			all[n++] = mk->ops[i];
	qsort(all, n, sizeof(*all), by_time);
	for (i = 0; i + keep < n; i++) {
		give_up(mk, &all[i]);
		op_remove(mk, op_find(mk, all[i].key));
	}
	free(all);
	return 0;
}

static int pair_half(struct markers *mk, const struct row *row, bool ended, struct event *ev)
{
	unsigned int side = row->source != 0;
	uint64_t key = ((row->id & (UINT64_MAX >> 2)) << 1 | side) + 1;
	struct op *op = op_find(mk, key);
	const uint32_t object[2] = { (uint32_t)row->object[side ? 0 : 2], (uint32_t)row->object[side ? 1 : 3] };

	if (op->key && op->ended != ended) {
		uint64_t begin_ns = ended ? op->t_ns : row->t_ns, end_ns = ended ? row->t_ns : op->t_ns;

		if (ended) {
			markers_fill(mk, ev, &op->label, side, op->object, begin_ns);
		} else {
			markers_label(mk, row->name, row->name_len, &op->label);
			markers_fill(mk, ev, &op->label, side, object, begin_ns);
		}
		add_id(mk, ev, row->id, side);
		ev->dur_ns = end_ns > begin_ns ? end_ns - begin_ns : 0;
		op_remove(mk, op);
		return 1;
	}
	if (op->key) { /* the same half twice: the id was used again */
		if (ended)
			mk->unpaired_ends++;
		else
			mk->unpaired_begins++;
	} else {
		if (mk->ops_count >= OPEN_MAX_OPS) {
			if (markers_give_up(mk, OPEN_MAX_OPS / 2) < 0)
				return -ENOMEM;
			op = op_find(mk, key);
		} else if (mk->ops_count > mk->ops_mask / 2) {
			if (ops_grow(mk) < 0)
				return -ENOMEM;
			op = op_find(mk, key);
		}
		mk->ops_count++;
	}
	op->key = key;
	op->t_ns = row->t_ns;
	op->object[0] = object[0];
	op->object[1] = object[1];
	op->ended = ended;
	if (!ended)
		markers_label(mk, row->name, row->name_len, &op->label);
	return 0;
}

/* A whole row. Return: 1 = event, 0 = none, -ENOMEM. */
int markers_take_row(struct markers *mk, const struct row *row, struct event *ev)
{
	unsigned int side = row->source != 0;
	struct label label;

	if (row->kind != 1) {
		mk->other_kinds++;
		mk->base.stats.skipped++;
		return 0;
	}
	if (mk->device_only && !side) {
		if (row->flag & FLAG_BEGIN && row->id > mk->issued)
			mk->issued = row->id;
		return 0;
	}
	if (!row->t_ns) {
		mk->no_time++;
		mk->base.stats.skipped++;
		return 0;
	}
	if (row->t_ns > mk->last_ns)
		mk->last_ns = row->t_ns;
	if (row->flag & FLAG_BEGIN)
		return pair_half(mk, row, false, ev);
	if (row->flag & FLAG_END)
		return pair_half(mk, row, true, ev);
	if (!(row->flag & FLAG_INSTANT)) {
		mk->odd_flags++;
		mk->base.stats.skipped++;
		return 0;
	}
	markers_label(mk, row->name, row->name_len, &label);
	markers_fill(mk, ev, &label, side,
		     (const uint32_t[2]){ (uint32_t)row->object[side ? 0 : 2], (uint32_t)row->object[side ? 1 : 3] },
		     row->t_ns);
	add_id(mk, ev, row->id, side);
	ev->phase = EV_INSTANT;
	return 1;
}

int markers_pairs_init(struct markers *mk)
{
	return ops_grow(mk);
}
