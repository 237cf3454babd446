# SPDX-License-Identifier: MulanPSL-2.0
"""Links of README.md and docs/ lead to files that are there."""

import glob
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def main():
    pages = glob.glob(os.path.join(ROOT, "*.md")) + glob.glob(os.path.join(ROOT, "docs", "**", "*.md"), recursive=True)
    broken = []
    for page in sorted(pages):
        with open(page, encoding="utf-8") as f:
            text = re.sub(r"```.*?```", "", f.read(), flags=re.S)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            path = target.partition("#")[0]
            if re.match(r"\w+:", target) or not path:
                continue
            if not os.path.exists(os.path.join(os.path.dirname(page), path)):
                broken.append("%s: %s is not there" % (os.path.relpath(page, ROOT), target))
    print("\n".join(broken) or "%d pages, every link leads somewhere" % len(pages))
    return bool(broken) or not pages


if __name__ == "__main__":
    sys.exit(main())
