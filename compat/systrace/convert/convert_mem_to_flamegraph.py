#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""The old entry point for flame graphs of memory: runs `systrace convert mem`. Writes collapsed stacks for flame graph tools, or
the flame graph itself when the name of the output ends in .svg.

    convert_mem_to_flamegraph.py --input hbm_trace_rank0_1234.pb --output memory.folded
"""

import argparse
import os
import shutil
import sys

SYSTRACE = os.environ.get("SYSTRACE_TOOL") or shutil.which("systrace")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", required=True, help="recorded file (pb or json)")
    parser.add_argument("--output", required=True, help="file to write")
    options = parser.parse_args()
    if not SYSTRACE:
        sys.exit("convert_mem_to_flamegraph.py: the program systrace is not in PATH; install it or name it in SYSTRACE_TOOL")
    form = "svg" if options.output.endswith(".svg") else "collapsed"
    os.execv(SYSTRACE, [SYSTRACE, "convert", "mem", "--input", options.input, "--output", options.output, "--format", form])


if __name__ == "__main__":
    main()
