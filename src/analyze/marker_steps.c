/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Periods of operation sequences and their alignment between ranks (marker_steps.h). */
#include "analyze/marker_steps.h"
#include "analyze/stat.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_AT 65536 /* operations whose period is sought; the newest ones, beyond a start of another kind */
#define SAME_SHARE 0.95
#define PERIODS_MIN 4
#define PROBES 64
#define ALIGN_STEPS 256 /* steps compared per shift */
#define SHIFT_MAX 2048

/* Share of the sequence that equals itself k operations later; a few probes turn most lags away */
static bool repeats(const uint64_t *codes, size_t count, size_t k)
{
	size_t span = count - k, hop = span / PROBES + 1, i, probes = 0, same = 0;

	for (i = 0; i < span; i += hop, probes++)
		same += codes[i] == codes[i + k];
	if ((double)same < 0.9 * SAME_SHARE * (double)probes)
		return false;
	for (i = 0, same = 0; i < span; i++)
		same += codes[i] == codes[i + k];
	return (double)same >= SAME_SHARE * (double)span;
}

/* Place of the period at which its lexicographically smallest rotation begins (Booth): no rank chooses another one */
static size_t least_rotation(const uint64_t *codes, size_t k)
{
	size_t a = 0, b = 1, length = 0;

	while (a < k && b < k && length < k) {
		uint64_t x = codes[(a + length) % k], y = codes[(b + length) % k];

		if (x == y) {
			length++;
			continue;
		}
		if (x > y)
			a += length + 1;
		else
			b += length + 1;
		if (a == b)
			b++;
		length = 0;
	}
	return a < b ? a : b;
}

/* The period as most repetitions have it: at each place the code of two of three repetitions in the middle */
static uint64_t *usual_period(const uint64_t *codes, size_t count, size_t k, size_t from)
{
	uint64_t *period = malloc(k * sizeof(*period));
	size_t i;

	for (i = 0; period && i < k; i++) {
		uint64_t x = codes[from + i], y = codes[from + i + k];
		uint64_t z = from + i + 2 * k < count ? codes[from + i + 2 * k] : x;

		period[i] = x == y || x == z ? x : y;
	}
	return period;
}

size_t marker_steps_find(const uint64_t *codes, size_t count, size_t *start)
{
	size_t skipped = count > LOOK_AT ? count - LOOK_AT : 0, used = count - skipped, k, from;
	uint64_t *period;

	for (k = 1; k <= used / PERIODS_MIN && !repeats(codes + skipped, used, k); k++)
		;
	if (!used || k > used / PERIODS_MIN)
		return 0;
	from = skipped + used / 2;
	if (from + 2 * k > count)
		from = count - 2 * k;
	period = usual_period(codes, count, k, from);
	if (!period)
		return 0;
	*start = (from + least_rotation(period, k)) % k;
	free(period);
	return k;
}

/* Spread of the differences with one shift, INFINITY for too few common steps */
static double spread(const int64_t *begins, size_t count, const int64_t *reference, size_t reference_count, long shift,
		     double *scratch)
{
	size_t from = shift < 0 ? (size_t)-shift : 0, used = 0, common, hop, i;
	double base = 0;

	if (from >= count || (long)from + shift >= (long)reference_count)
		return INFINITY;
	common = count - from;
	if (common > reference_count - (size_t)((long)from + shift))
		common = reference_count - (size_t)((long)from + shift);
	if (common < 8 || 2 * common < (count < reference_count ? count : reference_count))
		return INFINITY;
	hop = common / ALIGN_STEPS + 1;
	for (i = from; i < from + common && used < ALIGN_STEPS; i += hop) {
		double diff = (double)(begins[i] - reference[(long)i + shift]);

		if (!used)
			base = diff; /* keeps the digits: offsets of hosts may be large */
		scratch[used++] = diff - base;
	}
	return stat_sigma(scratch, used, stat_median(scratch, used));
}

long marker_steps_shift(const int64_t *begins, size_t count, const int64_t *reference, size_t reference_count)
{
	double scratch[ALIGN_STEPS], best = INFINITY;
	long low = count < SHIFT_MAX ? -(long)count : -SHIFT_MAX, found = 0, shift;
	long high = reference_count < SHIFT_MAX ? (long)reference_count : SHIFT_MAX;

	for (shift = low; shift <= high; shift++) {
		double now = spread(begins, count, reference, reference_count, shift, scratch);

		if (now < best || (now == best && labs(shift) < labs(found))) {
			best = now;
			found = shift;
		}
	}
	return isfinite(best) ? found : 0;
}
