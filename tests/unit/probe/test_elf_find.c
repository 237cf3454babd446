/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Dynamic symbols of files and what is mapped where, against what the dynamic linker says of this very process. */
#include "probe/elf_find.h"
#include "probe/mappings.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static const struct mapping *libc_of(const struct mappings *maps)
{
	for (size_t i = 0; i < maps->count; i++)
		if (strstr(mappings_text(maps, &maps->rows[i]), "/libc.so.6") && maps->rows[i].offset == 0)
			return &maps->rows[i];
	return NULL;
}

/* Also functions with several versions, and one that is for old callers only. */
static void same_addresses_as_dlsym(void **state)
{
	struct elf_find finds[] = { { .name = "pthread_mutex_lock" },
				    { .name = "pthread_cond_timedwait" },
				    { .name = "no_such_function" } };
	void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD); /* not what a sanitizer puts before it */
	struct mappings maps = { 0 };
	const struct mapping *row;
	uint64_t base = 0;
	int fd;

	assert_int_equal(mappings_read(&maps, (uint32_t)getpid()), 0);
	row = libc_of(&maps);
	if (!row)
		skip(); /* an older C library */
	fd = open(mappings_text(&maps, row), O_RDONLY);
	assert_int_equal(elf_find(fd, finds, 3, &base, NULL), 2);
	for (int i = 0; i < 2; i++) {
		assert_true(finds[i].found && !finds[i].old && finds[i].offset && finds[i].bytes);
		assert_int_equal(finds[i].value + row->begin - base, (uintptr_t)dlvsym(libc, finds[i].name,
										       i ?
#if defined(__x86_64__)
											 "GLIBC_2.3.2"
											 : "GLIBC_2.2.5"));
#else
											 "GLIBC_2.17"
											 : "GLIBC_2.17"));
#endif
	}
	assert_false(finds[2].found);
	close(fd);
	mappings_fini(&maps);
}

static void no_elf_file_is_an_error(void **state)
{
	static const char *const texts[] = {
		"", "hello", "\177ELF", "\177ELF\2\1\1aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	};
	struct elf_find find = { .name = "x" };

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		int fd = memfd_create("elf", MFD_CLOEXEC);
		struct st_err err = { 0 };

		assert_int_equal(write(fd, texts[i], strlen(texts[i])), (ssize_t)strlen(texts[i]));
		assert_true(elf_find(fd, &find, 1, NULL, &err) < 0);
		assert_non_null(strstr(err.text, "not a program or library"));
		close(fd);
	}
}

/* Whatever stands in the file: cut anywhere and with damaged headers, it ends without harm. */
static void damaged_files_do_no_harm(void **state)
{
	int self = open("/proc/self/exe", O_RDONLY), damaged = 0;
	struct elf_find find = { .name = "main" };
	struct stat st;
	uint8_t *data;
	unsigned seed = 1;

	assert_int_equal(fstat(self, &st), 0);
	data = malloc((size_t)st.st_size);
	assert_int_equal(read(self, data, (size_t)st.st_size), st.st_size);
	for (int i = 0; i < 300; i++) {
		int fd = memfd_create("elf", MFD_CLOEXEC);
		size_t bytes = i % 2 ? (size_t)st.st_size : (size_t)st.st_size * (unsigned)i / 300;
		uint8_t kept[64];

		memcpy(kept, data, sizeof(kept));
		if (i % 2)
			data[16 + rand_r(&seed) % 48] ^= (uint8_t)(1u << rand_r(&seed) % 8);
		assert_int_equal(write(fd, data, bytes), (ssize_t)bytes);
		memcpy(data, kept, sizeof(kept));
		find = (struct elf_find){ .name = "main" };
		damaged += elf_find(fd, &find, 1, NULL, NULL) < 0;
		close(fd);
	}
	assert_true(damaged > 100);
	free(data);
	close(self);
}

static void areas_have_names(void **state)
{
	struct mappings maps = { 0 };
	int local = 0;
	void *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_string_equal(mappings_name(&maps, (uint32_t)getpid(), (uintptr_t)&local), "[stack]");
	assert_string_equal(mappings_name(&maps, (uint32_t)getpid(), (uintptr_t)page), "");
	assert_non_null(strstr(mappings_name(&maps, (uint32_t)getpid(), (uintptr_t)areas_have_names), "test_elf_find"));
	assert_null(mappings_find(&maps, 1));
	assert_int_equal(mappings_read(&maps, 4194304), -ESRCH);
	assert_string_equal(mappings_name(&maps, (uint32_t)getpid(), (uintptr_t)&local),
			    "[stack]"); /* what was known stays */
	munmap(page, 4096);
	mappings_fini(&maps);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(same_addresses_as_dlsym),
		cmocka_unit_test(no_elf_file_is_an_error),
		cmocka_unit_test(damaged_files_do_no_harm),
		cmocka_unit_test(areas_have_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
