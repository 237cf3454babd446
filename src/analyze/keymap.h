/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Keys of four numbers to places in an array: the sums of `analyze sched` are arrays of structs, and this finds the one of
 * a task, an interrupt or a pair of tasks. Open addressing, grows by doubling, nothing is removed.
 */
#ifndef ANALYZE_KEYMAP_H
#define ANALYZE_KEYMAP_H

#include <stddef.h>
#include <stdint.h>

struct keymap_key {
	uint32_t part[4];
};

struct keymap_slot {
	struct keymap_key key;
	uint32_t place; /* + 1; 0 = free */
};

/** struct keymap - zero-initialise */
struct keymap {
	struct keymap_slot *slots;
	uint32_t mask; /* slots - 1 */
	uint32_t used; /* also the place of the next new key */
};

/**
 * keymap_place - place of a key: 0, 1, 2, ... in the order they came
 * @fresh: gets 1 when the key is new, else 0
 *
 * Context: tool. Return: the place, or -ENOMEM.
 */
int64_t keymap_place(struct keymap *map, const struct keymap_key *key, int *fresh);

/** keymap_find - place of a key, -1 when it is not there */
int64_t keymap_find(const struct keymap *map, const struct keymap_key *key);

void keymap_fini(struct keymap *map);

/**
 * keymap_room - make room for one more element of an array that grows by doubling
 * @array: the array, moved
 * @used, @room: elements in use and allocated
 *
 * New elements are zero. Return: 0 or -ENOMEM.
 */
int keymap_room(void **array, size_t used, size_t *room, size_t size);

#endif
