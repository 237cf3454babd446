/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What a finding costs the job (localize_impl.h): ranks of the same work wait for the slowest of them in each step, so the step
 * is shorter by what the slowest one has above the next slowest, once it is as quick as its peers. That ignores that other
 * ranks may be last at other operations of the same step: the true gain is at least what is said here.
 */
#include "analyze/localize_impl.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum cured { CURED_NONE, CURED_ONE, CURED_OTHERS, CURED_ALL };

static double value_of(const struct loc_cell *c, enum loc_kind kind)
{
	return kind == LOC_DATALOADER ? c->load : kind == LOC_CKPT ? c->ckpt : c->own;
}

static bool is_accused(const struct localize *loc, int32_t rank, enum loc_kind kind)
{
	size_t i;

	for (i = 0; i < loc->findings_count; i++) {
		const struct loc_finding *f = &loc->findings[i];
		bool own = f->kind == LOC_COMPUTE || f->kind == LOC_LAUNCH;

		if (f->rank == rank && (f->kind == kind || (own && (kind == LOC_COMPUTE || kind == LOC_LAUNCH))))
			return true;
	}
	return false;
}

/** struct peers - the ranks that a finding's rank is waited for by */
struct peers {
	const struct loc_rank **ranks;
	bool *accused;
	size_t count;
	size_t self;
	double *scratch;
};

static int find_peers(const struct localize *loc, const struct loc_finding *f, struct peers *p)
{
	const struct loc_rank *self = loc_rank_by_number(loc, f->rank);
	bool all = f->kind == LOC_DATALOADER || f->kind == LOC_CKPT;
	size_t i;

	p->ranks = malloc((loc->ranks_count + 1) * sizeof(*p->ranks));
	p->accused = malloc((loc->ranks_count + 1) * sizeof(*p->accused));
	p->scratch = malloc((loc->ranks_count + 1) * sizeof(*p->scratch));
	if (!self || !p->ranks || !p->accused || !p->scratch)
		return -ENOMEM;
	for (i = 0; i < loc->ranks_count; i++) {
		const struct loc_rank *r = loc->ranks[i];

		if (r != self && !all && (!r->inner || r->class_root != self->class_root))
			continue;
		if (r == self)
			p->self = p->count;
		p->accused[p->count] = r == self || is_accused(loc, r->rank, f->kind);
		p->ranks[p->count++] = r;
	}
	return 0;
}

static void peers_fini(struct peers *p)
{
	free(p->ranks);
	free(p->accused);
	free(p->scratch);
}

/* The slowest of a step when some are as quick as their peers; NAN = unknown */
static double slowest(const struct peers *p, enum loc_kind kind, uint32_t step, enum cured cured)
{
	double most = NAN, reference;
	size_t i, known = 0;

	for (i = 0; i < p->count; i++) {
		const struct loc_cell *c = loc_cell_at(p->ranks[i], step);

		if (c && !isnan(value_of(c, kind)))
			p->scratch[known++] = value_of(c, kind);
	}
	reference = loc_reference(p->scratch, known);
	for (i = 0; i < p->count; i++) {
		const struct loc_cell *c = loc_cell_at(p->ranks[i], step);
		double value = c ? value_of(c, kind) : NAN;
		bool quick = i == p->self ? cured == CURED_ONE || cured == CURED_ALL
					  : p->accused[i] && (cured == CURED_OTHERS || cured == CURED_ALL);

		if (quick && value > reference)
			value = reference;
		most = isnan(most) || value > most ? value : most;
	}
	return most;
}

static double step_time(const struct localize *loc, const struct loc_rank *r, uint32_t step)
{
	const struct loc_cell *c = loc_cell_at(r, step);

	return c && c->ms > 0 ? c->ms : loc->step_ms;
}

static int cost_of(const struct localize *loc, struct loc_finding *f)
{
	struct peers p = { 0 };
	double total = 0;
	uint32_t step;
	int ret = find_peers(loc, f, &p);

	for (step = f->onset_step; !ret && step <= f->last_step; step++) {
		double one = slowest(&p, f->kind, step, CURED_NONE) - slowest(&p, f->kind, step, CURED_ONE);
		double last = slowest(&p, f->kind, step, CURED_OTHERS) - slowest(&p, f->kind, step, CURED_ALL);

		f->saved_ms += isnan(one) ? 0 : one;
		f->cost_ms += isnan(last) ? 0 : last;
		total += step_time(loc, p.ranks[p.self], step);
	}
	if (f->kind == LOC_COMM) /* a transfer is nobody's waiting: all of it is gained */
		f->saved_ms = f->cost_ms = f->lost_ms * (f->last_step - f->onset_step + 1);
	if (total > 0)
		f->saved_share = fmin(1, f->saved_ms / total);
	peers_fini(&p);
	return ret;
}

static int by_cost(const void *a, const void *b)
{
	const struct loc_finding *x = a, *y = b;

	if (x->cost_ms != y->cost_ms)
		return x->cost_ms < y->cost_ms ? 1 : -1;
	if (x->kind != y->kind)
		return (int)x->kind - (int)y->kind;
	return (x->rank > y->rank) - (x->rank < y->rank);
}

int loc_what_if(struct localize *loc)
{
	size_t i;
	int ret = 0;

	for (i = 0; i < loc->findings_count && !ret; i++)
		if (loc->findings[i].kind != LOC_HANG)
			ret = cost_of(loc, &loc->findings[i]);
	if (!ret && loc->findings_count && !loc->options.judge)
		qsort(loc->findings, loc->findings_count, sizeof(loc->findings[0]), by_cost);
	return ret;
}
