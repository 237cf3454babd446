/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Way of hooking 3: generator and coroutine functions on CPython 3.12 and later, by local events of sys.monitoring on
 * their code objects. Calling such a function only makes the generator; what counts as a call here is each stretch in
 * which its body runs, from start or resume to yield or return.
 *
 * An exception that leaves the body has no local event, and the global one would cost every exception of the job. So open
 * stretches are kept on a small stack per thread, and one whose frame no longer runs is closed, as raised, by the next
 * event on its thread.
 */
#include "agent/python/compat_python.h"
#include "agent/python/hook.h"

#include <errno.h>

#define OPEN_MAX_DEPTH 8 /* nested stretches per thread; deeper ones are not recorded */
#define TOOL_ID_FIRST 4 /* by convention 3 and 4 are nobody's */
#define TOOL_ID_LAST 3

struct stretch {
	struct py_hook *hook;
	struct pyobj *python_frame; /* identity only, no reference */
	struct stage_frame frame;
};

static __thread struct stretch open_stretches[OPEN_MAX_DEPTH] __attribute__((tls_model("initial-exec")));
static __thread unsigned int open_count __attribute__((tls_model("initial-exec")));

static struct pyobj *monitoring; /* sys.monitoring; strong reference */
static long tool_id;
static long event_mask;
static struct py_hook *monitored[HOOK_MAX];
static unsigned int monitored_count;

/* ---- hooks: on any thread of the job, with the GIL held ---------------------------------------------------------- */

static struct py_hook *hook_of(const struct pyobj *code)
{
	for (unsigned int i = 0; i < monitored_count; i++)
		if (monitored[i]->code_plain == code)
			return monitored[i];
	return NULL;
}

/* Is @wanted a caller of @frame? */
static bool calls(const struct pyobj *wanted, struct pyobj *frame)
{
	struct pyobj *back;
	bool found = false;

	py.Py_IncRef(frame);
	while (frame && !found) {
		back = py.PyFrame_GetBack(frame);
		py.Py_DecRef(frame);
		frame = back;
		found = frame == wanted;
	}
	py.Py_DecRef(frame);
	return found;
}

static void close_last(bool raised)
{
	struct stretch *last = &open_stretches[--open_count];

	stage_leave(&last->hook->fn, &last->frame, raised);
}

static struct pyobj *none(void)
{
	py.Py_IncRef(py._Py_NoneStruct);
	return py._Py_NoneStruct;
}

/* PY_START, PY_RESUME: (code, offset) */
static struct pyobj *body_begins(struct pyobj *unused, struct pyobj *const *args, ssize_t nargs)
{
	struct py_hook *hook = nargs ? hook_of(args[0]) : NULL;
	struct pyobj *frame = py.PyEval_GetFrame();
	struct stretch *stretch;
	int saved = errno;

	while (open_count && !calls(open_stretches[open_count - 1].python_frame, frame))
		close_last(true);
	if (hook && frame && open_count < OPEN_MAX_DEPTH && atomic_load_explicit(&hook_gate, memory_order_relaxed)) {
		stretch = &open_stretches[open_count++];
		stretch->hook = hook;
		stretch->python_frame = frame;
		stage_enter(&hook->fn, &stretch->frame, NULL, 0, NULL);
	}
	errno = saved;
	return none();
}

/* PY_YIELD, PY_RETURN: (code, offset, value) */
static struct pyobj *body_ends(struct pyobj *unused, struct pyobj *const *args, ssize_t nargs)
{
	struct pyobj *frame = py.PyEval_GetFrame();
	unsigned int n = open_count;
	int saved = errno;

	while (n && open_stretches[n - 1].python_frame != frame)
		n--;
	if (n) { /* else it was resumed by throw(), which has no local event */
		while (open_count > n)
			close_last(true);
		close_last(false);
	}
	errno = saved;
	return none();
}

/* ---- attaching: on systrace/py ----------------------------------------------------------------------------------- */

struct event {
	const char *name;
	struct py_methoddef method;
};

static struct event events[] = {
	{ "PY_START", { "systrace_begins", (void *)body_begins, PY_METH_FASTCALL, NULL } },
	{ "PY_RESUME", { "systrace_begins", (void *)body_begins, PY_METH_FASTCALL, NULL } },
	{ "PY_YIELD", { "systrace_ends", (void *)body_ends, PY_METH_FASTCALL, NULL } },
	{ "PY_RETURN", { "systrace_ends", (void *)body_ends, PY_METH_FASTCALL, NULL } },
};

static bool call_ok(struct pyobj *result)
{
	if (!result)
		py.PyErr_Clear();
	py.Py_DecRef(result);
	return result != NULL;
}

static bool register_events(struct pyobj *module)
{
	struct pyobj *numbers = py.PyObject_GetAttrString(module, "events"), *callback;
	bool good = numbers != NULL;

	for (size_t i = 0; good && i < sizeof(events) / sizeof(events[0]); i++) {
		long number = py_long_attr(numbers, events[i].name, 0);

		callback = py.PyCFunction_NewEx(&events[i].method, NULL, NULL);
		good = number && callback &&
		       call_ok(py.PyObject_CallMethod(module, "register_callback", "llO", tool_id, number, callback));
		py.Py_DecRef(callback);
		event_mask |= number;
	}
	py.Py_DecRef(numbers);
	py.PyErr_Clear();
	return good;
}

static const char *take_tool(void)
{
	struct pyobj *sys = py.PyImport_ImportModule("sys");
	struct pyobj *module = sys ? py.PyObject_GetAttrString(sys, "monitoring") : NULL;
	const char *why = "the interpreter has no sys.monitoring";

	if (!module || !py.PyEval_GetFrame || !py.PyFrame_GetBack)
		goto out;
	why = "other tools have taken the free numbers of sys.monitoring";
	for (tool_id = TOOL_ID_FIRST; tool_id >= TOOL_ID_LAST; tool_id--)
		if (call_ok(py.PyObject_CallMethod(module, "use_tool_id", "ls", tool_id, "systrace")))
			break;
	if (tool_id < TOOL_ID_LAST)
		goto out;
	why = "sys.monitoring refused the callbacks";
	if (!register_events(module))
		goto out;
	py.Py_IncRef(module);
	monitoring = module;
	why = NULL;
out:
	py.Py_DecRef(module);
	py.Py_DecRef(sys);
	py.PyErr_Clear();
	return why;
}

static bool set_events(struct py_hook *hook, long mask)
{
	return call_ok(py.PyObject_CallMethod(monitoring, "set_local_events", "lOl", tool_id, hook->code_plain, mask));
}

static const char *monitor_attach(struct py_hook *hook)
{
	struct pyobj *code = py.PyFunction_GetCode(hook->callable);
	const char *why;

	if (hook->attached && code == hook->code_plain)
		return NULL;
	if (!monitoring) {
		why = take_tool();
		if (why)
			return why;
	}
	if (!hook->code_plain) {
		py.Py_IncRef(code);
		hook->code_plain = code;
		monitored[monitored_count++] = hook;
	}
	return set_events(hook, event_mask) ? NULL : "sys.monitoring refused the function";
}

static void monitor_detach(struct py_hook *hook)
{
	if (monitoring && hook->code_plain)
		set_events(hook, 0);
}

const struct hook_way hook_monitor = { "sys.monitoring", monitor_attach, monitor_detach };
