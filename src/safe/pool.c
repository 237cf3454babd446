/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The writer's side of the pool; see pool.h for the protocol. Runs inside host calls, maybe in a signal handler. */
#include "safe/pool.h"

#include <errno.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* What this thread holds. volatile: a signal handler on this thread may change it between two lines. */
struct pool_mine {
	const struct pool_header *head; /* of which pool: a promoted child has two, with a generation 1 each */
	struct pool_chunk *chunk;
	uint64_t ticket;
	uint32_t generation;
	uint32_t tid;
};
static __thread volatile struct pool_mine mine __attribute__((tls_model("initial-exec")));

static size_t round_page(size_t bytes)
{
	return (bytes + 4095) & ~(size_t)4095;
}

size_t pool_area_bytes(uint32_t chunks)
{
	return round_page(sizeof(struct pool_header)) + round_page(sizeof(struct pool_names)) +
	       (size_t)POOL_FLIGHT_SLOTS * POOL_FLIGHT_BYTES + (size_t)chunks * POOL_CHUNK_BYTES;
}

void pool_format(void *area, uint32_t chunks)
{
	struct pool_header *head = area;

	head->version = POOL_VERSION;
	head->header_bytes = sizeof(*head);
	head->chunk_bytes = POOL_CHUNK_BYTES;
	head->names_off = (uint32_t)round_page(sizeof(*head));
	head->flight_off = head->names_off + (uint32_t)round_page(sizeof(struct pool_names));
	head->chunks_off = head->flight_off + POOL_FLIGHT_SLOTS * POOL_FLIGHT_BYTES;
	atomic_store_explicit(&head->names_used, 1, memory_order_relaxed); /* 0 means: no name */
	atomic_store_explicit(&head->next_ticket, 1, memory_order_relaxed);
	atomic_store_explicit(&head->chunk_count, chunks, memory_order_relaxed);
	/* last: a reader that sees the magic sees the rest */
	__atomic_store_n(&head->magic, POOL_MAGIC, __ATOMIC_RELEASE);
}

int pool_attach(struct pool *pool, void *area, size_t mapped_bytes, struct pool_guard *guard)
{
	struct pool_header *head = area;
	uint32_t chunks;

	if (mapped_bytes < sizeof(*head) || head->magic != POOL_MAGIC || head->version != POOL_VERSION ||
	    head->chunk_bytes != POOL_CHUNK_BYTES || head->header_bytes != sizeof(*head))
		return -EINVAL;
	chunks = atomic_load_explicit(&head->chunk_count, memory_order_acquire);
	if (!chunks || head->chunks_off + (size_t)chunks * POOL_CHUNK_BYTES > mapped_bytes)
		return -EINVAL;

	*pool = (struct pool){
		.names = (struct pool_names *)((uint8_t *)area + head->names_off),
		.flight = (uint8_t *)area + head->flight_off,
		.chunks = (uint8_t *)area + head->chunks_off,
		.guard = guard,
		.fd = -1,
	};
	atomic_store_explicit(&pool->mapped_chunks, chunks, memory_order_relaxed);
	if (guard) {
		atomic_store_explicit(&guard->generation, 1, memory_order_relaxed);
		atomic_store_explicit(&guard->pid, (uint32_t)getpid(), memory_order_relaxed);
		atomic_store_explicit(&guard->alive, 1, memory_order_relaxed);
	}
	pool->head = head;
	return 0;
}

void pool_grow(struct pool *pool, uint32_t chunks)
{
	/* release: whoever sees the count sees mapped memory behind it */
	atomic_store_explicit(&pool->head->chunk_count, chunks, memory_order_release);
	atomic_store_explicit(&pool->mapped_chunks, chunks, memory_order_release);
}

static struct pool_chunk *chunk_at(struct pool *pool, uint32_t i)
{
	return (struct pool_chunk *)(pool->chunks + (size_t)i * POOL_CHUNK_BYTES);
}

/* A free chunk for the calling thread, or NULL. Each chunk is looked at once. */
static struct pool_chunk *take_chunk(struct pool *pool, uint64_t *ticket)
{
	struct pool_header *head = pool->head;
	uint32_t count = atomic_load_explicit(&pool->mapped_chunks, memory_order_acquire);
	uint32_t start = atomic_fetch_add_explicit(&head->hint, 1, memory_order_relaxed);
	uint32_t i;

	*ticket = TICKET_WORD(atomic_fetch_add_explicit(&head->next_ticket, 1, memory_order_relaxed),
			      atomic_load_explicit(&pool->guard->pid, memory_order_relaxed));
	for (i = 0; i < count; i++) {
		struct pool_chunk *chunk = chunk_at(pool, (start + i) % count);
		uint64_t word = atomic_load_explicit(&chunk->state, memory_order_relaxed);

		if (CHUNK_STATE(word) != CHUNK_FREE)
			continue;
		/* acquire: the reader's last look at the payload comes before our first byte */
		if (atomic_compare_exchange_strong_explicit(&chunk->state, &word, CHUNK_WORD(*ticket, CHUNK_BUSY),
							    memory_order_acquire, memory_order_relaxed))
			return chunk;
	}
	return NULL;
}

static void own_chunk(struct pool *pool, struct pool_chunk *chunk, uint64_t ticket, uint32_t generation)
{
	uint32_t tid = mine.head == pool->head && mine.generation == generation ? mine.tid : 0;

	if (!tid)
		tid = (uint32_t)syscall(SYS_gettid);
	chunk->pid = atomic_load_explicit(&pool->guard->pid, memory_order_relaxed);
	chunk->tid = tid;
	chunk->generation = generation - 1;
	chunk->seq = atomic_fetch_add_explicit(&pool->head->next_seq, 1, memory_order_relaxed);
	prctl(PR_GET_NAME, chunk->comm);
	mine.tid = tid;
	mine.head = pool->head;
	mine.generation = generation;
	mine.ticket = ticket;
	mine.chunk = chunk;
}

/* This thread's chunk with room for @bytes, in state BUSY; NULL: nothing free. */
static struct pool_chunk *enter_chunk(struct pool *pool, uint32_t bytes, uint32_t generation, uint64_t *ticket)
{
	struct pool_chunk *chunk = mine.chunk;
	uint64_t word;

	*ticket = mine.ticket;
	if (chunk && mine.head == pool->head && mine.generation == generation) {
		word = CHUNK_WORD(*ticket, CHUNK_OWNED);
		/* fails when the reader took the chunk away, or when we interrupted ourselves inside pool_put */
		if (atomic_compare_exchange_strong_explicit(&chunk->state, &word, CHUNK_WORD(*ticket, CHUNK_BUSY),
							    memory_order_acquire, memory_order_relaxed)) {
			if (atomic_load_explicit(&chunk->used, memory_order_relaxed) + bytes <= POOL_CHUNK_DATA)
				return chunk;
			atomic_store_explicit(&chunk->state, CHUNK_WORD(*ticket, CHUNK_FULL), memory_order_release);
		}
		mine.chunk = NULL;
	}
	chunk = take_chunk(pool, ticket);
	if (chunk)
		own_chunk(pool, chunk, *ticket, generation);
	return chunk;
}

bool pool_put(struct pool *pool, const void *rec, uint32_t bytes, enum pool_source source)
{
	struct pool_chunk *chunk;
	uint32_t used, generation;
	uint64_t ticket;
	int saved;

	if (!pool->head)
		return false;
	saved = errno;
	do {
		if (!atomic_load_explicit(&pool->guard->alive, memory_order_relaxed))
			pool_child_enter(pool);
		generation = atomic_load_explicit(&pool->guard->generation, memory_order_relaxed);
		chunk = bytes <= POOL_MAX_RECORD ? enter_chunk(pool, bytes, generation, &ticket) : NULL;
		if (!chunk) {
			atomic_fetch_add_explicit(&pool->head->dropped[source], 1, memory_order_relaxed);
			if (pool->starved && !atomic_exchange_explicit(&pool->starving, 1, memory_order_relaxed))
				pool->starved();
			errno = saved;
			return false;
		}
		used = atomic_load_explicit(&chunk->used, memory_order_relaxed);
		memcpy(chunk->data + used, rec, bytes);
		/* a signal handler forked meanwhile and returned, in the child: this chunk is the parent's to complete */
	} while (atomic_load_explicit(&pool->guard->generation, memory_order_relaxed) != generation);
	/* release: a reader that sees the length sees the record, also after a SIGKILL between these two lines */
	atomic_store_explicit(&chunk->used, used + bytes, memory_order_release);
	atomic_store_explicit(&chunk->state, CHUNK_WORD(ticket, CHUNK_OWNED), memory_order_release);
	errno = saved;
	return true;
}

void pool_child_enter(struct pool *pool)
{
	struct pool_guard *guard = pool->guard;
	struct pool_header *head = pool->head;
	uint32_t generation;

	if (!head || atomic_load_explicit(&guard->alive, memory_order_relaxed))
		return;
	generation = atomic_fetch_add_explicit(&head->generations, 1, memory_order_relaxed) + 2;
	atomic_store_explicit(&guard->generation, generation, memory_order_relaxed);
	atomic_store_explicit(&guard->pid, (uint32_t)syscall(SYS_getpid), memory_order_relaxed);
	atomic_store_explicit(&guard->on, atomic_load_explicit(&head->on_mask, memory_order_relaxed),
			      memory_order_relaxed);
	/* release: a second thread of the child that sees alive sees the rest */
	atomic_store_explicit(&guard->alive, 1, memory_order_release);
}

void pool_switch(struct pool *pool, uint32_t bit, bool on)
{
	if (on) {
		atomic_fetch_or_explicit(&pool->head->on_mask, bit, memory_order_relaxed);
		atomic_fetch_or_explicit(&pool->guard->on, bit, memory_order_release);
	} else {
		atomic_fetch_and_explicit(&pool->head->on_mask, ~bit, memory_order_relaxed);
		atomic_fetch_and_explicit(&pool->guard->on, ~bit, memory_order_release);
	}
}

/* --- flight ring: slot = sequence word (odd while it is written), then up to 56 bytes -------------------------------- */

void pool_flight_put(struct pool *pool, const void *rec, uint32_t bytes)
{
	uint64_t n, *slot;

	if (!pool->head || bytes > POOL_FLIGHT_BYTES - sizeof(n))
		return;
	n = atomic_fetch_add_explicit(&pool->head->flight_head, 1, memory_order_relaxed);
	slot = (uint64_t *)(pool->flight + (n % POOL_FLIGHT_SLOTS) * POOL_FLIGHT_BYTES);
	__atomic_store_n(slot, 2 * n + 1, __ATOMIC_RELAXED);
	atomic_thread_fence(memory_order_release); /* the odd word is seen before any new byte */
	memcpy(slot + 1, rec, bytes);
	__atomic_store_n(slot, 2 * n + 2, __ATOMIC_RELEASE);
}

bool pool_flight_get(const struct pool_header *head, uint64_t n, void *rec)
{
	const uint8_t *ring = (const uint8_t *)head + head->flight_off;
	const uint64_t *slot = (const uint64_t *)(ring + (n % POOL_FLIGHT_SLOTS) * POOL_FLIGHT_BYTES);

	if (__atomic_load_n(slot, __ATOMIC_ACQUIRE) != 2 * n + 2)
		return false;
	memcpy(rec, slot + 1, POOL_FLIGHT_BYTES - sizeof(*slot));
	atomic_thread_fence(memory_order_acquire);
	return __atomic_load_n(slot, __ATOMIC_RELAXED) == 2 * n + 2;
}

/* --- names ----------------------------------------------------------------------------------------------------------- */

static uint32_t name_hash(const char *text, size_t len)
{
	uint32_t hash = 2166136261u; /* FNV-1a */
	size_t i;

	for (i = 0; i < len; i++)
		hash = (hash ^ (uint8_t)text[i]) * 16777619u;
	return hash;
}

/* Space for the text, terminated; 0 when the table is full. */
static uint32_t name_store(struct pool *pool, const char *text, size_t len)
{
	uint32_t at = atomic_load_explicit(&pool->head->names_used, memory_order_relaxed);

	do {
		if (at > POOL_NAMES_BYTES || len + 1 > POOL_NAMES_BYTES - at)
			return 0;
	} while (!atomic_compare_exchange_weak_explicit(&pool->head->names_used, &at, at + (uint32_t)len + 1,
							memory_order_relaxed, memory_order_relaxed));
	memcpy(pool->names->text + at, text, len);
	pool->names->text[at + len] = 0;
	return at;
}

uint32_t pool_intern(struct pool *pool, const char *text, size_t len)
{
	uint32_t hash, i, fresh = 0;

	if (!pool->head || !len)
		return 0;
	if (len > 1023)
		len = 1023;
	hash = name_hash(text, len);
	for (i = 0; i < POOL_NAME_SLOTS; i++) {
		_Atomic uint32_t *slot = &pool->names->slot[(hash + i) % POOL_NAME_SLOTS];
		uint32_t id = atomic_load_explicit(slot, memory_order_acquire);

		if (!id) {
			if (!fresh)
				fresh = name_store(pool, text, len);
			if (!fresh)
				break;
			/* release: whoever reads the id reads the text; a lost race leaves the text unused, not wrong */
			if (atomic_compare_exchange_strong_explicit(slot, &id, fresh, memory_order_release,
								    memory_order_acquire))
				return fresh;
		}
		/* the bound: a child with wild writes shares this table */
		if (id < POOL_NAMES_BYTES - len && !strncmp(pool->names->text + id, text, len) &&
		    !pool->names->text[id + len])
			return id;
	}
	atomic_fetch_add_explicit(&pool->head->dropped[POOL_SRC_OTHER], 1, memory_order_relaxed);
	return 0;
}

const char *pool_name(const struct pool_header *head, uint32_t id)
{
	const struct pool_names *names = (const struct pool_names *)((const uint8_t *)head + head->names_off);

	return id && id < POOL_NAMES_BYTES ? names->text + id : "";
}
