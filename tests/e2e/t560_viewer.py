#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
# runner: full
"""Chrome JSON of systrace convert timeline and convert ftrace is opened in speedscope, a viewer that is not ours, in
headless Chromium: every track is there under its name, known stages and tasks are listed, and the page complains of
nothing. Chromium is driven over its DevTools pipe. tools/install-deps viewer fetches both; without them: skipped.

    tests/e2e/t560_viewer.py FILE...    # load these files instead, print what the page shows, leave a FILE.png each
"""

import base64
import json
import os
import random
import re
import select
import shutil
import sys
import time

from harness import (ROOT, SYSTRACE, CheckFailed, check, check_equal, main, require, run, skip, start, stop, tmpdir,
                     write_file)
import timeline_files as files

PAGE = os.path.join(ROOT, "build-viewer", "node_modules", "speedscope", "dist", "release", "index.html")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-unsafe-swiftshader", "--disable-quic",
           "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
           "--window-size=1600,1000"]
PATIENCE_S = 120        # for any one answer; only a hang takes that long
ERRORS = ("Something went wrong",)
PLACE = re.compile(r"^(.+?)\s*\((\d+)/(\d+)\)$", re.M)       # profile (its number/all), if more than one

# rows of the sandwich view: total and self with their share, symbol; the list of profiles is a table of the page too
ROWS = r"""[...document.querySelectorAll('tr')].map(r => [...r.cells].map(c => c.innerText.trim()))
           .filter(r => r.length == 3 && /\(.*%\)$/.test(r[0]))"""


class Browser:
    """Chromium with one tab, spoken to in DevTools messages (JSON, each ended by a NUL) over descriptors 3 and 4."""

    def __init__(self):
        self.dir = tmpdir("st-viewer-")
        pipes = [os.path.join(self.dir, name) for name in ("to", "from")]
        for pipe in pipes:
            os.mkfifo(pipe)
        # opened for both directions: neither side waits for the other
        self.to, self.back = (os.open(pipe, os.O_RDWR | os.O_CLOEXEC) for pipe in pipes)
        with open(os.path.join(self.dir, "log"), "wb") as log:
            self.process = start(["sh", "-c", 'exec "$@" 3<"$0/to" 4>"$0/from"', self.dir, CHROMIUM, *OPTIONS,
                                  "--remote-debugging-pipe", "--user-data-dir=" + os.path.join(self.dir, "profile"),
                                  "about:blank"], env=dict(os.environ, HOME=self.dir), stdout=log, stderr=log)
        self.data, self.last, self.session, self.trouble = b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "DOM"):
            self.call(domain + ".enable")

    def close(self):
        self.session = None
        self.call("Browser.close")
        stop(self.process)

    def receive(self, until):
        while b"\0" not in self.data:
            left = until - time.monotonic()
            check(left > 0 and self.process.poll() is None, "chromium does not answer:\n" + self.log())
            if select.select([self.back], [], [], min(left, 1))[0]:
                self.data += os.read(self.back, 1 << 20)
        text, _, self.data = self.data.partition(b"\0")
        return json.loads(text)

    def log(self):
        with open(os.path.join(self.dir, "log"), errors="replace") as f:
            return f.read()[-4000:]

    def send(self, method, **params):
        self.last += 1
        message = {"id": self.last, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        return self.last

    def call(self, method, **params):
        """One command and its result; what the page reports meanwhile goes to trouble."""
        mine, until = self.send(method, **params), time.monotonic() + PATIENCE_S
        while True:
            answer = self.receive(until)
            if answer.get("id") == mine:
                check("error" not in answer, "%s: %s" % (method, answer.get("error")))
                return answer["result"]
            self.note(answer.get("method"), answer.get("params", {}))

    def note(self, event, params):
        if event == "Page.javascriptDialogOpening":
            self.trouble.append("dialog: " + params["message"])
            self.send("Page.handleJavaScriptDialog", accept=True)        # its answer is passed over by call()
        elif event == "Runtime.exceptionThrown":
            self.trouble.append("exception: %s" % params["exceptionDetails"].get("exception", {}).get("description"))
        elif event == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert", "warning"):
            self.trouble.append("console: %s" % [a.get("value", a.get("description")) for a in params["args"]])
        elif event == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.trouble.append("log: " + params["entry"]["text"])

    def value(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        check("exceptionDetails" not in result, "%s: %s" % (expression, result))
        return result["result"].get("value")

    def text(self):
        return self.value("document.body && document.body.innerText") or ""

    def wait(self, what, true):
        """Until true() of the page's text; ends at once when the page shows an error."""
        until = time.monotonic() + PATIENCE_S
        while True:
            text = self.text()
            if true(text):
                return text
            check(not self.trouble and not any(e in text for e in ERRORS),
                  "%s: %s\n%s" % (what, self.trouble, text[:2000]))
            check(time.monotonic() < until, "%s: nothing after %d s:\n%s" % (what, PATIENCE_S, text[:2000]))
            time.sleep(0.2)

    def key(self, key):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, text=key if kind == "keyDown" else "")

    def screenshot(self, path):
        write_file(path, base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def load(self, path):
        """A fresh page that is given the file as its user would, and what it is once the profiles are there."""
        self.trouble = []
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url="file://%s#view=sandwich" % PAGE)
        self.wait("the empty page", lambda text: "Browse" in text)
        chooser = self.call("Runtime.evaluate", expression="document.querySelector('input[type=file]')")["result"]
        self.call("DOM.setFileInputFiles", objectId=chooser["objectId"], files=[path])
        return self.wait(path, lambda text: PLACE.search(text))

    def profiles(self):
        """{name of a track: [[total, self, symbol], ...]} of the loaded file, by going through it with the key n."""
        shown = {}
        name, at, count = PLACE.search(self.text()).groups()
        check_equal(at, "1", "the first profile")
        for i in range(1, int(count) + 1):
            if i > 1:
                self.key("n")
            text = self.wait("profile %d" % i, lambda text: "(%d/%s)" % (i, count) in text and "Symbol Name" in text)
            shown[PLACE.search(text).group(1)] = self.value(ROWS)
        return shown


def wanted(path):
    """What the file itself holds: {track as the viewer words it: names of the slices on it}."""
    with open(path) as f:
        events = json.load(f)["traceEvents"]
    meta = {(e["name"], e["pid"], e["tid"] if e["name"] == "thread_name" else 0): e["args"].get("name")
            for e in events if e["ph"] == "M"}
    tracks = {}
    for e in events:
        if e["ph"] in "XB":
            name = "%s (pid %d), %s (tid %d)" % (meta["process_name", e["pid"], 0], e["pid"],
                                                 meta["thread_name", e["pid"], e["tid"]], e["tid"])
            tracks.setdefault(name, set()).add(e["name"])
    return tracks


def symbol(row):
    """A symbol without the arguments that the viewer shows behind it."""
    return row[2].partition(" {")[0]


def loads(browser, path):
    """Load a file; every track and every name in it has to be there. Returns the profiles."""
    browser.load(path)
    shown = browser.profiles()
    want = wanted(path)
    check_equal(sorted(shown), sorted(want), "tracks")
    for name, rows in shown.items():
        check_equal(sorted(set(map(symbol, rows))), sorted(want[name]), "slices of " + name)
    check_equal(browser.trouble, [], "complaints of the page")
    check_equal(browser.value("document.title"), os.path.basename(path) + " - speedscope", "title")
    return shown


def timeline():
    d = files.dump_directory(os.path.join(DIR, "dump"), ranks=2, steps=4)
    out = os.path.join(DIR, "timeline.json")
    run([SYSTRACE, "convert", "timeline", "--input", d, "--output", out, "--format", "chrome"]).ok()
    shown = loads(BROWSER, out)
    stages = [rows for name, rows in shown.items() if "rank 0 (node0)" in name and "main thread 1000" in name]
    check_equal(len(stages), 1, "main threads of rank 0")
    check({"dataset@next", "attention@forward", "model@forward", "model@backward"} <= set(map(symbol, stages[0])),
          "stages of rank 0: %s" % stages[0])
    total = {symbol(row): row[0] for rows in shown.values() for row in rows}
    check(total["step 1"].startswith("100.00ms "), "step 1 of 100 ms takes %s" % total["step 1"])


def steps_without_gaps():
    """Steps of odd lengths, each beginning where the one before ends, stay side by side."""
    d = os.path.join(DIR, "steps")
    for rank in range(2):
        records, at = files.rank_records(rank, 0), 50_000_000_000
        for step in range(1, 41):
            dur = 100_000_000 + step * 1_234_567
            records.append(("step", {"source": 1, "microbatches": 1, "start_ns": at, "dur_ns": dur, "step": step}))
            at += dur
        write_file(os.path.join(d, "timeline", "node0--%05d.timeline" % rank), files.protobuf(records))
    out = os.path.join(DIR, "steps.json")
    run([SYSTRACE, "convert", "timeline", "--input", d, "--output", out, "--format", "chrome"]).ok()
    for rows in loads(BROWSER, out).values():
        for total, own, name in rows:
            check_equal(total, own.split("\n")[0], "total and own time of " + name)


def ftrace():
    """Two tasks and a kernel thread on one CPU: 200, 100 and 100 us."""
    text = "# tracer: nop\n#\n"
    idle, app, other = ("swapper/0", 0), ("trainer", 100), ("kworker/0:1", 200)
    for t_us, prev, state, nxt in ((100, idle, "R", app), (300, app, "R+", other), (400, other, "I", app),
                                   (500, app, "S", idle)):
        text += ("%16s-%-7d [000] d..2.  10.%06d: sched_switch: prev_comm=%s prev_pid=%d prev_prio=120 prev_state=%s "
                 "==> next_comm=%s next_pid=%d next_prio=120\n" % (prev + (t_us,) + prev + (state,) + nxt))
    source, out = write_file(os.path.join(DIR, "trace.txt"), text), os.path.join(DIR, "ftrace_data.trace.json")
    run([SYSTRACE, "convert", "ftrace", "--input", source, "--format=chrome"], cwd=DIR).ok()
    shown = loads(BROWSER, out)
    seen = {symbol(row) for rows in shown.values() for row in rows}
    for task in ("trainer", "kworker/0:1"):
        check(any(task in name for name in list(shown) + list(seen)), "%s is nowhere in %s" % (task, shown))


def nanoseconds_without_overlaps():
    """Slices of odd nanoseconds that touch stay side by side: the page adds ts and dur as doubles, and a sum one bit too large
    would put the next slice inside."""
    draw = random.Random(6)
    tasks = [("swapper/0", 0)] + [("task%d" % i, 100 + i) for i in range(3)]
    t, now, text = 10**12, tasks[0], "# tracer: nop\n#\n"
    for _ in range(4000):
        t += draw.randrange(1000, 10**draw.randrange(4, 9))
        then = draw.choice([task for task in tasks if task != now])
        text += ("%16s-%-7d [000] d..2. %d.%09d: sched_switch: prev_comm=%s prev_pid=%d prev_prio=120 prev_state=%s "
                 "==> next_comm=%s next_pid=%d next_prio=120\n" % (now + divmod(t, 10**9) + now + ("R+",) + then))
        now = then
    source, out = write_file(os.path.join(DIR, "nano.txt"), text), os.path.join(DIR, "nano.json")
    run([SYSTRACE, "convert", "ftrace", "--input", source, "--output", out, "--format=chrome"], cwd=DIR).ok()
    shown = loads(BROWSER, out)
    check_equal(len(shown), 4, "tracks")
    for rows in shown.values():
        for total, own, name in rows:
            check_equal(total, own.split("\n")[0], "total and own time of " + name)


def recorded():
    """What this kernel records in half a second, natively, with interrupts inside of tasks and futex calls."""
    if os.geteuid():
        skip("recording needs root")
    done = run([SYSTRACE, "record", "--backend=native", "--record_time=0.5", "--futex"], cwd=DIR)
    if done.status:
        skip("no recording here: %s" % done.err.splitlines()[-1:])
    run([SYSTRACE, "convert", "ftrace", "--format=chrome"], cwd=DIR).ok()
    out = os.path.join(DIR, "ftrace_data.trace.json")
    BROWSER.load(out)
    check_equal(sorted(BROWSER.profiles()), sorted(wanted(out)), "tracks")  # of long lists the page holds what is in sight
    check_equal(BROWSER.trouble, [], "complaints of the page")


def broken_files_show():
    """The same eyes see it when a file is not loaded."""
    for name, text in (("cut", '{"traceEvents": [{"name": "a", "ph": "X", "ts'), ("other", '{"hello": 1}')):
        try:
            BROWSER.load(write_file(os.path.join(DIR, name + ".json"), text))
        except CheckFailed:
            check(BROWSER.trouble or any(e in BROWSER.text() for e in ERRORS), "%s: no complaint was seen" % name)
        else:
            raise CheckFailed("%s.json was loaded" % name)


def show(paths):
    for path in map(os.path.abspath, paths):
        BROWSER.load(path)
        shown = BROWSER.profiles()
        for name, rows in shown.items():
            print("%s: %d symbols, %s" % (name, len(rows), ", ".join(sorted(set(map(symbol, rows)))[:8])))
        print("%s: %d tracks, complaints: %s" % (path, len(shown), BROWSER.trouble))
        BROWSER.screenshot(path + ".png")


if not CHROMIUM or not os.path.exists(PAGE):
    skip("%s is not here (tools/install-deps viewer)" % ("chromium" if not CHROMIUM else "speedscope"))
require(SYSTRACE)
DIR = tmpdir()
BROWSER = Browser()
try:
    if sys.argv[1:]:
        show(sys.argv[1:])
    else:
        main(timeline, steps_without_gaps, ftrace, nanoseconds_without_overlaps, recorded, broken_files_show)
finally:
    BROWSER.close()
