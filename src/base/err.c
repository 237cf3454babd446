/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Error texts; see err.h. */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>

int err_set(struct st_err *err, int code, const char *format, ...)
{
	va_list args;

	if (!err)
		return code;
	err->code = code;
	va_start(args, format);
	vsnprintf(err->text, sizeof(err->text), format, args);
	va_end(args);
	return code;
}
