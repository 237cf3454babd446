/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Capturing and interning; see stack.h. */
#include "agent/stack/stack.h"

#include "agent/hook/hook.h"
#include "agent/stack/pyframes.h"
#include "agent/stack/intern.h"

#include "agent/stack/walk.h"

#include <errno.h>
#include <string.h>

static _Atomic bool ready, python_wanted;

int stack_start(bool python, struct st_err *err)
{
	const char *why = NULL;
	struct stack warm;
	int ret;

	err->text[0] = 0;
	ret = intern_start(agent.pool.head);
	if (ret < 0)
		return err_set(err, ret, "no memory for the table of stacks");
	modules_start(false);
	if (python)
		why = pyframes_start();
	if (why)
		err_set(err, 0, "stacks are of native frames only: %s", why);
	if (python)
		atomic_store_explicit(&python_wanted, true, memory_order_relaxed);
	atomic_store_explicit(&ready, true, memory_order_release);
	stack_capture(&warm, python); /* pages, and rules of what leads here */
	return 0;
}

void stack_refresh(uint64_t generation)
{
	if (!atomic_load_explicit(&ready, memory_order_acquire))
		return;
	modules_refresh(generation);
	if (atomic_load_explicit(&python_wanted, memory_order_relaxed))
		pyframes_start();
}

/* --- native and Python frames joined ------------------------------------------------------------------------------------- */

struct joint {
	const struct stack_out *out;
	void *arg;
	struct pyframes_walk *python; /* NULL = no more */
	bool outside; /* of this library */
	bool below_loop; /* outside of the innermost run of the interpreter loop */
	uintptr_t interpreter; /* begin of its object, once seen */
	bool full;
};

/* The Python frames that one native frame of the interpreter loop stands for; @all: those that are left. */
static bool add_python(struct joint *j, bool all)
{
	bool entry = false, any = false;

	while (j->python && !j->full && (all || !entry)) {
		int added = j->out->python(j->arg, j->python, &entry);

		if (added < 0)
			j->python = NULL;
		else if (!added)
			j->full = true;
		any |= added > 0;
	}
	return any;
}

/* The interpreter's own frames tell nothing once its Python frames are there: but the innermost ones do, up to the loop. */
static void add_native(struct joint *j, const struct unwind *u)
{
	if (j->python && pyframes_in_loop(unwind_pc(u)) && add_python(j, false)) {
		j->below_loop = true;
		j->interpreter = u->module ? u->module->begin : 0;
		return;
	}
	if (j->below_loop && u->module && u->module->begin == j->interpreter)
		return;
	if (!j->full && !j->out->native(j->arg, u))
		j->full = true;
}

bool stack_join(struct unwind *u, struct pyframes_walk *python, const struct stack_out *out, void *arg)
{
	struct joint j = { .out = out, .arg = arg, .python = python };

	do {
		unwind_module(u);
		j.outside |= !module_own(u->regs.pc);
		if (j.outside)
			add_native(&j, u);
	} while (!j.full && unwind_step(u));
	add_python(&j, true);
	return !j.full;
}

/* --- the calling thread ---------------------------------------------------------------------------------------------------- */

static bool add_frame(struct stack *stack, uint64_t frame)
{
	if (stack->count == STACK_FRAMES_MAX)
		return false;
	stack->frame[stack->count++] = frame;
	return true;
}

static bool put_native(void *arg, const struct unwind *u)
{
	uintptr_t pc = unwind_pc(u);

	if (!u->module || !u->module->id || (pc - u->module->bias) >> FRAME_OFFSET_BITS)
		return add_frame(arg, (uint64_t)pc & ~(3ull << 62));
	return add_frame(arg, FRAME_NATIVE_AT(u->module->id, pc - u->module->bias));
}

static int put_python(void *arg, struct pyframes_walk *walk, bool *entry)
{
	uint64_t frame;

	if (!pyframes_next(walk, &frame, entry))
		return -1;
	return add_frame(arg, frame);
}

static const struct stack_out into_stack = { put_native, put_python };

__attribute__((noinline)) uint32_t stack_capture(struct stack *stack, bool python)
{
	struct pyframes_walk frames;
	int saved = errno;
	struct unwind u;

	stack->count = stack->flags = 0;
	if (atomic_load_explicit(&ready, memory_order_acquire)) {
		unwind_here(&u);
		unwind_module(&u);
		if (unwind_step(&u) && /* this frame is ours */
		    !stack_join(&u, python && pyframes_begin(&frames) ? &frames : NULL, &into_stack, stack))
			u.cut = true;
		stack->flags = (u.cut ? STACK_CUT : 0) | (u.guessed ? STACK_GUESSED : 0);
	}
	errno = saved;
	return stack->count;
}

static bool put_definition(uint32_t id, const struct stack *stack)
{
	uint64_t room[(sizeof(struct rec_stack) + sizeof(stack->frame)) / 8];
	struct rec_stack *rec = (struct rec_stack *)room;
	size_t bytes = sizeof(*rec) + stack->count * sizeof(rec->frames[0]);

	*rec = (struct rec_stack){
		.head = { .bytes = (uint16_t)bytes, .type = REC_STACK, .flags = (uint8_t)stack->flags },
		.id = id,
		.count = stack->count,
	};
	memcpy(rec->frames, stack->frame, stack->count * sizeof(rec->frames[0]));
	return pool_put(&agent.pool, rec, (uint32_t)bytes, POOL_SRC_STACK);
}

uint32_t stack_intern(const struct stack *stack)
{
	bool fresh;
	uint32_t id = intern_find(stack, &fresh);

	/* dropped: told with the next capture of this stack */
	if (id && fresh && put_definition(id, stack))
		intern_told(id);
	return id;
}

uint32_t stack_here(bool python)
{
	struct stack stack;
	uint32_t id;

	hook_depth++;
	id = stack_capture(&stack, python) ? stack_intern(&stack) : 0;
	hook_depth--;
	return id;
}

uint32_t stack_get(uint32_t id, struct stack *stack)
{
	return intern_get(id, stack);
}

void stack_status(struct stack_status *status)
{
	*status = (struct stack_status){ .room = INTERN_SLOTS, .unwinder = "" };
	intern_counts(&status->stacks, &status->full);
	if (atomic_load_explicit(&ready, memory_order_acquire))
		status->unwinder = modules_direct() ? "tables" : "tables, from a list";
}
