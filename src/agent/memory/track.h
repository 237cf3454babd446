/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What the plugin Memory knows of the job's blocks: which are sampled, which of them are alive, and the records about them.
 * The wrappers (memory/wrappers.c) ask here in one load and a subtraction whether a call may pass; plugin/memory.c
 * switches it. The table of live blocks is safe/blocks.h, that of mappings safe/regions.h.
 */
#ifndef AGENT_MEMORY_TRACK_H
#define AGENT_MEMORY_TRACK_H

#include "safe/blocks.h"
#include "safe/sampler.h"
#include "wire/record.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* initial-exec: touching it never allocates */
extern __thread struct sampler track_sampler __attribute__((tls_model("initial-exec")));

/** track_epoch - changes with every start, stop and new sampling rate; never 0 */
extern _Atomic uint32_t track_epoch;

/**
 * track_passes - true: an allocation of @bytes is not sampled, and that is counted; false: track_came() decides
 *
 * Called once for each allocation. Context: hook.
 */
static inline bool track_passes(size_t bytes)
{
	struct sampler *s = &track_sampler;

	if (s->epoch != atomic_load_explicit(&track_epoch, memory_order_relaxed) || bytes > s->left)
		return false;
	s->left -= bytes;
	return true;
}

/** track_came - the allocator gave a block, track_passes() having said false; NULL is fine. Context: hook; keeps errno. */
void track_came(void *block, size_t bytes);

/** track_went - a block for which blocks_maybe() is true is about to be freed. Context: hook; keeps errno. */
void track_went(void *block);

/** struct track_was - a block or a mapping between its end and what comes of it */
struct track_was {
	bool known;
	uintptr_t address;
	uint64_t at_ns;
	struct block block;
};

/* A block may be given back, or not, by a call that can fail: taken before it, then either put back or told. */
void track_take(void *block, struct track_was *was);
void track_put_back(const struct track_was *was);
void track_tell(const struct track_was *was);

/** track_mapped - mmap returned @at; what it replaced is forgotten first. Context: hook; keeps errno. */
void track_mapped(void *at, size_t bytes, int prot, int flags, const void *caller);

/** track_unmap - [@at, @at + @bytes) is about to go. Context: hook; keeps errno. */
void track_unmap(const void *at, size_t bytes);

/** track_take_map - the mapping that overlaps the range is about to be moved or resized; then as track_take() */
void track_take_map(const void *at, size_t bytes, struct track_was *was);
void track_put_back_map(const struct track_was *was);

/** track_moved - mremap made @bytes at @to of [@from, @from + @from_bytes), of which @was is what was known */
void track_moved(const struct track_was *was, const void *from, size_t from_bytes, void *to, size_t bytes);

/** struct track_options - of a capture */
struct track_options {
	uint64_t sample_bytes; /* mean bytes between samples; 1 = every block */
	uint32_t blocks; /* room for so many */
	bool stacks; /* with native and Python frames */
};

/** track_begin - forget all and take samples from now on; the hooks may be in already. Context: control thread. 0, -errno. */
int track_begin(const struct track_options *options);

/** track_set - new options while it runs; .blocks is not looked at. Context: control thread. */
void track_set(const struct track_options *options);

/** track_end - nothing passes from now on. Context: control thread. */
void track_end(void);

/** track_learn - whose malloc is it? Once the real functions are known. Context: thread. Return: false = not yet known. */
bool track_learn(void);

/** track_own_new - does the allocator bring operators new and delete of its own? Context: thread, after track_learn(). */
bool track_own_new(void);

/** struct track_sums - of the capture so far */
struct track_sums {
	uint64_t heap, mapped; /* live bytes: estimated from samples; exact */
	uint64_t blocks; /* live sampled ones */
	uint64_t came, went; /* sampled */
	uint64_t untracked; /* no room */
	uint64_t capacity;
	uint64_t period; /* mean bytes between samples, as of now */
	uint64_t cost; /* calls since the process began, in twentieths of a recorded call (agent/budget.h) */
};
void track_sums(struct track_sums *sums);

#endif
