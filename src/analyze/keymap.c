/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Keys of four numbers to places; see keymap.h. */
#include "analyze/keymap.h"

#include "base/hash64.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_SLOTS 256u

static uint32_t hash(const struct keymap_key *key)
{
	uint64_t low = key->part[0] | (uint64_t)key->part[1] << 32, high = key->part[2] | (uint64_t)key->part[3] << 32;

	return (uint32_t)hash64_mix(low ^ 0x9e3779b97f4a7c15u, high ^ 0xd6e8feb86659fd93u);
}

/* The slot that has the key, or the free one where it belongs. */
static struct keymap_slot *slot_of(const struct keymap *map, const struct keymap_key *key)
{
	uint32_t at = hash(key) & map->mask;

	while (map->slots[at].place && memcmp(&map->slots[at].key, key, sizeof(*key)) != 0)
		at = (at + 1) & map->mask;
	return &map->slots[at];
}

static int grow(struct keymap *map)
{
	struct keymap fresh = { .used = map->used };
	uint32_t count = map->slots ? map->mask + 1 : 0, i;

	if (count > UINT32_MAX / 4)
		return -ENOMEM;
	fresh.mask = count ? 2 * count - 1 : FIRST_SLOTS - 1;
	fresh.slots = calloc((size_t)fresh.mask + 1, sizeof(*fresh.slots));
	if (!fresh.slots)
		return -ENOMEM;
	for (i = 0; i < count; i++)
		if (map->slots[i].place)
			*slot_of(&fresh, &map->slots[i].key) = map->slots[i];
	free(map->slots);
	*map = fresh;
	return 0;
}

int64_t keymap_place(struct keymap *map, const struct keymap_key *key, int *fresh)
{
	struct keymap_slot *slot = map->slots ? slot_of(map, key) : NULL;

	*fresh = 0;
	if (slot && slot->place)
		return slot->place - 1;
	if (!slot || map->used >= map->mask / 4 * 3) {
		if (grow(map))
			return -ENOMEM;
		slot = slot_of(map, key);
	}
	slot->key = *key;
	slot->place = ++map->used;
	*fresh = 1;
	return slot->place - 1;
}

int64_t keymap_find(const struct keymap *map, const struct keymap_key *key)
{
	return map->slots ? (int64_t)slot_of(map, key)->place - 1 : -1;
}

void keymap_fini(struct keymap *map)
{
	free(map->slots);
	*map = (struct keymap){ 0 };
}

int keymap_room(void **array, size_t used, size_t *room, size_t size)
{
	size_t want = *room ? 2 * *room : 64;
	char *more;

	if (used < *room)
		return 0;
	more = realloc(*array, want * size);
	if (!more)
		return -ENOMEM;
	memset(more + *room * size, 0, (want - *room) * size);
	*array = more;
	*room = want;
	return 0;
}
