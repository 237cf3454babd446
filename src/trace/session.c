/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Interning of names and stacks for one run of a tool; see event.h and session.h. */
#include "trace/session.h"

#include "base/hash64.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES (64u << 10)

/** struct block - memory that never moves; blocks are chained for the freeing */
struct block {
	struct block *next;
	char bytes[];
};

/** struct entry - one interned string of bytes (a name, or the frames of a stack) */
struct entry {
	const char *bytes;
	uint32_t len;
	uint32_t hash; /* upper half, compared before the bytes */
};

/** struct table - entries by id, and their ids by hash; id 0 is the empty string */
struct table {
	struct entry *entries;
	uint32_t count, room;
	uint32_t *slots; /* 0 = free */
	uint32_t mask;
};

struct ev_session {
	struct table names, stacks;
	struct block *blocks;
	char *free; /* rest of the newest small block */
	size_t left;
	char **sources;
	size_t sources_count;
	struct stacks *stacks_of_files;
};

/* Memory of the session, aligned for uint32_t. */
static char *take(struct ev_session *session, size_t bytes)
{
	size_t whole = bytes > BLOCK_BYTES / 4 ? bytes : BLOCK_BYTES;
	struct block *block;
	char *at;

	bytes = (bytes + 7) & ~(size_t)7;
	if (bytes <= session->left) {
		at = session->free;
		session->free += bytes;
		session->left -= bytes;
		return at;
	}
	block = malloc(sizeof(*block) + whole + 8);
	if (!block)
		return NULL;
	block->next = session->blocks;
	session->blocks = block;
	if (whole == BLOCK_BYTES) {
		session->free = block->bytes + bytes;
		session->left = whole - bytes;
	}
	return block->bytes;
}

static int table_grow(struct table *table)
{
	uint32_t mask = table->mask ? table->mask * 2 + 1 : 1023;
	uint32_t *slots = calloc((size_t)mask + 1, sizeof(*slots));
	uint32_t id, at;

	if (!slots)
		return -ENOMEM;
	for (id = 1; id < table->count; id++) {
		at = (uint32_t)hash64(table->entries[id].bytes, table->entries[id].len) & mask;
		while (slots[at])
			at = (at + 1) & mask;
		slots[at] = id;
	}
	free(table->slots);
	table->slots = slots;
	table->mask = mask;
	return 0;
}

static int table_room(struct table *table)
{
	uint32_t room = table->room ? table->room * 2 : 512;
	struct entry *entries;

	if (table->count < table->room)
		return 0;
	if (room < table->room)
		return -ENOMEM;
	entries = realloc(table->entries, room * sizeof(*entries));
	if (!entries)
		return -ENOMEM;
	table->entries = entries;
	table->room = room;
	return 0;
}

static int table_init(struct table *table)
{
	if (table_room(table) < 0 || table_grow(table) < 0)
		return -ENOMEM;
	table->entries[0] = (struct entry){ .bytes = "" };
	table->count = 1;
	return 0;
}

/* Id of a string of bytes, 0 when it is empty or memory ran out. A copy gets a NUL behind it. */
static uint32_t table_id(struct ev_session *session, struct table *table, const void *bytes, size_t len)
{
	uint64_t hash;
	uint32_t at, id;
	char *copy;

	if (!len || len >= UINT32_MAX)
		return 0;
	hash = hash64(bytes, len);
	at = (uint32_t)hash & table->mask;
	while ((id = table->slots[at]) != 0) {
		const struct entry *entry = &table->entries[id];

		if (entry->hash == hash >> 32 && entry->len == len && memcmp(entry->bytes, bytes, len) == 0)
			return id;
		at = (at + 1) & table->mask;
	}
	if (table_room(table) < 0)
		return 0;
	copy = take(session, len + 1);
	if (!copy)
		return 0;
	memcpy(copy, bytes, len);
	copy[len] = 0;
	id = table->count++;
	table->entries[id] = (struct entry){ .bytes = copy, .len = (uint32_t)len, .hash = (uint32_t)(hash >> 32) };
	table->slots[at] = id;
	/* a failed growth only makes the chains longer, until the next try */
	if (table->count > table->mask / 2 && table_grow(table) < 0 && table->count >= table->mask) {
		table->slots[at] = 0;
		table->count--;
		return 0;
	}
	return id;
}

struct ev_session *ev_session_new(void)
{
	struct ev_session *session = calloc(1, sizeof(*session));

	if (!session)
		return NULL;
	if (table_init(&session->names) < 0 || table_init(&session->stacks) < 0) {
		ev_session_free(session);
		errno = ENOMEM;
		return NULL;
	}
	return session;
}

void ev_session_free(struct ev_session *session)
{
	struct block *block, *next;
	size_t i;

	if (!session)
		return;
	for (block = session->blocks; block; block = next) {
		next = block->next;
		free(block);
	}
	for (i = 0; i < session->sources_count; i++)
		free(session->sources[i]);
	free(session->sources);
	free(session->names.entries);
	free(session->names.slots);
	free(session->stacks.entries);
	free(session->stacks.slots);
	free(session);
}

uint32_t ev_name(struct ev_session *session, const char *text, size_t len)
{
	return table_id(session, &session->names, text, len);
}

uint32_t ev_namez(struct ev_session *session, const char *text)
{
	return text ? ev_name(session, text, strlen(text)) : 0;
}

const char *ev_text(const struct ev_session *session, uint32_t id)
{
	return id < session->names.count ? session->names.entries[id].bytes : "";
}

size_t ev_text_len(const struct ev_session *session, uint32_t id)
{
	return id < session->names.count ? session->names.entries[id].len : 0;
}

uint32_t ev_name_count(const struct ev_session *session)
{
	return session->names.count;
}

uint32_t ev_stack(struct ev_session *session, const uint32_t *frames, size_t count)
{
	return table_id(session, &session->stacks, frames, count * sizeof(*frames));
}

size_t ev_stack_frames(const struct ev_session *session, uint32_t id, const uint32_t **frames)
{
	if (id >= session->stacks.count)
		id = 0;
	*frames = (const uint32_t *)(const void *)session->stacks.entries[id].bytes;
	return session->stacks.entries[id].len / sizeof(**frames);
}

uint16_t ev_source_add(struct ev_session *session, const char *path)
{
	char **sources;
	char *copy;

	if (session->sources_count == UINT16_MAX)
		return UINT16_MAX;
	sources = realloc(session->sources, (session->sources_count + 1) * sizeof(*sources));
	if (!sources)
		return UINT16_MAX;
	session->sources = sources;
	copy = strdup(path);
	if (!copy)
		return UINT16_MAX;
	sources[session->sources_count] = copy;
	return (uint16_t)session->sources_count++;
}

const char *ev_source_path(const struct ev_session *session, uint16_t source)
{
	return source < session->sources_count ? session->sources[source] : "";
}

void ev_session_set_stacks(struct ev_session *session, struct stacks *stacks)
{
	session->stacks_of_files = stacks;
}

struct stacks *ev_session_stacks(const struct ev_session *session)
{
	return session->stacks_of_files;
}
