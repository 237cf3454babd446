# SPDX-License-Identifier: MulanPSL-2.0
"""systrace analyze sched: a made-up machine is played through and written down as ftrace text; the report must hold what the
player knows, whole and in a window, from text and from a converted database; workbook, result tables, messages."""

import json
import os
import random
import sqlite3
import xml.etree.ElementTree as ET
import zipfile

import harness as h

h.require(h.SYSTRACE)
TMP = h.tmpdir()
FIRST = 5_000_000_000_123


class Machine:
    """CPUs and tasks with random lives. Knows each stretch of time: what the trace tells, a report must sum up."""

    NAMES = ["python3", "pt_data work", "a:b-c", "kworker/0:1", "<x> [y]", "x=1 next", "nccl", "ninja", "zz"]

    def __init__(self, seed, cpus=3, steps=4000):
        self.rng = random.Random(seed)
        self.now, self.lines = FIRST, []
        self.spans = []  # (state, comm, pid, cpu, begin, end)
        self.on_cpu = []  # (pid, cpu, begin, end)
        self.switches, self.wakes, self.irqs, self.preemptions, self.waits = [], [], [], [], []
        self.tasks = {100 + i: dict(pid=100 + i, comm=n, state=None, cpu=None, since=0, why=None, woken=None, by=None)
                      for i, n in enumerate(self.NAMES)}
        self.cpus = [dict(n=n, task=None, since=None) for n in range(cpus)]
        for cpu in self.cpus:
            self.tick()
            self.line(cpu, "sched_stat_runtime: comm=idle pid=0 runtime=0 [ns]")
            cpu["since"] = self.now
        for _ in range(steps):
            self.tick()
            self.rng.choice([self.wake, self.switch, self.switch, self.irq, self.rename])()
        self.tick()
        self.line(self.cpus[0], "sched_stat_runtime: comm=idle pid=0 runtime=0 [ns]")
        for cpu in self.cpus:
            self.leave(cpu)
        for task in self.tasks.values():
            self.end(task, how="open")
        self.last = self.now

    def tick(self):
        self.now += self.rng.choice([1, 17, 900, 5000, 123456]) * self.rng.randint(1, 30)

    def line(self, cpu, text):
        task = cpu["task"]
        who = "%s-%d" % (task["comm"], task["pid"]) if task else "<idle>-0"
        self.lines.append("%16s [%03d] d..2. %d.%09d: %s" % (who, cpu["n"], self.now // 10**9, self.now % 10**9, text))

    def end(self, task, how="ran", before=None, ran_on=None):
        if task["state"] and self.now > task["since"]:
            self.spans.append((task["state"], task["named"], task["pid"], task["cpu"], task["since"], self.now))
            if task["state"] == "runnable":
                self.waits.append((self.now - task["since"], task["since"], task["pid"], how, before, ran_on))
                if task["by"] is not None:
                    self.preemptions.append((task["pid"], task["by"], task["since"], self.now))

    def begin(self, task, state, cpu, by=None):
        task.update(state=state, since=self.now, cpu=cpu["n"], by=by, named=task["comm"])

    def leave(self, cpu):
        if self.now > cpu["since"]:
            self.on_cpu.append((cpu["task"]["pid"] if cpu["task"] else 0, cpu["n"], cpu["since"], self.now))
        cpu["since"] = self.now

    def wake(self):
        asleep = [t for t in self.tasks.values() if t["state"] in (None, "S", "D", "other")]
        if not asleep:
            return
        task, cpu, to = self.rng.choice(asleep), self.rng.choice(self.cpus), self.rng.choice(self.cpus)
        name = "comm=%s pid=%d prio=120 target_cpu=%03d" % (task["comm"], task["pid"], to["n"])
        if self.rng.random() < 0.8:
            self.line(cpu, "sched_waking: " + name)
            self.tick()
        self.line(cpu, "sched_wakeup: " + name)
        self.end(task)
        self.begin(task, "runnable", to)
        task["woken"] = self.now

    def switch(self):
        cpu = self.rng.choice(self.cpus)
        prev = cpu["task"]
        ready = [t for t in self.tasks.values() if t["state"] == "runnable" and (t["cpu"] == cpu["n"] or self.rng.random() < 0.1)]
        task = self.rng.choice(ready) if ready and self.rng.random() < 0.9 else None
        if not prev and not task:
            return
        state = self.rng.choice(["S", "S", "D", "R", "R", "R+", "T", "I"]) if prev else "R"
        shown = lambda t: (t["comm"], t["pid"]) if t else ("swapper/%d" % cpu["n"], 0)
        self.line(cpu, "sched_switch: prev_comm=%s prev_pid=%d prev_prio=120 prev_state=%s ==> next_comm=%s next_pid=%d "
                  "next_prio=120" % (*shown(prev), state, *shown(task)))
        self.leave(cpu)
        self.switches.append((self.now, cpu["n"], shown(prev), state, shown(task)))
        if prev:
            self.end(prev)
            kind = "runnable" if state[0] == "R" else state if state in "SD" else "other"
            self.begin(prev, kind, cpu, by=(task["pid"] if task else 0) if kind == "runnable" else None)
            prev["woken"] = None
        if task:
            self.end(task, before=prev["pid"] if prev else 0, ran_on=cpu["n"])
            if task["woken"]:
                self.wakes.append((task["comm"], task["pid"], cpu["n"], task["woken"], self.now))
            self.begin(task, "running", cpu)
        cpu["task"] = task

    def irq(self):
        cpu, begin = self.rng.choice(self.cpus), self.now
        who = (cpu["task"]["named"], cpu["task"]["pid"]) if cpu["task"] else (None, 0)
        soft = self.rng.random() < 0.6
        number, name = (3, "NET_RX") if soft else self.rng.choice([(7, "eth0"), (9, "nvme0q1")])
        self.line(cpu, "softirq_entry: vec=3 [action=NET_RX]" if soft else "irq_handler_entry: irq=%d name=%s" % (number, name))
        self.tick()
        if soft and self.rng.random() < 0.5:
            inner = self.now
            self.line(cpu, "irq_handler_entry: irq=7 name=eth0")
            self.tick()
            self.line(cpu, "irq_handler_exit: irq=7 ret=handled")
            self.irqs.append(("irq", "eth0", *who, cpu["n"], inner, self.now))
            self.tick()
        self.line(cpu, "softirq_exit: vec=3 [action=NET_RX]" if soft else "irq_handler_exit: irq=%d ret=handled" % number)
        self.irqs.append(("softirq" if soft else "irq", name, *who, cpu["n"], begin, self.now))

    def rename(self):
        """Known with the next event that tells a name: what runs keeps the name that it began with."""
        running = [c["task"] for c in self.cpus if c["task"]]
        if running and self.rng.random() < 0.1:
            self.rng.choice(running)["comm"] = self.rng.choice(self.NAMES)

    # --- sums ---

    def sums(self, begin, end):
        """What a report over [begin, end] must say: rows by (comm, pid, cpu), CPUs, interrupts, pairs."""
        rows, cpus, irqs, pairs = {}, {}, {}, {}
        cut = lambda b, e: max(0, min(e, end) - max(b, begin))
        inside = lambda t: begin <= t <= end

        def row(*key):
            return rows.setdefault(key, dict(running=0, runnable=0, S=0, D=0, other=0, switches=0, involuntary=0, plus=0,
                                             irq=[0, 0], softirq=[0, 0], wakes=[]))

        for state, comm, pid, cpu, b, e in self.spans:
            if cut(b, e):
                row(comm, pid, cpu)[state] += cut(b, e)
        for pid, cpu, b, e in self.on_cpu:
            cpus.setdefault(cpu, [0, 0])[pid == 0] += cut(b, e)
        for t, cpu, prev, state, task in self.switches:
            if inside(t) and prev[1]:
                r = row(*prev, cpu)
                r["switches"] += 1
                r["involuntary"] += state[0] == "R"
                r["plus"] += state == "R+"
                if state[0] == "R":
                    pairs.setdefault((prev[1], task[1]), [0, 0])[0] += 1
        for victim, by, b, e in self.preemptions:
            if inside(b):
                pairs[victim, by][1] += cut(b, e)
        for comm, pid, cpu, b, e in self.wakes:
            if inside(e):
                row(comm, pid, cpu)["wakes"].append(e - b)
        for kind, name, comm, pid, cpu, b, e in self.irqs:
            if inside(e):
                total = irqs.setdefault((kind, name), [0, 0])
                for sum_ in ([total] if pid == 0 else [total, row(comm, pid, cpu)[kind]]):
                    sum_[0] += 1
                    sum_[1] += cut(b, e)
        return rows, cpus, irqs, pairs


def trace(machine, name):
    return h.write_file(os.path.join(TMP, name), "# tracer: nop\n#\n" + "\n".join(machine.lines) + "\n")


def analyze(path, *args):
    return json.loads(h.run([h.SYSTRACE, "analyze", "sched", "--input", path, "--format", "json", *args]).ok().out)


def percentile(values, share):
    values = sorted(values)
    return values[max(0, -int(-share * len(values) // 1) - 1)]


def near(got, want):
    return abs(got - want) <= max(0.5, want * 0.0079)


def check_report(report, machine, begin, end, what):
    rows, cpus, irqs, pairs = machine.sums(begin, end)
    got = {(r["comm"], r["pid"], r["cpu"]): r for r in report["tasks"]}
    h.check_equal(sorted(got), sorted(rows), what + ": rows")
    for key, want in rows.items():
        r = got[key]
        h.check_equal([r[k] for k in ("running_ns", "runnable_ns", "sleeping_S_ns", "sleeping_D_ns", "sleeping_other_ns",
                                      "switches", "involuntary", "preempted_in_kernel", "irq_count", "irq_ns",
                                      "softirq_count", "softirq_ns")],
                      [want[k] for k in ("running", "runnable", "S", "D", "other", "switches", "involuntary", "plus")]
                      + want["irq"] + want["softirq"], "%s: row of %r" % (what, key))
        latency, wakes = r["wakeup_latency"], want["wakes"]
        h.check_equal((latency["count"], latency["sum_ns"], latency["max_ns"]), (len(wakes), sum(wakes), max(wakes, default=0)),
                      "%s: latency of %r" % (what, key))
        for share, name in ((0.5, "p50_ns"), (0.99, "p99_ns")):
            h.check(not wakes or near(latency[name], percentile(wakes, share)), "%s: %s of %r" % (what, name, key))
    for name, keys in (("by_pid", ("pid",)), ("by_comm", ("comm",))):
        for r in report[name]:
            mine = [w for k, w in rows.items() if r[keys[0]] == k[1 if keys[0] == "pid" else 0]]
            h.check_equal((r["running_ns"], r["runnable_ns"], r["switches"], r["wakeup_latency"]["count"]),
                          tuple(sum(w[k] for w in mine) for k in ("running", "runnable", "switches"))
                          + (sum(len(w["wakes"]) for w in mine),), "%s: %s of %r" % (what, name, r[keys[0]]))
    h.check_equal({c["cpu"]: [c["busy_ns"], c["idle_ns"]] for c in report["cpus"]}, cpus, what + ": CPUs")
    for c in report["cpus"]:
        h.check_equal(c["busy_ns"] + c["idle_ns"] + c["gap_ns"] + c["unknown_ns"], end - begin, what + ": total of a CPU")
        h.check_equal(c["busy_ns"], sum(r["running_ns"] for r in report["tasks"] if r["cpu"] == c["cpu"]),
                      what + ": busy is what tasks ran")
    h.check_equal({(r["type"], r["name"]): [r["count"], r["ns"]] for r in report["irqs_by_name"]}, irqs, what + ": irqs")
    h.check_equal(sum(r["count"] for r in report["irqs"]), sum(w["irq"][0] + w["softirq"][0] for w in rows.values()),
                  what + ": irqs of tasks")
    mine = {}
    for r in report["preemptions"]:
        sum_ = mine.setdefault((r["victim_pid"], r["preempter_pid"]), [0, 0])
        sum_[0] += r["count"]
        sum_[1] += r["waited_ns"]
    h.check_equal(mine, pairs, what + ": preemptions")


def test_sums():
    for seed in range(6):
        machine = Machine(seed)
        report = analyze(trace(machine, "trace%d.txt" % seed))
        check_report(report, machine, report["trace_begin_ns"], machine.last, "seed %d" % seed)
        h.check_equal((report["begin_ns"], report["end_ns"]), (report["trace_begin_ns"], machine.last), "span")
        h.check_equal(report["trace_quality"], dict.fromkeys(report["trace_quality"], 0)
                      | {"renamed_tasks": report["trace_quality"]["renamed_tasks"]}, "quality")


def test_text():
    trace(Machine(7, steps=400), "golden.txt")
    done = h.run([h.SYSTRACE, "analyze", "sched", "--input", "golden.txt", "--top", "4"], cwd=TMP).ok()
    h.check_golden("analyze_sched.txt", done.out)


def test_windows():
    machine = Machine(11)
    path = trace(machine, "window.txt")
    first = analyze(path)["trace_begin_ns"]
    length = machine.last - first
    for begin, end in ((0, 0.5), (0.25, 0.75), (0.5, 1), (0.6, 0.600001)):
        low, high = int(length * begin), int(length * end)
        text = lambda ns: "%d.%09d" % (ns // 10**9, ns % 10**9)
        report = analyze(path, "--from", text(low), "--to", text(high))
        check_report(report, machine, first + low, min(first + high, machine.last), "window %g to %g" % (begin, end))


def test_longest_waits():
    machine = Machine(21)
    report = analyze(trace(machine, "waits.txt"), "--top", "25")
    want = sorted(machine.waits, key=lambda w: (-w[0], w[1]))[:25]
    got = [(w["wait_ns"], w["begin_ns"], w["pid"], w["ended_by"], w["ran_before_pid"], w["ran_on_cpu"])
           for w in report["longest_waits"]]
    h.check_equal(got, want, "longest waits")


def test_filters():
    machine = Machine(31)
    path = trace(machine, "filter.txt")
    whole = analyze(path)
    some = analyze(path, "--cpu", "1-2", "--pid", "100,103-104")
    want = [r for r in whole["tasks"] if r["cpu"] in (1, 2) and r["pid"] in (100, 103, 104)]
    h.check_equal(some["tasks"], want, "filtered rows")
    h.check_equal(some["cpus"], whole["cpus"][1:], "filtered CPUs")


def convert(path, name="ftrace_data.db"):
    db = os.path.join(h.tmpdir(), name)
    h.run([h.SYSTRACE, "convert", "ftrace", "--input", path, "--format", "db", "--output", db]).ok()
    return db


def test_database_gives_the_same():
    for seed in (41, 42):
        machine = Machine(seed)
        path = trace(machine, "db.txt")
        from_text, from_db = analyze(path), analyze(convert(path))
        h.check_equal((from_db["source"], from_db["trace_quality"]), ("database", None), "source")
        for key in ("all", "by_comm", "by_pid", "tasks", "irqs_by_name", "irqs", "preemptions", "preempters", "victims"):
            strip = lambda rows: sorted(json.dumps(r, sort_keys=True) for r in (rows if isinstance(rows, list) else [rows]))
            h.check_equal(strip(from_db[key]), strip(from_text[key]), key)
        waits = lambda report: [{k: v for k, v in w.items() if k not in ("by_comm", "ran_before_comm")}
                                for w in report["longest_waits"]]
        h.check_equal(waits(from_db), waits(from_text), "longest waits")
        check_report(from_text, machine, from_text["begin_ns"], machine.last, "text")
        # a database begins with its first slice, not with the trace's first event
        want = machine.sums(from_db["begin_ns"], from_db["end_ns"])[1]
        h.check_equal({c["cpu"]: [c["busy_ns"], c["idle_ns"]] for c in from_db["cpus"]}, want, "CPUs from a database")


def test_database_without_our_arguments():
    """MindStudio Insight's own script writes only the CPU beside a state: kinds of sleep, preemptions and wake-ups follow from
    the marks of switches."""
    path = trace(Machine(43), "plain.txt")
    db = convert(path)
    con = sqlite3.connect(db)
    rows = con.execute("SELECT id, args FROM slice WHERE name IN ('Running', 'Runnable', 'Sleeping')").fetchall()
    kept = [(json.dumps({"cpu": json.loads(args)["cpu"]}), row) for row, args in rows]
    h.check(sum(len(json.loads(args)) > 1 for _, args in rows) > 100, "there was nothing to take away")
    con.executemany("UPDATE slice SET args = ? WHERE id = ?", kept)
    con.commit()
    con.close()
    a, b = analyze(path), analyze(db)
    for key in ("all", "by_comm", "by_pid", "tasks", "preemptions"):
        strip = lambda rows: sorted(json.dumps(r, sort_keys=True) for r in (rows if isinstance(rows, list) else [rows]))
        h.check_equal(strip(b[key]), strip(a[key]), key)


SUMS = ("SELECT count(*), sum(running_ns), sum(sleeping_ns), sum(runnable_ns), sum(cs_count), sum(cs_involuntary_count) "
        "FROM trace_task_summary")


def check_tables(db, report):
    con = sqlite3.connect(db)
    tasks = report["tasks"]
    want = (len(tasks),) + tuple(sum(t[k] for t in tasks) for k in ("running_ns", "sleeping_ns", "runnable_ns", "switches",
                                                                    "involuntary"))
    h.check_equal(con.execute(SUMS).fetchone(), want, "trace_task_summary")
    got = set(con.execute("SELECT comm, pid, cpu_id, irq_type, irq_name, count, time_ns FROM trace_irq_detail"))
    h.check_equal(got, {(r["comm"], r["pid"], r["cpu"], r["type"], r["name"], r["count"], r["ns"]) for r in report["irqs"]},
                  "trace_irq_detail")
    return con


def test_result_tables():
    machine = Machine(51)
    path = trace(machine, "tables.txt")
    report, db = analyze(path), convert(path)
    before = sqlite3.connect(db).execute("SELECT count(*), sum(duration) FROM slice").fetchone()
    for _ in range(2):  # the second time replaces the rows of the first
        h.run([h.SYSTRACE, "analyze", "sched", "--input", db, "--write-db", db]).ok()
        con = check_tables(db, report)
        h.check_equal(con.execute("SELECT count(*), sum(duration) FROM slice").fetchone(), before, "slices")
        h.check_equal(con.execute("PRAGMA user_version").fetchone()[0], 0, "user_version")
        con.close()
        h.check(not os.path.exists(db + "-journal") and not os.path.exists(db + "-wal"), "a journal is left")

    # the table that the viewer makes: key columns NOT NULL, four columns more
    db = os.path.join(TMP, "viewer.db")
    con = sqlite3.connect(db)
    con.execute("CREATE TABLE trace_task_summary(comm TEXT NOT NULL, pid INTEGER NOT NULL, cpu_id INTEGER NOT NULL, "
                "running_ns INTEGER DEFAULT 0, sleeping_ns INTEGER DEFAULT 0, runnable_ns INTEGER DEFAULT 0, "
                "cs_count INTEGER DEFAULT 0, cs_involuntary_count INTEGER DEFAULT 0, PRIMARY KEY(comm, pid, cpu_id))")
    for column in ("soft_irq_count", "soft_irq_duration", "hard_irq_count", "hard_irq_duration"):
        con.execute("ALTER TABLE trace_task_summary ADD COLUMN %s INTEGER DEFAULT 0" % column)
    con.execute("INSERT INTO trace_task_summary(comm, pid, cpu_id) VALUES('old', 1, 1)")
    con.commit()
    con.close()
    h.run([h.SYSTRACE, "analyze", "sched", "--input", path, "--write-db", db]).ok()
    con = check_tables(db, report)
    h.check_equal(con.execute("SELECT sum(soft_irq_count), sum(soft_irq_duration), sum(hard_irq_count), "
                              "sum(hard_irq_duration) FROM trace_task_summary").fetchone(),
                  tuple(report["all"][k] for k in ("softirq_count", "softirq_ns", "irq_count", "irq_ns")), "viewer's columns")


MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"


def sheets(path):
    """Sheets of a workbook as lists of rows; every part of it must be well-formed XML."""
    book = zipfile.ZipFile(path)
    h.check_equal(book.testzip(), None, "damaged part")
    parts = {n: ET.fromstring(book.read(n)) for n in book.namelist() if n.endswith((".xml", ".rels"))}
    texts = ["".join(t.text or "" for t in si.iter(MAIN + "t")) for si in parts.get("xl/sharedStrings.xml", [])]
    result = {}
    for i, sheet in enumerate(parts["xl/workbook.xml"].iter(MAIN + "sheet"), 1):
        rows = []
        for row in parts["xl/worksheets/sheet%d.xml" % i].iter(MAIN + "row"):
            cells = []
            for cell in row.iter(MAIN + "c"):
                inline, value = cell.find(MAIN + "is"), cell.find(MAIN + "v")
                cells.append("".join(t.text or "" for t in inline.iter(MAIN + "t")) if inline is not None else
                             texts[int(value.text)] if cell.get("t") == "s" else float(value.text))
            rows.append(cells)
        result[sheet.get("name")] = rows
    chart = "{http://schemas.openxmlformats.org/drawingml/2006/chart}"
    charts = {n: [[v.text for v in ser.iterfind(chart + "cat//" + chart + "v")] for ser in part.iter(chart + "ser")]
              for n, part in sorted(parts.items()) if n.startswith("xl/charts/chart")}
    return result, list(charts.values())


def test_workbook():
    machine = Machine(61)
    path, book = trace(machine, "book.txt"), os.path.join(TMP, "report.xlsx")
    done = h.run([h.SYSTRACE, "analyze", "sched", "--input", path, "--output", book])
    if "libxlsxwriter" in done.err:
        h.skip("built without libxlsxwriter")
    done.ok()
    report = analyze(path)
    pages, charts = sheets(book)
    h.check_equal(list(pages), ["task_summary_by_comm", "task_summary_by_pid", "task_summary", "proc_irq_detail"], "sheets")
    h.check_equal([len(c) for c in charts], [2, 2, 2, 1], "series of the charts")
    h.check_equal(charts[0], [[r["comm"] for r in report["by_comm"][:10]]] * 2, "names in the first chart")
    h.check_equal(charts[1][0], ["%s:%d" % (r["comm"], r["pid"]) for r in report["by_pid"][:10]], "names in the second chart")
    for name, key in (("task_summary_by_comm", "by_comm"), ("task_summary_by_pid", "by_pid"), ("task_summary", "tasks")):
        head, rows = pages[name][0], pages[name][1:]
        h.check_equal(len(rows), len(report[key]), name + ": rows")
        for column, field in (("running (us)", "running_ns"), ("sleeping D (us)", "sleeping_D_ns"),
                              ("softirq time (us)", "softirq_ns"), ("runnable (us)", "runnable_ns")):
            got = [round(r[head.index(column)] * 1000) for r in rows]
            h.check_equal(got, [r[field] for r in report[key]], "%s: %s" % (name, column))
        h.check_equal([r[0] for r in rows], [r["comm"] for r in report[key]], name + ": names")
    head, rows = pages["proc_irq_detail"][0], pages["proc_irq_detail"][1:]
    h.check_equal([(r[head.index("irq name")], r[head.index("count")]) for r in rows],
                  [(r["name"], r["count"]) for r in report["irqs"]], "proc_irq_detail")
    try:
        import openpyxl
    except ImportError:
        return
    h.check_equal(openpyxl.load_workbook(book).sheetnames, list(pages), "sheets seen by openpyxl")


def test_names_of_any_bytes():
    """Names are bytes of other people's processes: no output may break on them."""
    text = ("  <idle>-0 [000] d..2. 1.000000: sched_switch: prev_comm=swapper/0 prev_pid=0 prev_prio=120 prev_state=R ==> "
            "next_comm=%s next_pid=7 next_prio=120\n  %s-7 [000] d..2. 1.000100: sched_switch: prev_comm=%s prev_pid=7 "
            "prev_prio=120 prev_state=S ==> next_comm=swapper/0 next_pid=0 next_prio=120\n")
    names = (b"\xff\xfe\x1b[31m", "é漢".encode(), b"\xe6\xbc", b"a&b<c>\"'", b"\xed\xa0\x80", b"\xef\xbf\xbf")
    for i, name in enumerate(names):
        path = h.write_file(os.path.join(TMP, "names%d.txt" % i), text.encode().replace(b"%s", name))
        h.check_equal(len(analyze(path)["tasks"]), 1, "tasks called %r" % name)
        done = h.run([h.SYSTRACE, "analyze", "sched", "--input", path]).ok()
        h.check("\x1b" not in done.out, "an escape sequence reached the terminal")
        book = os.path.join(TMP, "names%d.xlsx" % i)
        if "libxlsxwriter" not in h.run([h.SYSTRACE, "analyze", "sched", "--input", path, "--output", book]).err:
            sheets(book)
        h.run([h.SYSTRACE, "analyze", "sched", "--input", path, "--write-db", os.path.join(TMP, "names%d.db" % i)]).ok()


def test_many_tasks():
    """More rows than are kept in memory for a workbook; the sums are right for each of them."""
    lines, prev = [], ("swapper/0", 0)
    for i in range(24000):
        task = ("job%d" % (i % 50), 1000 + i) if i % 2 == 0 else ("swapper/0", 0)
        lines.append("%s-%d [000] d..2. %d.%06d: sched_switch: prev_comm=%s prev_pid=%d prev_prio=120 prev_state=%s ==> "
                     "next_comm=%s next_pid=%d next_prio=120" % (prev[0] if prev[1] else "<idle>", prev[1], 1 + i // 10000,
                                                                  i % 10000 * 100, *prev, "SX"[i % 4 == 3], *task))
        prev = task
    path, book = h.write_file(os.path.join(TMP, "many.txt"), "\n".join(lines) + "\n"), os.path.join(TMP, "many.xlsx")
    report = analyze(path)
    h.check_equal(len(report["by_pid"]), 12000, "tasks")
    h.check_equal({r["running_ns"] for r in report["by_pid"]}, {100000}, "running time of each")
    h.check_equal([r["pids"] for r in report["by_comm"]], [480] * 25, "pids of each command")
    if "libxlsxwriter" not in h.run([h.SYSTRACE, "analyze", "sched", "--input", path, "--output", book]).err:
        pages, _ = sheets(book)
        h.check_equal(len(pages["task_summary"]), 12001, "rows of task_summary")


def test_damaged_databases():
    """Any bytes: an error or a report, never a crash."""
    with open(convert(trace(Machine(81, steps=300), "damage.txt")), "rb") as f:
        good = f.read()
    rng = random.Random(5)
    for i in range(40):
        data = bytearray(good)
        for _ in range(rng.choice([1, 20, 300])):
            data[rng.randrange(100, len(data))] = rng.randrange(256)
        path = h.write_file(os.path.join(TMP, "damaged.db"), bytes(data[:rng.randrange(len(data))] if i % 5 == 0 else data))
        done = h.run([h.SYSTRACE, "analyze", "sched", "--input", path, "--json"])
        h.check(done.status in (0, 1, 3), "change %d: %r" % (i, done))
        if done.status == 0:
            json.loads(done.out)


def test_messages():
    machine = Machine(71, steps=50)
    path = trace(machine, "small.txt")
    empty = h.write_file(os.path.join(TMP, "empty.txt"), "")
    bare = h.write_file(os.path.join(TMP, "bare.txt"), "# tracer: nop\n  a-1 [000] d..2. 1.000000: foo: x=1\n")
    other = h.write_file(os.path.join(TMP, "other.db"), "")
    os.unlink(other)
    con = sqlite3.connect(other)
    con.execute("CREATE TABLE t(a)")
    con.commit()
    con.close()
    for args, status, said in (
            (["--input", path, "--from", "1000"], 3, "before --from"),
            (["--input", path, "--cpu", "77"], 3, "asked for"),
            (["--input", empty], 3, "empty"),
            (["--input", bare], 3, "no scheduling"),
            (["--input", other], 1, "no scheduling database"),
            (["--input", os.path.join(TMP, "nowhere")], 1, "No such file"),
            (["--input", path, "--pid", "1,,x"], 2, "--pid"),
            (["--input", path, "--from", "2", "--to", "1"], 2, "behind --from"),
            (["--input", path, "--format", "xlsx"], 2, "--output"),
            (["--input", path, "--output", os.path.join(TMP, "no", "dir.json")], 1, "cannot create"),
            (["--input", path, "--output", os.path.join(TMP, "no", "dir.xlsx")], 1, "dir.xlsx"),
            (["--input", path, "--write-db", TMP], 1, "cannot write"),
            (["--input", path, "--format", "json", "--output", "/dev/full"], 1, "No space")):
        done = h.run([h.SYSTRACE, "analyze", "sched", *args]).ok(status)
        h.check(said in done.err, "%r: %r" % (said, done))
    h.check_equal(sorted(n for n in os.listdir(TMP) if n.endswith(".part")), [], "parts left behind")


h.main(test_sums, test_text, test_windows, test_longest_waits, test_filters, test_database_gives_the_same,
       test_database_without_our_arguments, test_result_tables, test_workbook, test_names_of_any_bytes, test_many_tasks,
       test_damaged_databases, test_messages)
