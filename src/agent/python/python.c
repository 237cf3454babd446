/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The Python side's life: the audit hook that waits for a framework, the thread systrace/py with its wishes and
 * deadlines, and what status says. Called by life.c, the control thread and the plugins through python.h; the list, the
 * resolution and the hooks are in the other files of this folder.
 *
 * Only the thread takes the GIL, in short turns. A callback in Python's atexit module closes that door before the
 * interpreter finalises: it waits (without the GIL) for a turn that has begun, and no further one begins. The callback is
 * registered by the main thread, as a pending call: a thread of ours that were waiting for the GIL of an interpreter that
 * ends would be ended by it, with pthread_exit(), which aborts the process where libgcc_s cannot be loaded any more.
 */
#include "agent/python/python.h"

#include "agent/agent.h"
#include "agent/python/compat_python.h"
#include "agent/python/gc.h"
#include "agent/python/hook.h"
#include "agent/python/resolve.h"
#include "safe/clock.h"
#include "safe/compat_glibc.h" /* dlsym is weak: NULL in plain C programs before glibc 2.34 */

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LIST_FILE_MAX (1 << 20)
#define LOOK_FIRST_MS 50u /* between looks at the size of sys.modules */
#define LOOK_LAST_MS 1000u
#define RESCAN_FIRST_MS 50u /* after a change, since a module may not be complete yet, then twice as long each time: */
#define RESCAN_LAST_MS 30000u /* ... functions that were replaced */
#define GIL_TURN_MAX_MS 1000u /* how long the atexit callback waits for a turn in progress */
#define DOOR_MAX_MS 500u /* how long the thread leaves the first turn to the main thread */

static struct {
	struct python_options options;
	_Atomic(const char *) off_reason;
	_Atomic uint32_t running; /* a python_loop() is in this process; a futex */
	_Atomic uint32_t stop;
	_Atomic uint32_t wake; /* counts wake-ups; a futex */
	_Atomic uint32_t wished; /* counts wishes of python_stages_switch() */
	_Atomic uint32_t granted; /* last wish carried out; a futex */
	_Atomic bool wish_on;
	_Atomic uint32_t gil_turn; /* the thread asks for or holds the GIL; a futex */
	_Atomic bool finalising; /* Python's atexit callbacks have run */
	_Atomic bool rescan;
	bool on;
	_Atomic bool set_up; /* the atexit callback is registered */
	_Atomic bool listed; /* list is there and keeps its rows */
	struct func_list list;
	const char *gc_why; /* NULL: attached */
	struct pyobj *modules; /* sys.modules, strong reference */
	ssize_t modules_seen;
	_Atomic uint32_t tally[ROW_UNTRACEABLE + 1]; /* rows by state, for status */
} self;

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

/* Sleep while *word == value, @ms at most. Context: any. */
static void futex_wait(_Atomic uint32_t *word, uint32_t value, unsigned int ms)
{
	struct timespec ts = { .tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000 };

	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &ts, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1 << 20, NULL, NULL, 0);
}

static void set_and_wake(_Atomic uint32_t *word, uint32_t value)
{
	atomic_store_explicit(word, value, memory_order_release);
	futex_wake(word);
}

static void wake_thread(void)
{
	atomic_fetch_add_explicit(&self.wake, 1, memory_order_release);
	futex_wake(&self.wake);
}

static bool stopping(void)
{
	return atomic_load_explicit(&self.stop, memory_order_acquire) ||
	       atomic_load_explicit(&self.finalising, memory_order_acquire);
}

/* ---- a framework comes ------------------------------------------------------------------------------------------- */

/* Everything that makes a plain Python process a job */
static const char *const frameworks[] = { "torch",     "torch_npu", "mindspore",  "mindformers", "megatron",
					  "mindspeed", "vllm",	    "tensorflow", "jax",	 "paddle" };

static _Atomic bool watching; /* the audit hook still looks: cannot be taken out, so it returns at once afterwards */

static int audit_hook(const char *event, struct pyobj *args, void *data)
{
	struct pyobj *name;

	if (!atomic_load_explicit(&watching, memory_order_relaxed) || event[0] != 'i' || strcmp(event, "import") != 0)
		return 0;
	name = *(struct pyobj **)((char *)args + PY_TUPLE_ITEMS_OFF);
	for (size_t i = 0; i < sizeof(frameworks) / sizeof(frameworks[0]); i++) {
		if (py.PyUnicode_CompareWithASCIIString(name, frameworks[i]) != 0)
			continue;
		if (atomic_exchange_explicit(&watching, false, memory_order_acq_rel)) {
			int saved = errno;

			agent_start(AGENT_BY_FRAMEWORK);
			errno = saved;
		}
		break;
	}
	return 0;
}

bool python_present(void)
{
	return dlsym != NULL && dlsym(RTLD_DEFAULT, "Py_IsInitialized") != NULL;
}

int python_watch(void)
{
	const char *why;

	if (!python_present())
		return -ENOSYS;
	why = python_api_load();
	if (why) {
		atomic_store_explicit(&self.off_reason, why, memory_order_relaxed);
		return -ENOSYS;
	}
	if (!py.PySys_AddAuditHook)
		return -ENOSYS;
	if (atomic_exchange_explicit(&watching, true, memory_order_acq_rel))
		return -EALREADY;
	if (py.PySys_AddAuditHook(audit_hook, NULL) == 0)
		return 0;
	atomic_store_explicit(&watching, false, memory_order_relaxed);
	return -ENOSYS;
}

/* ---- turns with the GIL ------------------------------------------------------------------------------------------ */

static bool finalising(void)
{
	return (py._Py_IsFinalizing && py._Py_IsFinalizing()) || (py.Py_IsFinalizing && py.Py_IsFinalizing());
}

/*
 * Run @work with the GIL, unless the interpreter is on its way out: stopping() then. Return: whether it ran; it does not
 * either where there is no memory for a thread state, which PyGILState_Ensure() would end the process for.
 */
static bool gil_turn(void (*work)(void))
{
	void *thread = NULL;
	bool ran = false;

	/* seq_cst: the atexit callback stores finalising, then looks at gil_turn; one of the two sees the other */
	atomic_store(&self.gil_turn, 1);
	if (finalising())
		atomic_store(&self.finalising, true);
	if (!atomic_load(&self.finalising) && !stopping() && py.Py_IsInitialized())
		thread = py.PyThreadState_New(py.PyInterpreterState_Main());
	if (thread) {
		py.PyEval_RestoreThread(thread);
		if (!stopping()) {
			work();
			ran = true;
		}
		py.PyThreadState_Clear(thread);
		py.PyThreadState_DeleteCurrent();
	}
	atomic_store(&self.gil_turn, 0);
	futex_wake(&self.gil_turn);
	return ran;
}

/*
 * Python's atexit callback, on the job's thread with the GIL: no turn begins from here on, and a begun one ends first.
 * The agent ends here as well and not in its destructor: once the interpreter is gone, its daemon threads live on
 * until the process ends, and those of CPython up to 3.11 crash if that takes milliseconds.
 */
static struct pyobj *at_python_exit(struct pyobj *unused, struct pyobj *none)
{
	uint64_t until = clock_mono_ns() + GIL_TURN_MAX_MS * 1000000ull;
	int saved = errno;
	void *thread;

	atomic_store(&self.finalising, true);
	wake_thread();
	thread = py.PyEval_SaveThread();
	while (atomic_load(&self.gil_turn) && clock_mono_ns() < until)
		futex_wait(&self.gil_turn, 1, GIL_TURN_MAX_MS);
	agent_python_ends();
	py.PyEval_RestoreThread(thread);
	py.Py_IncRef(py._Py_NoneStruct);
	errno = saved;
	return py._Py_NoneStruct;
}

static void register_at_exit(void)
{
	static struct py_methoddef method = { "systrace_exit", (void *)at_python_exit, PY_METH_NOARGS, NULL };
	struct pyobj *module = py.PyImport_ImportModule("atexit"); /* built into the interpreter */
	struct pyobj *callback = module ? py.PyCFunction_NewEx(&method, NULL, NULL) : NULL;

	if (callback)
		py.Py_DecRef(py.PyObject_CallMethod(module, "register", "(O)", callback));
	py.Py_DecRef(callback);
	py.Py_DecRef(module);
	py.PyErr_Clear();
}

static void set_up(void)
{
	if (atomic_exchange(&self.set_up, true))
		return;
	register_at_exit();
	wake_thread();
}

/* On the main thread, with the GIL, between two of its instructions; also at the beginning of finalisation. */
static int set_up_by_main(void *unused)
{
	int saved = errno;

	if (!stopping())
		set_up();
	errno = saved;
	return 0;
}

/*
 * A main thread that sleeps in C for long does not finalise meanwhile: the first turn can do it then. CPython 3.8 prints
 * an error when a call comes while it ends: there the first turn does it always.
 */
static bool wait_for_set_up(void)
{
	uint64_t until = clock_mono_ns() + DOOR_MAX_MS * 1000000ull;

	if (py.minor < 9 || atomic_load(&self.set_up))
		return !stopping();
	py.Py_AddPendingCall(set_up_by_main, NULL); /* refused when many wait: after that time, then */
	while (!stopping() && !atomic_load(&self.set_up) && clock_mono_ns() < until) {
		uint32_t wake = atomic_load_explicit(&self.wake, memory_order_acquire);

		if (!atomic_load(&self.set_up))
			futex_wait(&self.wake, wake, LOOK_FIRST_MS);
	}
	return !stopping();
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

static char *read_list_file(const char *path, size_t *len)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	struct stat st;
	char *text = NULL;
	ssize_t got = -1;

	if (fd < 0)
		return NULL;
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size <= LIST_FILE_MAX)
		text = malloc((size_t)st.st_size + 1);
	if (text)
		got = read(fd, text, (size_t)st.st_size);
	close(fd);
	if (got < 0) {
		free(text);
		return NULL;
	}
	*len = (size_t)got;
	return text;
}

static char list_note[600]; /* what was wrong with the list, for status */

static void load_list(void)
{
	struct func_list builtin = { 0 };
	const char *path = self.options.list_path;
	struct st_err err = { 0 };
	size_t len = 0;
	char *text = NULL;

	func_list_parse(&builtin, func_list_builtin, func_list_builtin_len, NULL);
	if (path && *path) {
		text = read_list_file(path, &len);
		if (!text)
			snprintf(list_note, sizeof(list_note), "cannot read %s, using the built-in list", path);
	}
	if (!text) {
		self.list = builtin;
		return;
	}
	if (func_list_parse(&self.list, text, len, &err) < 0)
		snprintf(list_note, sizeof(list_note), "%s: %s", path, err.text);
	free(text);
	func_list_adopt(&self.list, &builtin);
	func_list_fini(&builtin);
}

static bool list_wants_gc(void)
{
	for (size_t i = 0; i < self.list.count; i++)
		if (self.list.rows[i].kind == STAGE_GC)
			return true;
	return false;
}

static void count_rows(void)
{
	uint32_t tally[ROW_UNTRACEABLE + 1] = { 0 };

	for (size_t i = 0; i < self.list.count; i++)
		tally[self.list.rows[i].state]++;
	for (int state = 0; state <= ROW_UNTRACEABLE; state++)
		atomic_store_explicit(&self.tally[state], tally[state], memory_order_relaxed);
}

/* ---- the thread's turns: each runs with the GIL ------------------------------------------------------------------ */

static void turn_resolve(void)
{
	struct pyobj *modules = py.PyImport_GetModuleDict();

	set_up();
	if (modules != self.modules) {
		py.Py_IncRef(modules);
		py.Py_DecRef(self.modules);
		self.modules = modules;
	}
	self.modules_seen = py.PyDict_Size(modules);
	if (list_wants_gc())
		self.gc_why = gc_attach();
	for (size_t i = 0; i < self.list.count; i++) {
		struct func_row *row = &self.list.rows[i];

		if (row->kind != STAGE_GC)
			continue;
		row->why = self.gc_why;
		row->state = self.gc_why ? ROW_UNTRACEABLE : ROW_ATTACHED;
	}
	resolve_list(&self.list);
	count_rows();
}

static void turn_on(void)
{
	hook_switch_all(true);
	turn_resolve();
}

static void turn_off(void)
{
	hook_switch_all(false);
}

/* Carry out the last wish, or try again later; false when the interpreter is going */
static bool grant_wish(void)
{
	uint32_t wish = atomic_load_explicit(&self.wished, memory_order_acquire);
	bool on = atomic_load_explicit(&self.wish_on, memory_order_relaxed);

	if (on != self.on) {
		if (!on)
			atomic_store_explicit(&hook_gate, false, memory_order_relaxed);
		if (!gil_turn(on ? turn_on : turn_off))
			return !stopping();
		self.on = on;
	}
	if (wish != atomic_load_explicit(&self.granted, memory_order_relaxed))
		set_and_wake(&self.granted, wish);
	return true;
}

/* Has sys.modules grown? Reads one word of a dict that we hold a reference to; no GIL. */
static bool modules_changed(void)
{
	return self.modules && py.PyDict_Size(self.modules) != self.modules_seen;
}

static bool wait_for_interpreter(void)
{
	while (!stopping() && !py.Py_IsInitialized())
		futex_wait(&self.wake, atomic_load(&self.wake), LOOK_FIRST_MS);
	return !stopping();
}

static void serve(void)
{
	unsigned int look_ms = LOOK_FIRST_MS, rescan_ms = RESCAN_FIRST_MS;
	uint64_t rescan_at = 0;

	while (!stopping()) {
		uint32_t wake = atomic_load_explicit(&self.wake, memory_order_acquire);
		uint64_t now = clock_mono_ns();
		bool changed = modules_changed();

		if (!grant_wish())
			return;
		if (self.on && (changed || now >= rescan_at || atomic_exchange(&self.rescan, false))) {
			if (!gil_turn(turn_resolve) && stopping())
				return;
			if (changed)
				rescan_ms = RESCAN_FIRST_MS;
			rescan_at = now + rescan_ms * 1000000ull;
			rescan_ms = 2 * rescan_ms > RESCAN_LAST_MS ? RESCAN_LAST_MS : 2 * rescan_ms;
		}
		look_ms = changed ? LOOK_FIRST_MS : look_ms + look_ms / 4;
		if (look_ms > LOOK_LAST_MS)
			look_ms = LOOK_LAST_MS;
		futex_wait(&self.wake, wake, look_ms);
	}
}

/* ---- the interface ----------------------------------------------------------------------------------------------- */

void python_configure(const struct python_options *options)
{
	self.options = *options;
	/* before the loop runs: a wish that comes while it starts (a plugin of SYSTRACE_PLUGINS) is not overwritten */
	if (!atomic_load(&self.listed))
		atomic_store_explicit(&self.wish_on, options->stages_on, memory_order_relaxed);
}

void python_loop(void)
{
	uint32_t none = 0;
	const char *why;

	if (!atomic_compare_exchange_strong(&self.running, &none, 1))
		return;
	why = python_present() ? python_api_load() : "no Python interpreter in this process";
	atomic_store_explicit(&self.off_reason, why, memory_order_release);
	if (!why && wait_for_interpreter() && wait_for_set_up()) {
		if (!atomic_load(&self.listed)) {
			load_list();
			atomic_store(&self.listed, true);
		}
		serve();
	}
	set_and_wake(&self.running, 0);
	futex_wake(&self.granted);
}

int python_stages_switch(bool on, unsigned int deadline_ms)
{
	uint64_t until = clock_mono_ns() + deadline_ms * 1000000ull;
	uint32_t wish, granted;

	if (python_off_reason())
		return -ENOTSUP;
	if (!atomic_load_explicit(&self.running, memory_order_acquire))
		return -ESRCH;
	atomic_store_explicit(&self.wish_on, on, memory_order_relaxed);
	wish = atomic_fetch_add_explicit(&self.wished, 1, memory_order_release) + 1;
	wake_thread();
	if (!deadline_ms)
		return 0;
	for (;;) {
		granted = atomic_load_explicit(&self.granted, memory_order_acquire);
		if ((int32_t)(granted - wish) >= 0)
			return 0;
		if (!atomic_load_explicit(&self.running, memory_order_acquire))
			return -ESRCH;
		if (clock_mono_ns() >= until)
			return -ETIMEDOUT;
		futex_wait(&self.granted, granted, LOOK_FIRST_MS);
	}
}

void python_rescan(void)
{
	int saved = errno;

	atomic_store_explicit(&self.rescan, true, memory_order_relaxed);
	wake_thread();
	errno = saved;
}

int python_stop(unsigned int deadline_ms)
{
	uint64_t until = clock_mono_ns() + deadline_ms * 1000000ull;

	atomic_store_explicit(&self.stop, 1, memory_order_release);
	wake_thread();
	while (atomic_load_explicit(&self.running, memory_order_acquire)) {
		if (clock_mono_ns() >= until)
			return -ETIMEDOUT;
		futex_wait(&self.running, 1, LOOK_FIRST_MS);
	}
	return 0;
}

void python_child(void)
{
	atomic_store_explicit(&self.running, 0, memory_order_relaxed);
	atomic_store_explicit(&self.gil_turn, 0, memory_order_relaxed);
	atomic_store_explicit(&self.stop, 0, memory_order_relaxed);
}

const char *python_off_reason(void)
{
	return atomic_load_explicit(&self.off_reason, memory_order_acquire);
}

void python_status(char *text, size_t room)
{
	const char *why = python_off_reason(), *note = atomic_load(&self.listed) ? list_note : "";
	uint32_t n[ROW_UNTRACEABLE + 1];

	if (why) {
		snprintf(text, room, "Python stages off: %s", why);
		return;
	}
	for (int state = 0; state <= ROW_UNTRACEABLE; state++)
		n[state] = atomic_load_explicit(&self.tally[state], memory_order_relaxed);
	snprintf(text, room,
		 "CPython %s: %u functions attached for %u rows, %u not traceable, %u without such a name, "
		 "%u not loaded%s%s",
		 py.version, hook_count_attached(), n[ROW_ATTACHED], n[ROW_UNTRACEABLE], n[ROW_NO_SUCH_NAME],
		 n[ROW_NOT_LOADED], *note ? "; list: " : "", note);
}

int python_list_untraceable(char *text, size_t room)
{
	size_t used = 0;
	int count = 0;

	if (room)
		*text = '\0';
	if (!atomic_load(&self.listed))
		return 0;
	for (size_t i = 0; i < self.list.count; i++) {
		const struct func_row *row = &self.list.rows[i];
		int len;

		if (row->state != ROW_UNTRACEABLE)
			continue;
		count++;
		len = snprintf(text + used, room - used, "%s: %s\n", row->spec, row->why);
		if (len < 0 || (size_t)len >= room - used) {
			if (used < room)
				text[used] = '\0';
			room = used; /* no further line fits */
			continue;
		}
		used += (size_t)len;
	}
	return count;
}
