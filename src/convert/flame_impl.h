/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The tree behind flame.h, for its two writers. */
#ifndef CONVERT_FLAME_IMPL_H
#define CONVERT_FLAME_IMPL_H

#include "convert/flame.h"

struct flame_node {
	uint32_t name; /* 0 = the root */
	uint32_t parent, first, next; /* indices; 0 = none: the root is nobody's child */
	uint32_t depth;
	uint64_t self, total;
	double self_count, total_count;
};

struct flame {
	struct ev_session *session;
	struct flame_node *nodes; /* [0] is the root; parents stand before their children */
	uint32_t count, room;
	uint32_t *by_key; /* index of a child by parent and name; 0 = unused */
	uint32_t mask;
};

/** flame_order - link each node's children by value, the largest first */
int flame_order(struct flame *flame);

#endif
