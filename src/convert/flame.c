/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Stacks as a tree, and collapsed stacks; see flame.h. */
#include "convert/flame.h"

#include "base/hash64.h"
#include "convert/flame_impl.h"
#include "convert/outfile.h"
#include "convert/rows.h"
#include "trace/session.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct flame *flame_new(struct ev_session *session)
{
	struct flame *flame = calloc(1, sizeof(*flame));

	if (!flame || rows_grow(&flame->nodes, 0, &flame->room, sizeof(*flame->nodes)) < 0) {
		free(flame);
		return NULL;
	}
	flame->session = session;
	flame->nodes[0] = (struct flame_node){ 0 };
	flame->count = 1;
	return flame;
}

void flame_free(struct flame *flame)
{
	if (!flame)
		return;
	free(flame->nodes);
	free(flame->by_key);
	free(flame);
}

static uint32_t slot_of(uint32_t parent, uint32_t name, uint32_t mask)
{
	return (uint32_t)hash64_mix((uint64_t)parent << 32 | name, 0x9e3779b97f4a7c15u) & mask;
}

static int keys_grow(struct flame *flame)
{
	uint32_t mask = flame->mask ? flame->mask * 2 + 1 : 1023, i, at;
	uint32_t *keys = calloc((size_t)mask + 1, sizeof(*keys));

	if (!keys)
		return -ENOMEM;
	for (i = 1; i < flame->count; i++) {
		for (at = slot_of(flame->nodes[i].parent, flame->nodes[i].name, mask); keys[at]; at = (at + 1) & mask)
			;
		keys[at] = i;
	}
	free(flame->by_key);
	flame->by_key = keys;
	flame->mask = mask;
	return 0;
}

/* Return: index of the child, new or not; 0 = out of memory. */
static uint32_t child_of(struct flame *flame, uint32_t parent, uint32_t name)
{
	uint32_t at, i;

	if (flame->count >= flame->mask / 2 && keys_grow(flame) < 0)
		return 0;
	for (at = slot_of(parent, name, flame->mask); (i = flame->by_key[at]) != 0; at = (at + 1) & flame->mask)
		if (flame->nodes[i].parent == parent && flame->nodes[i].name == name)
			return i;
	if (rows_grow(&flame->nodes, flame->count, &flame->room, sizeof(*flame->nodes)) < 0)
		return 0;
	flame->nodes[flame->count] =
		(struct flame_node){ .name = name, .parent = parent, .depth = flame->nodes[parent].depth + 1 };
	return flame->by_key[at] = flame->count++;
}

int flame_add(struct flame *flame, const uint32_t *names, size_t depth, uint64_t value, double count)
{
	uint32_t at = 0;
	size_t i;

	for (i = 0; i < depth; i++) {
		at = child_of(flame, at, names[i]);
		if (!at)
			return -ENOMEM;
	}
	flame->nodes[at].self += value;
	flame->nodes[at].self_count += count;
	for (;; at = flame->nodes[at].parent) {
		flame->nodes[at].total += value;
		flame->nodes[at].total_count += count;
		if (!at)
			return 0;
	}
}

uint64_t flame_value(const struct flame *flame)
{
	return flame->nodes[0].total;
}

/* --- order ------------------------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b, void *arg)
{
	const struct flame *flame = arg;
	const struct flame_node *x = &flame->nodes[*(const uint32_t *)a], *y = &flame->nodes[*(const uint32_t *)b];

	if (x->total != y->total)
		return x->total < y->total ? 1 : -1;
	return strcmp(ev_text(flame->session, x->name), ev_text(flame->session, y->name));
}

int flame_order(struct flame *flame)
{
	uint32_t *order = malloc(flame->count * sizeof(*order)), i;

	if (!order)
		return -ENOMEM;
	for (i = 0; i < flame->count; i++) {
		order[i] = i;
		flame->nodes[i].first = flame->nodes[i].next = 0;
	}
	qsort_r(order, flame->count, sizeof(*order), by_value, flame);
	for (i = flame->count; i-- > 0;) { /* the smallest first, each in front of those before it */
		struct flame_node *node = &flame->nodes[order[i]];

		if (!order[i])
			continue;
		node->next = flame->nodes[node->parent].first;
		flame->nodes[node->parent].first = order[i];
	}
	free(order);
	return 0;
}

/* --- collapsed stacks --------------------------------------------------------------------------------------------------- */

static int by_self(const void *a, const void *b, void *arg)
{
	const struct flame *flame = arg;
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	if (flame->nodes[x].self != flame->nodes[y].self)
		return flame->nodes[x].self < flame->nodes[y].self ? 1 : -1;
	return x < y ? -1 : x > y;
}

/* ';' parts frames, and a line is a stack. */
static void put_name(struct outfile *out, const char *name)
{
	char text[1024];
	size_t i;

	for (i = 0; name[i] && i < sizeof(text); i++)
		text[i] = name[i] == ';' ? ',' : name[i] == '\n' || name[i] == '\r' ? ' ' : name[i];
	outfile_put(out, text, i);
}

static void put_stack(const struct flame *flame, struct outfile *out, uint32_t at)
{
	if (flame->nodes[at].parent) {
		put_stack(flame, out, flame->nodes[at].parent);
		outfile_put(out, ";", 1);
	}
	put_name(out, ev_text(flame->session, flame->nodes[at].name));
}

int flame_collapsed(const struct flame *flame, const char *path, struct st_err *err)
{
	uint32_t *order = malloc(flame->count * sizeof(*order)), i, used = 0;
	struct outfile out;
	char value[32];
	int ret;

	if (!order)
		return err_set(err, -ENOMEM, "out of memory");
	for (i = 1; i < flame->count; i++)
		if (flame->nodes[i].self)
			order[used++] = i;
	qsort_r(order, used, sizeof(*order), by_self, (void *)flame);
	ret = outfile_open(&out, path, err);
	for (i = 0; i < used && ret == 0; i++) {
		put_stack(flame, &out, order[i]);
		outfile_put(&out, value,
			    (size_t)snprintf(value, sizeof(value), " %" PRIu64 "\n", flame->nodes[order[i]].self));
	}
	free(order);
	return ret < 0 ? ret : outfile_finish(&out, err);
}
