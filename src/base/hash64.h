/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * A 64-bit hash of byte strings for in-memory tables. Callers are interning tables of the tools; the value is never
 * written to a file, so it may differ between machines and versions.
 */
#ifndef BASE_HASH64_H
#define BASE_HASH64_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/** hash64_mix - both halves of a 128-bit product folded into one. Context: any. */
static inline uint64_t hash64_mix(uint64_t a, uint64_t b)
{
	unsigned __int128 product = (unsigned __int128)a * b;

	return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/** hash64 - hash of @len bytes, 8 at a time; not meant to resist chosen input. Context: any. */
static inline uint64_t hash64(const void *data, size_t len)
{
	const unsigned char *p = data;
	uint64_t hash = 0x9e3779b97f4a7c15u ^ len;
	uint64_t word;

	while (len >= 8) {
		memcpy(&word, p, 8);
		hash = hash64_mix(hash ^ word, 0xd6e8feb86659fd93u);
		p += 8;
		len -= 8;
	}
	word = 0;
	memcpy(&word, p, len);
	return hash64_mix(hash ^ word, 0xa0761d6478bd642fu);
}

#endif
