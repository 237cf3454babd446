/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Poisson sampling by bytes; see sampler.h. */
#include "safe/sampler.h"

#include <string.h>

#define LN2 0.69314718055994530942

void sampler_seed(struct sampler *s, uint64_t seed)
{
	/* splitmix64: neighbouring seeds give unrelated states */
	seed += 0x9e3779b97f4a7c15ull;
	seed = (seed ^ (seed >> 30)) * 0xbf58476d1ce4e5b9ull;
	seed = (seed ^ (seed >> 27)) * 0x94d049bb133111ebull;
	seed ^= seed >> 31;
	s->random = seed ? seed : 1;
}

/* xorshift64*: 64 bits of which the upper ones are good */
static uint64_t next_random(struct sampler *s)
{
	uint64_t x = s->random;

	x ^= x >> 12;
	x ^= x << 25;
	x ^= x >> 27;
	s->random = x;
	return x * 0x2545f4914f6cdd1dull;
}

/* Natural logarithm of 0 < x <= 1 to 1e-13: x = m 2^e with m in [sqrt(1/2), sqrt(2)), ln m = 2 artanh((m-1)/(m+1)). */
static double ln(double x)
{
	uint64_t bits;
	double m, t, t2, sum = 0;
	int e, k;

	memcpy(&bits, &x, sizeof(bits));
	e = (int)(bits >> 52 & 0x7ff) - 1023;
	bits = (bits & 0xfffffffffffffull) | 0x3ff0000000000000ull;
	memcpy(&m, &bits, sizeof(m));
	if (m > 1.4142135623730951) {
		m /= 2;
		e++;
	}
	t = (m - 1) / (m + 1);
	t2 = t * t;
	for (k = 17; k > 0; k -= 2)
		sum = sum * t2 + 1.0 / k;
	return 2 * t * sum + e * LN2;
}

uint64_t sampler_draw(struct sampler *s, uint64_t period)
{
	/* 53 random bits, never 0 */
	double u = ((double)(next_random(s) >> 11) + 1) / 9007199254740992.0;

	if (period <= 1)
		return 0;
	return (uint64_t)(-ln(u) * (double)period);
}

/* 1 - exp(-x) for x >= 0 to 1e-13 relative: series of x / 2^n, then 1 - (1 - y)^2 n times. */
static double hit_probability(double x)
{
	double y, term;
	int n = 0, k;

	if (x > 40)
		return 1;
	for (; x > 0.25; x /= 2)
		n++;
	y = term = x;
	for (k = 2; k < 12; k++) {
		term *= -x / k;
		y += term;
	}
	for (; n; n--)
		y = y * (2 - y);
	return y;
}

uint64_t sampler_weight(uint64_t bytes, uint64_t period)
{
	if (period <= 1 || !bytes)
		return bytes;
	return (uint64_t)((double)bytes / hit_probability((double)bytes / (double)period) + 0.5);
}
