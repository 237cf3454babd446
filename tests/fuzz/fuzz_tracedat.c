/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Any bytes as a file; the seeds are trace.dat of both versions, byte orders and packings. */
#include "fuzz_ftrace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	return fuzz_ftrace(data, size);
}
