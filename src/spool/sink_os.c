/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The agent's part of the documented os_trace files: what the plugin Memory records, one ProcMem per record, in
 * concatenated OSprobe messages or one JSON object whose proc_mem grows. A new file each hour (contract 5). Frames of
 * stacks are written into each entry, as the published schema has them: the definitions that go by on their way to the
 * stacks file (sink_stacks.c) are kept. Driven by spool/drain.c.
 */
#include "spool/local_time.h"
#include "spool/sink.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define KNOWN_STACKS 32769u /* ids as of agent/stack/intern.h */
#define KNOWN_FRAMES (1u << 19)
#define KNOWN_MODULES (1u << 18) /* as FRAME_MODULE(): ids are not dense */
#define KNOWN_CODES (1u << 17)
#define KNOWN_TEXT (2u << 20)
#define FRAME_TEXT 120 /* bytes of a name in an entry */
#define HOUR_S 3600

/* Offsets are 1 + where it lies; 0 = not known. */
struct known {
	uint32_t stack[KNOWN_STACKS]; /* into frame: count, frames */
	uint32_t module[KNOWN_MODULES]; /* into text: file name */
	uint32_t code[KNOWN_CODES]; /* into text: function, source file */
	uint32_t frames_used, text_used;
	uint64_t frame[KNOWN_FRAMES];
	char text[KNOWN_TEXT];
};

struct os_state {
	struct known *known;
	int64_t hour; /* of the live file: local hours since 1970 */
	uint64_t minute; /* in which that was last looked at */
};

/* --- what stack ids stand for ---------------------------------------------------------------------------------------- */

static struct known *known_of(struct sink *s)
{
	struct os_state *state = s->state;
	void *room;

	if (state->known)
		return state->known;
	room = mmap(NULL, sizeof(*state->known), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
		    -1, 0);
	state->known = room == MAP_FAILED ? NULL : room;
	return state->known;
}

static uint32_t keep_text(struct known *known, const char *text, size_t bytes)
{
	uint32_t at = known->text_used;

	if (bytes > FRAME_TEXT) {
		text += bytes - FRAME_TEXT;
		bytes = FRAME_TEXT;
	}
	if (at + bytes + 1 > KNOWN_TEXT)
		return 0;
	memcpy(known->text + at, text, bytes);
	known->text_used = at + (uint32_t)bytes + 1;
	return at + 1;
}

static void learn_stack(struct known *known, const struct rec_stack *stack)
{
	uint32_t room = (stack->head.bytes - (uint32_t)sizeof(*stack)) / 8;
	uint32_t count = stack->count < room ? stack->count : room;

	if (stack->id >= KNOWN_STACKS || known->stack[stack->id] || known->frames_used + count + 1 > KNOWN_FRAMES)
		return;
	known->stack[stack->id] = known->frames_used + 1;
	known->frame[known->frames_used++] = count;
	memcpy(known->frame + known->frames_used, stack->frames, count * sizeof(uint64_t));
	known->frames_used += count;
}

static void learn_module(struct known *known, const struct rec_module *module)
{
	size_t room = module->head.bytes - sizeof(*module);
	size_t bytes = module->path_bytes < room ? module->path_bytes : room;
	const char *slash = memrchr(module->path, '/', bytes);
	const char *base = slash ? slash + 1 : module->path;

	if (module->id < KNOWN_MODULES && !known->module[module->id])
		known->module[module->id] = keep_text(known, base, (size_t)(module->path + bytes - base));
}

static void learn_code(struct known *known, const struct rec_code *code)
{
	size_t room = code->head.bytes - sizeof(*code);
	size_t name = code->name_bytes < room ? code->name_bytes : room;
	size_t file = code->file_bytes < room - name ? code->file_bytes : room - name;
	uint32_t at;

	if (code->id >= KNOWN_CODES || known->code[code->id])
		return;
	at = keep_text(known, code->text, name);
	if (at && keep_text(known, code->text + name, file))
		known->code[code->id] = at;
}

static void os_learn(struct sink *s, const struct sink_rec *rec)
{
	struct known *known = known_of(s);

	if (!known)
		return;
	if (rec->head->type == REC_STACK)
		learn_stack(known, (const struct rec_stack *)rec->head);
	else if (rec->head->type == REC_MODULE)
		learn_module(known, (const struct rec_module *)rec->head);
	else
		learn_code(known, (const struct rec_code *)rec->head);
}

static void os_free(struct sink *s)
{
	struct os_state *state = s->state;

	if (state->known)
		munmap(state->known, sizeof(*state->known));
	state->known = NULL;
}

/* Frames of a stack, innermost first. Return: count, 0 = not known (yet): the stack's id is in the entry. */
static uint32_t frames_of(const struct sink *s, uint32_t id, const uint64_t **frames)
{
	const struct known *known = ((const struct os_state *)s->state)->known;
	uint32_t at = known && id < KNOWN_STACKS ? known->stack[id] : 0;

	if (!at)
		return 0;
	*frames = known->frame + at;
	return (uint32_t)known->frame[at - 1];
}

static struct msg_frame frame_of(const struct sink *s, uint64_t frame)
{
	const struct known *known = ((const struct os_state *)s->state)->known;
	struct msg_frame m = { .address = frame };
	uint32_t at;

	if (FRAME_KIND(frame) == FRAME_NATIVE) {
		at = FRAME_MODULE(frame) < KNOWN_MODULES ? known->module[FRAME_MODULE(frame)] : 0;
		m.address = FRAME_OFFSET(frame);
		m.so_name = msg_text(at ? known->text + at - 1 : NULL);
	} else if (FRAME_KIND(frame) == FRAME_PYTHON) {
		at = FRAME_CODE(frame) < KNOWN_CODES ? known->code[FRAME_CODE(frame)] : 0;
		m.address = FRAME_LINE(frame);
		m.function = msg_text(at ? known->text + at - 1 : NULL);
		m.so_name = msg_text(at ? known->text + at + m.function.bytes : NULL);
	}
	return m;
}

/* --- records as messages ----------------------------------------------------------------------------------------------- */

static struct msg_proc_mem proc_of(const struct sink_rec *rec)
{
	return (struct msg_proc_mem){
		.pid = rec->head->type == REC_MEM ? rec->tid : rec->pid,
		.tgid = rec->pid,
		.space = MEM_SPACE_HOST,
	};
}

static struct msg_mem_alloc alloc_of(const struct rec_mem *mem)
{
	return (struct msg_mem_alloc){
		.alloc_ptr = mem->address,
		.stage_id = mem->stage_id,
		.stage_type = mem->stage,
		.mem_size = mem->bytes,
		.start_ns = mem->at_ns,
		.step = mem->head.step,
		.usable = mem->usable,
		.weight = mem->weight,
		.kind = mem->kind,
		.stack = mem->stack,
		.flags = mem->head.flags,
	};
}

static struct msg_mem_free free_of(const struct rec_mem *mem)
{
	return (struct msg_mem_free){
		.alloc_ptr = mem->address,
		.stage_id = mem->stage_id,
		.stage_type = mem->stage,
		.start_ns = mem->at_ns,
		.step = mem->head.step,
		.kind = mem->kind,
	};
}

static struct msg_mem_site site_of(const struct rec_mem_site *site)
{
	return (struct msg_mem_site){
		.blocks = site->blocks,
		.bytes = site->bytes,
		.usable = site->usable,
		.weight = site->weight,
		.oldest_ns = site->oldest_ns,
		.start_ns = site->at_ns,
		.kind = site->kind,
		.stack = site->stack,
	};
}

static struct msg_mem_state state_of(const struct rec_mem_state *state)
{
	return (struct msg_mem_state){
		.heap = state->heap,
		.mapped = state->mapped,
		.brk = state->brk,
		.rss = state->rss,
		.sample_bytes = state->sample_bytes,
		.untracked = state->untracked,
		.flags = state->head.flags,
		.start_ns = state->at_ns,
		.step = state->head.step,
	};
}

static uint32_t stack_of(const struct sink_rec *rec)
{
	if (rec->head->type == REC_MEM)
		return rec->head->flags & MEM_FREED ? 0 : ((const struct rec_mem *)rec->head)->stack;
	return rec->head->type == REC_MEM_SITE ? ((const struct rec_mem_site *)rec->head)->stack : 0;
}

/* --- the file ---------------------------------------------------------------------------------------------------------- */

static int64_t hour_of(uint64_t unix_ns, struct local_time *local)
{
	int64_t unix_s = (int64_t)(unix_ns / 1000000000u);

	local_time(unix_s, local);
	return (unix_s + local->offset_s) / HOUR_S;
}

static void os_name(const struct sink *s, char *stem, size_t room, const char **suffix)
{
	const struct msg_origin *origin = s->env->origin;
	struct os_state *state = s->state;
	struct local_time local;

	state->hour = hour_of(clock_ns(CLOCK_REALTIME), &local);
	snprintf(stem, room, "osprobe/os_trace_%04d%02u%02u_%02u_rank_%u_%u", local.year, local.month, local.day,
		 local.hour, origin->rank, origin->pid);
	*suffix = s->env->json ? ".json" : ".pb";
}

static bool os_over(const struct sink *s, uint64_t unix_ns)
{
	struct os_state *state = s->state;
	struct local_time local;

	if (unix_ns / 60000000000u == state->minute)
		return false;
	state->minute = unix_ns / 60000000000u;
	return hour_of(unix_ns, &local) != state->hour;
}

/* --- protobuf -------------------------------------------------------------------------------------------------------- */

static int put_origin(struct sink *s, const struct msg_origin *origin, const struct clock_snapshot *clocks)
{
	struct msg_clock clock = sink_clock(clocks);
	struct pb_writer w;
	size_t mark;

	pb_init(&w, s->env->scratch, SINK_SCRATCH);
	mark = pb_begin(&w, MSG_OS_origin);
	msg_origin_pb(&w, origin);
	msg_clock_put(&w, MSG_ORIGIN_clocks, &clock);
	pb_end(&w, mark);
	return sink_put_pb(s, &w);
}

static int pb_start(struct sink *s, const struct clock_snapshot *clocks)
{
	struct msg_origin origin = sink_origin(s);

	return put_origin(s, &origin, clocks);
}

static int pb_clocks(struct sink *s, const struct clock_snapshot *clocks)
{
	struct msg_origin origin = { .wall_minus_mono_ns = s->out.wall_minus_mono_ns, .segment = s->out.segment };

	return put_origin(s, &origin, clocks);
}

static void pb_frames(struct sink *s, struct pb_writer *w, uint32_t field, uint32_t stack)
{
	const uint64_t *frames;
	uint32_t i, count = frames_of(s, stack, &frames);

	for (i = 0; i < count; i++) {
		struct msg_frame frame = frame_of(s, frames[i]);

		msg_frame_put(w, field, &frame);
	}
}

static void pb_mem(struct sink *s, struct pb_writer *w, const struct rec_mem *mem, uint32_t stack)
{
	struct msg_mem_alloc alloc = alloc_of(mem);
	struct msg_mem_free gone = free_of(mem);
	size_t mark;

	if (mem->head.flags & MEM_FREED) {
		msg_mem_free_put(w, MSG_PROC_MEM_mem_free_stacks, &gone);
		return;
	}
	mark = pb_begin(w, MSG_PROC_MEM_mem_alloc_stacks);
	msg_mem_alloc_pb(w, &alloc);
	pb_frames(s, w, MSG_MEM_ALLOC_stack_frames, stack);
	pb_end(w, mark);
}

static void pb_site(struct sink *s, struct pb_writer *w, const struct rec_mem_site *rec, uint32_t stack)
{
	struct msg_mem_site site = site_of(rec);
	size_t mark = pb_begin(w, MSG_PROC_MEM_mem_live_stacks);

	msg_mem_site_pb(w, &site);
	pb_frames(s, w, MSG_MEM_SITE_stack_frames, stack);
	pb_end(w, mark);
}

static void pb_record(struct sink *s, struct pb_writer *w, const struct sink_rec *rec, uint32_t stack)
{
	struct msg_proc_mem proc = proc_of(rec);
	struct msg_mem_state state;
	size_t mark;

	pb_init(w, s->env->scratch, OUT_WRITE - OUT_TAIL);
	mark = pb_begin(w, MSG_OS_proc_mem);
	msg_proc_mem_pb(w, &proc);
	if (rec->head->type == REC_MEM) {
		pb_mem(s, w, (const struct rec_mem *)rec->head, stack);
	} else if (rec->head->type == REC_MEM_SITE) {
		pb_site(s, w, (const struct rec_mem_site *)rec->head, stack);
	} else {
		state = state_of((const struct rec_mem_state *)rec->head);
		msg_mem_state_put(w, MSG_PROC_MEM_mem_states, &state);
	}
	pb_end(w, mark);
}

static int pb_put(struct sink *s, const struct sink_rec *rec)
{
	struct pb_writer w;

	pb_record(s, &w, rec, stack_of(rec));
	if (w.full) /* frames of unheard-of length: its id says which they are */
		pb_record(s, &w, rec, 0);
	return sink_put_pb(s, &w);
}

static int pb_thread(struct sink *s, const struct sink_rec *rec)
{
	struct msg_thread thread = { .pid = rec->pid, .tid = rec->tid, .comm = msg_text(rec->comm) };
	struct pb_writer w;

	pb_init(&w, s->env->scratch, SINK_SCRATCH);
	msg_thread_put(&w, MSG_OS_threads, &thread);
	return sink_put_pb(s, &w);
}

static int pb_drop(struct sink *s, const struct msg_drop *drop)
{
	struct pb_writer w;

	pb_init(&w, s->env->scratch, SINK_SCRATCH);
	msg_drop_put(&w, MSG_OS_drops, drop);
	return sink_put_pb(s, &w);
}

#define OS_TYPES (1u << REC_MEM | 1u << REC_MEM_SITE | 1u << REC_MEM_STATE)
#define OS_LEARNED (1u << REC_STACK | 1u << REC_MODULE | 1u << REC_CODE)

const struct sink_ops sink_os_pb = {
	.kind = SINK_OS,
	.name = "os_trace",
	.for_pb = true,
	.types = OS_TYPES,
	.learned = OS_LEARNED,
	.learn = os_learn,
	.sources = 1u << POOL_SRC_MEMORY,
	.file_name = os_name,
	.over = os_over,
	.begin = pb_start,
	.put = pb_put,
	.own_thread = pb_thread,
	.clocks = pb_clocks,
	.own_drop = pb_drop,
	.free = os_free,
	.state_bytes = sizeof(struct os_state),
};

/* --- JSON ------------------------------------------------------------------------------------------------------------ */

static int json_start(struct sink *s, const struct clock_snapshot *clocks)
{
	struct msg_origin origin = sink_origin(s);
	struct json_writer w;

	json_init(&w, s->env->scratch, OUT_WRITE - OUT_TAIL);
	json_open(&w, '{');
	sink_origin_json(&w, &origin, clocks, 1);
	json_key(&w, "proc_mem");
	json_open(&w, '[');
	return w.full ? -EMSGSIZE : out_put(&s->out, w.data, w.used);
}

static size_t json_tail(const struct sink *s, char *text)
{
	return (size_t)snprintf(text, OUT_TAIL, "\n],\"dropped\":%-20llu}\n",
				(unsigned long long)s->env->dropped[POOL_SRC_MEMORY]);
}

static void json_frames(struct sink *s, struct json_writer *w, uint32_t stack)
{
	const uint64_t *frames;
	uint32_t i, count = frames_of(s, stack, &frames);

	json_key(w, "stack_frames");
	json_open(w, '[');
	for (i = 0; i < count; i++) {
		struct msg_frame frame = frame_of(s, frames[i]);

		json_open(w, '{');
		msg_frame_json(w, &frame);
		json_close(w, '}');
	}
	json_close(w, ']');
}

static void json_mem(struct sink *s, struct json_writer *w, const struct rec_mem *mem, uint32_t stack)
{
	struct msg_mem_alloc alloc = alloc_of(mem);
	struct msg_mem_free gone = free_of(mem);
	bool freed = mem->head.flags & MEM_FREED;

	json_key(w, freed ? "mem_free_stacks" : "mem_alloc_stacks");
	json_open(w, '[');
	json_open(w, '{');
	if (freed) {
		msg_mem_free_json(w, &gone);
	} else {
		msg_mem_alloc_json(w, &alloc);
		json_frames(s, w, stack);
	}
	json_close(w, '}');
	json_close(w, ']');
}

static void json_site(struct sink *s, struct json_writer *w, const struct rec_mem_site *rec, uint32_t stack)
{
	struct msg_mem_site site = site_of(rec);

	json_key(w, "mem_live_stacks");
	json_open(w, '[');
	json_open(w, '{');
	msg_mem_site_json(w, &site);
	json_frames(s, w, stack);
	json_close(w, '}');
	json_close(w, ']');
}

static void json_state(struct json_writer *w, const struct rec_mem_state *rec)
{
	struct msg_mem_state state = state_of(rec);

	json_key(w, "mem_states");
	json_open(w, '[');
	json_open(w, '{');
	msg_mem_state_json(w, &state);
	json_close(w, '}');
	json_close(w, ']');
}

static void json_record(struct sink *s, struct json_writer *w, const struct sink_rec *rec, uint32_t stack)
{
	struct msg_proc_mem proc = proc_of(rec);

	sink_json(s, w);
	json_open(w, '{');
	msg_proc_mem_json(w, &proc);
	if (rec->head->type == REC_MEM)
		json_mem(s, w, (const struct rec_mem *)rec->head, stack);
	else if (rec->head->type == REC_MEM_SITE)
		json_site(s, w, (const struct rec_mem_site *)rec->head, stack);
	else
		json_state(w, (const struct rec_mem_state *)rec->head);
	json_close(w, '}');
}

static int json_put(struct sink *s, const struct sink_rec *rec)
{
	struct json_writer w;

	json_record(s, &w, rec, stack_of(rec));
	if (w.full)
		json_record(s, &w, rec, 0);
	return sink_put_json(s, &w);
}

const struct sink_ops sink_os_json = {
	.kind = SINK_OS,
	.name = "os_trace",
	.for_json = true,
	.types = OS_TYPES,
	.learned = OS_LEARNED,
	.learn = os_learn,
	.file_name = os_name,
	.over = os_over,
	.begin = json_start,
	.tail = json_tail,
	.put = json_put,
	.free = os_free,
	.state_bytes = sizeof(struct os_state),
};
