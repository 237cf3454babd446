/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Any bytes as a file; the seeds are ftrace text of tracefs, trace-cmd report and the Ftrace plugin. */
#include "fuzz_ftrace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	return fuzz_ftrace(data, size);
}
