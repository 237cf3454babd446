/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The families of contract 19: one operation's names in every library meet, and look-alikes stay out. */
#include "wire/op_family.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const struct {
	const char *name;
	enum op_family family;
} known[] = {
	{ "all_reduce", OP_ALL_REDUCE },
	{ "all_reduce_coalesced", OP_ALL_REDUCE },
	{ "all_reduce_multigpu", OP_ALL_REDUCE },
	{ "HcclAllreduce", OP_ALL_REDUCE }, /* torch_npu writes a lower r */
	{ "HcclAllReduce", OP_ALL_REDUCE },
	{ "ncclAllReduce", OP_ALL_REDUCE },
	{ "c10d::allreduce_", OP_ALL_REDUCE },
	{ "c10d::allreduce_coalesced_", OP_ALL_REDUCE },
	{ "nccl:all_reduce", OP_ALL_REDUCE },
	{ "gloo:all_reduce", OP_ALL_REDUCE },
	{ "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long)", OP_ALL_REDUCE },
	{ "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", OP_ALL_REDUCE },
	{ "all_gather", OP_ALL_GATHER },
	{ "all_gather_into_tensor", OP_ALL_GATHER },
	{ "_all_gather_base", OP_ALL_GATHER },
	{ "c10d::_allgather_base_", OP_ALL_GATHER },
	{ "all_gather_object", OP_ALL_GATHER },
	{ "all_gather_coalesced", OP_ALL_GATHER },
	{ "HcclAllGather", OP_ALL_GATHER },
	{ "HcclAllGatherV", OP_ALL_GATHER },
	{ "HCCLALLGATHER", OP_ALL_GATHER },
	{ "ncclAllGather", OP_ALL_GATHER },
	{ "reduce_scatter", OP_REDUCE_SCATTER },
	{ "reduce_scatter_tensor", OP_REDUCE_SCATTER },
	{ "_reduce_scatter_base", OP_REDUCE_SCATTER },
	{ "HcclReduceScatterV", OP_REDUCE_SCATTER },
	{ "reduce", OP_REDUCE },
	{ "HcclReduce", OP_REDUCE },
	{ "broadcast", OP_BROADCAST },
	{ "broadcast_object_list", OP_BROADCAST },
	{ "ncclBcast", OP_BROADCAST },
	{ "gather", OP_GATHER },
	{ "gather_object", OP_GATHER },
	{ "scatter", OP_SCATTER },
	{ "scatter_object_list", OP_SCATTER },
	{ "all_to_all", OP_ALL_TO_ALL },
	{ "all_to_all_single", OP_ALL_TO_ALL },
	{ "c10d::alltoall_base_", OP_ALL_TO_ALL },
	{ "HcclAlltoAllV", OP_ALL_TO_ALL },
	{ "HcclAlltoAllVC", OP_ALL_TO_ALL },
	{ "barrier", OP_BARRIER },
	{ "monitored_barrier", OP_BARRIER },
	{ "HcclBarrier", OP_BARRIER },
	{ "send", OP_SEND },
	{ "isend", OP_SEND },
	{ "ncclSend", OP_SEND },
	{ "recv", OP_RECV },
	{ "irecv", OP_RECV },
	{ "HcclReceive", OP_RECV },
	{ "c10d::recv_any_source_", OP_RECV },
	{ "batch_isend_irecv", OP_BATCH_P2P },
	{ "HcclBatchSendRecv", OP_BATCH_P2P },
	{ "ncclDevKernel_SendRecv(ncclDevComm*)", OP_BATCH_P2P },
};

static void every_name_meets_its_family(void **state)
{
	size_t i;

	for (i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (op_family_of(known[i].name, strlen(known[i].name)) != known[i].family)
			fail_msg("%s: family %d, want %d", known[i].name,
				 op_family_of(known[i].name, strlen(known[i].name)), known[i].family);
}

static void other_words_are_unknown(void **state)
{
	static const char *const others[] = {
		"",	      "reduce_lr_on_plateau", "scatter_add",  "sender", "matmul", "step 12",
		"dataloader", "allreducer",	      "HcclCommInit", "nccl",	"::",	  "reduce_max"
	};
	size_t i;

	for (i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		if (op_family_of(others[i], strlen(others[i])) != OP_UNKNOWN)
			fail_msg("%s is taken for %s", others[i],
				 op_family_name(op_family_of(others[i], strlen(others[i]))));
}

static void length_ends_the_name(void **state)
{
	assert_int_equal(op_family_of("all_gather!0!float32!12", 10), OP_ALL_GATHER);
	assert_int_equal(op_family_of("all_gather!0!float32!12", 23), OP_UNKNOWN);
}

static void very_long_names_are_survived(void **state)
{
	char name[4096];

	memset(name, 'a', sizeof(name));
	assert_int_equal(op_family_of(name, sizeof(name)), OP_UNKNOWN);
	memcpy(name, "ncclKernel_AllReduce_", 21);
	assert_int_equal(op_family_of(name, sizeof(name)), OP_ALL_REDUCE);
}

static void base_names_are_of_their_own_family(void **state)
{
	int family;

	for (family = OP_UNKNOWN + 1; family < OP_FAMILY_COUNT; family++) {
		const char *name = op_family_name((enum op_family)family);

		assert_int_equal(op_family_of(name, strlen(name)), family);
	}
	assert_string_equal(op_family_name(OP_UNKNOWN), "");
	assert_string_equal(op_family_name((enum op_family)1000), "");
	assert_true(op_family_p2p(OP_SEND) && op_family_p2p(OP_BATCH_P2P) && !op_family_p2p(OP_BROADCAST));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_name_meets_its_family),
		cmocka_unit_test(other_words_are_unknown),
		cmocka_unit_test(length_ends_the_name),
		cmocka_unit_test(very_long_names_are_survived),
		cmocka_unit_test(base_names_are_of_their_own_family),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
