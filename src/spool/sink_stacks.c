/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What the stack ids of a process's other files stand for: one JSON object, whose entries are modules, Python functions
 * and stacks as they were first seen (docs/formats/stacks.md). Written when a plugin records stacks, whatever
 * SYSTRACE_FORMAT says. Driven by spool/drain.c; read by trace/stacks.h.
 */
#include "spool/sink.h"

#include <errno.h>
#include <stdio.h>

static void stacks_name(const struct sink *s, char *stem, size_t room, const char **suffix)
{
	snprintf(stem, room, "stacks/stacks_rank%u_%u", s->env->origin->rank, s->env->origin->pid);
	*suffix = ".json";
}

static int stacks_begin(struct sink *s, const struct clock_snapshot *clocks)
{
	struct msg_origin origin = sink_origin(s);
	struct json_writer w;

	json_init(&w, s->env->scratch, OUT_WRITE - OUT_TAIL);
	json_open(&w, '{');
	sink_origin_json(&w, &origin, clocks, 1);
	json_key(&w, "stack_entries");
	json_open(&w, '[');
	return w.full ? -EMSGSIZE : out_put(&s->out, w.data, w.used);
}

static size_t stacks_tail(const struct sink *s, char *text)
{
	return (size_t)snprintf(text, OUT_TAIL, "\n],\"dropped\":%-20llu}\n",
				(unsigned long long)s->env->dropped[POOL_SRC_STACK]);
}

static void put_number(struct json_writer *w, const char *key, uint64_t value)
{
	json_key(w, key);
	json_u64(w, value);
}

/* "3+0x1f40", "p12:88", "0x7f0012345678" */
static void put_frame(struct json_writer *w, uint64_t frame)
{
	char text[64];
	int n;

	if (FRAME_KIND(frame) == FRAME_NATIVE)
		n = snprintf(text, sizeof(text), "%u+0x%llx", FRAME_MODULE(frame),
			     (unsigned long long)FRAME_OFFSET(frame));
	else if (FRAME_KIND(frame) == FRAME_PYTHON)
		n = snprintf(text, sizeof(text), "p%u:%u", FRAME_CODE(frame), FRAME_LINE(frame));
	else
		n = snprintf(text, sizeof(text), "0x%llx", (unsigned long long)frame);
	json_text(w, text, (size_t)n);
}

static void put_stack(struct json_writer *w, const struct rec_stack *stack)
{
	size_t room = (stack->head.bytes - sizeof(*stack)) / sizeof(stack->frames[0]);
	size_t i, count = stack->count < room ? stack->count : room;

	put_number(w, "stack", stack->id);
	json_key(w, "frames");
	json_open(w, '[');
	for (i = 0; i < count; i++)
		put_frame(w, stack->frames[i]);
	json_close(w, ']');
	if (stack->head.flags & STACK_CUT) {
		json_key(w, "cut");
		json_bool(w, true);
	}
	if (stack->head.flags & STACK_GUESSED) {
		json_key(w, "guessed");
		json_bool(w, true);
	}
}

static void put_module(struct json_writer *w, const struct rec_module *module)
{
	size_t room = module->head.bytes - sizeof(*module), i;
	char hex[2 * BUILD_ID_MAX + 1] = "";

	for (i = 0; i < module->build_id_bytes && i < BUILD_ID_MAX; i++)
		snprintf(hex + 2 * i, 3, "%02x", module->build_id[i]);
	put_number(w, "module", module->id);
	json_key(w, "path");
	json_text(w, module->path, module->path_bytes < room ? module->path_bytes : room);
	if (!hex[0])
		return;
	json_key(w, "build_id");
	json_text(w, hex, 2 * i);
}

static void put_code(struct json_writer *w, const struct rec_code *code)
{
	size_t room = code->head.bytes - sizeof(*code);
	size_t name = code->name_bytes < room ? code->name_bytes : room;
	size_t file = code->file_bytes < room - name ? code->file_bytes : room - name;

	put_number(w, "function", code->id);
	json_key(w, "name");
	json_text(w, code->text, name);
	json_key(w, "file");
	json_text(w, code->text + name, file);
	put_number(w, "first_line", code->first_line);
}

static int stacks_put(struct sink *s, const struct sink_rec *rec)
{
	struct json_writer w;

	sink_json(s, &w);
	json_open(&w, '{');
	if (rec->head->type == REC_STACK)
		put_stack(&w, (const struct rec_stack *)rec->head);
	else if (rec->head->type == REC_MODULE)
		put_module(&w, (const struct rec_module *)rec->head);
	else
		put_code(&w, (const struct rec_code *)rec->head);
	json_close(&w, '}');
	return sink_put_json(s, &w);
}

const struct sink_ops sink_stacks = {
	.kind = SINK_STACKS,
	.name = "stacks",
	.for_pb = true,
	.for_json = true,
	.types = 1u << REC_STACK | 1u << REC_MODULE | 1u << REC_CODE,
	.sources = 1u << POOL_SRC_STACK,
	.file_name = stacks_name,
	.begin = stacks_begin,
	.tail = stacks_tail,
	.put = stacks_put,
};
