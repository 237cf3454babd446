/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Capturing and interning; see stack.h. */
#include "agent/stack/stack.h"

#include "agent/hook/hook.h"
#include "agent/stack/intern.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

/* libgcc's unwinder, found at run time. */
struct _Unwind_Context;
static struct {
	int (*backtrace)(int (*step)(struct _Unwind_Context *, void *), void *);
	uintptr_t (*ip)(struct _Unwind_Context *);
} gcc;

static _Atomic bool ready;

static int load_gcc(void)
{
	void *lib = dlopen ? dlopen("libgcc_s.so.1", RTLD_LAZY) : NULL; /* kept for ever */

	if (!lib)
		return -ENOENT;
	*(void **)&gcc.ip = dlsym(lib, "_Unwind_GetIP");
	*(void **)&gcc.backtrace = dlsym(lib, "_Unwind_Backtrace");
	return gcc.ip && gcc.backtrace ? 0 : -ENOENT;
}

int stack_start(bool python, struct st_err *err)
{
	struct stack warm;
	int ret;

	err->text[0] = 0;
	ret = intern_start(agent.pool.head);
	if (ret < 0)
		return err_set(err, ret, "no memory for the table of stacks");
	if (!atomic_load_explicit(&ready, memory_order_relaxed)) {
		if (load_gcc() < 0)
			err_set(err, 0, "no stacks: libgcc_s.so.1 cannot be loaded");
		else
			atomic_store_explicit(&ready, true, memory_order_release);
	}
	if (python && !err->text[0])
		err_set(err, 0, "native frames only");
	stack_capture(&warm, python); /* its first use may load and allocate */
	return 0;
}

static int gcc_step(struct _Unwind_Context *context, void *arg)
{
	struct stack *stack = arg;
	uintptr_t pc = gcc.ip(context);

	if (!pc)
		return 5; /* _URC_END_OF_STACK */
	if (stack->count == STACK_FRAMES_MAX) {
		stack->flags |= STACK_CUT;
		return 5;
	}
	stack->frame[stack->count++] = pc - 1;
	return 0;
}

uint32_t stack_capture(struct stack *stack, bool python)
{
	int saved = errno;

	stack->count = stack->flags = 0;
	if (atomic_load_explicit(&ready, memory_order_acquire))
		gcc.backtrace(gcc_step, stack);
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
	*status = (struct stack_status){ .room = INTERN_SLOTS, .unwinder = "", .python = "" };
	intern_counts(&status->stacks, &status->full);
	if (atomic_load_explicit(&ready, memory_order_acquire))
		status->unwinder = "libgcc";
}
