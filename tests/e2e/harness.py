# SPDX-License-Identifier: MulanPSL-2.0
"""What end-to-end scripts share: where the products are, a temporary directory of their own, processes that are ended
by pid only, interpreters, golden files with masks. A script exits 0 (pass), 1 (fail) or 77 (skip, reason printed);
tools/run-tests starts them, and each one also runs alone: python3 tests/e2e/tNNN_topic.py
"""

import atexit
import difflib
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(os.environ.get("ST_BUILD", os.path.join(ROOT, "build")))
AGENT = os.path.join(BUILD, "libsysTrace.so")
CLI = os.path.join(BUILD, "sysTrace_cli")
SYSTRACE = os.path.join(BUILD, "systrace")
PROTO_DIR = os.path.join(ROOT, "src", "wire", "proto")
GOLDEN_DIR = os.path.join(ROOT, "tests", "golden")
SKIP_STATUS = 77


# --- verdicts ------------------------------------------------------------------------------------------------------

class CheckFailed(AssertionError):
    """An expectation of a test did not hold."""


def skip(reason):
    """End the script as skipped; the reason is shown in the test report."""
    print("skip: %s" % reason, flush=True)
    raise SystemExit(SKIP_STATUS)


def check(cond, message):
    """Fail with message unless cond is true."""
    if not cond:
        raise CheckFailed(message)


def check_equal(got, want, what="value"):
    """Fail unless got equals want; both are shown."""
    if got != want:
        raise CheckFailed("%s: got %r, want %r" % (what, got, want))


def require(*paths):
    """Skip unless every one of these files (build products, programs) is there."""
    for path in paths:
        if os.sep in path:
            if not os.path.exists(path):
                skip("%s is not there" % os.path.relpath(path, ROOT))
        elif not shutil.which(path):
            skip("%s is not installed" % path)


def require_root():
    if os.geteuid() != 0:
        skip("needs root")


def main(*tests):
    """Run the test functions in turn, print each one's verdict, exit 0 if all passed.

    A function that calls skip() alone is reported as skipped; the script is skipped only if all of them were.
    """
    failed = skipped = 0
    for test in tests:
        try:
            test()
            print("[       OK ] %s" % test.__name__, flush=True)
        except SystemExit as e:
            if e.code != SKIP_STATUS:
                raise
            skipped += 1
            print("[  SKIPPED ] %s" % test.__name__, flush=True)
        except CheckFailed as e:
            failed += 1
            print("%s: %s" % (test.__name__, e))
            where = traceback.extract_tb(e.__traceback__)
            for frame in where[1:-1]:
                print("    at %s:%d" % (os.path.basename(frame.filename), frame.lineno))
            print("[  FAILED  ] %s" % test.__name__, flush=True)
        except Exception:
            failed += 1
            traceback.print_exc(file=sys.stdout)
            print("[  FAILED  ] %s" % test.__name__, flush=True)
    if failed or not tests:
        raise SystemExit(1)
    raise SystemExit(SKIP_STATUS if skipped == len(tests) else 0)


# --- temporary directories -----------------------------------------------------------------------------------------

def tmpdir(prefix="st-"):
    """A fresh directory, removed when the script ends; ST_KEEP=1 keeps it and says where it is."""
    path = tempfile.mkdtemp(prefix=prefix)
    if os.environ.get("ST_KEEP"):
        print("kept: %s" % path, flush=True)
    else:
        atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def write_file(path, text):
    """Create a file with its directories; returns the path."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "wb") as f:
        f.write(text if isinstance(text, bytes) else text.encode())
    return path


def read_file(path):
    with open(path, "rb") as f:
        return f.read().decode(errors="replace")


# --- processes -----------------------------------------------------------------------------------------------------

class Result:
    """What a finished command left: status (negative: the signal that ended it), out and err as text."""

    def __init__(self, args, status, out, err):
        self.args, self.status, self.out, self.err = args, status, out, err

    def __repr__(self):
        return "%s: status %d\n--- stdout\n%s--- stderr\n%s" % (
            " ".join(map(str, self.args)), self.status, self.out, self.err)

    def ok(self, status=0):
        """Fail the test unless the command ended with this status; returns itself."""
        if self.status != status:
            raise CheckFailed("want status %d, got %r" % (status, self))
        return self


_started = []


def _environment(env):
    """env=None: this process's; else a complete environment."""
    return dict(os.environ if env is None else env)


def start(args, env=None, cwd=None, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE):
    """Start a process; it is ended (by its pid) when the script ends, if it still runs then."""
    process = subprocess.Popen([str(a) for a in args], env=_environment(env), cwd=cwd, stdin=stdin, stdout=stdout,
                               stderr=stderr)
    _started.append(process)
    return process


def stop(process, sig=signal.SIGTERM, grace=10):
    """End a process of start(): sig, then SIGKILL after grace seconds. Returns its status."""
    if process.poll() is None:
        process.send_signal(sig)
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return process.returncode


def finish(process, timeout=60):
    """Wait for a process of start() and return its Result; it fails the test if it takes longer."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise CheckFailed("did not end within %d s: %r" % (timeout, Result(process.args, process.returncode,
                                                                          _text(out), _text(err))))
    return Result(process.args, process.returncode, _text(out), _text(err))


def run(args, env=None, timeout=60, cwd=None, input=None):
    """Run a command to its end; returns a Result. input: text for its stdin, default none."""
    process = start(args, env, cwd, stdin=subprocess.DEVNULL if input is None else subprocess.PIPE)
    if input is None:
        return finish(process, timeout)
    data = input if isinstance(input, bytes) else input.encode()
    try:
        out, err = process.communicate(data, timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise CheckFailed("did not end within %d s: %r" % (timeout, Result(process.args, process.returncode,
                                                                          _text(out), _text(err))))
    return Result(process.args, process.returncode, _text(out), _text(err))


def _text(data):
    return (data or b"").decode(errors="replace")


def wait_for(condition, timeout=20, what="condition"):
    """Poll until condition() is true and return its value; fails the test after timeout seconds."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise CheckFailed("%s did not come true within %d s" % (what, timeout))
        time.sleep(0.02)


@atexit.register
def _end_started():
    for process in _started:
        if process.poll() is None:
            process.kill()
            process.wait()


def own_pid_namespace():
    """Go on in a pid namespace of our own, so that no other process of the machine with an agent is seen or reached.

    Call it first thing in a script. Skips where the kernel does not allow it.
    """
    if os.environ.get("ST_OWN_PID_NAMESPACE"):
        return
    require("unshare")
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        command += ["--user", "--map-root-user"]
    if subprocess.run(command + ["true"], stderr=subprocess.DEVNULL).returncode != 0:
        skip("no pid namespace of our own: unshare --pid is not permitted here")
    os.environ["ST_OWN_PID_NAMESPACE"] = "1"
    os.execvp("unshare", command + [sys.executable, *sys.argv])


def own_mounts():
    """Go on in a mount namespace of our own, where a test may mount what it likes: nothing of it outlives the script.

    Call it first thing in a script. Skips without root.
    """
    if os.environ.get("ST_OWN_MOUNTS"):
        return
    require_root()
    require("unshare")
    command = ["unshare", "--mount", "--propagation", "private"]
    if subprocess.run(command + ["true"], stderr=subprocess.DEVNULL).returncode != 0:
        skip("no mount namespace of our own: unshare --mount is not permitted here")
    os.environ["ST_OWN_MOUNTS"] = "1"
    os.execvp("unshare", command + [sys.executable, *sys.argv])


def mount(*words):
    """mount(8) in the namespace of own_mounts(); skips where the kernel does not know the file system."""
    done = subprocess.run(["mount", *map(str, words)], stderr=subprocess.PIPE)
    if done.returncode != 0:
        skip("cannot mount: %s" % done.stderr.decode().strip())
    # before the directory below it is removed
    atexit.register(subprocess.run, ["umount", "-l", str(words[-1])], stderr=subprocess.DEVNULL)


FULL = bool(os.environ.get("ST_FULL"))  # the long form of a test


# --- the agent's environment ---------------------------------------------------------------------------------------

def preload_env(dump_dir, sock_dir=None, **extra):
    """An environment in which programs run with the agent, everything it writes being below dump_dir or sock_dir.

    extra: further variables; None removes one. Variables of the surrounding shell that steer the agent are dropped.
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith("SYSTRACE_")}
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "RANK_ID", "DEVICE_ID"):
        env.pop(name, None)
    places = {
        "SYSTRACE_DUMP_PATH": dump_dir,
        "SYSTRACE_LOG_PATH": os.path.join(dump_dir, "log"),
        "SYSTRACE_SOCKET_DIR": sock_dir or os.path.join(dump_dir, "sock"),
        "SYSTRACE_SPOOL_PATH": os.path.join(dump_dir, "spool"),
        "SYSTRACE_LOCAL_PATH": os.path.join(dump_dir, "local"),
    }
    for path in places.values():
        os.makedirs(path, exist_ok=True)
    env.update(places, LD_PRELOAD=AGENT)
    for name, value in extra.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = str(value)
    return env


def tool_env(dump_dir, sock_dir=None, **extra):
    """preload_env for sysTrace_cli and systrace: the same places, but without the agent."""
    return preload_env(dump_dir, sock_dir, LD_PRELOAD=None, **extra)


def agent_log(dump_dir):
    """All log text that agents wrote below dump_dir."""
    return "".join(read_file(p) for p in sorted(glob.glob(os.path.join(dump_dir, "log", "*"))) if os.path.isfile(p))


# --- Python interpreters -------------------------------------------------------------------------------------------

def pythons(lowest=(3, 8), highest=(3, 13)):
    """The CPython interpreters at hand, as {(3, 11): path}, one per version: pyenv's, then /usr/bin/python3."""
    found = {}
    homes = [os.environ.get("PYENV_ROOT"), os.path.expanduser("~/.pyenv"), "/root/.pyenv"]
    candidates = []
    for home in homes:
        if home:
            candidates += sorted(glob.glob(os.path.join(home, "versions", "3.*", "bin", "python3")))
    candidates += sorted(glob.glob("/usr/bin/python3.[0-9]")) + sorted(glob.glob("/usr/bin/python3.[0-9][0-9]"))
    candidates.append("/usr/bin/python3")
    for path in candidates:
        version = python_version(path)
        if version and lowest <= version <= highest:
            found.setdefault(version, path)
    return dict(sorted(found.items()))


def python_version(path):
    """(major, minor) of an interpreter, None if it does not run."""
    try:
        out = subprocess.run([path, "-c", "import sys; print('%d %d' % sys.version_info[:2])"], timeout=20,
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                             env={"PATH": os.environ.get("PATH", "")}).stdout.split()
        return (int(out[0]), int(out[1]))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def python_with(module):
    """An interpreter that has this module (looked for without importing it), or the test is skipped."""
    probe = "import importlib.util as u, sys; sys.exit(u.find_spec(%r) is None)" % module
    for path in ["/usr/bin/python3", *pythons().values()]:
        if os.path.exists(path) and subprocess.run([path, "-c", probe], stderr=subprocess.DEVNULL).returncode == 0:
            return path
    skip("no Python interpreter here has the module %s" % module)


# --- C programs ----------------------------------------------------------------------------------------------------

def compile_c(source, output, *flags):
    """Compile a C file (a path, or program text) with gcc; returns output."""
    if "\n" in source:
        source = write_file(output + ".c", source)
    run(["gcc", "-D_GNU_SOURCE", "-O1", "-g", "-o", output, source, *flags]).ok()
    return output


# --- files that were recorded --------------------------------------------------------------------------------------

def find_one(directory, pattern):
    """The one file below directory whose path matches the glob pattern."""
    found = glob.glob(os.path.join(directory, pattern), recursive=True)
    check(len(found) == 1, "want one %s below %s, found %s; there is: %s" % (
        pattern, directory, found, [os.path.join(d, f) for d, _, fs in os.walk(directory) for f in fs]))
    return found[0]


def decode_pb(path, message="Pytorch", proto="systrace.proto"):
    """The text form of a pb file, by protoc: an implementation that shares nothing with ours."""
    require("protoc")
    with open(path, "rb") as f:
        data = f.read()
    return run(["protoc", "--proto_path=" + PROTO_DIR, "--decode=" + message, proto], input=data).ok().out


# --- golden files --------------------------------------------------------------------------------------------------

MASKS = (
    (re.compile(r"0x[0-9a-fA-F]{5,}"), "<addr>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d([.,]\d+)?"), "<date>"),
    (re.compile(r"(\"?\b(?:pid|tid|tgid|ppid|process_id|thread_id)\b\"?\s*[:=]\s*\"?)\d+", re.I), r"\1<pid>"),
    (re.compile(r"(\"?\b\w*(?:_ns|_us|_ms|dur|ts|time|timestamp)\b\"?\s*[:=]\s*\"?)-?\d+(?:\.\d+)?", re.I),
     r"\1<time>"),
    (re.compile(r"/tmp/st-[A-Za-z0-9_]+"), "<tmp>"),
)


def mask(text, *more):
    """Replace what differs from run to run (addresses, dates, pids, times, temporary directories).

    more: further (pattern, replacement) pairs, applied first.
    """
    for pattern, replacement in more:
        text = re.sub(pattern, replacement, text)
    for pattern, replacement in MASKS:
        text = pattern.sub(replacement, text)
    return text


def check_golden(name, text, *more_masks, sort=False):
    """Compare masked text with tests/golden/<name>; ST_UPDATE_GOLDEN=1 writes the file instead."""
    text = mask(text, *more_masks)
    if sort:
        text = "".join(sorted(text.splitlines(keepends=True)))
    path = os.path.join(GOLDEN_DIR, name)
    if os.environ.get("ST_UPDATE_GOLDEN"):
        write_file(path, text)
        return
    check(os.path.exists(path), "tests/golden/%s is missing; look at the output, then ST_UPDATE_GOLDEN=1" % name)
    want = read_file(path)
    if text != want:
        raise CheckFailed("differs from tests/golden/%s:\n%s" % (name, "".join(difflib.unified_diff(
            want.splitlines(keepends=True), text.splitlines(keepends=True), "golden", "this run"))))
