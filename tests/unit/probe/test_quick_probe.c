/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Where in a function of x86_64 a uprobe is quick: beginnings of functions as compilers make them, written down by hand. */
#include "probe/quick_probe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define CODE(text) text, sizeof(text) - 1

static void beginnings_of_functions(void **state)
{
	static const struct {
		const char *code;
		size_t bytes, want;
	} rows[] = {
		/* mov 0x10(%rdi),%eax; mov %eax,%edx; and $0x17f,%edx; and $0x7c,%eax; jne */
		{ CODE("\x8b\x47\x10\x89\xc2\x81\xe2\x7f\x01\x00\x00\x83\xe0\x7c\x0f\x85\xac\x00\x00\x00\x53"), 14 },
		{ CODE("\xf3\x0f\x1e\xfa\x55\x48\x89\xe5"), 4 }, /* endbr64; push %rbp */
		{ CODE("\x41\x54\x55"), 0 }, /* push %r12: there already */
		{ CODE("\x48\x8b\x07\x85\xc0\x74\x0e\xc3"), 5 }, /* mov (%rdi),%rax; test %eax,%eax; je */
		{ CODE("\x64\x8b\x14\x25\xd0\x02\x00\x00\x39\xd0\x74\x02\xc3"), 10 }, /* mov %fs:0x2d0,%edx; cmp; je */
		{ CODE("\x48\x89\xff\x74\x02"), 0 }, /* writes rdi */
		{ CODE("\x48\x83\xec\x18\x53"), 0 }, /* sub $0x18,%rsp */
		{ CODE("\x48\x8b\x7f\x08\x53"), 0 }, /* mov 0x8(%rdi),%rdi */
		{ CODE("\x89\x47\x10\x53"), 0 }, /* writes memory */
		{ CODE("\x83\x07\x01\x53"), 0 }, /* addl $1,(%rdi) */
		{ CODE("\x83\x3f\x01\x53"), 3 }, /* cmpl $1,(%rdi) only looks */
		{ CODE("\xf0\xff\x0f\x75\x0b"), 0 }, /* lock decl (%rdi) */
		{ CODE("\x31\xc0\xc3"), 0 }, /* xor %eax,%eax; ret */
		{ CODE("\x31\xc0\x53\x90\xeb\xfb"), 0 }, /* ... jumped to: jmp to the push */
		{ CODE("\x31\xc0\x53\x90\xeb\xf9"), 2 }, /* jmp to the beginning passes there from it */
		{ CODE("\x8b\x47"), 0 }, /* cut off */
		{ CODE(""), 0 },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (quick_probe((const uint8_t *)rows[i].code, rows[i].bytes) != rows[i].want)
			fail_msg("row %zu: %zu, want %zu", i, quick_probe((const uint8_t *)rows[i].code, rows[i].bytes),
				 rows[i].want);
}

/* Whatever the bytes are: the place lies inside, and nothing is read behind the end (the sanitizers look). */
static void any_bytes(void **state)
{
	unsigned seed = 1, moved = 0;

	for (int i = 0; i < 200000; i++) {
		size_t bytes = (size_t)rand_r(&seed) % 24, place;
		uint8_t *code = malloc(bytes + !bytes);

		for (size_t k = 0; k < bytes; k++)
			code[k] = (uint8_t)rand_r(&seed);
		place = quick_probe(code, bytes);
		assert_true(place == 0 || place < bytes);
		moved += place != 0;
		free(code);
	}
	assert_true(moved > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(beginnings_of_functions),
		cmocka_unit_test(any_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
