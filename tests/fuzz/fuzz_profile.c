/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Any bytes as a file; the seeds are a profiler's trace and a job's timeline. */
#include "fuzz_reader.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	return fuzz_bytes(data, size);
}
