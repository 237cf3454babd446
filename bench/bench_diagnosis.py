#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""What the diagnosis can do, and what it costs: scores on labelled clusters of seeds drawn at run time, speed and memory
of the localiser, and a large job made of one hour of a few ranks under many names (hard links, so that it needs no disk).

    python3 bench/bench_diagnosis.py --generator gen_cluster.py [--python PYTHON_WITH_NUMPY] [--seeds 5] [--seed N]
                                     [--parts base,adverse,speed,scale] [--scratch DIR] [--limit-gb 8]
"""

import argparse
import glob
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SYSTRACE = os.path.join(os.environ.get("ST_BUILD", os.path.join(ROOT, "build")), "systrace")
NOISES = ["dpvar", "overlap", "loss", "ragged", "missing", "skew",
          "dpvar overlap loss ragged skew jitter ckpt warmup gc hetero"]
# size (SHAPES), fault; of the links the ranks a and b, of the data-parallel groups their members
FAULTS = [("8", "compute:{r}:0.3:{t}"), ("16", "compute:{r}:0.1:{t}"), ("16", "launch:{r}:0.3:{t}"),
          ("16", "compute:{r}:0.05:{t}"), ("32", "dataloader:{r}:10:{t}"), ("16", ""), ("32", "compute:{r}:0.2:{t}:{e}"),
          ("8d", "launch:{r}:0.3:{t}"), ("8d", "compute:{r}:0.2:{t}"), ("16p", "comm:{a}+{b}:40:{t}"), ("32", ""),
          ("8t", "launch:{r}:0.2:{t}"), ("16", "hang:{r}:1:{t}")]
SHAPES = {"8": (4, 2, 1), "8d": (1, 8, 1), "8t": (8, 1, 1), "16": (4, 2, 2), "16p": (4, 1, 4), "32": (4, 4, 2)}


def generate(options, *args):
    subprocess.run([options.python, options.generator, *args], check=True, stdout=subprocess.DEVNULL)


def timed(*args):
    """Run; seconds of CPU, wall seconds and peak memory of just that child."""
    begin = time.monotonic()
    process = subprocess.Popen(args, stdout=subprocess.PIPE, text=True)
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return {"cpu_s": usage.ru_utime + usage.ru_stime, "wall_s": time.monotonic() - begin, "rss_mb": usage.ru_maxrss / 1024,
            "status": process.returncode, "out": text}


def judge(options, corpus, results):
    for directory in sorted(glob.glob(corpus + "/*/")):
        name = os.path.basename(directory.rstrip("/"))
        for command in ("failslow", "localize"):
            subprocess.run([SYSTRACE, command, "--input", directory, "--output", results + "/" + name],
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    table = os.path.join(results, "score.json")
    text = subprocess.run([options.python, options.generator, "score", "--corpus", corpus, "--results", results, "--json", table],
                          stdout=subprocess.PIPE, text=True, check=False).stdout
    with open(table, encoding="utf-8") as f:
        return json.load(f), [line for line in text.splitlines() if "WRONG" in line]


def suite_base(options, seed, corpus):
    generate(options, "corpus", "--seed", str(seed), "--out", corpus)


def suite_adverse(options, seed, corpus):
    rng = random.Random(seed)
    for n, noise in enumerate(NOISES):
        for m, (size, fault) in enumerate(FAULTS):
            tp, dp, pp = SHAPES[size]
            begin = rng.randrange(45, 65)
            ranks = tp * dp * pp
            link = rng.randrange(max(1, ranks - tp * dp))
            args = ["one", "--out", "%s/a%d-%d" % (corpus, n, m), "--name", "a%d-%d" % (n, m), "--ranks", str(ranks),
                    "--tp", str(tp), "--dp", str(dp), "--pp", str(pp), "--seed", str(rng.randrange(10**6)), "--noise", noise]
            if fault:
                args += ["--fault", fault.format(r=rng.randrange(ranks), t=begin, e=begin + 40,
                                                   a=link, b=link + tp * dp)]
            generate(options, *args)


ROWS = (("FailSlow F1", lambda r: r["failslow"]["f1"], (0.99, 0.97)),
        ("slow rank found, F1", lambda r: r["slow_rank_detection"]["f1"], (0.995, 0.98)),
        ("exact rank set and kind", lambda r: r["exact_and_kind"], (0.98, 0.94)),
        ("rank-level precision", lambda r: r["rank_level"]["precision"], (0.99, 0.97)),
        ("healthy scenarios that accuse somebody", lambda r: r["slow_rank_detection"]["fp"], (0, 0)),
        ("hangs found", lambda r: r["hang_recall"], (1, 1)),
        ("FailSlow delay, median", lambda r: r["delay_steps"]["p50"], (2, 2)),
        ("FailSlow delay, p90", lambda r: r["delay_steps"]["p90"], (3, 4)))


def print_table(scored, column):
    """Mean over the seeds, and the worst of them."""
    print("%-40s %8s %8s %8s" % ("", "goal", "mean", "worst"))
    for name, value_of, goals in ROWS:
        values = [value_of(r) for r in scored if value_of(r) is not None]
        if values:
            less = goals[column] in (0, 2, 3, 4)
            print("%-40s %8s %8.3f %8.3f" % (name, goals[column], sum(values) / len(values), max(values) if less else min(values)))


def scores(options, name, suite, column):
    print("== %s" % name)
    scored = []
    for seed in options.drawn:
        corpus, results = tempfile.mkdtemp(dir=options.scratch), tempfile.mkdtemp(dir=options.scratch)
        try:
            suite(options, seed, corpus)
            result, wrong = judge(options, corpus, results)
            scored.append(result)
            print("seed %d: %d scenarios, exact rank set and kind %.3f, %d wrong" % (seed, result["scenarios"], result["exact_and_kind"],
                                                                                 len(wrong)))
            for line in wrong:
                print("  " + line)
        finally:
            shutil.rmtree(corpus)
            shutil.rmtree(results)
        sys.stdout.flush()
    print_table(scored, column)


def rows_of(directory):
    total = 0
    for path in glob.glob(directory + "/mspti/*.csv"):
        with open(path, "rb") as f:
            total += sum(chunk.count(b"\n") for chunk in iter(lambda f=f: f.read(1 << 20), b""))
    return total


def speed(options):
    print("== speed: 256 ranks x 120 steps")
    source, out = tempfile.mkdtemp(dir=options.scratch), tempfile.mkdtemp(dir=options.scratch)
    try:
        generate(options, "one", "--out", source, "--ranks", "256", "--tp", "8", "--dp", "8", "--pp", "4", "--steps", "120",
                 "--fault", "compute:77:0.1:50", "--seed", str(options.drawn[0]))
        rows = rows_of(source)
        timed(SYSTRACE, "localize", "--input", source, "--output", out)
        runs = sorted((timed(SYSTRACE, "localize", "--input", source, "--output", out) for _ in range(5)),
                      key=lambda r: r["cpu_s"])
        best = runs[2]
        print("%d rows; median of five: %.2f s CPU (%.2f s wall), %.1f M rows/s a core, %.1f MB" % (
            rows, best["cpu_s"], best["wall_s"], rows / best["cpu_s"] / 1e6, best["rss_mb"]))
        print(best["out"].splitlines()[0])
    finally:
        shutil.rmtree(source)
        shutil.rmtree(out)


def scale(options):
    """An hour of 64 ranks, sixteen times under other names: 1 024 ranks' files to read, groups of 16 times the members."""
    print("== scale: 1 024 ranks x 1 h (64 ranks' files under 16 names each)")
    source, out = tempfile.mkdtemp(dir=options.scratch), tempfile.mkdtemp(dir=options.scratch)
    try:
        free = shutil.disk_usage(options.scratch).free
        if free < options.limit_gb << 30:
            print("left out: %s has less than %d GB free" % (options.scratch, options.limit_gb))
            return
        generate(options, "one", "--out", source, "--ranks", "64", "--tp", "8", "--dp", "4", "--pp", "2", "--steps", "1670",
                 "--fault", "compute:7:0.1:800", "--seed", str(options.drawn[0]))
        widen(source, 64, 16)
        rows = rows_of(source)
        got = timed(SYSTRACE, "localize", "--input", source, "--output", out, "--from", "1")
        print("%d rows: %.1f s CPU, %.1f s wall, %.1f M rows/s a core, %.0f MB" % (
            rows, got["cpu_s"], got["wall_s"], rows / got["cpu_s"] / 1e6, got["rss_mb"]))
    finally:
        shutil.rmtree(source)
        shutil.rmtree(out)


def widen(source, ranks, times):
    for path in glob.glob(source + "/mspti/*.csv"):
        stem, rank = re.fullmatch(r"(.*-)(\d+)\.csv", path).groups()
        for n in range(1, times):
            os.link(path, "%s%d.csv" % (stem, int(rank) + n * ranks))
    for path in glob.glob(source + "/timeline/*"):
        stem, rank = re.fullmatch(r"(.*--)(\d+)\.timeline", path).groups()
        with open(path, encoding="utf-8") as f:
            document = json.load(f)
        for n in range(1, times):
            document["rank"] = int(rank) + n * ranks
            with open("%s%05d.timeline" % (stem, document["rank"]), "w", encoding="utf-8") as f:
                json.dump(document, f)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--generator", help="gen_cluster.py, which makes labelled clusters; it is not part of this repository")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seed", type=int, help="first of the seeds, to repeat a run")
    parser.add_argument("--parts", default="base,adverse,speed,scale")
    parser.add_argument("--scratch", default=tempfile.gettempdir())
    parser.add_argument("--limit-gb", type=int, default=8)
    options = parser.parse_args()
    if not options.generator:
        print("skip: needs --generator")
        return 77
    first = options.seed if options.seed is not None else random.SystemRandom().randrange(1000, 10**6)
    options.drawn = [first + n for n in range(options.seeds)]
    print("seeds %s" % " ".join(map(str, options.drawn)))
    parts = {"base": lambda: scores(options, "base suite", suite_base, 0),
             "adverse": lambda: scores(options, "adverse suite", suite_adverse, 1),
             "speed": lambda: speed(options), "scale": lambda: scale(options)}
    for part in options.parts.split(","):
        parts[part]()


if __name__ == "__main__":
    main()
