#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""The old entry point of the FailSlow algorithm: runs `systrace failslow` once. Without arguments the input is training_log
of /etc/systrace/config/model_config.json, as it used to be; arguments are passed on."""

import os
import shutil
import sys

SYSTRACE = os.environ.get("SYSTRACE_TOOL") or shutil.which("systrace")

if __name__ == "__main__":
    if not SYSTRACE:
        sys.exit("fail_slow_detection.py: the program systrace is not in PATH; install it or name it in SYSTRACE_TOOL")
    os.execv(SYSTRACE, [SYSTRACE, "failslow"] + sys.argv[1:])
