/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What a native stack of 20 frames costs inside the process: ours, glibc's backtrace() (libgcc's unwinder) and libunwind's
 * unw_backtrace, where it is installed, turn by turn in one run. Prints one JSON object a line; each figure is the median of
 * the rounds, beside it the best.
 */
#include "agent/stack/intern.h"
#include "agent/stack/stack.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define ROUNDS 31
#define CALLS 20000
#define FRAMES 20

static int (*unw_backtrace)(void **frames, int room);
static struct stack stack;
static void *frames[256];
static volatile int sink;

static void by_capture(void)
{
	sink = (int)stack_capture(&stack, false);
}

static void by_here(void)
{
	sink = (int)stack_here(false);
}

static void by_backtrace(void)
{
	sink = backtrace(frames, 256);
}

static void by_libunwind(void)
{
	sink = unw_backtrace(frames, 256);
}

static double cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

static struct way {
	const char *name;
	void (*take)(void);
	double ns[ROUNDS];
	int frames;
} ways[] = {
	{ .name = "capture", .take = by_capture },
	{ .name = "capture and intern", .take = by_here },
	{ .name = "backtrace (libgcc)", .take = by_backtrace },
	{ .name = "unw_backtrace (libunwind)", .take = by_libunwind },
};
#define WAYS (sizeof(ways) / sizeof(ways[0]))

/* There is no pool here: as if the definitions were in it, which they are after the first capture. */
static void tell(void)
{
	uint32_t i;

	intern_told(stack_here(false));
	for (i = 0; i < stack.count; i++)
		if (FRAME_KIND(stack.frame[i]) == FRAME_NATIVE)
			intern_name_told(INTERN_MODULE, FRAME_MODULE(stack.frame[i]));
}

static void measure(int round)
{
	size_t w;
	int i;

	by_capture();
	tell();

	for (w = 0; w < WAYS; w++) {
		double begin_ns;

		if (ways[w].take == by_libunwind && !unw_backtrace)
			continue;
		ways[w].take();
		ways[w].frames = ways[w].take == by_here ? (int)stack.count : sink;
		begin_ns = cpu_ns();
		for (i = 0; i < CALLS; i++)
			ways[w].take();
		ways[w].ns[round] = (cpu_ns() - begin_ns) / CALLS;
	}
}

static __attribute__((noinline)) void down(int depth)
{
	int round;

	if (depth > 0) {
		down(depth - 1);
	} else {
		for (round = 0; round < ROUNDS; round++)
			measure(round);
	}
	__asm__ volatile("" ::: "memory"); /* no tail call */
}

static int by_ns(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

int main(void)
{
	struct st_err err = { 0 };
	void *lib = dlopen("libunwind.so.8", RTLD_LAZY);
	size_t w;

	if (lib)
		*(void **)&unw_backtrace = dlsym(lib, "unw_backtrace");
	if (stack_start(false, &err) < 0) {
		fprintf(stderr, "%s\n", err.text);
		return 1;
	}
	backtrace(frames, 256);
	down(FRAMES - 6); /* with measure(), by_...(), main and what calls it */
	for (w = 0; w < WAYS; w++) {
		if (!ways[w].frames)
			continue;
		qsort(ways[w].ns, ROUNDS, sizeof(ways[w].ns[0]), by_ns);
		printf("{\"what\": \"%s\", \"frames\": %d, \"ns\": %.0f, \"best_ns\": %.0f, \"ns_a_frame\": %.1f, "
		       "\"times_ours\": %.2f}\n",
		       ways[w].name, ways[w].frames, ways[w].ns[ROUNDS / 2], ways[w].ns[0],
		       ways[w].ns[ROUNDS / 2] / ways[w].frames, ways[w].ns[ROUNDS / 2] / ways[0].ns[ROUNDS / 2]);
	}
	return 0;
}
