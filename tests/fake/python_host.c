/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * A preload that holds the agent's Python side alone (src/agent/python/) and stands in for the rest of the agent: stages
 * are counted instead of recorded, and the script under test asks for the counts through ctypes. Built and used by the
 * end-to-end tests tests/e2e/t1*_python_*.py and by bench/bench_pycall.py.
 *
 * Environment: FAKE_START=1 starts the thread in the constructor (as SYSTRACE_ENABLE=1 does), FAKE_LIST names the list,
 * FAKE_OFF=1 begins with stages off, FAKE_REPORT names a file for a summary at exit.
 */
#include "agent/agent.h"
#include "agent/python/hook.h"
#include "agent/python/python.h"
#include "agent/stage.h"
#include "safe/clock.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct agent agent;

#define SPECS 1024

/** struct tally - what one list row saw */
struct tally {
	const char *spec;
	long enters, leaves, raised, args, kwargs, open, deepest;
};

static struct tally tallies[SPECS];
static long gc_count, starts;
static pthread_t thread;

/* with the GIL held, as the stage functions are called */
static struct tally *tally_of(const char *spec)
{
	int i;

	for (i = 0; i < SPECS - 1 && tallies[i].spec; i++)
		if (strcmp(tallies[i].spec, spec) == 0)
			return &tallies[i];
	tallies[i].spec = strdup(spec); /* a query may come first, with text of its own */
	return &tallies[i];
}

#ifdef FAKE_EMPTY /* the hooks' own cost, for bench/bench_pycall.py */
void stage_enter(const struct stage_fn *fn, struct stage_frame *frame, void *const *args, size_t nargsf, void *kwnames)
{
}

void stage_leave(const struct stage_fn *fn, struct stage_frame *frame, bool raised)
{
}
#else
void stage_enter(const struct stage_fn *fn, struct stage_frame *frame, void *const *args, size_t nargsf, void *kwnames)
{
	struct tally *t = tally_of(fn->spec);

	*frame = (struct stage_frame){ .begin_ns = clock_mono_ns() };
	t->enters++;
	if (args)
		t->args += (long)(nargsf & ~((size_t)1 << 63));
	t->kwargs += kwnames != NULL;
	if (++t->open > t->deepest)
		t->deepest = t->open;
}

void stage_leave(const struct stage_fn *fn, struct stage_frame *frame, bool raised)
{
	struct tally *t = tally_of(fn->spec);

	if (clock_mono_ns() < frame->begin_ns)
		abort();
	t->leaves++;
	t->raised += raised;
	t->open--;
}
#endif

void stage_gc(uint64_t begin_ns, uint64_t end_ns, uint32_t gen, uint32_t collected, uint32_t uncollectable)
{
	if (end_ns < begin_ns || gen > 2)
		abort();
	gc_count++;
}

enum stage_role stage_role_of(const char *spec, enum stage_type kind)
{
	return kind == STAGE_COMM ? ROLE_COMM : kind == STAGE_OPTIMIZER ? ROLE_OPTIMIZER_STEP : ROLE_PLAIN;
}

static void *thread_main(void *unused)
{
	python_loop();
	return NULL;
}

void agent_python_ends(void)
{
}

void agent_start(enum agent_reason reason)
{
	struct python_options options = { .list_path = getenv("FAKE_LIST"), .stages_on = !getenv("FAKE_OFF") };

	if (__atomic_fetch_add(&starts, 1, __ATOMIC_SEQ_CST))
		return;
	python_configure(&options);
	pthread_create(&thread, NULL, thread_main, NULL);
}

/* what = 0 enters, 1 leaves, 2 raised, 3 positional arguments seen, 4 calls with keywords, 5 deepest nesting */
long fake_count(const char *spec, int what)
{
	const struct tally *t = tally_of(spec);
	const long all[] = { t->enters, t->leaves, t->raised, t->args, t->kwargs, t->deepest };

	return all[what];
}

/* functions attached for a row now */
long fake_attached(const char *spec)
{
	long n = 0;

	for (unsigned int i = 0; i < hook_count; i++)
		n += hooks[i].attached && strcmp(hooks[i].fn.spec, spec) == 0;
	return n;
}

long fake_gc_count(void)
{
	return gc_count;
}

long fake_starts(void)
{
	return starts;
}

int fake_switch(int on, unsigned int ms)
{
	return python_stages_switch(on, ms);
}

int fake_stop(unsigned int ms)
{
	return python_stop(ms);
}

int fake_status(char *text, size_t room)
{
	python_status(text, room);
	return python_list_untraceable(text + strlen(text), room - strlen(text));
}

/* FAKE_REPORT names a file that gets "functions attached, calls seen, calls not ended, status" at exit */
__attribute__((destructor)) static void report(void)
{
	const char *path = getenv("FAKE_REPORT");
	FILE *file = path && starts ? fopen(path, "a") : NULL;
	long enters = 0, open = 0;
	char text[512];

	if (!file)
		return;
	for (int i = 0; i < SPECS && tallies[i].spec; i++) {
		enters += tallies[i].enters;
		open += tallies[i].open;
	}
	python_status(text, sizeof(text));
	fprintf(file, "%u %ld %ld %s\n", hook_count, enters, open, text);
	fclose(file);
}

__attribute__((constructor)) static void construct(void)
{
	if (!python_present())
		return;
	pthread_atfork(NULL, NULL, python_child);
	python_watch();
	if (getenv("FAKE_START"))
		agent_start(AGENT_BY_ENV);
}
