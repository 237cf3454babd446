/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Walks `0-3,5`; see cpulist.h. */
#include "base/cpulist.h"

#include "base/num.h"

#include <errno.h>
#include <string.h>

#define CPU_MAX 65535u

static int take_number(const char **at, uint32_t *value)
{
	size_t len = strspn(*at, "0123456789");
	uint64_t number;

	if (num_u64_n(*at, len, &number) < 0 || number > CPU_MAX)
		return -EINVAL;
	*value = (uint32_t)number;
	*at += len;
	return 0;
}

int cpulist_next(const char **at, uint32_t *first, uint32_t *last)
{
	if (**at == '\0')
		return 0;
	if (take_number(at, first) < 0)
		return -EINVAL;
	*last = *first;
	if (**at == '-') {
		(*at)++;
		if (take_number(at, last) < 0 || *last < *first)
			return -EINVAL;
	}
	if (**at == '\0')
		return 1;
	if (**at != ',' || (*at)[1] == '\0')
		return -EINVAL;
	(*at)++;
	return 1;
}

int cpulist_check(const char *text)
{
	uint32_t first, last;
	int ret;

	if (*text == '\0')
		return -EINVAL;
	while ((ret = cpulist_next(&text, &first, &last)) == 1)
		;
	return ret;
}
