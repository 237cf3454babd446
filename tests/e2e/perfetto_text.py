# SPDX-License-Identifier: MulanPSL-2.0
"""Perfetto traces of `convert ftrace` as protoc shows them with the messages' names (perfetto_subset.proto): an implementation
that shares nothing with ours."""

import json
import os
import re

from harness import require, run


def _value(text):
    if text[0] != '"':
        return int(text) if text.lstrip("-").isdigit() else text
    text = re.sub(r"\\([0-7]{3})", lambda m: "\\u%04x" % int(m[1], 8), text).replace("\\'", "'")
    return json.loads(text).encode("latin-1").decode("utf-8", "surrogateescape")


def packets(path):
    """[packet]; a message is {name: [value, ...]}, values are numbers, texts, names of enums or messages."""
    require("protoc")
    with open(path, "rb") as f:
        data = f.read()
    out = run(["protoc", "--proto_path=" + os.path.dirname(os.path.abspath(__file__)), "--decode=sysTrace.perfetto.Trace",
               "perfetto_subset.proto"], input=data).ok().out
    stack = [{}]
    for line in out.splitlines():
        word = line.strip()
        if word == "}":
            stack.pop()
        elif word.endswith(" {"):
            stack[-1].setdefault(word[:-2], []).append({})
            stack.append(stack[-1][word[:-2]][-1])
        else:
            name, text = word.split(": ", 1)
            stack[-1].setdefault(name, []).append(_value(text))
    return stack[0]["packet"]


def nameless(messages):
    """Numbers of fields that the messages do not have, or not of that type."""
    return [key for message in messages for key, values in message.items() if key.isdigit()] + [
        key for message in messages for values in message.values()
        for key in nameless([value for value in values if isinstance(value, dict)])]
