# SPDX-License-Identifier: MulanPSL-2.0
"""The test runner itself: verdicts, counts, last line and exit status, shown on a small project of its own."""

import os
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from harness import ROOT, check, check_equal, main, run, tmpdir, write_file

CMOCKA = """#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
static void first(void **state)
{
	%s
}
static void second(void **state)
{
	assert_int_equal(2, 2);
}
int main(void)
{
	const struct CMUnitTest t[] = { cmocka_unit_test(first), cmocka_unit_test(second) };
	return cmocka_run_group_tests(t, NULL, NULL);
}
"""


def project():
    """A copy of the build files with one storey and no tests."""
    root = tmpdir()
    shutil.copy(os.path.join(ROOT, "CMakeLists.txt"), root)
    shutil.copy(os.path.join(ROOT, "LICENSE"), root)
    shutil.copytree(os.path.join(ROOT, "tools"), os.path.join(root, "tools"))
    write_file(os.path.join(root, "cmake", "products.cmake"), "add_custom_target(sysTrace)\n")
    write_file(os.path.join(root, "src", "base", "a.c"), "int a(void);\nint a(void)\n{\n\treturn 1;\n}\n")
    return root


def runner(root, *args):
    result = run([sys.executable, os.path.join(root, "tools", "run-tests"), *args], timeout=170)
    return result, result.out.splitlines()[-1] if result.out else ""


def unit(root, body):
    write_file(os.path.join(root, "tests", "unit", "base", "test_a.c"), CMOCKA % body)


def e2e(root, name, text):
    write_file(os.path.join(root, "tests", "e2e", name), text)


def nothing_is_a_failure():
    result, last = runner(project(), "--only", "no-such-test")
    result.ok(1)
    check_equal(last, "0 passed, 1 failed", "last line")


def unit_functions_are_counted():
    root = project()
    unit(root, "assert_int_equal(1, 1);")
    result, last = runner(root, "--only", "asan/")
    result.ok(0)
    check_equal(last, "3 passed, 0 failed", "last line")  # the build and two functions
    unit(root, "skip();")
    check_equal(runner(root, "--only", "asan/")[1], "2 passed, 0 failed, 1 skipped", "last line")


def unit_failures_are_failures():
    root = project()
    unit(root, "assert_int_equal(1, 3);")
    result, last = runner(root, "--only", "asan/")
    result.ok(1)
    check_equal(last, "2 passed, 1 failed", "last line")
    check("1 != 0x3" in result.out or "0x1 != 0x3" in result.out, "the failing program's output is shown: %r" % result)
    for name, body in (("crash", "abort();"), ("leak", "char *volatile p = malloc(9);\n\tp = NULL;\n\t(void)p;"),
                       ("overflow", "char *p = malloc(9);\n\tp[9] = (char)(intptr_t)state;\n\tfree(p);"),
                       ("early exit", "exit(0);")):
        unit(root, body)
        result, _ = runner(root, "--only", "asan/")
        check("leaks not looked for" in result.out or result.status == 1, "%s went unnoticed: %r" % (name, result))


def broken_build_is_a_failure():
    root = project()
    write_file(os.path.join(root, "src", "base", "a.c"), "int a(void)\n{\n\tint unused;\n\treturn 1;\n}\n")
    e2e(root, "t001_x.py", "")
    result, last = runner(root, "--only", "e2e/")
    result.ok(1)
    check_equal(last, "0 passed, 2 failed", "last line")
    check("unused" in result.out, "the compiler's words are shown: %r" % result)


def scripts():
    root = project()
    e2e(root, "t001_pass.py", "")
    e2e(root, "t002_fail.py", "print('because')\nraise SystemExit(1)\n")
    e2e(root, "t003_skip.py", "print('skip: no moon')\nraise SystemExit(77)\n")
    e2e(root, "t004_full.py", "# runner: full\n")
    e2e(root, "t005_slow.py", "# runner: timeout 1\n# runner: alone\nimport time\ntime.sleep(60)\n")
    e2e(root, "t006_left.py", "import subprocess, sys\n"
        "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid)\n")
    result, last = runner(root, "--only", "e2e/")
    result.ok(1)
    check_equal(last, "3 passed, 2 failed, 2 skipped", "last line")
    for text in ("| because", "(no moon)", "(only with --full)", "(ended after 1 s)", "(left processes behind, ended)",
                 "failed: e2e/t002_fail e2e/t005_slow"):
        check(text in result.out, "want %r in %r" % (text, result))
    e2e(root, "t007_odd.py", "# runner: frob\n")
    result, _ = runner(root, "--only", "e2e/")
    check(result.status != 0 and "unknown line '# runner: frob'" in result.err, "%r" % result)


if __name__ == "__main__":
    main(nothing_is_a_failure, unit_functions_are_counted, unit_failures_are_failures, broken_build_is_a_failure,
         scripts)
