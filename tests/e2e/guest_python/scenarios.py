# SPDX-License-Identifier: MulanPSL-2.0
"""Python stages, asserted from inside the traced process: one function per promise, all run in one process by
t110_python_stages.py under each interpreter. Started with tracing off, so that before and after can be compared.
"""

import asyncio
import gc
import inspect
import os
import pickle
import sys
import threading
import traceback

import guest
import sample
from guest import count, seen, until_attached

V = sys.version_info[:2]
CODE_CHANGES = V == (3, 11)


def call_forms():
    S = "sample@t_plain"
    with seen(S, 9 if V > (3, 8) else 8):  # 3.8 calls a function otherwise when it is asked for by __call__
        assert sample.t_plain(1, 2) == 10
        assert sample.t_plain(1, 2, 3, 5, 6, d=7, e=8) == 32
        assert sample.t_plain(*(1, 2), **{"d": 0}) == 6
        assert list(map(sample.t_plain, [1, 2], [3, 4])) == [11, 13]
        assert sample.t_plain.__call__(1, 1) == 9
        f = sample.t_plain
        assert sorted([3, 1, 2], key=lambda x: x and f(x, 0)) == [1, 2, 3]
    with seen("sample@t_loop", 2):
        assert sample.t_loop(2000) == -1 and sample.t_loop(0) == -1
    with seen("sample@t_long", 2):
        assert sample.t_long(4) == 6 and sample.t_long(0) == 0
    with seen("sample@t_huge", 3):
        assert sample.t_huge(0) == "else" and sample.t_huge(5) == ("break", 1) and sample.t_huge(1) == "else"
    with seen("sample@t_returns", 6, raised=1):
        got = [sample.t_returns(n) for n in (3, 15, 27, 30, 40)]
        assert got == ["in with", "in except", "in finally", "in else", None], got
        try:
            sample.t_returns(12)
            assert False
        except ValueError as e:
            assert isinstance(e.__cause__, KeyError)


def methods():
    b, c = sample.Base(), sample.Child()
    with seen("sample@Base@method", 4):
        assert b.method(1) == 2 and c.method(2) == 3 and sample.Base.method(b, 5) == 6
        bound = c.method
        assert bound(7) == 8
    with seen("sample@Base@overridden", 2):
        assert c.overridden() == "child of base" and b.overridden() == "base"
    with seen("sample@Base@static", 2):
        assert b.static(4) == 4 and sample.Child.static(5) == 5
    with seen("sample@Base@cls", 2):
        assert b.cls(1) == ("Base", 1) and sample.Child.cls(2) == ("Child", 2)
    with seen("sample@Base@__call__", 2):
        assert b(21) == 42 and c(1) == 2
    with seen("sample@Base@__next__", 4, raised=1):
        assert [x for x in b] == [2, 1, 0]
    with seen("sample@Child@step", 1):
        assert c.step() == "Child"
    with seen("sample@t_partial", 0), seen("sample@t_loop", 1):
        assert sample.t_partial() == -1  # one function object: it belongs to the row that came first
    with seen("sample@t_bound", 2):
        assert sample.t_bound() == 1 and b.not_listed() == 1


def shared_code():
    assert sample.t_decorated.__code__.co_filename == sample.u_decorated.__code__.co_filename
    with seen("sample@t_decorated", 5):
        for i in range(5):
            assert sample.t_decorated(i) == i
        for i in range(7):
            assert sample.u_decorated(i) == i


def deepest(name):
    sample.depth = 0
    try:
        getattr(sample, name)(10 ** 9)
    except RecursionError:
        pass
    return sample.depth


def recursion():
    """The recursion limit is reached at the same depth with and without tracing."""
    limit = sys.getrecursionlimit()
    for new in (200, limit):
        sys.setrecursionlimit(new)
        before = count("sample@t_recurse")
        traced, plain = deepest("t_recurse"), deepest("u_recurse")
        assert traced == plain > new // 2, (traced, plain)
        assert count("sample@t_recurse") - before >= traced
    assert count("sample@t_recurse") == count("sample@t_recurse", guest.LEAVES)
    assert count("sample@t_recurse", guest.DEEPEST) > 190
    sys.setrecursionlimit(limit)


def exceptions():
    with seen("sample@t_raise", 3, raised=3):
        for kind in (ValueError, KeyError, StopIteration):
            try:
                sample.t_raise(kind)
                assert False
            except kind as e:
                frames = traceback.extract_tb(e.__traceback__)
                assert [f.name for f in frames] == ["exceptions", "t_raise"], frames
                assert frames[1].line == "raise kind(len(local))" and e.args == (1,)
    with seen("sample@t_suppress", 1), seen("sample@t_raise", 1, raised=1):
        assert sample.t_suppress() == 1
    with seen("sample@t_raise", 1, raised=1):  # raised while another one is being handled
        try:
            try:
                1 // 0
            except ZeroDivisionError:
                sample.t_raise(ValueError)
        except ValueError as e:
            assert isinstance(e.__context__, ZeroDivisionError)
    with seen("sample@t_plain", 1, raised=1):
        try:
            sample.t_plain(1, "x")
        except TypeError:
            pass
    try:  # refused before the body begins: no call of ours on 3.11, a raising one elsewhere
        sample.t_loop()
    except TypeError as e:
        assert "t_loop() missing 1 required positional argument" in str(e)


def kept_frames():
    with seen("sample@t_keeps_frame", 1):  # the call ends at its return, not when the frame object dies
        assert sample.t_keeps_frame() == 1
    assert sample.t_keeps_frame.frame.f_code.co_name == "t_keeps_frame"
    sample.t_keeps_frame.frame.clear()


def generators():
    with_events = V >= (3, 12)
    assert guest.attached("sample@t_generator") == with_events, guest.status()
    if not with_events:
        assert "sample@t_generator: a generator or coroutine function" in guest.status(), guest.status()
    with seen("sample@t_generator", 4 if with_events else 0):
        g = sample.t_generator(3)
        assert next(g) == 0 and g.send("a") == 1 and next(g) == 2
        try:
            g.send("last")
        except StopIteration as e:
            assert e.value == "last"
    with seen("sample@t_coroutine", 1 if with_events else 0):
        assert asyncio.run(sample.t_coroutine(4)) == 6
    g = sample.t_generator(3)
    next(g)
    try:
        g.throw(KeyError("thrown"))
        assert False
    except KeyError:
        pass
    if with_events:  # a stretch that an exception ended is closed by the next event
        g = sample.t_generator(1)
        next(g)
        assert count("sample@t_generator") == count("sample@t_generator", guest.LEAVES)


def replaced():
    def second():
        return "second"
    first = sample.t_replaced
    assert first() == "first"
    before = count("sample@t_replaced")
    sample.t_replaced = second
    guest.until(lambda: guest.attached("sample@t_replaced") == 2, "attaching the new function")
    assert sample.t_replaced() == "second" and first() == "first"
    assert count("sample@t_replaced") == before + 2


def late_import():
    assert guest.attached("late@f") == 0 and " 0 not loaded" not in guest.status(), guest.status()
    import late
    until_attached("late@f", "late@K@m")
    with seen("late@f", 3), seen("late@K@m", 1):
        assert [late.f(i) for i in range(3)] == [0, 1, 2] and late.K().m() == "m"


def threads():
    def work():
        for i in range(1000):
            assert sample.t_plain(i, 1) == i + 8
    with seen("sample@t_plain", 8000):
        all_threads = [threading.Thread(target=work) for _ in range(8)]
        for t in all_threads:
            t.start()
        for t in all_threads:
            t.join()


def subinterpreters():
    try:
        import _interpreters as interpreters
    except ImportError:
        import _xxsubinterpreters as interpreters
    code = "import sys; sys.path.insert(0, %r)\nimport sample\nassert sample.t_loop(5) == -1\n" % os.path.dirname(__file__)
    with seen("sample@t_loop", 0):
        sub = interpreters.create()
        interpreters.run_string(sub, code)
        interpreters.destroy(sub)
    with seen("sample@t_loop", 1):
        assert sample.t_loop(1) == -1


def collective_arguments():
    def args(call, spec, want, keywords):
        before = count(spec, guest.ARGS), count(spec, guest.KWARGS)
        call()
        got = count(spec, guest.ARGS) - before[0], count(spec, guest.KWARGS) - before[1]
        assert got == (want, keywords), (spec, got)
    same = CODE_CHANGES  # 3.11 hands over the parameters as the function sees them
    args(lambda: sample.positional(1, 2), "sample@positional", 4 if same else 2, 0)
    args(lambda: sample.positional(1, group=2), "sample@positional", 4 if same else 1, 0 if same else 1)
    args(lambda: sample.cellular(1, group=2), "sample@cellular", 3 if same else 1, 0 if same else 1)
    args(lambda: sample.wrapped(1, 2), "sample@wrapped", 2, 0)
    args(lambda: sample.wrapped(1, group=2), "sample@wrapped", 1, 1)
    assert sample.cellular(1, group=2) == (1, 2) and sample.wrapped(1, group=3) == (1, None, 3)


def optimizers():
    guest.until(lambda: guest.attached("sample@Optimizer@step") >= 2, "the subclass's step")
    with seen("sample@Optimizer@step", 2):
        assert sample.Sgd().step() == "sgd" and sample.Hooked().step() == "sgd"
    inner = sample.Hooked.step
    sample.Hooked.step = sample.decorate(inner)  # as torch does when the first instance is made
    guest.until(lambda: guest.attached("sample@Optimizer@step") >= 3, "the wrapper")
    with seen("sample@Optimizer@step", 1):  # the wrapper and what it wraps are one call
        assert sample.Hooked().step() == "sgd"
    with seen("sample@Optimizer@step", 1):
        assert inner(None) == "sgd"
    assert "sample@Ctx: a class" in guest.status() and "sample@instance: an object" in guest.status(), guest.status()


def native():
    import functools
    import _json
    plain = guest.plain_encode
    with seen("_json@encode_basestring", 2, raised=1):
        assert _json.encode_basestring("a") == '"a"'
        try:
            _json.encode_basestring(1)
        except TypeError:
            pass
        assert plain("b") == '"b"'
    wrapper = _json.encode_basestring
    assert wrapper is not plain and repr(wrapper) == repr(plain) and wrapper.__name__ == "encode_basestring"
    assert wrapper.__doc__ == plain.__doc__ and isinstance(wrapper, type(plain)) and inspect.isbuiltin(wrapper)
    assert pickle.loads(pickle.dumps(wrapper)) is wrapper
    assert functools.reduce(lambda a, b: a + b, [1, 2, 3]) == 6
    text = guest.status()
    assert "datetime@date@isoformat: native, and its class does not let attributes be set" in text, text
    assert "datetime@date@today: a native class method" in text, text


def collections():
    before = guest.gc_count()
    gc.collect()
    assert guest.gc_count() == before + 1
    gc.callbacks.clear()
    guest.switch(False)
    guest.switch(True)  # a look at the list puts the callback back
    before = guest.gc_count()
    gc.collect(0)
    assert guest.gc_count() == before + 1


def references():
    """Neither functions, arguments nor results leak."""
    thing = object()

    def refs():
        return [sys.getrefcount(x) for x in (thing, sample.t_plain, sample.positional, sample.wrapped, None.__class__)]
    sample.positional(thing, group=thing)
    before = refs()
    blocks = sys.getallocatedblocks()
    for i in range(3000):
        sample.positional(thing, op=1, group=thing)
        sample.wrapped(thing, group=thing)
        try:
            sample.t_raise(ValueError)
        except ValueError:
            pass
    assert refs() == before, (refs(), before)
    assert sys.getallocatedblocks() - blocks < 500


def all_functions():
    names = ["t_plain", "t_loop", "t_returns", "t_decorated", "t_recurse", "t_generator", "t_coroutine",
             "t_async_generator", "positional", "wrapped", "t_huge"]
    return [getattr(sample, n) for n in names] + [sample.Base.method, sample.Child.step, sample.Base.cls.__func__]


CODE_ATTRS = ("co_name", "co_filename", "co_firstlineno", "co_flags", "co_varnames", "co_names", "co_freevars",
              "co_cellvars", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_nlocals")


def look(f):
    """All that an introspector may ask; the code's bytes only where they must not change."""
    code = f.__code__
    got = {a: getattr(code, a) for a in CODE_ATTRS}
    got.update(type=type(f), repr=repr(f), sig=str(inspect.signature(f)), doc=f.__doc__, attrs=dict(f.__dict__),
               defaults=f.__defaults__, kwdefaults=f.__kwdefaults__, closure=f.__closure__, module=f.__module__,
               qualname=f.__qualname__, size=sys.getsizeof(f), hash=hash(f),
               coroutine=inspect.iscoroutinefunction(f), generator=inspect.isgeneratorfunction(f),
               asyncgen=inspect.isasyncgenfunction(f), isfunction=inspect.isfunction(f))
    if code.co_filename != "<huge>":
        got["source"] = inspect.getsource(f)
        got["wrapped"] = inspect.unwrap(f)
    if "<locals>" not in f.__qualname__ and f.__name__ != "cls":  # a classmethod's function has no name of its own
        got["pickle"] = pickle.dumps(f)
    if CODE_CHANGES:
        got["lines"] = {line for _, _, line in code.co_lines()}
        got["positions"] = set(code.co_positions())
    else:
        got["code"], got["id"] = code, id(code)
    return got


def events(f, *args):
    """What a profiler and a debugger see of a call."""
    got = []

    def profile(frame, event, arg):
        if not event.startswith("c_"):
            got.append((event, frame.f_code.co_name, frame.f_lineno))

    def trace(frame, event, arg):
        got.append((event, frame.f_code.co_name, frame.f_lineno))
        return trace
    for install, hook in ((sys.setprofile, profile), (sys.settrace, trace)):
        install(hook)
        try:
            f(*args)
        except ValueError:
            pass
        finally:
            install(None)
    return got


def before_and_after():
    """Run with tracing off: what functions look like, then the same with it on, then off again."""
    functions = all_functions()
    calls = [(sample.t_plain, 1, 2), (sample.t_loop, 2), (sample.t_returns, 3), (sample.t_returns, 12),
             (sample.t_raise, ValueError), (sample.t_suppress,), (sample.cellular, 1), (sample.wrapped, 2)]
    looks = [look(f) for f in functions]
    traced_events = [events(*c) for c in calls]
    inside = sample.t_inspects()
    codes = [f.__code__ for f in functions]
    with seen("sample@t_plain", 0):
        sample.t_plain(1, 2)
    assert guest.switch(True) == 0
    until_attached("sample@t_plain", "sample@t_huge", "sample@Base@cls", "sample@wrapped", "sample@t_inspects")
    for f, old in zip(functions, looks):
        new = look(f)
        assert new == old, (f, {k: (old[k], new[k]) for k in old if old[k] != new[k]})
    for call, old in zip(calls, traced_events):
        new = events(*call)
        assert new == old, (call, old, new)
    with seen("sample@t_inspects", 1):
        inside_now = sample.t_inspects()
    assert inside_now == inside, (inside, inside_now)
    assert guest.switch(False) == 0
    with seen("sample@t_plain", 0), seen("sample@Base@method", 0):
        sample.t_plain(1, 2)
        sample.Base().method(1)
    assert [f.__code__ for f in functions] == codes
    assert all(f.__code__ is c for f, c in zip(functions, codes))
    assert guest.switch(True) == 0
    with seen("sample@t_plain", 1):
        sample.t_plain(1, 2)


def dynamo_loaded():
    """Once torch.compile may have guards on __code__, switching off leaves it and still records nothing."""
    import types
    sys.modules["torch._dynamo"] = types.ModuleType("torch._dynamo")
    code = sample.t_plain.__code__
    guest.switch(False)
    assert sample.t_plain.__code__ is code
    with seen("sample@t_plain", 0):
        assert sample.t_plain(1, 2) == 10
    with seen("sample@positional", 0):
        sample.positional(1)
    del sys.modules["torch._dynamo"]
    guest.switch(True)
    with seen("sample@t_plain", 1):
        sample.t_plain(1, 2)


def by_value():
    """The code of a traced function can be pickled by value, as cloudpickle does it, and runs elsewhere."""
    import types
    for f, arg in ((sample.t_loop, 3), (sample.positional, 5)):
        consts = tuple(pickle.loads(pickle.dumps(c)) for c in f.__code__.co_consts if not inspect.iscode(c))
        copy = types.FunctionType(f.__code__.replace(co_consts=consts), {}, f.__name__, f.__defaults__)
        assert copy(arg) == f(arg)


def forked():
    before = count("sample@t_plain")
    pid = os.fork()
    if pid == 0:
        ok = sample.t_plain(1, 2) == 10 and count("sample@t_plain") == before + 1
        os._exit(0 if ok else 1)
    assert os.waitpid(pid, 0)[1] == 0


def main():
    import _json
    import datetime
    assert datetime.date.today()
    guest.plain_encode = _json.encode_basestring
    guest.until(lambda: guest.switch(False, 100) == 0, "the thread")
    before_and_after()
    for test in (call_forms, methods, shared_code, recursion, exceptions, kept_frames, generators, replaced, late_import,
                 threads, collective_arguments, optimizers, native, collections, references, by_value, dynamo_loaded,
                 forked, subinterpreters):
        test()
        print("ok", test.__name__, flush=True)
    assert count("sample@nothing") == 0 and "1 without such a name" in guest.status(), guest.status()
    print("all ok")


if __name__ == "__main__":
    main()
