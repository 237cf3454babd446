/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Stack ids of recorded files; see stacks.h. A stacks file has one entry a line, so that a cut tail costs its last entry
 * only. Ids are dense enough for arrays.
 */
#include "trace/stacks.h"

#include "trace/input.h"
#include "trace/session.h"

#include <errno.h>
#include <glob.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef HAVE_JANSSON
#include <jansson.h>
#endif

#define PATH_BYTES 4352
#define ID_MAX (1u << 20)
#define FRAMES_MAX 1024u
#define OLD_NAME 1000000000ull /* `<name>.<unix time>`: left by an earlier process */

struct module {
	char *path, *build_id;
};

struct code {
	char *name, *file;
};

/* Of one process. */
struct process {
	struct process *next;
	char *dir; /* of the file that asked */
	uint32_t pid;
	char problem[PATH_BYTES + 128];
	struct module *modules;
	struct code *codes;
	char **stacks; /* its frames, blank-separated; NULL = none */
	uint32_t *found; /* id in the session, 0 = not made yet */
	uint32_t module_room, code_room, stack_room;
	uint64_t unknown_ids, torn;
};

/* (file, address) -> name, for frames that many stacks share. */
struct name {
	const struct symbols_file *file;
	uint64_t address;
	uint32_t id;
};

struct stacks {
	struct ev_session *session;
	struct symbols *symbols;
	struct process *processes;
	struct name *names;
	size_t name_count, name_room; /* room: a power of two */
};

struct stacks *stacks_new(struct ev_session *session, struct symbols *symbols)
{
	struct stacks *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->session = session;
	s->symbols = symbols;
	return s;
}

void stacks_free(struct stacks *s)
{
	uint32_t i;

	if (!s)
		return;
	while (s->processes) {
		struct process *p = s->processes;

		s->processes = p->next;
		for (i = 0; i < p->module_room; i++) {
			free(p->modules[i].path);
			free(p->modules[i].build_id);
		}
		for (i = 0; i < p->code_room; i++) {
			free(p->codes[i].name);
			free(p->codes[i].file);
		}
		for (i = 0; i < p->stack_room; i++)
			free(p->stacks[i]);
		free(p->modules);
		free(p->codes);
		free(p->stacks);
		free(p->found);
		free(p->dir);
		free(p);
	}
	free(s->names);
	free(s);
}

/* --- reading ----------------------------------------------------------------------------------------------------------- */

#ifdef HAVE_JANSSON

/* Room for index @id in an array of @size-byte elements; new ones are zeroed. */
static bool reach(void *array, uint32_t *room, uint32_t id, size_t size)
{
	uint32_t wanted = *room ? *room : 64;
	char *grown;

	if (id >= ID_MAX)
		return false;
	while (wanted <= id)
		wanted *= 2;
	if (wanted == *room)
		return true;
	grown = realloc(*(void **)array, wanted * size);
	if (!grown)
		return false;
	memset(grown + *room * size, 0, (wanted - *room) * size);
	*(void **)array = grown;
	*room = wanted;
	return true;
}

static uint32_t id_of(const json_t *entry, const char *key)
{
	json_int_t id = json_integer_value(json_object_get(entry, key));

	return id > 0 && id < ID_MAX ? (uint32_t)id : 0;
}

static char *text_of(const json_t *entry, const char *key)
{
	const char *text = json_string_value(json_object_get(entry, key));

	return strdup(text ? text : "");
}

static bool read_module(struct process *p, uint32_t id, const json_t *entry)
{
	if (!reach(&p->modules, &p->module_room, id, sizeof(*p->modules)))
		return false;
	if (!p->modules[id].path) {
		p->modules[id].path = text_of(entry, "path");
		p->modules[id].build_id = text_of(entry, "build_id");
	}
	return p->modules[id].path && p->modules[id].build_id;
}

static bool read_code(struct process *p, uint32_t id, const json_t *entry)
{
	if (!reach(&p->codes, &p->code_room, id, sizeof(*p->codes)))
		return false;
	if (!p->codes[id].name) {
		p->codes[id].name = text_of(entry, "name");
		p->codes[id].file = text_of(entry, "file");
	}
	return p->codes[id].name && p->codes[id].file;
}

static bool read_stack(struct process *p, uint32_t id, const json_t *entry)
{
	const json_t *frames = json_object_get(entry, "frames");
	uint32_t room = p->stack_room;
	size_t i, used = 0;
	char *text;

	if (!reach(&p->stacks, &p->stack_room, id, sizeof(*p->stacks)) ||
	    !reach(&p->found, &room, id, sizeof(*p->found)))
		return false;
	if (p->stacks[id])
		return true;
	for (i = 0; i < json_array_size(frames); i++)
		used += json_string_length(json_array_get(frames, i)) + 1;
	text = malloc(used + 1);
	if (!text)
		return false;
	used = 0;
	for (i = 0; i < json_array_size(frames); i++) {
		const char *frame = json_string_value(json_array_get(frames, i));

		if (frame)
			used += (size_t)sprintf(text + used, "%s ", frame);
	}
	text[used] = 0;
	p->stacks[id] = text;
	return true;
}

static bool read_entry(struct process *p, const char *line, size_t len)
{
	json_t *entry;
	uint32_t id;
	bool good;

	if (len && line[len - 1] == ',')
		len--;
	entry = json_loadb(line, len, 0, NULL);
	if (!entry)
		return false;
	if ((id = id_of(entry, "module")))
		good = read_module(p, id, entry);
	else if ((id = id_of(entry, "function")))
		good = read_code(p, id, entry);
	else if ((id = id_of(entry, "stack")))
		good = read_stack(p, id, entry);
	else
		good = false;
	json_decref(entry);
	return good;
}

static void read_file(struct process *p, const char *path)
{
	struct input input = { 0 };
	struct st_err err;

	if (input_open(&input, path, &err) < 0) {
		snprintf(p->problem, sizeof(p->problem), "%s", err.text);
		return;
	}
	for (;;) {
		const unsigned char *end = memchr(input.at, '\n', input.len);
		size_t len;

		if (!end && !input.eof && input_more(&input, &err) > 0)
			continue;
		len = end ? (size_t)(end - input.at) : input.len;
		/* the object's own head and tail are no entries */
		if (len > 9 && input.at[0] == '{' && memcmp(input.at, "{\"origin\"", 9) &&
		    !read_entry(p, (const char *)input.at, len))
			p->torn++;
		if (!end)
			break;
		input_skip(&input, len + 1);
	}
	input_close(&input);
}

/* Segments too; not what an earlier process with this pid has left. */
static bool is_its(const char *path)
{
	const char *dot = strrchr(path, '.');

	return !dot || strtoull(dot + 1, NULL, 10) < OLD_NAME;
}

static void read_process(struct process *p)
{
	static const char *const places[] = { "%s/../stacks/stacks_rank*_%" PRIu32 ".json*",
					      "%s/stacks/stacks_rank*_%" PRIu32 ".json*",
					      "%s/stacks_rank*_%" PRIu32 ".json*" };
	char pattern[PATH_BYTES];
	bool any = false;
	size_t i, j;

	for (i = 0; i < sizeof(places) / sizeof(places[0]) && !any; i++) {
		glob_t found;

		snprintf(pattern, sizeof(pattern), places[i], p->dir, p->pid);
		if (glob(pattern, 0, NULL, &found) == 0) {
			for (j = 0; j < found.gl_pathc; j++) {
				if (is_its(found.gl_pathv[j])) {
					read_file(p, found.gl_pathv[j]);
					any = true;
				}
			}
			globfree(&found);
		}
	}
	if (!any)
		snprintf(p->problem, sizeof(p->problem),
			 "no stacks_rank*_%" PRIu32 ".json beside %s: its stacks are not shown", p->pid, p->dir);
}

#else

static void read_process(struct process *p)
{
	snprintf(p->problem, sizeof(p->problem), "this build has no jansson: stacks are not shown");
}

#endif

/* --- names ------------------------------------------------------------------------------------------------------------- */

static struct name *name_slot(struct stacks *s, const struct symbols_file *file, uint64_t address)
{
	size_t at = (size_t)((((uintptr_t)file >> 4) ^ address) * 0x9e3779b97f4a7c15u >> 20);

	for (;; at++) {
		struct name *name = &s->names[at & (s->name_room - 1)];

		if (!name->id || (name->file == file && name->address == address))
			return name;
	}
}

static bool grow_names(struct stacks *s)
{
	struct name *old = s->names;
	size_t i, room = s->name_room;

	if (2 * s->name_count < room)
		return true;
	s->names = calloc(room ? 2 * room : 1024, sizeof(*s->names));
	if (!s->names) {
		s->names = old;
		return false;
	}
	s->name_room = room ? 2 * room : 1024;
	for (i = 0; i < room; i++)
		if (old[i].id)
			*name_slot(s, old[i].file, old[i].address) = old[i];
	free(old);
	return true;
}

static const char *base_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

uint32_t stacks_name(struct stacks *s, const char *path, const char *build_id, uint64_t address)
{
	struct symbols_file *file = s->symbols ? symbols_file(s->symbols, path, build_id) : NULL;
	struct name *name = NULL;
	struct symbol symbol = { 0 };
	char text[4096];

	if (file && grow_names(s)) {
		name = name_slot(s, file, address);
		if (name->id)
			return name->id;
		symbols_find(file, address, &symbol);
	}
	if (symbol.function && symbol.file)
		snprintf(text, sizeof(text), "%s@%s:%u", symbol.function, symbol.file, symbol.line);
	else if (symbol.function)
		snprintf(text, sizeof(text), "%s@%s", symbol.function, base_of(path));
	else
		snprintf(text, sizeof(text), "%s+0x%" PRIx64, base_of(path), address);
	if (!name)
		return ev_namez(s->session, text);
	*name = (struct name){ file, address, ev_namez(s->session, text) };
	s->name_count++;
	return name->id;
}

/* One frame of the file's form. Return: the name's id, 0 = it names what is not there. */
static uint32_t frame_name(struct stacks *s, struct process *p, const char *frame)
{
	char text[2048], *rest;
	uint64_t number;

	if (frame[0] == 'p') {
		number = strtoull(frame + 1, &rest, 10);
		if (number >= p->code_room || !p->codes[number].name || *rest != ':')
			return ev_namez(s->session, "(a Python function whose name was lost)");
		snprintf(text, sizeof(text), "%s@%s:%s", p->codes[number].name, p->codes[number].file, rest + 1);
		return ev_namez(s->session, text);
	}
	number = strtoull(frame, &rest, 10);
	if (*rest != '+')
		return ev_namez(s->session, frame);
	if (number >= p->module_room || !p->modules[number].path)
		return ev_namez(s->session, "(a module whose name was lost)");
	return stacks_name(s, p->modules[number].path, p->modules[number].build_id, strtoull(rest + 1, NULL, 16));
}

static uint32_t make_stack(struct stacks *s, struct process *p, const char *text)
{
	uint32_t frames[FRAMES_MAX];
	size_t count = 0, len;
	char frame[128];

	for (; *text && count < FRAMES_MAX; text += len + (text[len] == ' ')) {
		len = strcspn(text, " ");
		snprintf(frame, sizeof(frame), "%.*s", (int)(len < 120 ? len : 120), text);
		frames[count++] = frame_name(s, p, frame);
	}
	return ev_stack(s->session, frames, count);
}

static struct process *process_of(struct stacks *s, const char *beside, uint32_t pid)
{
	char path[PATH_BYTES];
	struct process *p;
	const char *dir;

	snprintf(path, sizeof(path), "%s", beside);
	dir = dirname(path);
	for (p = s->processes; p; p = p->next)
		if (p->pid == pid && !strcmp(p->dir, dir))
			return p;
	p = calloc(1, sizeof(*p));
	if (!p)
		return NULL;
	p->pid = pid;
	p->dir = strdup(dir);
	if (!p->dir) {
		free(p);
		return NULL;
	}
	p->next = s->processes;
	s->processes = p;
	read_process(p);
	return p;
}

uint32_t stacks_find(struct stacks *s, const char *beside, uint32_t pid, uint32_t id)
{
	struct process *p = id ? process_of(s, beside, pid) : NULL;

	if (!p)
		return 0;
	if (id >= p->stack_room || !p->stacks[id]) {
		p->unknown_ids++;
		return 0;
	}
	if (!p->found[id])
		p->found[id] = make_stack(s, p, p->stacks[id]);
	return p->found[id];
}

uint32_t stacks_place(struct stacks *s, const char *beside, uint32_t pid, const char *frame)
{
	struct process *p = process_of(s, beside, pid);
	char *rest;
	uint64_t module = strtoull(frame, &rest, 10);

	if (!p || *rest != '+' || module >= p->module_room || !p->modules[module].path)
		return 0;
	return frame_name(s, p, frame);
}

void stacks_report(const struct stacks *s, void (*line)(void *arg, const char *text), void *arg)
{
	const struct process *p;
	char text[PATH_BYTES + 256];

	for (p = s->processes; p; p = p->next) {
		if (p->problem[0])
			line(arg, p->problem);
		else if (p->unknown_ids) {
			snprintf(text, sizeof(text),
				 "%" PRIu64 " stacks of process %" PRIu32
				 " are not in its stacks file: lost, or not written yet",
				 p->unknown_ids, p->pid);
			line(arg, text);
		}
		if (p->torn) {
			snprintf(text, sizeof(text),
				 "%" PRIu64 " entries of the stacks file of process %" PRIu32 " could not be read",
				 p->torn, p->pid);
			line(arg, text);
		}
	}
	if (s->symbols)
		symbols_report(s->symbols, line, arg);
}
