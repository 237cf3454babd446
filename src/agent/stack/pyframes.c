/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Python frames from memory; see pyframes.h. A thread's own frames change under nobody's feet but its own: they are read
 * in place, once a careful walk has shown that the layout is as we think.
 */
#include "agent/stack/pyframes.h"

#include "agent/agent.h"
#include "agent/python/compat_python.h"
#include "agent/stack/lines.h"
#include "agent/python/python_api.h"
#include "agent/stack/intern.h"
#include "agent/stack/memory.h"
#include "base/hash64.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define CACHE_SLOTS 8192u
#define THREADS_MAX 65536 /* of a list that may be torn */
#define NAME_BYTES 240u
#define FILE_BYTES 600u /* of a longer path its end */
#define LOWEST 4096u

#define READS_OTHERS __attribute__((no_sanitize("address", "thread")))

enum py_state { PY_OFF, PY_UNPROVEN, PY_PROVEN, PY_ENDED };

static _Atomic int state; /* enum py_state */
static struct py_frame_layout at;
static struct {
	void *(*own_thread)(void); /* PyGILState_GetThisThreadState */
	void *(*main)(void); /* PyInterpreterState_Main */
	void *(*head)(void *); /* PyInterpreterState_ThreadHead */
	void *(*holder)(void); /* _PyThreadState_UncheckedGet; up to 3.11 it tells who holds the GIL */
	uintptr_t code_type, frame_type, str_type, bytes_type;
	uintptr_t loop, loop_end;
} api;

/* (code, where in it) -> the frame. As the cache of unwind.c. */
static struct {
	_Atomic uint64_t mixed, frame;
} cache[CACHE_SLOTS];

/* What is read of a code object: together they say which function it is. */
struct code {
	uintptr_t self, name, file, lines;
	uint32_t first_line;
};

/* --- reading --------------------------------------------------------------------------------------------------------------- */

READS_OTHERS static bool word(const struct pyframes_walk *w, uintptr_t from, uintptr_t *value)
{
	if (from < LOWEST || from & 7)
		return false;
	if (w->careful)
		return memory_copy(value, from, sizeof(*value));
	*value = *(const volatile uintptr_t *)from;
	return true;
}

READS_OTHERS static bool half(const struct pyframes_walk *w, uintptr_t from, uint32_t *value)
{
	if (from < LOWEST || from & 3)
		return false;
	if (w->careful)
		return memory_copy(value, from, sizeof(*value));
	*value = *(const volatile uint32_t *)from;
	return true;
}

READS_OTHERS static bool byte(const struct pyframes_walk *w, uintptr_t from, uint8_t *value)
{
	if (from < LOWEST)
		return false;
	if (w->careful)
		return memory_copy(value, from, 1);
	*value = *(const volatile uint8_t *)from;
	return true;
}

static bool is_a(const struct pyframes_walk *w, uintptr_t object, uintptr_t type)
{
	uintptr_t its;

	return word(w, object + PY_OBJECT_TYPE_OFF, &its) && its == type;
}

static size_t put_utf8(char *to, uint32_t c)
{
	if (c < 0x80) {
		to[0] = (char)c;
		return 1;
	}
	if (c < 0x800) {
		to[0] = (char)(0xc0 | c >> 6);
		to[1] = (char)(0x80 | (c & 0x3f));
		return 2;
	}
	if (c < 0x10000) {
		to[0] = (char)(0xe0 | c >> 12);
		to[1] = (char)(0x80 | (c >> 6 & 0x3f));
		to[2] = (char)(0x80 | (c & 0x3f));
		return 3;
	}
	to[0] = (char)(0xf0 | (c >> 18 & 7));
	to[1] = (char)(0x80 | (c >> 12 & 0x3f));
	to[2] = (char)(0x80 | (c >> 6 & 0x3f));
	to[3] = (char)(0x80 | (c & 0x3f));
	return 4;
}

/* A str as UTF-8, of a longer one the end. Return: bytes, 0 where it is none or cannot be read. */
static size_t read_text(const struct pyframes_walk *w, uintptr_t object, char *text, size_t room)
{
	uintptr_t length, data;
	uint32_t bits;
	size_t used = 0, size, first;

	if (!is_a(w, object, api.str_type) || !word(w, object + PY_STR_LENGTH_OFF, &length) ||
	    !half(w, object + PY_STR_STATE_OFF, &bits) || !PY_STR_COMPACT(bits) || length > 1u << 20)
		return 0;
	size = PY_STR_ASCII(bits) ? 1 : PY_STR_KIND(bits);
	data = object + (PY_STR_ASCII(bits) ? at.str_ascii : at.str_other);
	/* characters from the end that fit in any case */
	first = length * 4 <= room ? 0 : PY_STR_ASCII(bits) ? (length > room ? length - room : 0) : length - room / 4;
	for (; first < length && used + 4 <= room + 3 * PY_STR_ASCII(bits); first++) {
		uint32_t c = 0;
		size_t i;

		for (i = 0; i < size; i++) {
			uint8_t part;

			if (!byte(w, data + first * size + i, &part))
				return 0;
			c |= (uint32_t)part << (8 * i);
		}
		used += put_utf8(text + used, c);
	}
	return used;
}

/* --- functions and lines --------------------------------------------------------------------------------------------------- */

static bool read_code(const struct pyframes_walk *w, uintptr_t self, struct code *code)
{
	code->self = self;
	return is_a(w, self, api.code_type) && word(w, self + at.code_name, &code->name) &&
	       word(w, self + at.code_file, &code->file) && word(w, self + at.code_lines, &code->lines) &&
	       half(w, self + at.code_first_line, &code->first_line);
}

struct table {
	const struct pyframes_walk *walk;
	uintptr_t data, bytes;
};

static int table_byte(void *arg, size_t i)
{
	const struct table *t = arg;
	uint8_t value;

	return i < t->bytes && byte(t->walk, t->data + i, &value) ? value : -1;
}

static uint32_t line_of(const struct pyframes_walk *w, const struct code *code, int64_t offset)
{
	struct table t = { w, code->lines + PY_BYTES_DATA_OFF, 0 };
	int64_t line;

	if (!is_a(w, code->lines, api.bytes_type) || !word(w, code->lines + PY_BYTES_SIZE_OFF, &t.bytes))
		return 0;
	line = py_line(py.minor, table_byte, &t, (int32_t)code->first_line, offset);
	return line > 0 && line < 1 << FRAME_LINE_BITS ? (uint32_t)line : 0;
}

static void put_definition(uint32_t id, uint32_t first_line, const char *text, size_t name, size_t file)
{
	uint64_t room[(sizeof(struct rec_code) + NAME_BYTES + FILE_BYTES) / 8 + 2] = { 0 };
	struct rec_code *rec = (struct rec_code *)room;
	size_t bytes = (sizeof(*rec) + name + file + 7) & ~(size_t)7;

	rec->head = (struct rec_head){ .bytes = (uint16_t)bytes, .type = REC_CODE };
	rec->id = id;
	rec->first_line = first_line;
	rec->name_bytes = (uint16_t)name;
	rec->file_bytes = (uint16_t)file;
	memcpy(rec->text, text, name + file);
	if (pool_put(&agent.pool, rec, (uint32_t)bytes, POOL_SRC_STACK))
		intern_name_told(INTERN_CODE, id);
}

static uint32_t define(const struct pyframes_walk *w, const struct code *code)
{
	char text[NAME_BYTES + FILE_BYTES + 8];
	size_t name = read_text(w, code->name, text, NAME_BYTES);
	size_t file = read_text(w, code->file, text + name, FILE_BYTES);
	uint32_t id;
	bool fresh;

	if (!name || !file)
		return 0;
	id = intern_name(INTERN_CODE, hash64(text, name + file) ^ (name << 32 | code->first_line), &fresh);
	if (id && fresh)
		put_definition(id, code->first_line, text, name, file);
	return id;
}

/* Return: 0 where the objects are not what they should be. */
static uint64_t frame_of(const struct pyframes_walk *w, const struct code *code, int64_t offset)
{
	const uint64_t facts[] = {
		code->self,   code->name, code->file, code->lines, (uint64_t)offset << 32 | code->first_line,
		intern_mark()
	};
	uint64_t key = hash64(facts, sizeof(facts)) | 1, frame;
	size_t slot = key >> 32 & (CACHE_SLOTS - 1);
	uint32_t id;

	frame = atomic_load_explicit(&cache[slot].frame, memory_order_relaxed);
	if (frame && (atomic_load_explicit(&cache[slot].mixed, memory_order_relaxed) ^ frame) == key &&
	    intern_name_is_told(INTERN_CODE, FRAME_CODE(frame)))
		return frame;
	id = define(w, code);
	if (!id)
		return 0;
	frame = FRAME_PYTHON_AT(id, line_of(w, code, offset));
	atomic_store_explicit(&cache[slot].mixed, key ^ frame, memory_order_relaxed);
	atomic_store_explicit(&cache[slot].frame, frame, memory_order_relaxed);
	return frame;
}

/* --- frames ---------------------------------------------------------------------------------------------------------------- */

static bool running(void)
{
	int now = atomic_load_explicit(&state, memory_order_acquire);

	return now == PY_PROVEN || now == PY_UNPROVEN;
}

static bool first_frame(struct pyframes_walk *w, uintptr_t thread)
{
	if (!word(w, thread + at.thread_frame, &w->frame))
		return false;
	return !at.has_cframe || word(w, w->frame + at.cframe_frame, &w->frame);
}

bool pyframes_begin(struct pyframes_walk *w)
{
	int now = atomic_load_explicit(&state, memory_order_acquire);
	uintptr_t thread, handle;

	if (now != PY_PROVEN && now != PY_UNPROVEN)
		return false;
	*w = (struct pyframes_walk){ .careful = now != PY_PROVEN };
	thread = (uintptr_t)api.own_thread();
	/* it says whose it is: not a leftover of an interpreter that has ended */
	return thread && word(w, thread + at.thread_handle, &handle) && handle == (uintptr_t)pthread_self() &&
	       first_frame(w, thread) && w->frame;
}

/* Where in its code a frame is, in bytes; negative: before its first instruction. */
static bool read_offset(const struct pyframes_walk *w, uintptr_t code, int64_t *offset)
{
	uintptr_t pointer;
	uint32_t index;

	if (!at.code_start) {
		if (!half(w, w->frame + at.frame_at, &index))
			return false;
		*offset = (int64_t)(int32_t)index * at.index_bytes;
		return true;
	}
	if (!word(w, w->frame + at.frame_at, &pointer))
		return false;
	*offset = (int64_t)(pointer - code - at.code_start);
	return *offset < INT32_MAX;
}

/* Does this frame belong to C code that called Python code? Such a one is no function's. */
static bool is_shim(const struct pyframes_walk *w, uintptr_t frame)
{
	uint8_t owner;

	return py.minor >= PY_MINOR_MONITORING && frame && byte(w, frame + at.frame_owner, &owner) &&
	       owner == PY_FRAME_OF_C_STACK;
}

static bool is_entry(const struct pyframes_walk *w, uintptr_t frame, uintptr_t back)
{
	uint8_t entry;

	if (at.frame_entry)
		return !back || (byte(w, frame + at.frame_entry, &entry) && entry);
	return !at.frame_owner || !back || is_shim(w, back);
}

/* The next function's frame, and where in its code it is. */
static bool next_code(struct pyframes_walk *w, struct code *code, int64_t *offset, bool *entry)
{
	uintptr_t self, back, shims = 0;

	while (w->frame && is_shim(w, w->frame)) {
		if (++shims > 64 || !word(w, w->frame + at.frame_back, &w->frame))
			return false;
	}
	if (!w->frame || !word(w, w->frame + at.frame_code, &self) || !word(w, w->frame + at.frame_back, &back) ||
	    !read_code(w, self, code) || !read_offset(w, self, offset))
		return false;
	*entry = is_entry(w, w->frame, back);
	w->frame = back;
	return true;
}

bool pyframes_next(struct pyframes_walk *w, uint64_t *frame, bool *entry)
{
	struct code code;
	int64_t offset;

	if (!next_code(w, &code, &offset, entry))
		return false;
	*frame = frame_of(w, &code, offset);
	return *frame != 0;
}

bool pyframes_next_text(struct pyframes_walk *w, char *text, size_t room, bool *entry)
{
	char part[NAME_BYTES + FILE_BYTES + 8];
	size_t name, file;
	struct code code;
	int64_t offset;

	if (!next_code(w, &code, &offset, entry))
		return false;
	name = read_text(w, code.name, part, NAME_BYTES);
	file = read_text(w, code.file, part + name, FILE_BYTES);
	if (!name || !file)
		return false;
	snprintf(text, room, "%.*s@%.*s:%u", (int)name, part, (int)file, part + name, line_of(w, &code, offset));
	return true;
}

bool pyframes_in_loop(uintptr_t pc)
{
	return pc >= api.loop && pc < api.loop_end;
}

uintptr_t pyframes_loop(void)
{
	return api.loop;
}

/* --- other threads --------------------------------------------------------------------------------------------------------- */

size_t pyframes_threads(struct pyframes_thread *threads, size_t max)
{
	const struct pyframes_walk w = { .careful = true };
	uintptr_t interpreter, thread = 0;
	size_t count = 0, seen;

	if (!running())
		return 0;
	interpreter = (uintptr_t)api.main();
	if (!interpreter || !word(&w, interpreter + at.threads_head, &thread))
		return 0;
	for (seen = 0; thread && count < max && seen < THREADS_MAX; seen++) {
		struct pyframes_thread *t = &threads[count];
		uintptr_t tid = 0;

		*t = (struct pyframes_thread){ .state = thread };
		if (!word(&w, thread + at.thread_handle, &t->handle) ||
		    (at.thread_native && !word(&w, thread + at.thread_native, &tid)) ||
		    !word(&w, thread + PY_TSTATE_NEXT_OFF, &thread))
			break;
		t->tid = (uint32_t)tid;
		count++;
	}
	return count;
}

bool pyframes_begin_other(struct pyframes_walk *w, const struct pyframes_thread *thread)
{
	*w = (struct pyframes_walk){ .careful = true };
	return running() && first_frame(w, thread->state) && w->frame;
}

uintptr_t pyframes_holder(bool *known)
{
	const struct pyframes_walk w = { .careful = true };
	uintptr_t interpreter, gil, holder;
	uint32_t locked;

	*known = false;
	if (!running())
		return 0;
	if (!at.gil) {
		*known = api.holder != NULL;
		return *known ? (uintptr_t)api.holder() : 0;
	}
	interpreter = (uintptr_t)api.main();
	if (!interpreter || !word(&w, interpreter + at.gil, &gil) || !half(&w, gil + PY_GIL_LOCKED_OFF, &locked) ||
	    !word(&w, gil + PY_GIL_HOLDER_OFF, &holder) || locked > 1)
		return 0;
	*known = true;
	return locked ? holder : 0;
}

/* --- start ----------------------------------------------------------------------------------------------------------------- */

/* 3.13 tells its own offsets: patch releases may move what is in the interpreter's state. */
static void read_own_offsets(void)
{
	const uint64_t *own = dlsym(RTLD_DEFAULT, "_PyRuntime");

	if (py.minor != 13 || !own || memcmp(own, "xdebugpy", 8))
		return;
	at.threads_head = (unsigned short)own[PY_OWN_THREADS_HEAD];
	at.gil = (unsigned short)own[PY_OWN_GIL];
	at.thread_frame = (unsigned short)own[PY_OWN_CURRENT_FRAME];
	at.thread_handle = (unsigned short)own[PY_OWN_THREAD_ID];
	at.thread_native = (unsigned short)own[PY_OWN_NATIVE_THREAD_ID];
	at.frame_back = (unsigned char)own[PY_OWN_PREVIOUS];
	at.frame_code = (unsigned char)own[PY_OWN_EXECUTABLE];
	at.frame_at = (unsigned char)own[PY_OWN_INSTR_PTR];
	at.frame_owner = (unsigned char)own[PY_OWN_OWNER];
	at.code_file = (unsigned char)own[PY_OWN_FILENAME];
	at.code_name = (unsigned char)own[PY_OWN_QUALNAME];
	at.code_lines = (unsigned char)own[PY_OWN_LINETABLE];
	at.code_first_line = (unsigned char)own[PY_OWN_FIRSTLINENO];
	at.code_start = (unsigned char)own[PY_OWN_CODE_ADAPTIVE];
}

static void find_loop(void)
{
	void *loop = dlsym(RTLD_DEFAULT, "_PyEval_EvalFrameDefault");
	const ElfW(Sym) *symbol = NULL;
	Dl_info info;

	if (!loop || !dladdr1 || !dladdr1(loop, &info, (void **)&symbol, RTLD_DL_SYMENT) || !symbol)
		return;
	api.loop = (uintptr_t)loop;
	api.loop_end = api.loop + symbol->st_size;
}

/* All frames of all threads must look like frames: an interpreter whose layout differs shows it here, harmlessly. */
static bool prove(void)
{
	struct pyframes_thread thread[16];
	size_t i, count = pyframes_threads(thread, sizeof(thread) / sizeof(thread[0])), frames = 0;
	struct pyframes_walk w;
	char text[64];
	bool entry;

	if (!count || (uintptr_t)api.head(api.main()) != thread[0].state)
		return false;
	for (i = 0; i < count; i++) {
		if (!pyframes_begin_other(&w, &thread[i]))
			continue;
		while (frames < 1000 && pyframes_next_text(&w, text, sizeof(text), &entry))
			frames++;
	}
	return frames > 0;
}

static const char *load(void)
{
	static const struct py_frame_layout layouts[PY_MINOR_HIGHEST + 1] = { PY_FRAME_LAYOUTS };
	const char *reason = python_api_load();

	if (reason)
		return reason;
	at = layouts[py.minor];
	*(void **)&api.own_thread = dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState");
	*(void **)&api.main = dlsym(RTLD_DEFAULT, "PyInterpreterState_Main");
	*(void **)&api.head = dlsym(RTLD_DEFAULT, "PyInterpreterState_ThreadHead");
	*(void **)&api.holder = dlsym(RTLD_DEFAULT, "_PyThreadState_UncheckedGet");
	api.code_type = (uintptr_t)dlsym(RTLD_DEFAULT, "PyCode_Type");
	api.bytes_type = (uintptr_t)dlsym(RTLD_DEFAULT, "PyBytes_Type");
	api.str_type = (uintptr_t)py.PyUnicode_Type;
	if (!api.own_thread || !api.main || !api.head || !api.code_type || !api.bytes_type)
		return "the interpreter does not export what tells its frames";
	read_own_offsets();
	find_loop();
	return NULL;
}

const char *pyframes_start(void)
{
	const char *reason;
	int now;

	if (!dlsym || !dlsym(RTLD_DEFAULT, "Py_IsInitialized"))
		return "no interpreter in this process";
	if (atomic_load_explicit(&state, memory_order_relaxed) == PY_PROVEN)
		return NULL;
	if (atomic_load_explicit(&state, memory_order_relaxed) == PY_ENDED)
		return "the interpreter has ended";
	reason = load();
	if (reason)
		return reason;
	if (!py.Py_IsInitialized())
		return "the interpreter is not initialised";
	atomic_store_explicit(&state, PY_UNPROVEN, memory_order_release);
	now = PY_UNPROVEN; /* unless it has ended meanwhile */
	if (prove()) {
		atomic_compare_exchange_strong(&state, &now, PY_PROVEN);
		return NULL;
	}
	atomic_compare_exchange_strong(&state, &now, PY_OFF);
	return "no frame of this interpreter could be read: try again while it runs Python code";
}

void pyframes_stop(void)
{
	if (atomic_exchange_explicit(&state, PY_ENDED, memory_order_acq_rel) == PY_OFF)
		atomic_store_explicit(&state, PY_OFF, memory_order_release); /* was never begun */
}
