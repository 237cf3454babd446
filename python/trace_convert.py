#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""Convert a recording of trace_record.py for MindStudio Insight, Chrome or Perfetto.

    python3 trace_convert.py --input=trace.dat --profiling_data=result_dir/xxxx_ascend_pt

The options are handed to the program `systrace convert ftrace`, which has them all; `--help` shows its help.
"""

import os
import sys

from trace_record import find_systrace


def main(argv=None):
    """This process becomes `systrace convert ftrace`."""
    try:
        program = find_systrace()
    except FileNotFoundError as e:
        print("trace_convert.py: error: %s" % e, file=sys.stderr)
        return 1
    sys.stdout.flush()
    os.execv(program, [program, "convert", "ftrace"] + (sys.argv[1:] if argv is None else argv))
    return 1


if __name__ == "__main__":
    sys.exit(main())
