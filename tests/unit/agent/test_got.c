/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Slots of real shared objects: put in, taken out, bound lazily or at once, while other threads load and unload. */
#include "agent/hook/got.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* the sanitizers' runtime ends a program that asks for it */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DEEPBIND 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define DEEPBIND 0
#endif
#endif
#ifndef DEEPBIND
#define DEEPBIND RTLD_DEEPBIND
#endif

static char dir[] = "/tmp/st-got-XXXXXX";
static _Atomic int hits;

static pid_t my_getppid(void)
{
	atomic_fetch_add(&hits, 1);
	return 4242;
}

static void build(const char *name, const char *flags, const char *code)
{
	/* the one this program was built with, where that is not the machine's */
	const char *compiler = getenv("ST_CC");
	char command[1024];
	FILE *cc;

	snprintf(command, sizeof(command), "env -u LD_LIBRARY_PATH %s -shared -fPIC -O1 %s -o %s/%s -x c - 2>&1",
		 compiler ? compiler : "cc", flags, dir, name);
	cc = popen(command, "w");
	assert_non_null(cc);
	fputs(code, cc);
	if (pclose(cc))
		fail_msg("cannot build %s", name);
}

static const char code[] = "#include <unistd.h>\n"
			   "int ask(void) { return getppid(); }\n"
			   "pid_t (*const kept)(void) = getppid;\n"
			   "int ask_kept(void) { return kept(); }\n";

static void *open_it(const char *name, int how)
{
	char path[128];
	void *handle;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	handle = dlopen(path, how);
	if (!handle)
		fail_msg("%s", dlerror());
	return handle;
}

static int call(void *handle, const char *name)
{
	int (*function)(void);

	*(void **)&function = dlsym(handle, name);
	assert_non_null(function);
	return function();
}

static struct got_want want_getppid(void)
{
	struct got_want want = { .name = "getppid", .wrapper = (void *)my_getppid };

	assert_int_equal(got_resolve(&want), 0);
	return want;
}

static int make_objects(void **state)
{
	(void)state;
	if (!mkdtemp(dir))
		return -1;
	build("lazy.so", "-Wl,-z,lazy", code);
	build("now.so", "-Wl,-z,now,-z,relro", code);
	build("noplt.so", "-fno-plt -Wl,-z,now,-z,relro", code);
	build("own.so", "", "int getppid(void) { return 7; }\nint ask(void) { return getppid(); }\n");
	return 0;
}

static int remove_objects(void **state)
{
	char command[64];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	return system(command);
}

static void put_in_and_taken_out(void **state)
{
	static const char *const names[] = { "lazy.so", "now.so", "noplt.so" };
	struct got_want want = want_getppid();
	int parent = getppid();
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		void *handle = open_it(names[i], RTLD_LAZY | RTLD_LOCAL);
		struct got_count count;

		if (i) /* lazy: the slot is patched before it was ever bound */
			assert_int_equal(call(handle, "ask"), parent);
		assert_int_equal(got_apply(&want, 1, true, &count, NULL, NULL), 0);
		assert_true(count.changed >= 2);
		assert_int_equal(count.refused, 0);
		assert_int_equal(call(handle, "ask"), 4242);
		assert_int_equal(call(handle, "ask_kept"), 4242);
		assert_int_equal(getppid(), parent); /* our own object is left out */

		assert_int_equal(got_apply(&want, 1, true, &count, NULL, NULL), 0);
		assert_int_equal(count.changed, 0);
		assert_true(count.already >= 2);

		assert_int_equal(got_apply(&want, 1, false, &count, NULL, NULL), 0);
		assert_true(count.changed >= 2);
		hits = 0;
		assert_int_equal(call(handle, "ask"), parent);
		assert_int_equal(call(handle, "ask_kept"), parent);
		assert_int_equal(hits, 0);
		dlclose(handle);
	}
}

/* A slot that somebody else has changed, and an object that has the function itself. */
static void others_are_left_alone(void **state)
{
	void *own = open_it("own.so", RTLD_NOW | RTLD_LOCAL | DEEPBIND),
	     *handle = open_it("now.so", RTLD_NOW | RTLD_LOCAL);
	struct got_want first = want_getppid(), second = want_getppid();
	struct got_count count;

	(void)state;
	assert_int_equal(got_apply(&first, 1, true, &count, NULL, NULL), 0);
	if (DEEPBIND)
		assert_int_equal(call(own, "ask"), 7);
	second.wrapper = (void *)getpid; /* another tracer, coming after us */
	assert_int_equal(got_apply(&second, 1, true, &count, NULL, NULL), 0);
	assert_int_equal(count.changed, 0);
	assert_true(count.foreign >= 2);
	assert_int_equal(call(handle, "ask"), 4242);
	assert_int_equal(got_apply(&second, 1, false, &count, NULL, NULL), 0);
	assert_int_equal(call(handle, "ask"), 4242);
	assert_int_equal(got_apply(&first, 1, false, &count, NULL, NULL), 0);
	assert_int_equal(call(handle, "ask"), getppid());
	dlclose(handle);
	dlclose(own);
}

static void versions_are_told_apart(void **state)
{
	struct got_want none = { .name = "getppid", .version = "GLIBC_9.9", .wrapper = (void *)my_getppid };
	struct got_want nobody = { .name = "st_no_such_function", .wrapper = (void *)my_getppid };

	(void)state;
	assert_int_equal(got_resolve(&none), -ENOENT);
	assert_null(none.real);
	assert_int_equal(got_resolve(&nobody), -ENOENT);
}

static _Atomic bool stop;

static void *load_and_unload(void *arg)
{
	static const char *const names[] = { "lazy.so", "now.so", "noplt.so" };
	_Atomic long *loads = arg;
	int i;

	for (i = 0; !stop; i++) {
		void *handle = open_it(names[i % 3], i & 1 ? RTLD_NOW : RTLD_LAZY);
		int got = call(handle, "ask");

		if (got != 4242 && got != getppid())
			abort();
		dlclose(handle);
		(*loads)++;
	}
	return NULL;
}

static void switched_while_objects_come_and_go(void **state)
{
	int rounds = getenv("ST_FULL") ? 1000 : 150, i;
	struct got_want want = want_getppid();
	struct got_count count;
	pthread_t thread;
	_Atomic long loads = 0;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, load_and_unload, (void *)&loads), 0);
	for (i = 0; i < rounds; i++) {
		assert_int_equal(got_apply(&want, 1, !(i & 1), &count, NULL, NULL), 0);
		assert_int_equal(count.refused, 0);
	}
	while (loads < rounds)
		usleep(1000);
	stop = true;
	pthread_join(thread, NULL);
	assert_int_equal(got_apply(&want, 1, false, &count, NULL, NULL), 0);
}

static void generation_follows_objects(void **state)
{
	uint64_t before = got_generation(), with;
	void *handle = open_it("own.so", RTLD_NOW);

	(void)state;
	with = got_generation();
	assert_int_not_equal(with, before);
	dlclose(handle);
	assert_int_not_equal(got_generation(), with);
	assert_int_equal(got_generation(), got_generation());
}

static _Atomic bool listing;

static int linger(struct dl_phdr_info *info, size_t size, void *arg)
{
	atomic_store(&listing, true);
	usleep(100000);
	return 1;
}

static void *list_slowly(void *arg)
{
	got_each_object(linger, NULL);
	return NULL;
}

static int look(struct dl_phdr_info *info, size_t size, void *arg)
{
	return 7;
}

/* The loader's lock is taken in a child that is forked inside dl_iterate_phdr; nobody would ever give it back. */
static void no_fork_while_listing(void **state)
{
	pthread_t thread;
	int status;
	pid_t pid;

	pthread_atfork(got_fork_prepare, got_fork_parent, got_fork_child);
	atomic_store(&listing, false);
	assert_int_equal(pthread_create(&thread, NULL, list_slowly, NULL), 0);
	while (!atomic_load(&listing))
		usleep(100);
	pid = fork();
	if (pid == 0) {
		alarm(20);
		_exit(dl_iterate_phdr(look, NULL) + got_each_object(look, NULL));
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 14 << 8);
	pthread_join(thread, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(put_in_and_taken_out),	      cmocka_unit_test(others_are_left_alone),
		cmocka_unit_test(versions_are_told_apart),    cmocka_unit_test(switched_while_objects_come_and_go),
		cmocka_unit_test(generation_follows_objects), cmocka_unit_test(no_fork_while_listing),
	};

	return cmocka_run_group_tests(tests, make_objects, remove_objects);
}
