/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Who a process is: parsers of /proc texts, composition of run ids, binding of ranks (design 3 and 4). */
#include "agent/env.h"
#include "agent/identity.h"
#include "agent/meta.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static void job_is(const char *cmdline, size_t len, const char *want)
{
	char out[96];

	identity_parse_job(cmdline, len, out, sizeof(out));
	assert_string_equal(out, want);
}
#define JOB(cmdline, want) job_is(cmdline, sizeof(cmdline), want)

static void test_job(void **state)
{
	JOB("/usr/bin/python3\0train.py\0--lr\0"
	    "1",
	    "train.py");
	JOB("python\0-u\0-X\0dev\0/home/me/train.py", "train.py");
	JOB("python3.11\0-m\0megatron.train\0--x", "megatron.train");
	JOB("python3\0-mpkg.train", "pkg.train");
	JOB("python3\0-c\0import torch", "-c");
	JOB("python3\0-W\0ignore\0-u\0a.py", "a.py");
	JOB("python3", "python3");
	JOB("python3\0-m", "-m");
	JOB("python3\0-X", "python3");
	JOB("/opt/llm/server\0--port\0"
	    "80",
	    "server");
	job_is("", 0, "");
}

static void test_nspid(void **state)
{
	char out[96];

	identity_parse_nspid("Name:\tx\nNSpid:\t4711\t17\t1\nNSpgid:\t9\n", out, sizeof(out));
	assert_string_equal(out, "4711 17 1");
	identity_parse_nspid("Name:\tNSpid:\n", out, sizeof(out));
	assert_string_equal(out, "");
	identity_parse_nspid("A\nNSpid:\t12345678\t12345678", out, 12);
	assert_true(strlen(out) < 12);
}

static void test_ppid(void **state)
{
	assert_int_equal(identity_parse_ppid("17 (sh) S 4 17 17"), 4);
	assert_int_equal(identity_parse_ppid("17 (a) b (c) S) R 55 17"), 55);
	assert_int_equal(identity_parse_ppid("17 sh S 4"), 0);
	assert_int_equal(identity_parse_ppid(""), 0);
}

static void test_iface(void **state)
{
	static const char route[] = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
				    "eth1\t0000FEA9\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
				    "eth0\t00000000\t0100A8C0\t0003\t0\t0\t200\t00000000\t0\t0\t0\n"
				    "bond0\t00000000\t0100A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n";
	char out[32];

	identity_default_iface(route, out, sizeof(out));
	assert_string_equal(out, "bond0");
	identity_default_iface("Iface\nlo\tgarbage\n", out, sizeof(out));
	assert_string_equal(out, "");
	identity_default_iface("", out, sizeof(out));
	assert_string_equal(out, "");
}

static const char *const *given; /* name, value, ..., NULL */

static int get(const char *name, char *out, size_t room)
{
	int i;

	for (i = 0; given[i]; i += 2) {
		if (!strcmp(given[i], name))
			return snprintf(out, room, "%s", given[i + 1]);
	}
	return -ENOENT;
}

static void run_is(const char *const *vars, const char *want)
{
	char out[128];

	given = vars;
	identity_run(get, 1700000000, out, sizeof(out));
	assert_string_equal(out, want);
}
#define RUN(want, ...) run_is((const char *const[]){ __VA_ARGS__, NULL }, want)

static void test_run_id(void **state)
{
	RUN("mine", "SYSTRACE_RUN_ID", "mine", "TORCHELASTIC_RUN_ID", "t", "SLURM_JOB_ID", "5");
	RUN("t.2", "TORCHELASTIC_RUN_ID", "t", "TORCHELASTIC_RESTART_COUNT", "2", "SLURM_JOB_ID", "5");
	RUN("t.0", "TORCHELASTIC_RUN_ID", "t");
	/* torchrun's default says nothing */
	RUN("slurm-5", "TORCHELASTIC_RUN_ID", "none", "SLURM_JOB_ID", "5", "MASTER_ADDR", "h");
	RUN("h:29500@1700000000", "TORCHELASTIC_RUN_ID", "none", "MASTER_ADDR", "h", "MASTER_PORT", "29500");
	RUN("h:0@1700000000", "MASTER_ADDR", "h", "MASTER_PORT", "");
	snprintf(identity.host, sizeof(identity.host), "node7");
	identity.pid = 12;
	identity.proc_start_unix = 1600000000;
	run_is((const char *const[]){ NULL }, "node7:12@1600000000");
}

static void test_start_is_this_process(void **state)
{
	identity_start();
	assert_int_equal(identity.pid, getpid());
	assert_int_equal(strlen(identity.boot_id), 36);
	assert_true(identity.proc_start > 0);
	assert_true(identity.proc_start_unix > 1600000000);
	assert_true(identity.pidns > 0);
	assert_non_null(strstr(identity.job, "test_identity"));
	assert_int_equal(atoi(strrchr(identity.pids, ' ') ? strrchr(identity.pids, ' ') + 1 : identity.pids), getpid());
}

static void clear_ranks(void)
{
	const char *const *name;

	for (name = env_rank_names; *name; name++)
		unsetenv(*name);
	for (name = env_local_rank_names; *name; name++)
		unsetenv(*name);
	for (name = env_world_names; *name; name++)
		unsetenv(*name);
}

static void test_binding(void **state)
{
	uint32_t rank;

	clear_ranks();
	identity_bind_again();
	identity_bind();
	assert_false(identity.rank_known);
	assert_int_equal(identity.rank, 0);

	identity_bind_again();
	setenv("SLURM_PROCID", "9", 1);
	setenv("OMPI_COMM_WORLD_RANK", "4", 1);
	setenv("PMI_RANK", "x", 1);
	setenv("SLURM_LOCALID", "2", 1);
	setenv("WORLD_SIZE", "16", 1);
	identity_bind();
	assert_true(identity.rank_known);
	assert_int_equal(identity.rank, 4);
	assert_int_equal(identity.local_rank, 2);
	assert_int_equal(identity.world_size, 16);
	assert_false(identity_late_hint(&rank));

	/* bound once: neither the environment nor the group changes it, but the difference is seen */
	setenv("RANK", "7", 1);
	identity_bind();
	assert_int_equal(identity.rank, 4);
	identity_hint(11, 32);
	identity_bind();
	assert_int_equal(identity.rank, 4);
	assert_true(identity_late_hint(&rank));
	assert_int_equal(rank, 11);

	/* the process group outranks the environment */
	identity_bind_again();
	identity_bind();
	assert_int_equal(identity.rank, 11);
	assert_int_equal(identity.world_size, 32);
	assert_int_equal(identity.source, RANK_BY_GROUP);
	assert_false(identity_late_hint(&rank));
	clear_ranks();
}

static void test_path_parts(void **state)
{
	char out[8];

	meta_part(out, sizeof(out), "a b/c:d");
	assert_string_equal(out, "a_b_c_d");
	meta_part(out, sizeof(out), "../../etc");
	assert_string_equal(out, "_._.._e");
	meta_part(out, sizeof(out), "0123456789");
	assert_string_equal(out, "0123456");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_job),	cmocka_unit_test(test_nspid),
		cmocka_unit_test(test_ppid),	cmocka_unit_test(test_iface),
		cmocka_unit_test(test_run_id),	cmocka_unit_test(test_start_is_this_process),
		cmocka_unit_test(test_binding), cmocka_unit_test(test_path_parts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
