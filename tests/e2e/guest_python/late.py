# SPDX-License-Identifier: MulanPSL-2.0
"""Imported by the guests after tracing has begun."""


def f(x):
    return x


class K:
    def m(self):
        return "m"
