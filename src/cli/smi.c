/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Vendors' process lists; see smi.h. */
#include "cli/smi.h"

#include "base/num.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* `timeout` bounds a tool that waits for a hung device */
#define NPU_COMMAND "timeout 5 npu-smi info 2>/dev/null"
#define NVIDIA_COMMAND "timeout 5 nvidia-smi --query-compute-apps=pid --format=csv,noheader 2>/dev/null"

/* "| 0       0                 | 1868164       | python                   | 10240                   |" */
pid_t smi_parse_npu(const char *line)
{
	const char *cell = line[0] == '|' ? strchr(line + 1, '|') : NULL;
	char chip[32], id[32];
	uint64_t number, pid;
	size_t len;

	if (!cell || sscanf(line + 1, " %31[0-9 ]", chip) != 1 || sscanf(cell + 1, " %31s", id) != 1)
		return 0;
	/* rows of chips have another number of numbers in front: "0     910B3" */
	len = strspn(line + 1, " 0123456789");
	if (line + 1 + len != cell || num_u64(id, &pid) < 0 || pid == 0 || pid > INT32_MAX)
		return 0;
	if (num_u64_n(chip, strcspn(chip, " "), &number) < 0)
		return 0;
	/* a process row has a name in the next cell, a chip's second row ("0  | 0000:C1:00.0 |") no plain number here */
	cell = strchr(cell + 1, '|');
	return cell && strchr(cell + 1, '|') ? (pid_t)pid : 0;
}

pid_t smi_parse_nvidia(const char *line)
{
	size_t skip = strspn(line, " "), len = strspn(line + skip, "0123456789");
	uint64_t pid;

	if (!len || line[skip + len + strspn(line + skip + len, " \r\n")])
		return 0;
	return num_u64_n(line + skip, len, &pid) == 0 && pid <= INT32_MAX ? (pid_t)pid : 0;
}

static size_t ask(const char *command, pid_t (*parse)(const char *line), pid_t *pids, size_t count, size_t room)
{
	FILE *out = popen(command, "re");
	char line[512];

	while (out && fgets(line, sizeof(line), out)) {
		pid_t pid = parse(line);
		size_t i = 0;

		while (i < count && pids[i] != pid)
			i++;
		if (pid && i == count && count < room)
			pids[count++] = pid;
	}
	if (out)
		pclose(out);
	return count;
}

size_t smi_pids(pid_t *pids, size_t room)
{
	size_t count = ask(NPU_COMMAND, smi_parse_npu, pids, 0, room);

	return ask(NVIDIA_COMMAND, smi_parse_nvidia, pids, count, room);
}
