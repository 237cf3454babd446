/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Emptying the pool; see drain.h for the calls, safe/pool.h (struct pool_commit) for the batch protocol. */
#include "spool/drain.h"
#include "base/fault.h"
#include "safe/clock.h"
#include "safe/rawio.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#define SECOND_NS 1000000000ull
#define CLOCK_PERIOD_NS (60 * SECOND_NS)
#define FIRST_PAUSE_NS (SECOND_NS / 2)
#define LONGEST_PAUSE_NS (30 * SECOND_NS)
#define STUCK_NS (2 * SECOND_NS) /* a chunk is BUSY for a memcpy; longer, and its writer may be dead */
#define STUCK_SLOTS 16
#define SEEN_SLOTS 1024u
#define BATCH_RANGES 64u
#define GROWTH 64u /* bytes of file per byte of record at worst, nearly: keeps one batch well below a segment */
#define SINKS 8
#define SINK_BUDGET 4 /* batches that one sink alone may spoil before its records are dropped: about 8 s */

struct range {
	struct pool_chunk *chunk;
	uint32_t index;
	uint32_t from, upto; /* payload bytes */
	uint64_t seq;
	bool claimed; /* ours: goes back to FREE; else its writer goes on behind us */
};

struct stuck {
	uint64_t word; /* state as first seen, 0 = slot unused */
	uint64_t since_ns;
	uint32_t index;
	uint32_t used;
};

/* What keeps one file from being written must not cost the others theirs. */
struct trouble {
	uint32_t failures; /* batches spoiled since it was last written */
	uint64_t aside_ns; /* until then it takes no part and its records are dropped; 0 = it takes part */
	bool said;
	char text[160];
};

struct drain {
	struct pool *pool;
	bool identified;
	bool owner_dead;
	uint64_t max_bytes;
	struct sink_env env;
	struct msg_origin origin;
	uint8_t identity[sizeof(((struct pool_header *)0)->origin)]; /* encoded; texts of origin point into it */
	struct sink sinks[SINKS];
	int sink_count;
	struct sink *too_long; /* sink whose segment has to be closed before the batch is tried again */
	struct sink *failing; /* sink that spoiled the batch */
	struct trouble trouble[SINKS];
	uint64_t lost[POOL_SRC_COUNT]; /* records of this batch whose sink is set aside */
	struct range range[POOL_PENDING];
	uint32_t range_count;
	uint32_t batch_ranges;
	uint64_t seen[SEEN_SLOTS]; /* hashes of (pid, tid, comm) the carrier knows */
	uint32_t seen_count;
	struct stuck stuck[STUCK_SLOTS];
	uint64_t next_clock_ns;
	uint64_t last_drop_ns; /* up to here drops are told */
	uint64_t flight_next; /* first marker of the flight ring not dumped yet */
	uint64_t retry_ns, pause_ns;
	bool complained;
	struct drain_stats stats;
	uint8_t scratch[SINK_SCRATCH];
	uint8_t state[SINKS][SINK_STATE] __attribute__((aligned(16)));
};

static const uint8_t rec_source[REC_TYPES] = {
	[REC_STAGE] = POOL_SRC_STAGE,	[REC_STEP] = POOL_SRC_STEP,	  [REC_COMM] = POOL_SRC_COMM,
	[REC_COMM_SUM] = POOL_SRC_COMM, [REC_GC] = POOL_SRC_STAGE,	  [REC_NOTE] = POOL_SRC_NOTE,
	[REC_IO] = POOL_SRC_IO,		[REC_LOCK] = POOL_SRC_MUTEX,	  [REC_GIL] = POOL_SRC_GIL,
	[REC_STACK] = POOL_SRC_STACK,	[REC_MODULE] = POOL_SRC_STACK,	  [REC_CODE] = POOL_SRC_STACK,
	[REC_MEM] = POOL_SRC_MEMORY,	[REC_MEM_SITE] = POOL_SRC_MEMORY, [REC_MEM_STATE] = POOL_SRC_MEMORY,
};

static const uint16_t rec_bytes[REC_TYPES] = {
	[REC_STAGE] = sizeof(struct rec_stage),
	[REC_STEP] = sizeof(struct rec_step),
	[REC_COMM] = sizeof(struct rec_comm),
	[REC_COMM_SUM] = sizeof(struct rec_comm_sum),
	[REC_GC] = sizeof(struct rec_gc),
	[REC_NOTE] = sizeof(struct rec_note),
	[REC_IO] = sizeof(struct rec_io),
	[REC_LOCK] = sizeof(struct rec_lock),
	[REC_GIL] = sizeof(struct rec_gil),
	[REC_STACK] = sizeof(struct rec_stack),
	[REC_MODULE] = sizeof(struct rec_module),
	[REC_CODE] = sizeof(struct rec_code),
	[REC_MEM] = sizeof(struct rec_mem),
	[REC_MEM_SITE] = sizeof(struct rec_mem_site),
	[REC_MEM_STATE] = sizeof(struct rec_mem_state),
};

static void say_nothing(void *ctx, const char *text)
{
	(void)ctx;
	(void)text;
}

static void complain(struct drain *d, const char *text)
{
	d->env.place.say(d->env.place.say_ctx, text);
}

/* --- setting up ------------------------------------------------------------------------------------------------------ */

static size_t sink_tail(const void *ctx, char *text)
{
	const struct sink *s = ctx;

	return s->ops->tail(s, text);
}

static void add_sinks(struct drain *d)
{
	const struct sink_ops *const *row;

	for (row = sink_table; *row && d->sink_count < SINKS; row++) {
		struct sink *s = &d->sinks[d->sink_count];

		if (!(d->env.json ? (*row)->for_json : (*row)->for_pb) || (*row)->state_bytes > SINK_STATE)
			continue;
		s->ops = *row;
		s->env = &d->env;
		s->state = d->state[d->sink_count++];
		out_init(&s->out, &d->env.place, d->pool->head, (*row)->kind, (*row)->tail ? sink_tail : NULL, s);
		d->pool->head->files[(*row)->kind].kind = (*row)->kind;
	}
}

static void set_limits(struct drain *d, const struct drain_options *options)
{
	struct out_place *place = &d->env.place;
	uint64_t ranges;

	place->segment_bytes = options->segment_bytes ? options->segment_bytes : DRAIN_SEGMENT_BYTES;
	if (options->max_bytes && place->segment_bytes > options->max_bytes / 4)
		place->segment_bytes = options->max_bytes / 4;
	d->max_bytes = options->max_bytes;
	ranges = place->segment_bytes / (POOL_CHUNK_BYTES * GROWTH);
	d->batch_ranges = ranges > BATCH_RANGES ? BATCH_RANGES : ranges ? (uint32_t)ranges : 1;
}

struct drain *drain_new(const struct drain_options *options, struct st_err *err)
{
	struct out_place *place;
	struct pool_header *head = options->pool->head;
	struct drain *d;

	if (!head || !options->dump_path || options->dump_path[0] != '/' ||
	    strlen(options->dump_path) >= POOL_PATH / 2) {
		err_set(err, -EINVAL, "a drain needs a pool and an absolute path of less than %d bytes", POOL_PATH / 2);
		errno = EINVAL;
		return NULL;
	}
	d = FAULT("drain.new") ? MAP_FAILED
			       : mmap(NULL, sizeof(*d), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (d == MAP_FAILED) {
		err_set(err, -errno, "no memory for the drain: %s", strerror(errno));
		return NULL;
	}
	d->pool = options->pool;
	d->env.head = head;
	d->env.json = options->json;
	d->env.origin = &d->origin;
	d->env.scratch = d->scratch;
	place = &d->env.place;
	snprintf(place->dump_path, sizeof(place->dump_path), "%s", options->dump_path);
	snprintf(place->lock_base, sizeof(place->lock_base), "%s", options->lock_base ? options->lock_base : "");
	place->keep_open = options->keep_open;
	place->say = options->say ? options->say : say_nothing;
	place->say_ctx = options->say_ctx;
	set_limits(d, options);
	d->env.next_id = head->commits[head->committed & 1].next_id;
	d->last_drop_ns = clock_mono_ns();
	add_sinks(d);
	return d;
}

static void copy_text(char *to, size_t room, struct msg_text text)
{
	size_t n = text.bytes < room ? text.bytes : room - 1;
	size_t i;

	for (i = 0; i < n; i++)
		to[i] = text.at[i] == '/' || !text.at[i] ? '_' : text.at[i]; /* it becomes part of file names */
	to[n] = 0;
}

static void use_identity(struct drain *d)
{
	struct out_place *place = &d->env.place;

	copy_text(place->host, sizeof(place->host), d->origin.host);
	copy_text(place->boot_id, sizeof(place->boot_id), d->origin.boot_id);
	d->origin.host = msg_text(place->host);
	place->pid = d->origin.pid;
	place->proc_start = d->origin.proc_start;
	d->identified = true;
}

/* The Origin in the half that is not in use, then the word that says where: whoever recovers finds a whole one. */
static int publish_origin(struct pool_header *head, const struct msg_origin *origin, const char *dump_path, bool json,
			  struct st_err *err)
{
	const char *format = json ? "json" : "pb";
	uint32_t now = head->origin_at;
	uint32_t at = now && now >> 16 == 0 ? POOL_ORIGIN / 2 : 0;
	struct pb_writer w;

	if (!now && atomic_load_explicit(&head->recording, memory_order_relaxed))
		at = POOL_ORIGIN / 2; /* to be followed by a better one */
	pb_init(&w, head->origin + at, POOL_ORIGIN / 2);
	msg_origin_pb(&w, origin);
	if (w.full)
		return err_set(err, -EMSGSIZE, "the texts of the origin are longer than %u bytes", POOL_ORIGIN / 2);
	if (strcmp(head->dump_path, dump_path) != 0)
		snprintf(head->dump_path, sizeof(head->dump_path), "%s", dump_path);
	if (strcmp(head->format, format) != 0)
		snprintf(head->format, sizeof(head->format), "%s", format);
	__atomic_store_n(&head->origin_at, POOL_ORIGIN_AT(at, w.used), __ATOMIC_RELEASE);
	return 0;
}

/* The identity is what the pool's header says. */
static int take_identity(struct drain *d, struct st_err *err)
{
	uint32_t at = d->pool->head->origin_at >> 16, bytes = d->pool->head->origin_at & 0xffff;

	if (at + bytes > POOL_ORIGIN)
		return err_set(err, -EBADMSG, "the origin is damaged");
	memcpy(d->identity, d->pool->head->origin + at, bytes);
	if (msg_origin_read(&d->origin, d->identity, bytes) < 0)
		return err_set(err, -EBADMSG, "the origin is damaged");
	use_identity(d);
	return 0;
}

int drain_announce(struct pool *pool, const struct msg_origin *origin, const char *dump_path, bool json,
		   struct st_err *err)
{
	uint32_t unsaid = POOL_UNSAID;

	atomic_compare_exchange_strong_explicit(&pool->head->recording, &unsaid, POOL_READY, memory_order_relaxed,
						memory_order_relaxed);
	return publish_origin(pool->head, origin, dump_path, json, err);
}

int drain_identify(struct drain *d, const struct msg_origin *origin, struct st_err *err)
{
	int ret = publish_origin(d->pool->head, origin, d->env.place.dump_path, d->env.json, err);

	return ret < 0 ? ret : take_identity(d, err);
}

int drain_part(struct drain *d, const struct msg_origin *origin, struct st_err *err)
{
	int i;

	for (i = 0; i < d->sink_count; i++) {
		out_rollback(&d->sinks[i].out); /* does something after a failed batch only */
		out_retire(&d->sinks[i].out);
	}
	d->seen_count = 0;
	memset(d->seen, 0, sizeof(d->seen));
	return drain_identify(d, origin, err);
}

/* --- what is there --------------------------------------------------------------------------------------------------- */

static struct pool_chunk *chunk_at(const struct pool *pool, uint32_t i)
{
	return (struct pool_chunk *)(pool->chunks + (size_t)i * POOL_CHUNK_BYTES);
}

static uint32_t chunk_used(const struct pool_chunk *chunk)
{
	/* acquire: the records up to here are whole */
	uint32_t used = atomic_load_explicit(&chunk->used, memory_order_acquire);

	return used <= POOL_CHUNK_DATA ? used : POOL_CHUNK_DATA;
}

static void free_chunk(struct pool_chunk *chunk, uint64_t word)
{
	atomic_store_explicit(&chunk->used, 0, memory_order_relaxed);
	__atomic_store_n(&chunk->taken, 0, __ATOMIC_RELAXED); /* drain_pending() may look from another thread */
	/* release: the next owner sees both zero, and we have read all we want */
	atomic_store_explicit(&chunk->state, CHUNK_WORD(CHUNK_TICKET(word), CHUNK_FREE), memory_order_release);
}

static bool writer_is_gone(const struct drain *d, const struct pool_chunk *chunk, uint64_t word)
{
	uint32_t pid = TICKET_PID(CHUNK_TICKET(word));

	if (d->owner_dead && pid == d->pool->head->owner_pid)
		return true;
	if (!chunk_used(chunk) || chunk->pid != pid) /* tid is not, or may not be, this writer's */
		return kill((pid_t)pid, 0) && errno == ESRCH;
	return syscall(SYS_tgkill, (pid_t)chunk->pid, (pid_t)chunk->tid, 0) && errno == ESRCH;
}

/* A writer that died inside pool_put() leaves its chunk BUSY for ever. Seen so for 2 s and gone: it is ours. */
static bool is_abandoned(struct drain *d, uint32_t index, struct pool_chunk *chunk, uint64_t word, uint64_t now_ns)
{
	uint32_t used = chunk_used(chunk);
	struct stuck *slot = &d->stuck[index % STUCK_SLOTS];

	if (d->owner_dead)
		return writer_is_gone(d, chunk, word);
	if (slot->word != word || slot->index != index || slot->used != used) {
		if (!slot->word || now_ns - slot->since_ns > 2 * STUCK_NS)
			*slot = (struct stuck){ .word = word, .since_ns = now_ns, .index = index, .used = used };
		return false;
	}
	if (now_ns - slot->since_ns < STUCK_NS || !writer_is_gone(d, chunk, word))
		return false;
	slot->word = 0;
	return atomic_compare_exchange_strong_explicit(&chunk->state, &word,
						       CHUNK_WORD(CHUNK_TICKET(word), CHUNK_DRAIN),
						       memory_order_acquire, memory_order_relaxed);
}

/* Take the chunk or a look at it. Return: false when there is nothing for us in it. */
static bool claim(struct drain *d, uint32_t index, struct pool_chunk *chunk, bool flush, uint64_t now_ns, bool *claimed)
{
	uint64_t word = atomic_load_explicit(&chunk->state, memory_order_acquire);

	if (CHUNK_STATE(word) == CHUNK_OWNED && flush &&
	    atomic_compare_exchange_strong_explicit(&chunk->state, &word, CHUNK_WORD(CHUNK_TICKET(word), CHUNK_DRAIN),
						    memory_order_acquire, memory_order_acquire))
		word = CHUNK_WORD(CHUNK_TICKET(word), CHUNK_DRAIN);
	/* a failed exchange has put the new state into word: BUSY or FULL */
	*claimed = true;
	switch (CHUNK_STATE(word)) {
	case CHUNK_FULL:
	case CHUNK_DRAIN:
		return true;
	case CHUNK_BUSY:
		*claimed = flush && is_abandoned(d, index, chunk, word, now_ns);
		return flush;
	default:
		return false;
	}
}

static void collect(struct drain *d, bool flush)
{
	uint32_t count = atomic_load_explicit(&d->pool->mapped_chunks, memory_order_acquire);
	uint64_t now_ns = clock_mono_ns();
	uint32_t i;

	d->range_count = 0;
	for (i = 0; i < count && d->range_count < POOL_PENDING; i++) {
		struct pool_chunk *chunk = chunk_at(d->pool, i);
		bool claimed;
		uint32_t used;

		if (!claim(d, i, chunk, flush, now_ns, &claimed))
			continue;
		used = chunk_used(chunk);
		if (used <= chunk->taken) {
			if (claimed)
				free_chunk(chunk, atomic_load_explicit(&chunk->state, memory_order_relaxed));
			continue;
		}
		d->range[d->range_count++] = (struct range){
			.chunk = chunk,
			.index = i,
			.from = chunk->taken,
			.upto = used,
			.seq = chunk->seq,
			.claimed = claimed,
		};
	}
}

/* By seq. Shell's sort: qsort allocates for arrays of this size. */
static void sort_ranges(struct drain *d)
{
	uint32_t gap, i, j;

	for (gap = d->range_count / 2; gap; gap /= 2) {
		for (i = gap; i < d->range_count; i++) {
			struct range r = d->range[i];

			for (j = i; j >= gap && d->range[j - gap].seq > r.seq; j -= gap)
				d->range[j] = d->range[j - gap];
			d->range[j] = r;
		}
	}
}

/* --- records into files ------------------------------------------------------------------------------------------------ */

static bool takes_part(const struct drain *d, const struct sink *s)
{
	return !d->trouble[s - d->sinks].aside_ns;
}

/* The sink that carries drops and thread names, if it takes part. */
static struct sink *carrier(struct drain *d)
{
	int i;

	for (i = 0; i < d->sink_count; i++) {
		if (d->sinks[i].ops->drop && takes_part(d, &d->sinks[i]))
			return &d->sinks[i];
	}
	return NULL;
}

/* What a sink's call has returned; who spoils the batch is remembered. */
static int of_sink(struct drain *d, struct sink *s, int ret)
{
	if (ret == -EFBIG)
		d->too_long = s; /* by our own limit, or by RLIMIT_FSIZE */
	else if (ret < 0 && ret != -EMSGSIZE)
		d->failing = s;
	return ret;
}

static int ensure_open(struct drain *d, struct sink *s)
{
	struct clock_snapshot clocks;
	const char *suffix;
	char stem[256];
	struct st_err err;
	int ret;

	if (s->out.live)
		return 0;
	s->ops->file_name(s, stem, sizeof(stem), &suffix);
	ret = out_open(&s->out, stem, suffix, s->ops->tail != NULL, &err);
	if (ret < 0) {
		snprintf(d->stats.last_text, sizeof(d->stats.last_text), "%.255s", err.text);
		return ret;
	}
	clock_snapshot_take(&clocks);
	if (ret == OUT_NEW || !s->out.wall_minus_mono_ns)
		out_offset(&s->out, (int64_t)(clocks.realtime_ns - clocks.mono_ns));
	if (s->ops->thread || s->ops->own_thread)
		memset(d->seen, 0, sizeof(d->seen));
	if (ret == OUT_NEW)
		return s->ops->begin(s, &clocks);
	return s->ops->clocks ? s->ops->clocks(s, &clocks) : 0;
}

static uint64_t thread_hash(const struct sink_rec *rec)
{
	uint64_t hash = 14695981039346656037ull ^ ((uint64_t)rec->pid << 32 | rec->tid);
	const char *at;

	hash *= 1099511628211ull;
	for (at = rec->comm; *at; at++)
		hash = (hash ^ (uint8_t)*at) * 1099511628211ull;
	return hash | 1; /* 0 = empty slot */
}

/* Name the thread once a segment. A crowded table forgets: a name told twice is harmless. */
static int tell_thread(struct drain *d, const struct sink_rec *rec)
{
	struct sink *s = carrier(d);
	uint64_t hash = thread_hash(rec);
	uint64_t *slot = &d->seen[hash % SEEN_SLOTS];
	int ret;

	if (!s || *slot == hash)
		return 0;
	ret = ensure_open(d, s);
	if (ret == 0)
		ret = s->ops->thread(s, rec);
	if (ret == 0)
		*slot = hash;
	return of_sink(d, s, ret);
}

/* The same in a file of its own, which is open. */
static int tell_own_thread(struct drain *d, struct sink *s, const struct sink_rec *rec)
{
	uint64_t hash = thread_hash(rec) ^ (uint64_t)s->ops->kind << 56;
	uint64_t *slot = &d->seen[hash % SEEN_SLOTS];
	int ret;

	if (!s->ops->own_thread || *slot == hash)
		return 0;
	ret = s->ops->own_thread(s, rec);
	if (ret == 0)
		*slot = hash;
	return of_sink(d, s, ret);
}

static int put_record(struct drain *d, const struct sink_rec *rec)
{
	bool known = false, lost = false;
	int i, ret = 0;

	for (i = 0; i < d->sink_count && ret == 0; i++) {
		struct sink *s = &d->sinks[i];

		if (s->ops->learned & 1u << rec->head->type)
			s->ops->learn(s, rec);
		if (!(s->ops->types & 1u << rec->head->type) || (s->ops->concerns && !s->ops->concerns(s, rec)))
			continue;
		if (!takes_part(d, s)) {
			lost = true;
			continue;
		}
		known = true;
		if (s->ops->kind == SINK_TIMELINE || s->ops->kind == SINK_TIMELINE_EXT)
			ret = tell_thread(d, rec);
		if (ret == 0)
			ret = of_sink(d, s, ensure_open(d, s));
		if (ret == 0)
			ret = tell_own_thread(d, s, rec);
		if (ret == 0)
			ret = of_sink(d, s, s->ops->put(s, rec));
		if (ret == -EMSGSIZE) {
			known = false; /* no file can hold it: not a reason to stop */
			ret = 0;
		}
	}
	if (lost)
		d->lost[rec_source[rec->head->type]]++;
	else if (known)
		d->stats.records++;
	else
		d->stats.unknown++;
	return ret;
}

static bool record_is_sound(const struct rec_head *rec, uint32_t room)
{
	return room >= sizeof(*rec) && rec->bytes >= sizeof(*rec) && rec->bytes % 8 == 0 && rec->bytes <= room &&
	       rec->bytes <= POOL_MAX_RECORD;
}

static int put_range(struct drain *d, const struct range *r)
{
	struct pool_header *head = d->pool->head;
	uint64_t copy[POOL_MAX_RECORD / 8];
	struct rec_head *rec = (struct rec_head *)copy;
	char comm[sizeof(r->chunk->comm) + 1] = "";
	struct sink_rec from = {
		.head = rec,
		.pid = r->chunk->pid,
		.tid = r->chunk->tid,
		.comm = comm,
		.worker = r->chunk->generation && r->chunk->pid != head->owner_pid,
	};
	uint32_t at = r->from;
	int ret = 0;

	memcpy(comm, r->chunk->comm, sizeof(r->chunk->comm));
	while (at < r->upto && ret == 0) {
		memcpy(copy, r->chunk->data + at, sizeof(*rec)); /* a copy: the area may be damaged, or change */
		if (!record_is_sound(rec, r->upto - at)) {
			d->stats.unknown++;
			break;
		}
		memcpy(copy + 1, r->chunk->data + at + sizeof(*rec), rec->bytes - sizeof(*rec));
		at += rec->bytes;
		if (rec->type == REC_NONE || rec->type >= REC_TYPES || rec->bytes < rec_bytes[rec->type])
			d->stats.unknown++;
		else
			ret = put_record(d, &from);
	}
	return ret;
}

struct batch {
	uint32_t first, count; /* ranges */
	bool flight;
	uint64_t since_ns; /* flight: markers from here on */
	uint64_t flight_next;
};

/* One marker of the flight ring, as the record it would have been. */
static int put_flown(struct drain *d, const struct comm_flight *call)
{
	struct rec_comm comm = {
		.head = { .bytes = sizeof(comm), .type = REC_COMM, .step = call->step },
		.begin_ns = call->begin_ns,
		.dur_ns = call->dur_ns,
		.count = call->count,
		.op = call->op,
		.group = call->group,
		.dtype = call->dtype,
		.seq = call->seq,
	};
	struct sink_rec rec = {
		.head = &comm.head,
		.pid = call->pid,
		.tid = call->tid,
		.comm = "",
		.worker = call->pid != d->pool->head->owner_pid,
	};

	if (call->flags & FLIGHT_RAISED)
		comm.head.flags |= STAGE_RAISED;
	if (call->flags & FLIGHT_OPEN)
		comm.head.flags |= STAGE_CUT;
	return put_record(d, &rec);
}

static int put_flight(struct drain *d, struct batch *b)
{
	struct pool_header *head = d->pool->head;
	uint64_t end = atomic_load_explicit(&head->flight_head, memory_order_acquire);
	uint64_t slot[POOL_FLIGHT_BYTES / sizeof(uint64_t)];
	const struct comm_flight *call = (const void *)slot;
	uint64_t n = d->flight_next;
	int ret = 0;

	if (end - n > POOL_FLIGHT_SLOTS)
		n = end - POOL_FLIGHT_SLOTS;
	for (; n < end && ret == 0; n++) {
		if (!pool_flight_get(head, n, slot))
			continue;
		if (call->begin_ns >= b->since_ns && !(call->flags & FLIGHT_WRITTEN))
			ret = put_flown(d, call);
	}
	b->flight_next = n;
	return ret;
}

static bool tells_own(const struct drain *d, const struct sink *s, uint32_t source)
{
	return s->ops->own_drop && (s->ops->sources & 1u << source) && s->out.live && takes_part(d, s);
}

static bool own_told(const struct drain *d, uint32_t source)
{
	int i;

	for (i = 0; i < d->sink_count; i++) {
		if (tells_own(d, &d->sinks[i], source))
			return true;
	}
	return false;
}

/* Files that can be read alone. */
static int tell_own_drops(struct drain *d, uint32_t source, const struct msg_drop *drop)
{
	int i, ret = 0;

	for (i = 0; i < d->sink_count && ret == 0; i++) {
		struct sink *s = &d->sinks[i];

		if (tells_own(d, s, source))
			ret = of_sink(d, s, s->ops->own_drop(s, drop));
	}
	return ret;
}

static int tell_drops(struct drain *d)
{
	struct pool_header *head = d->pool->head;
	const uint64_t *told = head->commits[head->committed & 1].reported;
	struct sink *s = carrier(d);
	uint64_t now_ns = clock_mono_ns();
	int i, ret = 0;

	for (i = 0; i < POOL_SRC_COUNT && ret == 0; i++) {
		uint64_t total = atomic_load_explicit(&head->dropped[i], memory_order_relaxed);
		struct msg_drop drop = {
			.source = msg_text(sink_source_name((enum pool_source)i)),
			.count = total - told[i],
			.from_ns = d->last_drop_ns,
			.to_ns = now_ns,
		};

		d->env.dropped[i] = total;
		if (total <= told[i])
			continue;
		if (s && s->out.live)
			ret = of_sink(d, s, s->ops->drop(s, &drop));
		if (ret == 0)
			ret = tell_own_drops(d, (uint32_t)i, &drop);
	}
	return ret;
}

static bool any_live(const struct drain *d)
{
	int i;

	for (i = 0; i < d->sink_count; i++) {
		if (d->sinks[i].out.live)
			return true;
	}
	return false;
}

static int tell_clocks(struct drain *d, uint64_t now_ns)
{
	struct clock_snapshot clocks;
	int i, ret = 0;

	if (now_ns < d->next_clock_ns)
		return 0;
	clock_snapshot_take(&clocks);
	for (i = 0; i < d->sink_count && ret == 0; i++) {
		struct sink *s = &d->sinks[i];

		if (!s->out.live || !s->ops->clocks || !takes_part(d, s))
			continue;
		ret = of_sink(d, s, s->ops->clocks(s, &clocks));
	}
	return ret;
}

/* --- the batch --------------------------------------------------------------------------------------------------------- */

static void write_pending(struct drain *d, const struct batch *b, uint64_t number)
{
	struct pool_pending *pending = &d->pool->head->pending;
	uint32_t i;

	/* first invalid: half-written ranges under the number of a finished batch would count as done */
	__atomic_store_n(&pending->batch, 0, __ATOMIC_SEQ_CST);
	for (i = 0; i < b->count; i++) {
		const struct range *r = &d->range[b->first + i];

		pending->range[i].chunk = r->index;
		pending->range[i].upto = r->upto;
		pending->range[i].seq = r->seq;
	}
	pending->count = b->count;
	__atomic_store_n(&pending->batch, number, __ATOMIC_SEQ_CST);
}

static int reopen(struct drain *d, struct sink *s)
{
	struct st_err err = { 0 };
	int ret = out_reopen(&s->out, &err);

	if (ret == -ESTALE)
		ret = 0; /* its next record begins a new file */
	if (ret < 0)
		snprintf(d->stats.last_text, sizeof(d->stats.last_text), "%.255s", err.text);
	return of_sink(d, s, ret);
}

static int write_out(struct drain *d, struct sink *s)
{
	int ret = out_write(&s->out);

	if (ret < 0)
		snprintf(d->stats.last_text, sizeof(d->stats.last_text), "cannot write %.200s: %s", s->out.path,
			 strerror(-ret));
	return of_sink(d, s, ret);
}

static int fill_batch(struct drain *d, struct batch *b)
{
	uint32_t i;
	int ret = 0;

	for (i = 0; i < (uint32_t)d->sink_count && ret == 0; i++) {
		if (takes_part(d, &d->sinks[i]))
			ret = reopen(d, &d->sinks[i]);
	}
	if (ret == 0)
		ret = tell_clocks(d, clock_mono_ns());
	for (i = 0; i < b->count && ret == 0; i++)
		ret = put_range(d, &d->range[b->first + i]);
	if (ret == 0 && b->flight)
		ret = put_flight(d, b);
	if (ret == 0)
		ret = tell_drops(d);
	for (i = 0; i < (uint32_t)d->sink_count && ret == 0; i++) {
		if (d->sinks[i].out.live && takes_part(d, &d->sinks[i]))
			ret = write_out(d, &d->sinks[i]);
	}
	return ret;
}

static void commit_batch(struct drain *d, const struct batch *b, uint64_t number)
{
	struct pool_header *head = d->pool->head;
	struct pool_commit *old = &head->commits[(number - 1) & 1];
	struct pool_commit *fresh = &head->commits[number & 1];
	struct sink *s = carrier(d);
	uint32_t i;

	memcpy(fresh, old, sizeof(*fresh));
	fresh->batch = number;
	for (i = 0; i < (uint32_t)d->sink_count; i++)
		fresh->length[d->sinks[i].ops->kind] = d->sinks[i].out.length;
	fresh->next_id = d->env.next_id;
	for (i = 0; i < POOL_SRC_COUNT; i++) {
		if ((s && s->out.live) || own_told(d, i))
			fresh->reported[i] = d->env.dropped[i];
	}
	/* release: whoever sees the number sees the lengths */
	atomic_store_explicit(&head->committed, number, memory_order_release);
	for (i = 0; i < b->count; i++) {
		struct range *r = &d->range[b->first + i];

		__atomic_store_n(&r->chunk->taken, r->upto, __ATOMIC_RELAXED);
		if (r->claimed)
			free_chunk(r->chunk, atomic_load_explicit(&r->chunk->state, memory_order_relaxed));
	}
}

static void settle(struct drain *d)
{
	int i, ret;

	for (i = 0; i < d->sink_count; i++) {
		struct sink *s = &d->sinks[i];

		d->stats.bytes += s->out.length - s->out.committed;
		out_commit(&s->out);
		ret = s->ops->settled ? s->ops->settled(s) : 0;
		if (ret < 0 && !d->complained) {
			d->complained = true;
			snprintf(d->stats.last_text, sizeof(d->stats.last_text), "cannot write %.200s.meta.json: %s",
				 s->out.path, strerror(-ret));
			complain(d, d->stats.last_text);
		}
		out_rest(&s->out);
	}
}

static void undo(struct drain *d, uint64_t records, uint64_t unknown)
{
	struct pool_header *head = d->pool->head;
	int i;

	for (i = 0; i < d->sink_count; i++) {
		out_rollback(&d->sinks[i].out);
		out_rest(&d->sinks[i].out);
	}
	d->env.next_id = head->commits[head->committed & 1].next_id;
	memset(d->seen, 0, sizeof(d->seen));
	d->stats.records = records;
	d->stats.unknown = unknown;
}

/* Make room below the limit of this process: oldest segments first. */
static void keep_limit(struct drain *d)
{
	char path[POOL_PATH];

	for (;;) {
		struct sink *oldest = NULL;
		uint64_t sum = d->env.place.segment_bytes, oldest_ns = UINT64_MAX;
		int i;

		for (i = 0; i < d->sink_count; i++) {
			uint64_t time_ns = out_oldest_time(&d->sinks[i].out);

			sum += out_size(&d->sinks[i].out);
			if (time_ns && time_ns < oldest_ns) {
				oldest_ns = time_ns;
				oldest = &d->sinks[i];
			}
		}
		if (!d->max_bytes || sum <= d->max_bytes || !oldest)
			return;
		if (out_drop_oldest(&oldest->out, path, sizeof(path)) < 0)
			return;
		drain_note(d->pool, "removed %s: SYSTRACE_MAX_MB reached", path);
	}
}

static int close_long_segment(struct drain *d)
{
	struct st_err err;
	int ret = out_rotate(&d->too_long->out, &err);

	d->too_long = NULL;
	if (ret < 0)
		snprintf(d->stats.last_text, sizeof(d->stats.last_text), "%.255s", err.text);
	else
		keep_limit(d);
	return ret;
}

/* --- sinks that fail alone ------------------------------------------------------------------------------------------- */

static bool wrote(const struct sink *s)
{
	return s->out.live && s->out.length > s->out.committed;
}

/* Before a batch: those whose time is over take part again. */
static void let_in(struct drain *d)
{
	uint64_t now_ns = clock_mono_ns();
	int i;

	for (i = 0; i < d->sink_count; i++) {
		if (d->trouble[i].aside_ns && now_ns >= d->trouble[i].aside_ns)
			d->trouble[i].aside_ns = 0;
	}
}

/* The sink that spoiled the batch has done so often enough: the batch is tried again without it. */
static bool set_aside(struct drain *d, uint32_t *counted)
{
	struct trouble *t = d->failing ? &d->trouble[d->failing - d->sinks] : NULL;

	if (!t)
		return false;
	t->failures += !(*counted & 1u << (t - d->trouble)); /* once a batch */
	*counted |= 1u << (t - d->trouble);
	if (t->failures < SINK_BUDGET || d->owner_dead)
		return false;
	t->aside_ns = clock_mono_ns() + LONGEST_PAUSE_NS;
	snprintf(t->text, sizeof(t->text), "%s: %.130s", d->failing->ops->name, d->stats.last_text);
	return true;
}

/* Only a batch that went into some other file shows that the fault is the sink's own, and not the whole disk's. */
static bool fault_is_its_own(const struct drain *d)
{
	bool any = false, aside = false;
	int i;

	for (i = 0; i < d->sink_count; i++) {
		aside |= d->trouble[i].aside_ns != 0;
		any |= wrote(&d->sinks[i]);
	}
	return any || !aside;
}

/* The batch is about to be committed: who was written is well, what was left out is lost. */
static void account(struct drain *d)
{
	char text[sizeof(d->trouble[0].text) + 80];
	int i;

	d->stats.given_up[0] = 0;
	for (i = 0; i < d->sink_count; i++) {
		struct trouble *t = &d->trouble[i];

		if (t->aside_ns) {
			snprintf(d->stats.given_up, sizeof(d->stats.given_up), "%s", t->text);
			if (!t->said) {
				snprintf(text, sizeof(text), "%s; its records are dropped and counted until it works",
					 t->text);
				complain(d, text);
			}
			t->said = true;
		} else if (wrote(&d->sinks[i])) {
			if (t->said) {
				snprintf(text, sizeof(text), "%s: is written again", d->sinks[i].ops->name);
				complain(d, text);
			}
			*t = (struct trouble){ 0 };
		}
	}
	for (i = 0; i < POOL_SRC_COUNT; i++) {
		if (d->lost[i])
			atomic_fetch_add_explicit(&d->pool->head->dropped[i], d->lost[i], memory_order_relaxed);
	}
}

/* Nothing could be written at all: keep everything in the pool, as for any full disk. */
static void keep_all(struct drain *d)
{
	int i;

	for (i = 0; i < d->sink_count; i++) {
		d->trouble[i].aside_ns = 0;
		if (d->trouble[i].failures > SINK_BUDGET)
			d->trouble[i].failures = SINK_BUDGET;
	}
}

/* Files whose name changes with time; nothing is uncommitted now. */
static void end_files(struct drain *d)
{
	uint64_t unix_ns = clock_ns(CLOCK_REALTIME);
	int i;

	for (i = 0; i < d->sink_count; i++) {
		struct sink *s = &d->sinks[i];

		if (s->out.live && !s->out.torn && s->ops->over && s->ops->over(s, unix_ns))
			out_retire(&s->out);
	}
}

/* One batch, tried again after each segment that it had to close, and without sinks that fail alone. */
static int run_batch(struct drain *d, struct batch *b)
{
	struct pool_header *head = d->pool->head;
	uint64_t number = head->committed + 1;
	uint64_t records = d->stats.records, unknown = d->stats.unknown;
	int ret, error = -EIO, tries = 0;
	uint32_t counted = 0;
	bool again;

	let_in(d);
	end_files(d);
	do {
		d->too_long = d->failing = NULL;
		memset(d->lost, 0, sizeof(d->lost));
		write_pending(d, b, number);
		ret = fill_batch(d, b);
		if (ret == 0 && fault_is_its_own(d)) {
			account(d);
			commit_batch(d, b, number);
			settle(d);
			if (clock_mono_ns() >= d->next_clock_ns)
				d->next_clock_ns = clock_mono_ns() + CLOCK_PERIOD_NS;
			d->last_drop_ns = clock_mono_ns();
			atomic_fetch_add_explicit(&head->records, d->stats.records - records, memory_order_relaxed);
			d->stats.batches++;
			return 0;
		}
		undo(d, records, unknown);
		if (ret == 0)
			break; /* for the reason that a sink was set aside */
		error = ret;
		again = d->too_long ? close_long_segment(d) == 0 : set_aside(d, &counted);
	} while (again && ++tries <= 2 * SINKS);
	keep_all(d);
	return error;
}

static int fail(struct drain *d, int ret, struct st_err *err)
{
	char text[sizeof(d->stats.last_text) + 80];

	d->stats.failures++;
	d->stats.last_error = ret;
	if (!d->stats.last_text[0])
		snprintf(d->stats.last_text, sizeof(d->stats.last_text), "cannot write: %s", strerror(-ret));
	d->pause_ns = !d->pause_ns			   ? FIRST_PAUSE_NS
		      : d->pause_ns * 2 > LONGEST_PAUSE_NS ? LONGEST_PAUSE_NS
							   : d->pause_ns * 2;
	d->retry_ns = clock_mono_ns() + d->pause_ns;
	if (!d->complained) {
		d->complained = true;
		snprintf(text, sizeof(text), "%s; records are kept as long as there is room", d->stats.last_text);
		complain(d, text);
	}
	return err_set(err, ret, "%s", d->stats.last_text);
}

static void succeed(struct drain *d)
{
	if (d->pause_ns)
		complain(d, "files are written again");
	d->pause_ns = d->retry_ns = 0;
	d->complained = false;
	d->stats.last_error = 0;
	d->stats.last_text[0] = 0;
}

static bool drops_rose(const struct drain *d)
{
	const struct pool_header *head = d->pool->head;
	int i;

	for (i = 0; i < POOL_SRC_COUNT; i++) {
		if (atomic_load_explicit(&head->dropped[i], memory_order_relaxed) != d->env.dropped[i])
			return true;
	}
	return false;
}

int drain_step(struct drain *d, bool flush, struct st_err *err)
{
	uint64_t before = d->stats.records, now_ns = clock_mono_ns();
	struct batch b = { 0 };
	bool idle;
	int ret = 0;

	if (!d->identified)
		return 0;
	if (d->retry_ns && now_ns < d->retry_ns)
		return -EAGAIN;
	collect(d, flush);
	sort_ranges(d);
	idle = !d->range_count && !(any_live(d) && (now_ns >= d->next_clock_ns || drops_rose(d)));
	while (!idle && ret == 0) {
		b.count = d->range_count - b.first;
		if (b.count > d->batch_ranges)
			b.count = d->batch_ranges;
		ret = run_batch(d, &b);
		b.first += b.count;
		idle = b.first >= d->range_count;
	}
	if (ret < 0)
		return fail(d, ret, err);
	succeed(d);
	return (int)(d->stats.records - before);
}

int drain_dump_flight(struct drain *d, uint64_t since_ns, struct st_err *err)
{
	struct batch b = { .flight = true, .since_ns = since_ns };
	uint64_t before = d->stats.records;
	int ret;

	if (!d->identified)
		return 0;
	ret = run_batch(d, &b);
	if (ret < 0)
		return fail(d, ret, err);
	d->flight_next = b.flight_next;
	return (int)(d->stats.records - before);
}

void drain_retry_now(struct drain *d)
{
	int i;

	for (i = 0; i < d->sink_count; i++)
		d->trouble[i].aside_ns = 0;
	d->retry_ns = 0;
}

/* --- recover ----------------------------------------------------------------------------------------------------------- */

/* Ranges of the last finished batch whose chunks were not marked any more. */
static void finish_ranges(struct drain *d)
{
	struct pool_header *head = d->pool->head;
	uint32_t chunks = atomic_load_explicit(&d->pool->mapped_chunks, memory_order_relaxed);
	uint32_t i;

	if (!head->committed || head->pending.batch != head->committed)
		return;
	for (i = 0; i < head->pending.count && i < POOL_PENDING; i++) {
		uint32_t index = head->pending.range[i].chunk, upto = head->pending.range[i].upto;
		struct pool_chunk *chunk;

		if (index >= chunks)
			continue;
		chunk = chunk_at(d->pool, index);
		if (CHUNK_STATE(chunk->state) != CHUNK_FREE && chunk->seq == head->pending.range[i].seq &&
		    chunk->taken < upto && upto <= chunk_used(chunk))
			chunk->taken = upto;
	}
}

int drain_adopt(struct drain *d, struct st_err *err)
{
	struct pool_header *head = d->pool->head;
	struct pool_commit *commit = &head->commits[head->committed & 1];
	int i, ret, adopted = 0;

	if (!drain_recorded(head))
		return err_set(err, -ENOENT, "the process never recorded");
	ret = take_identity(d, err);
	if (ret < 0)
		return ret;
	d->owner_dead = d->env.place.owner_dead = true;
	finish_ranges(d);
	for (i = 0; i < d->sink_count; i++) {
		struct out *out = &d->sinks[i].out;

		if (!head->files[out->index].path[0])
			continue;
		ret = out_adopt(out, commit->length[out->index], err);
		if (ret == -ENOENT) {
			complain(d, err->text);
			continue;
		}
		if (ret < 0)
			return ret;
		adopted++;
	}
	return adopted;
}

bool drain_recorded(const struct pool_header *head)
{
	/* a worker's rank records, whether the worker has noticed it or not */
	return head->origin_at && (atomic_load_explicit(&head->recording, memory_order_relaxed) != POOL_READY ||
				   head->worker_of & POOL_WORKER);
}

/* --- small things ------------------------------------------------------------------------------------------------------ */

uint64_t drain_pending(const struct pool *pool)
{
	uint32_t count = atomic_load_explicit(&pool->mapped_chunks, memory_order_acquire);
	uint64_t sum = 0;
	uint32_t i;

	for (i = 0; i < count; i++) {
		struct pool_chunk *chunk = chunk_at(pool, i);
		uint32_t used = chunk_used(chunk), taken = __atomic_load_n(&chunk->taken, __ATOMIC_RELAXED);

		sum += used > taken ? used - taken : 0;
	}
	return sum;
}

void drain_note(struct pool *pool, const char *format, ...)
{
	struct rec_note note = { .head = { .bytes = sizeof(note), .type = REC_NOTE }, .at_ns = clock_mono_ns() };
	char text[512];
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (n <= 0 || !pool->head)
		return;
	note.text = pool_intern(pool, text, strlen(text));
	note.head.step = (uint32_t)atomic_load_explicit(&pool->head->step, memory_order_relaxed);
	pool_put(pool, &note, sizeof(note), POOL_SRC_NOTE);
}

int drain_redirect(struct drain *d, const char *dump_path, struct st_err *err)
{
	struct out_place *place = &d->env.place;
	struct st_err ignored;
	int i;

	if (dump_path[0] != '/' || strlen(dump_path) >= POOL_PATH / 2)
		return err_set(err, -ENAMETOOLONG, "%s: not an absolute path of less than %d bytes", dump_path,
			       POOL_PATH / 2);
	for (i = 0; i < d->sink_count; i++) {
		/* a closed segment: what follows elsewhere under the same name is then seen to come after it */
		out_rotate(&d->sinks[i].out, &ignored);
		out_close(&d->sinks[i].out);
	}
	snprintf(place->dump_path, sizeof(place->dump_path), "%s", dump_path);
	snprintf(d->pool->head->dump_path, sizeof(d->pool->head->dump_path), "%s", dump_path);
	return 0;
}

bool drain_remote(const char *path)
{
	static const uint32_t remote[] = {
		0x6969,	    /* NFS */ 0xff534d42,  /* CIFS */ 0xfe534d42,   /* SMB2 */ 0x517b, /* SMB */
		0x00c36400, /* Ceph */ 0x0bd00bd0, /* Lustre */ 0x47504653, /* GPFS */ 0x65735546, /* FUSE */
		0x01021997, /* 9p */ 0x19830326,   /* BeeGFS */ 0x5346414f, /* AFS */ 0x7461636f, /* OCFS2 */
		0x01161970, /* GFS2 */
	};
	char parent[POOL_PATH], *slash;
	struct statfs fs;
	size_t i;

	snprintf(parent, sizeof(parent), "%s", path);
	while (statfs(parent, &fs)) {
		slash = strrchr(parent, '/');
		if (errno != ENOENT || !slash || slash == parent)
			return false;
		*slash = 0;
	}
	for (i = 0; i < sizeof(remote) / sizeof(remote[0]); i++) {
		if ((uint32_t)fs.f_type == remote[i])
			return true;
	}
	return false;
}

int drain_files(const struct drain *d, const char *path[POOL_FILES])
{
	int i, n = 0;

	for (i = 0; i < d->sink_count; i++) {
		if (d->sinks[i].out.live)
			path[n++] = d->sinks[i].out.path;
	}
	return n;
}

void drain_stats(const struct drain *d, struct drain_stats *stats)
{
	const struct pool_header *head = d->pool->head;
	int i;

	*stats = d->stats;
	stats->dropped = 0;
	for (i = 0; i < POOL_SRC_COUNT; i++)
		stats->dropped += atomic_load_explicit(&head->dropped[i], memory_order_relaxed);
}

void drain_free(struct drain *d)
{
	int i;

	if (!d)
		return;
	for (i = 0; i < d->sink_count; i++) {
		out_close(&d->sinks[i].out);
		out_free(&d->sinks[i].out);
		if (d->sinks[i].ops->free)
			d->sinks[i].ops->free(&d->sinks[i]);
	}
	munmap(d, sizeof(*d));
}
