/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What the data path costs: nanoseconds of one pool_put beyond building its record, of the two clock reads every span
 * needs, and megabytes of records a second that the drain writes as protobuf and JSON. Prints one JSON object a line;
 * each figure is the best of several rounds, for the disturbances of a shared machine only add.
 */
#include "base/err.h"
#include "safe/clock.h"
#include "spool/dir.h"
#include "spool/drain.h"
#include "wire/record.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROUNDS 7
#define RECORDS_A_ROUND \
	100000u /* 4 MB of stages: they fit the pool of 8 MiB, so nothing is dropped or drained meanwhile */

static struct spool spool;
static struct pool pool;
static char place[] = "/dev/shm/st-bench-XXXXXX";
static uint32_t name_id;

static struct rec_stage stage_of(uint32_t n)
{
	return (struct rec_stage){
		.head = { .bytes = sizeof(struct rec_stage), .type = REC_STAGE, .step = n },
		.begin_ns = 1000000000u + n,
		.dur_ns = 500,
		.name = name_id,
		.stage_id = n / 4,
		.kind = STAGE_FORWARD,
	};
}

/* Keep the compiler from dropping a loop whose result nobody reads. */
static void use(const void *p)
{
	__asm__ volatile("" : : "r"(p) : "memory");
}

static double empty_loop_ns(void)
{
	uint64_t begin_ns = clock_mono_ns();

	for (uint32_t i = 0; i < RECORDS_A_ROUND; i++) {
		struct rec_stage rec = stage_of(i);

		use(&rec);
	}
	return (double)(clock_mono_ns() - begin_ns) / RECORDS_A_ROUND;
}

static double clock_loop_ns(void)
{
	uint64_t begin_ns = clock_mono_ns();

	for (uint32_t i = 0; i < RECORDS_A_ROUND; i++) {
		uint64_t now_ns = clock_mono_ns();

		use(&now_ns);
	}
	return (double)(clock_mono_ns() - begin_ns) / RECORDS_A_ROUND;
}

static double put_loop_ns(void)
{
	uint64_t begin_ns = clock_mono_ns();

	for (uint32_t i = 0; i < RECORDS_A_ROUND; i++) {
		struct rec_stage rec = stage_of(i);

		if (!pool_put(&pool, &rec, sizeof(rec), POOL_SRC_STAGE)) {
			fprintf(stderr, "the pool ran full\n");
			exit(1);
		}
	}
	return (double)(clock_mono_ns() - begin_ns) / RECORDS_A_ROUND;
}

/* Drain what one put loop left. Return: records a second. */
static double drain_rate(struct drain *d)
{
	uint64_t begin_ns = clock_mono_ns();
	int n = drain_step(d, true, NULL);

	if (n != (int)RECORDS_A_ROUND) {
		fprintf(stderr, "drained %d of %u\n", n, RECORDS_A_ROUND);
		exit(1);
	}
	return (double)n / ((double)(clock_mono_ns() - begin_ns) / 1e9);
}

static struct drain *open_drain(bool json, char *dump, size_t room)
{
	struct msg_origin origin = { .host = msg_text("bench"), .format = 1, .pid = (uint32_t)getpid() };
	struct drain_options options = {
		.size = sizeof(options),
		.pool = &pool,
		.dump_path = dump,
		.json = json,
		.keep_open = true,
	};
	struct drain *d;

	snprintf(dump, room, "%s/%s", place, json ? "json" : "pb");
	d = drain_new(&options, NULL);
	if (!d || drain_identify(d, &origin, NULL) < 0) {
		fprintf(stderr, "no drain\n");
		exit(1);
	}
	return d;
}

static void bench_format(bool json)
{
	double empty = 1e9, put = 1e9, rate = 0;
	struct drain_stats stats;
	char dump[128];
	struct drain *d = open_drain(json, dump, sizeof(dump));

	for (int i = 0; i < ROUNDS; i++) {
		double ns = empty_loop_ns(), per_second;

		empty = ns < empty ? ns : empty;
		ns = put_loop_ns();
		put = ns < put ? ns : put;
		per_second = drain_rate(d);
		rate = per_second > rate ? per_second : rate;
	}
	drain_stats(d, &stats);
	drain_free(d);
	printf("{\"bench\":\"pool\",\"format\":\"%s\",\"put_ns\":%.1f,\"record_bytes\":%zu,\"drain_records_per_s\":%.0f,"
	       "\"drain_mb_per_s\":%.1f,\"file_bytes_per_record\":%.1f}\n",
	       json ? "json" : "pb", put - empty, sizeof(struct rec_stage), rate, rate * sizeof(struct rec_stage) / 1e6,
	       (double)stats.bytes / (double)stats.records);
}

int main(void)
{
	struct spool_options options = { .size = sizeof(options), .place = place, .chunks = 1024 };
	double clock_ns_each = 1e9;
	char command[64];
	struct st_err err;

	if (!mkdtemp(place) || spool_create(&spool, &pool, &options, &err) < 0)
		return 1;
	name_id = pool_intern(&pool, "torch@nn@Module@forward", 23);
	for (int i = 0; i < ROUNDS; i++) {
		double ns = clock_loop_ns();

		clock_ns_each = ns < clock_ns_each ? ns : clock_ns_each;
	}
	printf("{\"bench\":\"clock\",\"mono_ns\":%.1f}\n", clock_ns_each);
	bench_format(false);
	bench_format(true);
	spool_remove(&spool);
	snprintf(command, sizeof(command), "rm -rf %s", place);
	return system(command) ? 1 : 0;
}
