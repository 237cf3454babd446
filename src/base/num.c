/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Strict text to number conversions; see num.h. strtoull is avoided: it takes signs, blanks and the locale. */
#include "base/num.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

int num_u64_n(const char *text, size_t len, uint64_t *value)
{
	uint64_t sum = 0;

	if (len == 0)
		return -EINVAL;
	for (size_t i = 0; i < len; i++)
		if (text[i] < '0' || text[i] > '9')
			return -EINVAL;
	for (size_t i = 0; i < len; i++)
		if (__builtin_mul_overflow(sum, (uint64_t)10, &sum) ||
		    __builtin_add_overflow(sum, (uint64_t)(text[i] - '0'), &sum))
			return -ERANGE;
	*value = sum;
	return 0;
}

int num_u64(const char *text, uint64_t *value)
{
	return num_u64_n(text, strlen(text), value);
}

int num_sec_ns(const char *text, uint64_t *ns)
{
	size_t whole = strcspn(text, ".");
	uint64_t seconds, part = 0;
	int ret = num_u64_n(text, whole, &seconds);

	if (ret < 0)
		return ret;
	if (text[whole] == '.') {
		const char *digits = text + whole + 1;
		size_t count = strlen(digits), used = count < 9 ? count : 9;

		if (count == 0 || strspn(digits, "0123456789") != count)
			return -EINVAL;
		num_u64_n(digits, used, &part);
		for (; used < 9; used++)
			part *= 10;
	}
	if (__builtin_mul_overflow(seconds, (uint64_t)1000000000, &seconds) ||
	    __builtin_add_overflow(seconds, part, &seconds))
		return -ERANGE;
	*ns = seconds;
	return 0;
}

int num_bool(const char *text, bool *value)
{
	static const char *const words[] = { "0", "1", "false", "true", "off", "on", "no", "yes" };

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		if (strcasecmp(text, words[i]) == 0) {
			*value = i & 1;
			return 0;
		}
	}
	return -EINVAL;
}

int num_bytes(const char *text, uint64_t *bytes)
{
	static const char units[] = "KMGT";
	size_t len = strlen(text);
	unsigned shift = 0;
	uint64_t value;
	int ret;

	if (len > 1 && (text[len - 1] == 'B' || text[len - 1] == 'b'))
		len--;
	for (unsigned i = 0; len > 1 && units[i]; i++) {
		if (text[len - 1] == units[i] || text[len - 1] == units[i] + ('a' - 'A')) {
			shift = 10 * (i + 1);
			len--;
			break;
		}
	}
	ret = num_u64_n(text, len, &value);
	if (ret < 0)
		return ret;
	if (shift && value >> (64 - shift))
		return -ERANGE;
	*bytes = value << shift;
	return 0;
}
