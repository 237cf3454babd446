# SPDX-License-Identifier: MulanPSL-2.0
"""Prints a function list of whatever functions and methods the modules named on the command line define, 500 at most; modules that
this version does not have are left out."""

import importlib
import inspect
import sys

rows = []
for module_name in sys.argv[1:]:
    try:
        module = importlib.import_module(module_name)
    except ImportError:
        continue
    for name, value in sorted(vars(module).items()):
        if getattr(value, "__module__", None) != module_name:
            continue
        if inspect.isfunction(value):
            rows.append("%s@%s" % (module_name, name))
        elif inspect.isclass(value):
            rows += ["%s@%s@%s" % (module_name, name, attr) for attr, f in sorted(vars(value).items())
                     if inspect.isfunction(f) and value.__name__ == name]
print("\n".join(rows[:500]))
