/* SPDX-License-Identifier: MulanPSL-2.0 */
/* See budget.h. Everything here runs on the control thread, about once a second while a plugin is on. */
#include "agent/budget.h"

#include "agent/io_thread.h"
#include "agent/threads.h"
#include "safe/clock.h"
#include "safe/pool.h"
#include "wire/record.h"

#include <sys/mman.h>

#define CHUNKS 16u
#define BATCHES 8
#define BATCH_PUTS 200 /* all batches together fit into the chunks */

/* Best of some batches: what disturbs a measurement only makes it longer. */
static uint64_t measure(struct pool *pool)
{
	struct rec_comm rec = { .head = { .bytes = sizeof(rec), .type = REC_COMM } };
	uint64_t best_ns = UINT64_MAX;
	int batch, i;

	for (batch = 0; batch < BATCHES; batch++) {
		uint64_t begin_ns = clock_mono_ns(), took_ns;

		for (i = 0; i < BATCH_PUTS; i++) {
			rec.begin_ns = clock_mono_ns();
			rec.dur_ns = clock_mono_ns() - rec.begin_ns;
			pool_put(pool, &rec, sizeof(rec), POOL_SRC_OTHER);
		}
		took_ns = clock_mono_ns() - begin_ns;
		if (took_ns < best_ns)
			best_ns = took_ns;
	}
	return best_ns / BATCH_PUTS;
}

uint64_t budget_call_ns(void)
{
	static uint64_t call_ns; /* the control thread's */
	size_t bytes = pool_area_bytes(CHUNKS);
	struct pool_guard guard = { 0 };
	struct pool pool;
	void *area;

	if (call_ns)
		return call_ns;
	area = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (area == MAP_FAILED)
		return 1;
	pool_format(area, CHUNKS);
	if (!pool_attach(&pool, area, bytes, &guard))
		call_ns = measure(&pool);
	munmap(area, bytes);
	if (!call_ns)
		call_ns = 1;
	return call_ns;
}

static void look(struct budget *now, uint64_t calls)
{
	struct io_status io;

	io_status(&io);
	*now = (struct budget){
		.mono_ns = clock_mono_ns(),
		.process_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID),
		.io_ns = thread_cpu_ns(THREAD_IO),
		.calls = calls,
		.records = io.drain.records,
		.bytes = io.drain.bytes,
	};
}

void budget_begin(struct budget *budget, uint64_t calls)
{
	budget_call_ns();
	look(budget, calls);
	budget->first = true;
}

/* Part of the window's records that were the plugin's, 0 to 1. Records are written later than they are made. */
static double share_of(uint64_t calls, uint64_t records)
{
	return calls >= records ? calls > 0 : (double)calls / (double)records;
}

bool budget_window(struct budget *budget, uint64_t calls, struct budget_use *use)
{
	struct budget now;
	uint64_t span_ns;
	double share;

	if (clock_mono_ns() - budget->mono_ns < BUDGET_WINDOW_NS)
		return false;
	look(&now, calls);
	span_ns = now.mono_ns - budget->mono_ns;
	if (now.process_ns - budget->process_ns > span_ns)
		span_ns = now.process_ns - budget->process_ns;
	use->calls = calls - budget->calls;
	share = share_of(use->calls, now.records - budget->records);
	use->cost_ns = use->calls * budget_call_ns() + (uint64_t)(share * (double)(now.io_ns - budget->io_ns));
	use->bytes = (uint64_t)(share * (double)(now.bytes - budget->bytes));
	use->first = budget->first;
	use->pct = 100.0 * (double)use->cost_ns / (double)span_ns;
	*budget = now;
	return true;
}
