/* SPDX-License-Identifier: MulanPSL-2.0 */
/* MSPTI marker CSV: pairing, forms of names, damage of every kind. */
#include "trace_fixture.h"

#include "trace/markers.h"

#define HEADER                                                                                        \
	"Flag,Id,Kind,Name,SourceKind,Timestamp,msptiObjectId_Ds_DeviceId,msptiObjectId_Ds_StreamId," \
	"msptiObjectId_Pt_ProcessId,msptiObjectId_Pt_ThreadId\n"
#define NAME "mspti-marker-10.0.0.1-3.csv"

static struct fixture *read_csv(void **state, const char *name, const char *csv)
{
	struct fixture *fx = *state;

	fx_write(fx, name, csv, strlen(csv));
	assert_int_equal(fx_read(fx), 0);
	return fx;
}

static void pairs_both_sides(void **state)
{
	struct fixture *fx =
		read_csv(state, NAME,
			 HEADER "16,1,1,comm:HcclAllGather!10.0.0.1%eth0_60000_0_17!bfp16!4096,0,1000,70,71,70,71\n"
				"32,1,1,,0,1500,70,71,70,71\n"
				"16,1,1,comm:HcclAllGather!10.0.0.1%eth0_60000_0_17!bfp16!4096,1,1200,5,9,5,9\n"
				"32,1,1,,1,1900,5,9,5,9\n");

	assert_string_equal(
		fx->text,
		"3/0 HcclAllGather 1000+500 c3 r3 s0 p70/71 q0 group=10.0.0.1%eth0_60000_0_17 dtype=bfp16 count=4096 id=1 side=host\n"
		"3/0 HcclAllGather 1200+700 c3 r3 s0 d5/9 q0 group=10.0.0.1%eth0_60000_0_17 dtype=bfp16 count=4096 id=1 side=device\n");
	assert_string_equal(fx->lines, "");
	assert_string_equal(ev_text(fx->session, fx->reader->origin.ip), "10.0.0.1");
	assert_false(fx->reader->stats.torn);
}

static void forms_of_names(void **state)
{
	struct fixture *fx = read_csv(
		state, NAME,
		HEADER
		"2,1,1,comm:HcclSend,g-1,fp32,8,0,100,7,7,7,7\n4,1,1,,0,101,7,7,7,7\n"
		"2,2,1,{\\\"opName\\\": \\\"HcclAllreduce\\\"!\\\"groupName\\\": \\\"g2\\\"!\\\"dataType\\\": \\\"fp32\\\"!"
		"\\\"count\\\": \\\"12\\\"!\\\"streamId\\\": \\\"5\\\"},0,200,7,7,7,7\n4,2,1,,0,201,7,7,7,7\n"
		"2,3,1,{\"count\": \"9\",\"opName\": \"HcclReduce\"},0,300,7,7,7,7\n4,3,1,,0,301,7,7,7,7\n"
		"1,4,1,step 12,0,400,7,7,7,7\n2,5,1,,0,500,7,7,7,7\n4,5,1,,0,501,7,7,7,7\n");

	assert_string_equal(fx->text,
			    "3/0 HcclSend 100+1 c3 r3 s0 p7/7 q0 group=g-1 dtype=fp32 count=8 id=1 side=host\n"
			    "3/0 HcclAllreduce 200+1 c3 r3 s0 p7/7 q0 group=g2 dtype=fp32 count=12 id=2 side=host\n"
			    "3/0 HcclReduce 300+1 c3 r3 s0 p7/7 q0 group= dtype= count=9 id=3 side=host\n"
			    "25/3 step 12 400+0 c3 r3 s0 p7/7 q0 id=4 side=host\n"
			    "25/0 marker 500+1 c3 r3 s0 p7/7 q0 id=5 side=host\n");
}

static void any_order_and_other_headers(void **state)
{
	struct fixture *fx =
		read_csv(state, "hccl_activity-10.0.0.7-.12.csv",
			 "Domain,Flag,Id,Kind,Name,SourceKind,Timestamp,msptiObjectId_Ds_DeviceId,"
			 "msptiObjectId_Ds_StreamId,msptiObjectId_Pt_ProcessId,msptiObjectId_Pt_ThreadId,More\r\n"
			 "communication,4,1,1,,0,150,7,8,7,8,x\r\n"
			 "communication,2,1,1,comm:HcclBroadcast!g!int8!1,0,100,7,8,7,8,x\r\n");

	assert_string_equal(fx->text,
			    "3/0 HcclBroadcast 100+50 c3 r12 s0 p7/8 q0 group=g dtype=int8 count=1 id=1 side=host\n");
	assert_string_equal(fx->lines, "");
}

static void damage_is_counted(void **state)
{
	struct fixture *fx = read_csv(state, NAME,
				      HEADER "2,1,1,a,0,100,7,7,7,7\n"
					     "garbage\n"
					     "64,2,1,b,0,100,7,7,7,7\n"
					     "2,3,2,kernel,0,100,7,7,7,7\n"
					     "2,4,1,b,0,0,7,7,7,7\n"
					     "4,5,1,,0,100,7,7,7,7\n"
					     "2,6,1,c,0,110,7,7,-1,-1\n"
					     "4,6,1,,0,120,7,7,7,7\n"
					     "2,7,1,torn,0,1");

	assert_string_equal(fx->text, "25/0 c 110+10 c3 r3 s0 p-1/-1 q0 id=6 side=host\n"
				      "25/1 a 100+0 c3 r3 s0 p7/7 q4 id=1 side=host\n");
	assert_string_equal(fx->lines, NAME ": 1 operations begun without an end (shown as open)\n" NAME
					    ": 1 ends without a begin left out\n" NAME
					    ": 1 rows with an unknown flag left out\n" NAME
					    ": 1 rows of another kind than marker left out\n" NAME
					    ": 1 rows without a time left out\n" NAME
					    ": 1 rows not of the ten columns left out, the first at byte 166\n" NAME
					    ": the last row is cut; the 7 rows before it were read\n");
	assert_true(fx->reader->stats.torn);
	assert_int_equal(fx->reader->stats.skipped, 5);
}

static void last_line_without_end(void **state)
{
	struct fixture *fx = read_csv(state, NAME, HEADER "2,1,1,a,0,100,7,12,7,12\n4,1,1,,0,130,7,12,7,12");

	assert_int_equal(fx->count, 1);
	assert_false(fx->reader->stats.torn);
	/* the copy of the object differs: cut within the last number */
	fx = read_csv(state, NAME, HEADER "2,1,1,a,0,100,7,12,7,12\n4,1,1,,0,130,7,12,7,1");
	assert_true(fx->reader->stats.torn);
}

/* More begun operations than the table holds: the oldest come out as open, the newest are still paired. */
static void table_is_bounded(void **state)
{
	struct fixture *fx = *state;
	char *csv = malloc(2 << 20);
	size_t used = (size_t)sprintf(csv, "%s", HEADER);
	int i;

	for (i = 1; i <= 10000; i++)
		used += (size_t)sprintf(csv + used, "2,%d,1,op,0,%d,7,7,7,7\n", i, 1000 + i);
	for (i = 9991; i <= 10000; i++)
		used += (size_t)sprintf(csv + used, "4,%d,1,,0,%d,7,7,7,7\n", i, 90000 + i);
	fx_write(fx, NAME, csv, used);
	free(csv);
	assert_int_equal(fx_read(fx), 0);
	assert_int_equal(fx->count, 10000);
	assert_non_null(strstr(fx->lines, "9990 operations begun without an end"));
	assert_memory_equal(fx->text, "25/1 op 1001+0 ", 15);
}

static void sidecar(void **state)
{
#ifndef HAVE_JANSSON
	skip();
#else
	static const char meta[] =
		"{\"origin\": {\"run\": \"r1\", \"host\": \"h\", \"rank\": 5, \"rank_known\": true, "
		"\"wall_minus_mono_ns\": -20, \"pid\": 9}, "
		"\"drops\": [{\"source\": \"markers\", \"count\": 17, \"from_ns\": 50, \"to_ns\": 60}, "
		"{\"source\": \"comm\", \"count\": 2}]}";
	struct fixture *fx = *state;

	fx_write(fx, NAME ".meta.json", meta, sizeof(meta) - 1);
	read_csv(state, NAME, HEADER "1,1,1,a,0,100,7,12,7,12\n");
	assert_string_equal(fx->text, "23/0 markers 50+10 c0 r5 s0 p-1/-1 q0 count=17\n"
				      "25/3 a 100+0 c3 r5 s0 p7/12 q0 id=1 side=host\n"
				      "23/0 comm 100+0 c3 r5 s0 p-1/-1 q0 count=2\n");
	assert_true(fx->reader->origin.known);
	assert_int_equal(fx->reader->origin.wall_minus_mono_ns, -20);
	assert_string_equal(ev_text(fx->session, fx->reader->origin.run), "r1");
	assert_int_equal(fx->reader->stats.lost, 19);
#endif
}

static void ranks_of_names(void **state)
{
	char ip[32];

	assert_int_equal(markers_rank_of_name("/a/mspti-marker-76.53.151.141-0.csv", ip, sizeof(ip)), 0);
	assert_string_equal(ip, "76.53.151.141");
	assert_int_equal(markers_rank_of_name("hccl_activity-10.0.0.1-.17.csv.gz", ip, sizeof(ip)), 17);
	assert_string_equal(ip, "10.0.0.1");
	assert_int_equal(markers_rank_of_name("x.csv", ip, sizeof(ip)), EV_NO_RANK);
	assert_int_equal(markers_rank_of_name("12.csv", ip, sizeof(ip)), EV_NO_RANK);
	assert_int_equal(markers_rank_of_name("a-99999999999999.csv", ip, sizeof(ip)), EV_NO_RANK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(pairs_both_sides, fx_setup, fx_teardown),
		cmocka_unit_test_setup_teardown(forms_of_names, fx_setup, fx_teardown),
		cmocka_unit_test_setup_teardown(any_order_and_other_headers, fx_setup, fx_teardown),
		cmocka_unit_test_setup_teardown(damage_is_counted, fx_setup, fx_teardown),
		cmocka_unit_test_setup_teardown(last_line_without_end, fx_setup, fx_teardown),
		cmocka_unit_test_setup_teardown(table_is_bounded, fx_setup, fx_teardown),
		cmocka_unit_test_setup_teardown(sidecar, fx_setup, fx_teardown),
		cmocka_unit_test(ranks_of_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
