/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The seeds of the readers' fuzz targets, damaged in ways that a fixed seed draws: bytes changed, parts cut out, doubled or
 * overwritten. Nothing may crash; under sanitizers this is a fuzzer that always does the same.
 */
#include "../../fuzz/fuzz_reader.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
/* behind the headers it needs */
#include <cmocka.h>

#define ROUNDS 150
#define ROOM (1u << 16)

static uint64_t seed = 88172645463325252u;

static uint64_t draw(uint64_t below)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return below ? seed % below : 0;
}

static size_t damage(uint8_t *data, size_t len)
{
	static const uint8_t edges[] = { 0, 1, 0x7f, 0x80, 0xff, '"', ',', '\n', '{', ']', 0x0a, '-' };
	size_t at = draw(len), n = 1 + draw(16), from;

	if (at + n > len)
		n = len - at;
	switch (draw(5)) {
	case 0:
		data[at] ^= (uint8_t)(1u << draw(8));
		return len;
	case 1:
		data[at] = edges[draw(sizeof(edges))];
		return len;
	case 2: /* cut out */
		memmove(data + at, data + at + n, len - at - n);
		return len - n;
	case 3: /* doubled */
		if (len + n > ROOM)
			return len;
		memmove(data + at + n, data + at, len - at);
		return len + n;
	default:
		from = draw(len - n + 1);
		memmove(data + at, data + from, n);
		return len;
	}
}

static size_t read_seed(const char *path, uint8_t *data)
{
	FILE *file = fopen(path, "r");
	size_t len;

	assert_non_null(file);
	len = fread(data, 1, ROOM / 2, file);
	fclose(file);
	assert_true(len > 0);
	return len;
}

static void damaged_seeds(const char *corpus)
{
	char path[1024];
	uint8_t whole[ROOM], data[ROOM];
	struct dirent *entry;
	DIR *dir;
	size_t len, now, i, k;
	int seeds = 0;

	snprintf(path, sizeof(path), ST_SOURCE_DIR "/tests/fuzz/corpus/%s", corpus);
	dir = opendir(path);
	assert_non_null(dir);
	while ((entry = readdir(dir)) != NULL) {
		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), ST_SOURCE_DIR "/tests/fuzz/corpus/%s/%s", corpus, entry->d_name);
		len = read_seed(path, whole);
		seeds++;
		for (i = 0; i < ROUNDS; i++) {
			memcpy(data, whole, len);
			now = len;
			for (k = draw(4); k > 0 && now > 1; k--) /* 0: the seed itself */
				now = damage(data, now);
			assert_int_equal(fuzz_bytes(data, now), 0);
		}
	}
	closedir(dir);
	assert_true(seeds > 1);
}

static void timelines(void **state)
{
	damaged_seeds("timeline");
}

static void timelines_as_json(void **state)
{
	damaged_seeds("json");
}

static void markers(void **state)
{
	damaged_seeds("markers");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(timelines),
		cmocka_unit_test(timelines_as_json),
		cmocka_unit_test(markers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
