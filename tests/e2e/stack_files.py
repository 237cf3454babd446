# SPDX-License-Identifier: MulanPSL-2.0
"""Reads stacks/stacks_rank<r>_<pid>.json as docs/formats/stacks.md says, for end-to-end tests."""

import glob
import json
import os


class Stacks:
    """What the ids of one process stand for."""

    def __init__(self, dump, pid):
        found = glob.glob(os.path.join(dump, "**", "stacks", "stacks_rank*_%d.json*" % pid), recursive=True)
        self.modules, self.functions, self.stacks = {}, {}, {}
        for path in found:
            with open(path) as f:
                for entry in json.load(f)["stack_entries"]:
                    table, key = next((t, entry[k]) for k, t in (("module", self.modules), ("function", self.functions),
                                                                 ("stack", self.stacks)) if k in entry)
                    table[key] = entry

    def frames(self, stack):
        """Of a stack, innermost first: (path of the module, address in it), (function, file, line) or (address,)."""
        frames = []
        for text in self.stacks[stack]["frames"]:
            if text.startswith("p"):
                function, line = text[1:].split(":")
                entry = self.functions[int(function)]
                frames.append((entry["name"], entry["file"], int(line)))
            elif "+" in text:
                module, address = text.split("+")
                frames.append((self.modules[int(module)]["path"], int(address, 16)))
            else:
                frames.append((int(text, 16),))
        return frames

    def python(self, stack):
        """Names of the Python functions, without their classes."""
        return [f[0].rsplit(".", 1)[-1] for f in self.frames(stack) if len(f) == 3]
