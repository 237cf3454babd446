/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The pool: the one memory area through which records leave a process. Hooks put records into chunks of it without a
 * lock, an allocation or a system call; spool/ empties it, from the agent's io thread or, after a SIGKILL, from
 * `systrace recover`, which is why everything a reader needs lies inside the area. This header is the layout (frozen:
 * POOL_VERSION changes with it) and the writer's side.
 *
 * Life of a chunk: FREE -> OWNED (one thread, by compare-and-swap) <-> BUSY (that thread is inside pool_put) -> FULL
 * (handed back) -> DRAIN (the reader empties it) -> FREE. The reader may also take an OWNED chunk (OWNED -> DRAIN), and
 * does so at each flush: an idle or dead thread never keeps memory, and 1 000 threads need no more of it than ten. The
 * upper bits of the state word hold the ticket under which the chunk was taken, so that a thread whose chunk was taken
 * away, emptied and given to another thread notices it and takes a new one.
 *
 * Fork: the guard page is MADV_WIPEONFORK, so any kind of fork (also _Fork and clone) leaves a zeroed guard in the
 * child; its first hook sees that and calls pool_child_enter(), which starts a new generation in the inherited area.
 */
#ifndef SAFE_POOL_H
#define SAFE_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define POOL_MAGIC 0x31304c4f4f505453ull /* "STPOOL01" in memory */
#define POOL_VERSION 1u
#define POOL_CHUNK_BYTES 8192u
#define POOL_NAMES_BYTES (128u * 1024u)
#define POOL_NAME_SLOTS 4096u
#define POOL_FLIGHT_SLOTS 8192u
#define POOL_FLIGHT_BYTES 64u
#define POOL_FILES 16
#define POOL_PATH 512
#define POOL_PENDING 1024
#define POOL_MAX_RECORD 1024u
#define POOL_ORIGIN 2048u
#define POOL_WORKER 0x80000000u /* of pool_header.worker_of: a data-loader worker of that process, which trains */
#define POOL_ORIGIN_AT(offset, bytes) ((uint32_t)(offset) << 16 | (uint32_t)(bytes))

enum chunk_state { CHUNK_FREE, CHUNK_OWNED, CHUNK_BUSY, CHUNK_FULL, CHUNK_DRAIN };
#define CHUNK_STATE_BITS 3
#define CHUNK_STATE(word) ((enum chunk_state)((word) & ((1u << CHUNK_STATE_BITS) - 1)))
#define CHUNK_TICKET(word) ((word) >> CHUNK_STATE_BITS)
#define CHUNK_WORD(ticket, state) (((uint64_t)(ticket) << CHUNK_STATE_BITS) | (uint64_t)(state))
/* a ticket names its process, so that a writer which dies before it has filled in anything is known all the same */
#define TICKET_PID_BITS 22 /* PID_MAX_LIMIT */
#define TICKET_PID(ticket) ((uint32_t)(ticket) & ((1u << TICKET_PID_BITS) - 1))
#define TICKET_WORD(n, pid) ((uint64_t)(n) << TICKET_PID_BITS | TICKET_PID(pid))

/** enum pool_source - who lost a record; index of pool_header.dropped and name of the Drop message in files */
enum pool_source {
	POOL_SRC_STAGE,
	POOL_SRC_COMM,
	POOL_SRC_STEP,
	POOL_SRC_IO,
	POOL_SRC_GIL,
	POOL_SRC_MUTEX,
	POOL_SRC_MEMORY,
	POOL_SRC_HBM,
	POOL_SRC_MSPTI,
	POOL_SRC_NOTE,
	POOL_SRC_OTHER,
	POOL_SRC_STACK,
	POOL_SRC_COUNT = 16
};

/** enum pool_recording - has the owner begun to record? Only then recover writes what the pool holds into files */
enum pool_recording {
	POOL_UNSAID, /* made by an older library, or by a program that drains at once: recorded if it has an Origin */
	POOL_READY, /* hooks put records in case that something begins the recording */
	POOL_RECORDS
};

/** struct pool_chunk - 64 bytes of header, then records up to POOL_CHUNK_BYTES */
struct pool_chunk {
	_Atomic uint64_t state; /* CHUNK_WORD(ticket, state) */
	_Atomic uint32_t used; /* payload bytes committed; stored with release after the record is whole */
	uint32_t taken; /* payload bytes already in files; written by the reader only */
	uint32_t pid; /* of the writer, in the writer's pid namespace */
	uint32_t tid;
	uint32_t generation; /* 0 = the process that made the pool, else a forked child of it */
	uint32_t reserved;
	uint64_t seq; /* n-th chunk taken from this pool: order, and identity for readers that drop repeats */
	char comm[16]; /* thread name when the chunk was taken */
	uint8_t data[];
};

#define POOL_CHUNK_DATA (POOL_CHUNK_BYTES - (uint32_t)sizeof(struct pool_chunk))

/** struct pool_file - one output file as far as recover must know it; written by the reader only */
struct pool_file {
	char path[POOL_PATH]; /* absolute; empty = slot unused */
	uint32_t kind; /* enum sink_kind of spool/sink.h */
	uint32_t segment; /* segments closed before this one */
	uint64_t ino; /* of the file, to notice that it was replaced */
	uint64_t dev;
	int64_t wall_minus_mono_ns; /* offset used for wall-clock fields in this segment */
};

/**
 * struct pool_commit - what the files hold, for one batch
 *
 * The reader writes (a) header.pending = the chunk ranges of batch n, (b) the bytes into the files, (c)
 * commits[n & 1] = the new lengths, (d) header.committed = n with release, (e) the chunks' taken fields. Whoever
 * recovers truncates each file to commits[committed & 1].length and takes the ranges of pending as done exactly when
 * pending.batch == committed. So each committed record is in the files once, wherever the writer was killed.
 */
struct pool_commit {
	uint64_t batch;
	uint64_t length[POOL_FILES];
	uint64_t next_id; /* ids given to entries so far (Id column of markers) */
	uint64_t reported[POOL_SRC_COUNT]; /* drops that the files already tell */
};

struct pool_pending {
	uint64_t batch;
	uint32_t count;
	uint32_t reserved;
	struct {
		uint32_t chunk;
		uint32_t upto; /* payload bytes that are part of the batch */
		uint64_t seq;
	} range[POOL_PENDING];
};

/** struct pool_header - first bytes of the area; sizes and offsets in bytes from its start */
struct pool_header {
	uint64_t magic;
	uint32_t version;
	uint32_t header_bytes;
	uint32_t chunk_bytes;
	_Atomic uint32_t chunk_count; /* grows (pool_grow); a process uses at most what it has mapped itself */
	uint32_t names_off;
	uint32_t flight_off;
	uint32_t chunks_off;
	_Atomic uint32_t recording; /* enum pool_recording */

	/* the process that made the pool */
	uint32_t owner_pid; /* in its own pid namespace */
	uint32_t owner_uid;
	uint64_t owner_start; /* field 22 of /proc/<pid>/stat, clock ticks since boot */
	uint64_t owner_pidns; /* inode of /proc/self/ns/pid */
	char boot_id[40];

	/* allocation */
	_Atomic uint32_t hint; /* where to look for a free chunk next */
	_Atomic uint32_t generations; /* children seen so far */
	_Atomic uint64_t next_ticket;
	_Atomic uint64_t next_seq;

	/* where the job is; read by every hook, by forked children and by probes */
	_Atomic uint64_t step; /* completed steps */
	_Atomic uint32_t stage; /* enum stage_type of wire/record.h now running on the main thread */
	_Atomic uint32_t stage_id; /* the documented stage_id: dataloader calls */
	_Atomic uint32_t on_mask; /* bit per plugin, for children (parents read the guard) */
	_Atomic uint32_t names_used;
	_Atomic uint64_t flight_head; /* markers put into the flight ring so far */
	_Atomic uint64_t dropped[POOL_SRC_COUNT];
	_Atomic uint64_t records; /* records emptied; reader only */

	/* output */
	struct pool_file files[POOL_FILES];
	struct pool_commit commits[2];
	_Atomic uint64_t committed;
	struct pool_pending pending;
	uint32_t origin_at; /* POOL_ORIGIN_AT(offset, bytes), 0 = none; a new one is written beside it, so one is always whole */
	uint8_t origin[POOL_ORIGIN]; /* encoded Origin message, put at the head of files that recover has to create */
	uint32_t worker_of; /* pid of the process that had multiprocessing start this one, or-ed with POOL_WORKER; 0 = none */
	int64_t wall_minus_mono_ns; /* offset of the newest segment */
	char format[8]; /* pb or json */
	char dump_path[POOL_PATH];
};

/** struct pool_names - interned texts; ids are offsets into text, 0 = none; both parts only grow */
struct pool_names {
	_Atomic uint32_t slot[POOL_NAME_SLOTS]; /* open addressing by hash; offset of the text, 0 = empty */
	char text[POOL_NAMES_BYTES];
};

/** struct pool_guard - one private page, zeroed by the kernel in a forked child (MADV_WIPEONFORK) */
struct pool_guard {
	_Atomic uint32_t on; /* bit per plugin: its hooks record */
	_Atomic uint32_t alive; /* 0 = this is a child that has not been through pool_child_enter() */
	_Atomic uint32_t generation; /* 1 + generation, so that 0 never matches */
	_Atomic uint32_t pid;
};

/** struct pool - this process's view; one per process, never freed once hooks may run */
struct pool {
	struct pool_header *head; /* NULL: no pool, pool_put drops nothing and counts nothing */
	struct pool_names *names;
	uint8_t *flight;
	uint8_t *chunks;
	struct pool_guard *guard;
	_Atomic uint32_t mapped_chunks;
	size_t reserved_bytes; /* address space kept for pool_grow */
	void (*starved)(
		void); /* no chunk was free: called once until .starving is cleared; must be fit for a hook; or NULL */
	_Atomic uint32_t starving;
	bool shared_file; /* false: private memory, records do not survive a SIGKILL */
	int fd; /* used by pool_grow and by nothing else; -1 when unknown */
};

/** pool_area_bytes - bytes of an area with @chunks chunks. Context: any. */
size_t pool_area_bytes(uint32_t chunks);

/**
 * pool_format - lay out a zeroed area
 * @area: page-aligned, pool_area_bytes(@chunks) bytes, writable and already backed by real memory
 *
 * The caller fills the owner fields afterwards. Context: thread.
 */
void pool_format(void *area, uint32_t chunks);

/**
 * pool_attach - fill this process's view of a formatted area
 * @guard: one private page that the caller mapped, and marked MADV_WIPEONFORK where the kernel can; @pool keeps it
 * @mapped_bytes: how much of the area is mapped here
 *
 * Context: thread. Return: 0, -EINVAL when magic, version or sizes do not fit.
 */
int pool_attach(struct pool *pool, void *area, size_t mapped_bytes, struct pool_guard *guard);

/**
 * pool_grow - more chunks at the end of the area
 * @chunks: new total; the memory behind them must be mapped and backed (posix_fallocate) before the call
 *
 * Context: thread. Processes forked earlier go on with the chunks they have mapped.
 */
void pool_grow(struct pool *pool, uint32_t chunks);

/**
 * pool_put - append one record
 * @rec: starts with struct rec_head (wire/record.h); copied before return
 * @bytes: a multiple of 8, at most POOL_MAX_RECORD
 * @source: whose drop counter grows when there is no room
 *
 * Context: hook; also from a signal handler that interrupts a pool_put of the same thread (it takes another chunk).
 * errno is kept. Return: true, or false when the record was dropped (and counted).
 */
bool pool_put(struct pool *pool, const void *rec, uint32_t bytes, enum pool_source source);

/**
 * pool_flight_put - remember one marker in the flight ring, overwriting the oldest
 * @rec: POOL_FLIGHT_BYTES bytes or less; the first 8 bytes of the slot hold a sequence number, so at most 56 are kept
 *
 * Context: hook.
 */
void pool_flight_put(struct pool *pool, const void *rec, uint32_t bytes);

/**
 * pool_flight_get - read slot of marker number @n (0 = first ever put)
 * @rec: at least 56 bytes
 *
 * Context: thread, tool. Return: true when the slot still held that marker and was not being written.
 */
bool pool_flight_get(const struct pool_header *head, uint64_t n, void *rec);

/**
 * pool_intern - id of a text, adding it when new
 * @len: bytes, at most 1023; longer texts are cut
 *
 * Context: hook (lock-free). The same text gets one id, also from racing threads. Return: id, or 0 when the table is
 * full (counted under POOL_SRC_OTHER).
 */
uint32_t pool_intern(struct pool *pool, const char *text, size_t len);

/** pool_name - text of an id, "" for 0 and for ids out of range. Context: any. Valid as long as the area is mapped. */
const char *pool_name(const struct pool_header *head, uint32_t id);

/**
 * pool_child_enter - first hook in a forked child: new generation, guard set up again
 *
 * Context: hook (no system call but gettid/getpid). Harmless when it is called twice.
 */
void pool_child_enter(struct pool *pool);

/** pool_on - does plugin bit @bit record? Enters the child's generation when the guard was wiped. Context: hook. */
static inline bool pool_on(struct pool *pool, uint32_t bit)
{
	struct pool_guard *guard = pool->guard;

	if (__builtin_expect(!guard, 0))
		return false;
	if (__builtin_expect(!atomic_load_explicit(&guard->alive, memory_order_relaxed), 0))
		pool_child_enter(pool);
	return (atomic_load_explicit(&guard->on, memory_order_relaxed) & bit) != 0;
}

/** pool_switch - set or clear a plugin's bit, here and for children to come. Context: thread. */
void pool_switch(struct pool *pool, uint32_t bit, bool on);

#endif
