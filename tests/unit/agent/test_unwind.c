/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Stacks of the calling thread: known call chains against what the compiler says of the return addresses, signal frames,
 * code without tables, code made at run time, and libraries that come and go meanwhile.
 */
#include "agent/stack/intern.h"
#include "agent/stack/module.h"
#include "agent/stack/stack.h"
#include "agent/stack/unwind.h"
#include "emulated.h"

#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define DEEP 12

#define LONG 500

static uintptr_t expected[LONG + 8]; /* return addresses that a stack must hold, innermost first */
static int expected_count;
static uintptr_t seen[256];
static int seen_count;
static struct unwind walk;

/* The walk as addresses. */
static __attribute__((noinline)) void look(void)
{
	unwind_here(&walk);
	seen_count = 0;
	do {
		unwind_module(&walk);
		seen[seen_count++] = walk.regs.pc;
	} while (seen_count < 256 && unwind_step(&walk));
}

static void check_seen(void)
{
	int i, at = 0;

	for (i = 0; i < expected_count; i++) {
		while (at < seen_count && seen[at] != expected[i])
			at++;
		if (at == seen_count)
			fail_msg("return address %d (%#lx) is not in the stack of %d frames", i, expected[i],
				 seen_count);
	}
}

static void expect(void *return_address)
{
	expected[expected_count++] = (uintptr_t)return_address;
}

#define KEEP __asm__ volatile("" ::: "memory") /* the call before is no tail call */

/* Return addresses are noted on the way in, outermost first; turned round at the end. */
static __attribute__((noinline)) int chain(int depth, void (*end)(void))
{
	uintptr_t mine = (uintptr_t)__builtin_return_address(0);

	if (depth)
		chain(depth - 1, end);
	else
		end();
	KEEP;
	expected[expected_count++] = mine;
	return depth;
}

static void look_later(void)
{
	look();
}

/* The order in which chain() notes: its callers' addresses from the inside out. */
static void check_chain(int depth)
{
	expected_count = 0;
	chain(depth, look_later);
	assert_int_equal(expected_count, depth + 1);
	check_seen();
}

static void test_chain(void **state)
{
	check_chain(DEEP);
	assert_false(walk.cut);
	assert_false(walk.guessed);
}

static void test_old_glibc(void **state)
{
	uintptr_t direct[256];
	int count;

	check_chain(DEEP);
	assert_true(modules_direct());
	count = seen_count;
	memcpy(direct, seen, sizeof(direct));
	modules_start(true);
	assert_false(modules_direct());
	check_chain(DEEP);
	assert_int_equal(seen_count, count);
	assert_false(walk.cut);
	/* above check_chain() nothing differs */
	assert_memory_equal(seen + DEEP + 4, direct + DEEP + 4, (size_t)(count - DEEP - 4) * sizeof(direct[0]));
}

/* Also where the test has failed: those after it tell of themselves. */
static int ask_directly(void **state)
{
	modules_start(false);
	return 0;
}

/* A frame that aligns its stack: the CFA is a word that the frame pointer leads to, or counted from it. */
static __attribute__((noinline)) int aligned(int bytes, int depth)
{
	char room[64] __attribute__((aligned(64)));
	volatile char *more = __builtin_alloca((size_t)bytes);

	memset(room, bytes, sizeof(room));
	more[0] = room[0];
	chain(depth, look_later);
	expect(__builtin_return_address(0));
	return more[0] + room[bytes & 63];
}

/* Arguments on the stack and an alignment: found by a word that the frame pointer leads to. */
static __attribute__((noinline)) int aligned_with_arguments(int a, int b, int c, int d, int e, int f, int g, int depth)
{
	char room[64] __attribute__((aligned(64)));
	volatile char *more = __builtin_alloca((size_t)(a + depth));

	memset(room, a + b + c + d + e + f, sizeof(room));
	more[0] = 0;
	chain(depth, look_later);
	expect(__builtin_return_address(0));
	return room[g & 63] + g + depth + more[0];
}

static void test_aligned_frame_with_arguments(void **state)
{
	expected_count = 0;
	assert_int_equal(aligned_with_arguments(1, 2, 3, 4, 5, 6, 7, 3), 31);
	check_seen();
	assert_false(walk.cut);
	assert_false(walk.guessed);
}

static void test_aligned_frame(void **state)
{
	expected_count = 0;
	aligned(100, 3);
	check_seen();
	assert_false(walk.cut);
	assert_false(walk.guessed);
}

/* --- signals ----------------------------------------------------------------------------------------------------------- */

static void on_signal(int sig)
{
	look();
}

static void send_signal(void)
{
	raise(SIGUSR1);
}

static void test_signal(void **state)
{
	struct sigaction action = { .sa_handler = on_signal };

	sigaction(SIGUSR1, &action, NULL);
	expected_count = 0;
	chain(3, send_signal);
	check_seen();
	assert_false(walk.cut);
	assert_false(walk.guessed);
}

static void test_signal_on_own_stack(void **state)
{
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_ONSTACK };
	stack_t own = { .ss_size = 256 * 1024 }, none = { .ss_flags = SS_DISABLE };

	own.ss_sp = mmap(NULL, own.ss_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(own.ss_sp, MAP_FAILED);
	assert_int_equal(sigaltstack(&own, NULL), 0);
	sigaction(SIGUSR1, &action, NULL);
	expected_count = 0;
	chain(3, send_signal);
	check_seen();
	assert_false(walk.cut);
	assert_false(walk.guessed);
	sigaltstack(&none, NULL);
	munmap(own.ss_sp, own.ss_size);
}

/* --- code without tables -------------------------------------------------------------------------------------------------- */

#if defined(__x86_64__)
/* no .cfi_ directives: as hand-written assembly often is */
__asm__(".text\n"
	".type with_pointer, @function\n"
	"with_pointer:\n"
	"	push %rbp\n"
	"	mov %rsp, %rbp\n"
	"	sub $48, %rsp\n"
	"	call *%rdi\n"
	"	leave\n"
	"	ret\n"
	".size with_pointer, . - with_pointer\n"
	".type without_pointer, @function\n"
	"without_pointer:\n"
	"	push %rbp\n"
	"	mov $0x1234567, %ebp\n"
	"	sub $48, %rsp\n"
	"	call *%rdi\n"
	"	add $48, %rsp\n"
	"	pop %rbp\n"
	"	ret\n"
	".size without_pointer, . - without_pointer\n");
static const uint8_t jit_code[] = {
	0x55, /* push %rbp */
	0x48, 0x89, 0xe5, /* mov %rsp, %rbp */
	0xff, 0xd7, /* call *%rdi */
	0x5d, /* pop %rbp */
	0xc3, /* ret */
};
#elif defined(__aarch64__)
__asm__(".text\n"
	".type with_pointer, %function\n"
	"with_pointer:\n"
	"	stp x29, x30, [sp, -64]!\n"
	"	mov x29, sp\n"
	"	blr x0\n"
	"	ldp x29, x30, [sp], 64\n"
	"	ret\n"
	".type without_pointer, %function\n"
	"without_pointer:\n"
	"	stp x29, x30, [sp, -64]!\n"
	"	mov x29, 0x123\n"
	"	blr x0\n"
	"	ldp x29, x30, [sp], 64\n"
	"	ret\n");
static const uint32_t jit_code[] = { 0xa9be7bfd, 0x910003fd, 0xd63f0000, 0xa8c27bfd, 0xd65f03c0 };
#endif
void with_pointer(void (*call)(void));
void without_pointer(void (*call)(void));

static void call_with_pointer(void)
{
	with_pointer(look_later);
	KEEP;
}

static void call_without_pointer(void)
{
	without_pointer(look_later);
	KEEP;
}

static void test_hand_made_frame(void **state)
{
	expected_count = 0;
	chain(3, call_with_pointer);
	check_seen();
	assert_true(walk.guessed);
}

static void test_frame_that_cannot_be_passed(void **state)
{
	expected_count = 0;
	chain(3, call_without_pointer);
	assert_true(walk.cut);
	assert_in_range(seen_count, 2, 6);
}

static void (*jit)(void (*call)(void));

static void call_jit(void)
{
	jit(look_later);
	KEEP;
}

static void test_code_made_at_run_time(void **state)
{
	void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint32_t i, raw = 0;

	assert_ptr_not_equal(page, MAP_FAILED);
	memcpy(page, jit_code, sizeof(jit_code));
	assert_int_equal(mprotect(page, 4096, PROT_READ | PROT_EXEC), 0);
	__builtin___clear_cache(page, (char *)page + sizeof(jit_code));
	*(void **)&jit = page;
	expected_count = 0;
	chain(3, call_jit);
	check_seen();
	assert_true(walk.guessed);
	for (i = 0; i < (uint32_t)seen_count; i++)
		raw += seen[i] - (uintptr_t)page < 4096;
	assert_int_equal(raw, 1);
	munmap(page, 4096);
}

/* --- captures ------------------------------------------------------------------------------------------------------------- */

static struct stack captured;

static void capture(void)
{
	stack_capture(&captured, false);
}

static void test_capture(void **state)
{
	uint32_t i, native = 0;

	expected_count = 0;
	chain(DEEP, capture);
	assert_in_range(captured.count, DEEP + 3, STACK_FRAMES_MAX);
	for (i = 0; i < captured.count; i++)
		native += FRAME_KIND(captured.frame[i]) == FRAME_NATIVE;
	assert_int_equal(native, captured.count);
	assert_int_equal(captured.flags, 0);
}

static void test_capture_is_bounded(void **state)
{
	expected_count = 0;
	chain(LONG, capture);
	assert_int_equal(captured.count, STACK_FRAMES_MAX);
	assert_int_equal(captured.flags, STACK_CUT);
}

static void test_intern(void **state)
{
	struct stack again, got;
	uint32_t id, other;

	expected_count = 0;
	chain(3, capture);
	id = stack_intern(&captured);
	assert_int_not_equal(id, 0);
	again = captured;
	assert_int_equal(stack_intern(&again), id);
	again.frame[0]++;
	other = stack_intern(&again);
	assert_int_not_equal(other, 0);
	assert_int_not_equal(other, id);
	assert_int_equal(stack_get(id, &got), captured.count);
	assert_memory_equal(got.frame, captured.frame, captured.count * sizeof(got.frame[0]));
	assert_int_equal(stack_get(0, &got), 0);
	assert_int_equal(stack_get(1u << 30, &got), 0);
}

/* What a child keeps has the number that the parent gives it. */
static void test_intern_in_children(void **state)
{
	uint32_t ids[2] = { 0 };
	int channel[2], status;
	pid_t pid;

	expected_count = 0;
	chain(4, capture);
	captured.frame[1] ^= 0x5a5a;
	assert_int_equal(pipe(channel), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		ids[0] = stack_intern(&captured);
		_exit(write(channel[1], ids, sizeof(ids)) != sizeof(ids));
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(read(channel[0], ids, sizeof(ids)), sizeof(ids));
	close(channel[0]);
	close(channel[1]);
	assert_int_not_equal(ids[0], 0);
	assert_int_equal(stack_intern(&captured), ids[0]);
}

/* Last: nothing finds room any more. */
static void test_full_table(void **state)
{
	struct stack_status before, after;
	uint32_t id, first, i, refused = 0;

	expected_count = 0;
	chain(3, capture);
	first = stack_intern(&captured);
	stack_status(&before);
	for (i = 1; i <= 2 * before.room; i++) {
		captured.frame[0] = i;
		id = stack_intern(&captured);
		refused += !id;
		assert_int_not_equal(id, first);
	}
	stack_status(&after);
	assert_true(refused > 0);
	assert_int_equal(after.full - before.full, refused);
	assert_int_equal(after.stacks - before.stacks, 2 * before.room - refused);
	assert_in_range(after.stacks, before.room / 4, before.room);
}

/* --- threads, and libraries that come and go -------------------------------------------------------------------------------- */

static char dir[] = "/tmp/st-unwind-XXXXXX";
static _Atomic bool stop;
static _Atomic uint32_t wrong;

static void build(const char *name, int number)
{
	/* the one this program was built with, where that is not the machine's */
	const char *compiler = getenv("ST_CC");
	char command[512];
	FILE *cc;

	/* of one layout, so that one of them comes to the very place where the other one was */
	snprintf(command, sizeof(command),
		 "env -u LD_LIBRARY_PATH %s -shared -fPIC -O1 -Wl,--build-id -DNUMBER=%d -o %s/%s -x c - 2>&1",
		 compiler ? compiler : "cc", number, dir, name);
	cc = popen(command, "w");
	assert_non_null(cc);
	fputs("int number(void) { return NUMBER; }\n"
	      "void call(void (*f)(void *), void *arg) { f(arg); __asm__ volatile(\"\"); }\n",
	      cc);
	if (pclose(cc))
		fail_msg("cannot build %s", name);
}

struct visit {
	uintptr_t function; /* call() of the library */
	uint32_t module; /* where its frame was found */
};

static void capture_in_library(void *arg)
{
	struct visit *visit = arg;
	struct stack stack;
	struct unwind u;

	unwind_here(&u);
	do {
		const struct module *m = unwind_module(&u);

		if (!m)
			continue;
		intern_name_told(INTERN_MODULE,
				 m->id); /* as if there were a pool: what is known is not looked at again */
		if (u.regs.pc - visit->function < 64)
			visit->module = m->id;
	} while (unwind_step(&u));
	if (stack_capture(&stack, false) < 4 || stack.flags)
		atomic_fetch_add(&wrong, 1);
}

static void *capture_on(void *arg)
{
	struct stack stack;

	while (!atomic_load(&stop)) {
		if (stack_capture(&stack, false) < 2 || stack.flags)
			atomic_fetch_add(&wrong, 1);
		stack_intern(&stack);
	}
	return NULL;
}

static uint32_t visit_library(const char *name)
{
	struct visit visit = { 0 };
	char path[128];
	void (*call)(void (*f)(void *), void *arg);
	void *handle;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	assert_non_null(handle);
	*(void **)&call = dlsym(handle, "call");
	assert_non_null(call);
	visit.function = (uintptr_t)call;
	call(capture_in_library, &visit);
	dlclose(handle);
	return visit.module;
}

static void load_and_unload(int rounds)
{
	pthread_t threads[3];
	uint32_t first[2], i;

	atomic_store(&stop, false);
	for (i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, capture_on, NULL), 0);
	first[0] = visit_library("one.so");
	first[1] = visit_library("two.so");
	assert_int_not_equal(first[0], 0);
	assert_int_not_equal(first[1], 0);
	assert_int_not_equal(first[0], first[1]);
	for (i = 0; i < (uint32_t)rounds; i++)
		assert_int_equal(visit_library(i & 1 ? "two.so" : "one.so"), first[i & 1]);
	atomic_store(&stop, true);
	for (i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(atomic_load(&wrong), 0);
}

static void test_libraries_come_and_go(void **state)
{
	load_and_unload(1000);
}

static int make_libraries(void **state)
{
	struct st_err err;

	if (!mkdtemp(dir))
		return -1;
	build("one.so", 1);
	build("two.so", 2);
	return stack_start(false, &err);
}

static int remove_libraries(void **state)
{
	char command[64];

	snprintf(command, sizeof(command), "rm -r %s", dir);
	return system(command);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_chain),
		cmocka_unit_test_teardown(test_old_glibc, ask_directly),
		cmocka_unit_test(test_aligned_frame),
		cmocka_unit_test(test_aligned_frame_with_arguments),
		cmocka_unit_test(test_signal),
		cmocka_unit_test(test_signal_on_own_stack),
		cmocka_unit_test(test_hand_made_frame),
		cmocka_unit_test(test_frame_that_cannot_be_passed),
		cmocka_unit_test(test_code_made_at_run_time),
		cmocka_unit_test(test_capture),
		cmocka_unit_test(test_capture_is_bounded),
		cmocka_unit_test(test_intern),
		cmocka_unit_test(test_intern_in_children),
		cmocka_unit_test(test_libraries_come_and_go),
		cmocka_unit_test(test_full_table),
	};

	return cmocka_run_group_tests(tests, make_libraries, remove_libraries);
}
