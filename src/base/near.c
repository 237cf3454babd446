/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Edit distance with swapped neighbours, on short words; see near.h. */
#include "base/near.h"

#include <string.h>

#define NEAR_MAX 32

static char fold(char c)
{
	if (c >= 'A' && c <= 'Z')
		return (char)(c - 'A' + 'a');
	return c == '_' ? '-' : c;
}

static unsigned min3(unsigned a, unsigned b, unsigned c)
{
	unsigned low = a < b ? a : b;

	return low < c ? low : c;
}

static unsigned distance(const char *a, size_t a_len, const char *b, size_t b_len)
{
	unsigned char row[NEAR_MAX + 1][NEAR_MAX + 1];

	for (size_t i = 0; i <= a_len; i++)
		row[i][0] = (unsigned char)i;
	for (size_t j = 0; j <= b_len; j++)
		row[0][j] = (unsigned char)j;
	for (size_t i = 1; i <= a_len; i++) {
		for (size_t j = 1; j <= b_len; j++) {
			unsigned cost = fold(a[i - 1]) != fold(b[j - 1]);
			unsigned best = min3(row[i - 1][j] + 1u, row[i][j - 1] + 1u, row[i - 1][j - 1] + cost);

			if (i > 1 && j > 1 && fold(a[i - 1]) == fold(b[j - 2]) && fold(a[i - 2]) == fold(b[j - 1]) &&
			    row[i - 2][j - 2] + 1u < best)
				best = row[i - 2][j - 2] + 1u;
			row[i][j] = (unsigned char)best;
		}
	}
	return row[a_len][b_len];
}

void near_offer(struct near *near, const char *candidate)
{
	size_t a_len = strlen(near->word), b_len = strlen(candidate);
	size_t shorter = a_len < b_len ? a_len : b_len;
	unsigned found, limit;

	if (shorter == 0 || a_len > NEAR_MAX || b_len > NEAR_MAX)
		return;
	limit = shorter <= 3 ? 1 : shorter <= 6 ? 2 : 3;
	found = distance(near->word, a_len, candidate, b_len);
	/* an unfinished word ("dur" for "duration") is near as well, but any closer one wins */
	if (found > limit && a_len >= 3 && a_len < b_len && distance(near->word, a_len, candidate, a_len) == 0)
		found = limit;
	if (found > limit || (near->best && found >= near->distance))
		return;
	near->best = candidate;
	near->distance = found;
}

bool near_same(const char *a, const char *b)
{
	for (; *a && fold(*a) == fold(*b); a++, b++)
		;
	return *a == '\0' && *b == '\0';
}
