/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Way of hooking 1: the vectorcall slot of a function object is replaced (CPython 3.8-3.10, 3.12, 3.13). Each hook has a
 * small C function of its own as the slot's value, so that a call needs no lookup; the function, its code, its other
 * namesakes and untraced functions are untouched. Leaves 3.11, which never looks at the slot, to shim311.c.
 */
#include "agent/python/compat_python.h"
#include "agent/python/hook.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

/* CPython 3.12 allows 750 nested calls through C, and each traced one goes through C. So that a recursive function reaches
 * the recursion limit as it would without us, its calls are lent their units: LENT_MAX a thread, which is bounded by what a
 * small thread's stack can bear. Where the counter lies is found by trying, not known. */
#define LENT_MAX 1000u
static size_t units_off; /* of the counter in a thread state; 0 = nothing is lent */
static __thread unsigned int lent __attribute__((tls_model("initial-exec")));

static void find_units(void)
{
	int before[PY_THREAD_STATE_INTS], *now, changed = 0;
	size_t at = 0;

	if (py.minor != PY_MINOR_COUNTS_C_CALLS || units_off || !py.Py_EnterRecursiveCall ||
	    !py.Py_LeaveRecursiveCall || !py.PyThreadState_Get)
		return;
	now = py.PyThreadState_Get();
	memcpy(before, now, sizeof(before));
	if (py.Py_EnterRecursiveCall("") != 0)
		return;
	for (size_t i = 0; i < PY_THREAD_STATE_INTS; i++)
		if (now[i] != before[i] && (changed++, now[i] == before[i] - 1))
			at = i;
	py.Py_LeaveRecursiveCall();
	if (changed == 1 && at && now[at] == before[at])
		units_off = at * sizeof(int);
}

static int *lend_units(void)
{
	int *left;

	if (lent == LENT_MAX)
		return NULL;
	lent++;
	left = (int *)((char *)py.PyThreadState_Get() + units_off);
	*left += PY_UNITS_OF_A_CALL;
	return left;
}

static struct pyobj *call_next(struct py_hook *hook, struct pyobj *callable, struct pyobj *const *args, size_t nargsf,
			       struct pyobj *kwnames)
{
	int *left = units_off ? lend_units() : NULL;
	struct pyobj *result = hook->next(callable, args, nargsf, kwnames);

	if (left) {
		*left -= PY_UNITS_OF_A_CALL;
		lent--;
	}
	return result;
}

/* hook: runs on any thread of the job with the GIL held */
static struct pyobj *hook_call(struct py_hook *hook, struct pyobj *callable, struct pyobj *const *args, size_t nargsf,
			       struct pyobj *kwnames)
{
	const struct py_hook *outer = hook_running;
	struct stage_frame frame;
	struct pyobj *result;
	int saved = errno;

	if (hook_is_covered(hook))
		return call_next(hook, callable, args, nargsf, kwnames);
	hook_running = hook;
	stage_enter(&hook->fn, &frame, (void *const *)args, nargsf, kwnames);
	errno = saved;
	result = call_next(hook, callable, args, nargsf, kwnames);
	saved = errno;
	stage_leave(&hook->fn, &frame, !result);
	hook_running = outer;
	errno = saved;
	return result;
}

#define ENTRY(n)                                                                                           \
	static struct pyobj *entry_##n(struct pyobj *f, struct pyobj *const *a, size_t c, struct pyobj *k) \
	{                                                                                                  \
		return hook_call(&hooks[0x##n], f, a, c, k);                                               \
	}
#define NAME(n) entry_##n,
#define TIMES_16(F, h) \
	F(h##0)        \
	F(h##1)        \
	F(h##2) F(h##3) F(h##4) F(h##5) F(h##6) F(h##7) F(h##8) F(h##9) F(h##a) F(h##b) F(h##c) F(h##d) F(h##e) F(h##f)
#define TIMES_256(F, h)   \
	TIMES_16(F, h##0) \
	TIMES_16(F, h##1) \
	TIMES_16(F, h##2) \
	TIMES_16(F, h##3) \
	TIMES_16(F, h##4) \
	TIMES_16(F, h##5) \
	TIMES_16(F, h##6) \
	TIMES_16(F, h##7) \
	TIMES_16(F, h##8) \
	TIMES_16(F, h##9) \
	TIMES_16(F, h##a) \
	TIMES_16(F, h##b) TIMES_16(F, h##c) TIMES_16(F, h##d) TIMES_16(F, h##e) TIMES_16(F, h##f)
#define TIMES_512(F) TIMES_256(F, 0) TIMES_256(F, 1)

TIMES_512(ENTRY)

static const py_vectorcall entries[] = { TIMES_512(NAME) };
_Static_assert(sizeof(entries) / sizeof(entries[0]) == HOOK_MAX, "one entry per hook");

static py_vectorcall *slot_of(struct pyobj *function)
{
	ssize_t off = *(ssize_t *)((char *)py.PyFunction_Type + PY_TYPE_VECTORCALL_OFF);

	if (off < (ssize_t)sizeof(struct pyobj) || off > 512 || off % (ssize_t)sizeof(void *))
		return NULL;
	return (py_vectorcall *)((char *)function + off);
}

/* A slot that holds what it should points into the object that also holds PyObject_Call. */
static bool slot_is_plausible(const py_vectorcall *slot)
{
	Dl_info ours, interpreter;

	return *slot && dladdr((void *)*slot, &ours) && dladdr((void *)py.PyObject_Call, &interpreter) &&
	       ours.dli_fbase == interpreter.dli_fbase;
}

static void slot_put(struct pyobj *function, py_vectorcall *slot, py_vectorcall value)
{
	if (py.PyFunction_SetVectorcall)
		py.PyFunction_SetVectorcall(function, value); /* also undoes call sites that were specialised */
	else
		*slot = value;
}

static const char *vectorcall_attach(struct py_hook *hook)
{
	py_vectorcall *slot = slot_of(hook->callable);
	py_vectorcall entry = entries[hook - hooks];

	if (!slot)
		return "the vectorcall slot is not where it should be";
	if (*slot == entry)
		return NULL;
	if (!slot_is_plausible(slot))
		return "another tool holds the function's vectorcall slot";
	find_units();
	hook->next = *slot;
	slot_put(hook->callable, slot, entry);
	return NULL;
}

static void vectorcall_detach(struct py_hook *hook)
{
	py_vectorcall *slot = slot_of(hook->callable);

	if (slot && *slot == entries[hook - hooks])
		slot_put(hook->callable, slot, hook->next);
}

const struct hook_way hook_vectorcall = { "vectorcall slot", vectorcall_attach, vectorcall_detach };
