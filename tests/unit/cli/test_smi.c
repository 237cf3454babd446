/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Lines of the vendors' tools, as those print them; only rows of processes have a pid. */
#include "cli/smi.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void npu_rows(void **state)
{
	static const struct {
		const char *line;
		pid_t pid;
	} rows[] = {
		{ "+------------------------------------------------------------------------------------------------+\n",
		  0 },
		{ "| npu-smi 23.0.rc3                 Version: 23.0.rc3                                            |\n",
		  0 },
		{ "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|\n",
		  0 },
		{ "| 0     910B3               | OK            | 93.5        39                0    / 0             |\n",
		  0 },
		{ "| 0                         | 0000:C1:00.0  | 0           0    / 0          3348 / 65536         |\n",
		  0 },
		{ "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |\n",
		  0 },
		{ "| 0       0                 | 1868164       | python                   | 10240                   |\n",
		  1868164 },
		{ "| 7       0                 | 99            | train.py                 | 128                     |\n",
		  99 },
		{ "| No running processes found in NPU 1                                                            |\n",
		  0 },
		{ "| 0       0                 | -3            | python                   | 10240                   |\n",
		  0 },
		{ "| 0       0                 | 99999999999   | python                   | 10240                   |\n",
		  0 },
		{ "", 0 },
		{ "|", 0 },
		{ "| 0 0 | 7", 0 },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		assert_int_equal(smi_parse_npu(rows[i].line), rows[i].pid);
}

static void nvidia_rows(void **state)
{
	assert_int_equal(smi_parse_nvidia("1234\n"), 1234);
	assert_int_equal(smi_parse_nvidia(" 77\r\n"), 77);
	assert_int_equal(smi_parse_nvidia("[N/A]\n"), 0);
	assert_int_equal(smi_parse_nvidia("No devices were found\n"), 0);
	assert_int_equal(smi_parse_nvidia("99999999999\n"), 0);
	assert_int_equal(smi_parse_nvidia("\n"), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(npu_rows),
		cmocka_unit_test(nvidia_rows),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
