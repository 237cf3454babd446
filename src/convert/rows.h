/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Growing arrays of the tables that the convert commands print. */
#ifndef CONVERT_ROWS_H
#define CONVERT_ROWS_H

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/**
 * rows_grow - room for one more row
 * @array: address of the pointer to the rows
 * @room: rows that fit; doubled where @count has reached it
 * @size: bytes of a row; new ones are not zeroed
 *
 * Return: 0 or -ENOMEM, nothing having changed.
 */
static inline int rows_grow(void *array, uint32_t count, uint32_t *room, size_t size)
{
	uint32_t more = *room ? *room * 2 : 32;
	void *rows;

	if (count < *room)
		return 0;
	memcpy(&rows, array, sizeof(rows)); /* it is a pointer to whatever */
	rows = realloc(rows, more * size);
	if (!rows)
		return -ENOMEM;
	memcpy(array, &rows, sizeof(rows));
	*room = more;
	return 0;
}

#endif
