# SPDX-License-Identifier: MulanPSL-2.0
"""Size and segments (docs/safety.md 9): SYSTRACE_MAX_MB is kept under load, the live file has the documented name, closed
ones are numbered, the oldest go; readers join what is left. The long form writes and reads 3 GiB."""
# runner: timeout 240

import glob
import json
import os
import re

import harness as h
import jobs

h.require(h.AGENT, h.SYSTRACE)
PYTHON = list(h.pythons().values())[-1]
MB = 1 << 20


def sizes(dump):
    found = {}
    for path in glob.glob(os.path.join(dump, "timeline", "*")):
        try:
            found[path] = os.path.getsize(path)
        except FileNotFoundError:
            pass  # renamed between the two
    return found


def busy(text):
    """A job that writes several times its limit of 2 MiB, its total size looked at again and again."""
    dump = h.tmpdir()
    job = jobs.Job(PYTHON, h.preload_env(dump, SYSTRACE_MAX_MB=2, SYSTRACE_FORMAT="json" if text else "pb"))
    job.wait_attached()
    most = steps = 0
    while int(job.status().get("bytes")) < 5 * MB:
        h.check(steps < 1000000, "5 MiB were not written in %d steps" % steps)
        job.train(2000)
        steps += 2000
        most = max(most, sum(sizes(dump).values()))
        if steps % 10000 == 0:
            h.check_equal(job.ask("flush").code, 0, "flush")
    written = int(job.status().get("bytes"))
    job.quit().ok()
    most = max(most, sum(sizes(dump).values()))
    print("%.1f MiB written, never more than %.2f MiB there" % (written / MB, most / MB))
    h.check(written > 4 * MB, "only %d bytes were written" % written)
    h.check(most <= 2 * MB, "%d bytes were there" % most)
    return dump, steps


def check_segments(dump):
    live = h.find_one(dump, "timeline/*.timeline")
    closed = sorted((int(p.rsplit(".", 1)[1]), p) for p in glob.glob(live + ".*") if re.search(r"\.\d+$", p))
    h.check(len(closed) >= 2 and closed[0][0] > 1, "closed segments: %s" % closed)
    h.check_equal([n for n, _ in closed], list(range(closed[0][0], closed[-1][0] + 1)), "numbers of the closed segments")
    h.check(max(os.path.getsize(p) for _, p in closed) <= MB // 2, "a segment is a quarter of the limit at most")
    return [p for _, p in closed] + [live]


def test_limit_pb():
    dump, steps = busy(False)
    found = [n for p in check_segments(dump) for n in jobs.steps_in(p)]
    h.check_equal(found, sorted(set(found)), "steps of all segments, in order")
    h.check_equal(found[-1], steps, "last step")
    notes = "".join(h.decode_pb(p) for p in check_segments(dump)[-2:])
    h.check("SYSTRACE_MAX_MB reached" in notes, "no note about the segments that were removed")
    # readers take them as one
    out = os.path.join(h.tmpdir(), "out.json")
    h.run([h.SYSTRACE, "convert", "timeline", "--input", dump, "--output", out], timeout=120).ok()
    events = json.loads(h.read_file(out))
    events = events["traceEvents"] if isinstance(events, dict) else events
    names = [e for e in events if "autograd@backward" in str(e.get("name"))]
    text = sum(h.decode_pb(p).count('"torch@autograd@backward"') for p in check_segments(dump))
    h.check_equal(len(names), text, "stages in the converted file")


def test_limit_json():
    dump, _ = busy(True)
    for path in sizes(dump):
        json.loads(h.read_file(path))


BIG = r"""
/* Fills a pool and drains it until the files are <bytes> long: the data path of the agent, as fast as it goes. */
#include "safe/clock.h"
#include "spool/dir.h"
#include "spool/drain.h"
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv)
{
	struct spool_options place = { .size = sizeof(place), .place = argv[1], .chunks = 1024 };
	struct drain_options options = { .size = sizeof(options), .dump_path = argv[2] };
	struct msg_origin origin = { .run = msg_text("big"), .host = msg_text("box"), .pid = 1, .format = 1 };
	uint64_t bytes = strtoull(argv[3], NULL, 10), n = 0;
	struct drain_stats stats = { 0 };
	struct spool spool;
	struct pool pool;
	struct drain *d;
	uint32_t name;

	if (spool_create(&spool, &pool, &place, NULL) < 0)
		return 1;
	name = pool_intern(&pool, "model.layers.attention@Attention@forward", 40);
	options.pool = &pool;
	d = drain_new(&options, NULL);
	drain_identify(d, &origin, NULL);
	while (stats.bytes < bytes) {
		struct rec_stage rec = { .head = { .bytes = sizeof(rec), .type = REC_STAGE, .step = (uint32_t)(n / 1000) + 1 },
					 .begin_ns = clock_mono_ns(), .dur_ns = 60, .name = name, .stage_id = 1,
					 .kind = STAGE_FORWARD };

		if (pool_put(&pool, &rec, sizeof(rec), POOL_SRC_STAGE))
			n++;
		else if (drain_step(d, true, NULL) < 0)
			return 1;
		if (n % 4096 == 0)
			drain_stats(d, &stats);
	}
	while (drain_step(d, true, NULL) > 0)
		;
	drain_free(d);
	spool_remove(&spool);
	printf("%llu\n", (unsigned long long)n);
	return 0;
}
"""


def test_large_run():
    """3 GiB in segments of 128 MiB (16 MiB in the short form) are read to the end, each stage once."""
    size = 3 << 30 if h.FULL else 16 << 20
    directory = h.tmpdir()
    if os.statvfs(directory).f_bavail * os.statvfs(directory).f_frsize < 3 * size:
        h.skip("not enough room in %s" % directory)
    libs = [os.path.join(h.BUILD, "libst_%s.a" % s) for s in ("spool", "wire", "base", "safe")]
    h.require(*libs)
    tool = h.compile_c(BIG, os.path.join(directory, "big"), "-I" + os.path.join(h.ROOT, "src"), *libs)
    dump = os.path.join(directory, "dump")
    stages = int(h.run([tool, directory, dump, size], timeout=300).ok().out)
    total = sum(sizes(dump).values())
    h.check(total >= size, "%d bytes are there" % total)
    if h.FULL:
        h.check(len(sizes(dump)) > 20, "segments: %d" % len(sizes(dump)))
    done = h.run([h.SYSTRACE, "convert", "timeline", "--input", dump, "--output", os.path.join(directory, "out.pftrace"),
                  "--format", "perfetto", "--json"], timeout=560).ok()
    told = json.loads(done.out)
    h.check_equal((told["slices"], told["late"], told["torn"]), (stages, 0, False), "slices, late ones, torn")
    print("%d stages, %d bytes in %d segments: %s" % (stages, total, len(sizes(dump)), done.out.strip()))


h.main(test_limit_pb, test_limit_json, test_large_run)
