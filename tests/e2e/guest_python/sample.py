# SPDX-License-Identifier: MulanPSL-2.0
"""Functions of every shape for the Python stage tests: `t_` ones are in the list, their `u_` twins are not."""

import functools
import inspect
import sys


def t_plain(a, b, /, c=3, *args, d=4, **kw):
    """Docstring."""
    total = a + b + c + d
    for x in args:
        total += x
    return total + sum(kw.values())


def t_loop(n):
    while True:  # the first instruction of the body is a jump's target
        n -= 1
        if n < 0:
            return n


def t_returns(n):
    for i in range(10):
        try:
            with Ctx():
                if i == n:
                    return "in with"
                if i + 10 == n:
                    raise KeyError(n)
        except KeyError as e:
            if n == 15:
                return "in except"
            raise ValueError(n) from e
        finally:
            if n == 27 and i == 7:
                return "in finally"
    else:
        if n == 30:
            return "in else"
    return None


class Ctx:
    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return False


def t_long(n):
    LONG_BODY = n
    if n:
        for i in range(n):
            if i % 2:
                continue
            LONG_BODY += FILL
    return LONG_BODY


class Base:
    def method(self, x):
        return x + 1

    def overridden(self):
        return "base"

    @staticmethod
    def static(x):
        return x

    @classmethod
    def cls(cls, x):
        return cls.__name__, x

    def __call__(self, x):
        return x * 2

    def __iter__(self):
        self.left = 3
        return self

    def __next__(self):
        self.left -= 1
        if self.left < 0:
            raise StopIteration
        return self.left

    def not_listed(self):
        return 1


class Child(Base):
    def overridden(self):
        return "child of " + super().overridden()

    def step(self):
        return __class__.__name__


def decorate(f):
    @functools.wraps(f)
    def wrapper(*args, **kwargs):
        return f(*args, **kwargs)
    return wrapper


@decorate
def t_decorated(x):
    return x


@decorate
def u_decorated(x):
    return x


def make_recursive(name):
    """Two functions that share one code object, each calling itself by name."""
    def recurse(limit):
        global depth
        depth += 1
        if depth < limit:
            globals()[name](limit)
    recurse.__name__ = recurse.__qualname__ = name
    return recurse


depth = 0
t_recurse = make_recursive("t_recurse")
u_recurse = make_recursive("u_recurse")


def t_raise(kind):
    local = [kind]
    raise kind(len(local))


def t_suppress():
    try:
        t_raise(KeyError)
    except KeyError as e:
        return e.args[0]


def t_keeps_frame():
    t_keeps_frame.frame = sys._getframe()
    return 1


def t_inspects():
    frame = sys._getframe()
    return sorted(locals()), len(inspect.stack()), frame.f_lineno, frame.f_back.f_code.co_name


def t_generator(n):
    got = 0
    for i in range(n):
        got = yield i
    return got


async def t_coroutine(n):
    total = 0
    async for x in t_async_generator(n):
        total += x
    return total


async def t_async_generator(n):
    for i in range(n):
        yield i


def cellular(tensor, op=None, group=None):
    def inner():
        return tensor, group
    return inner()


def positional(tensor, op=None, group=None, async_op=False):
    return tensor, op, group, async_op


@decorate
def wrapped(tensor, op=None, group=None):
    return tensor, op, group


t_partial = functools.partial(t_loop, 3)
t_bound = Base().not_listed
instance = Base()


def t_replaced():
    return "first"


# a body that is long enough for EXTENDED_ARG in jumps, arguments and constants
FILL = 1
_source = "def t_huge(n):\n    while n:\n        n -= 1\n        if n == 1:\n            break\n"
_source += "".join("        x%d = n + %d\n" % (i, i * 1000) for i in range(300))
_source += "    else:\n        return 'else'\n    return 'break', n\n"
exec(compile(_source, "<huge>", "exec"))


class Optimizer:
    def step(self):
        raise NotImplementedError


class Sgd(Optimizer):
    def step(self):
        return "sgd"


class Hooked(Sgd):
    pass
