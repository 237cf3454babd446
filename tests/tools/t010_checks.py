# SPDX-License-Identifier: MulanPSL-2.0
"""Each check of tools/ fires on the mistake it is there for, and stays quiet on the corrected tree."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from harness import ROOT, check, main, require, run, tmpdir, write_file


def tool(name, *args, **kwargs):
    return run([os.path.join(ROOT, "tools", name), *args], **kwargs)


def expect(result, status, *texts):
    result.ok(status)
    for text in texts:
        check(text in result.out, "want %r in %r" % (text, result))


def layers_tree(**files):
    root = tmpdir()
    for name, text in files.items():
        write_file(os.path.join(root, *name.split("__")[:-1], name.split("__")[-1].replace("_h", ".h").replace(
            "_c", ".c")), text)
    return root


def layers_quiet_on_downward_includes():
    root = layers_tree(src__base__vec_c='#include "base/vec.h"\n#include "safe/pool.h"\n#include <stdlib.h>\n',
                       src__convert__x_c='#include "trace/event.h"\n#include <sqlite3.h>\n',
                       include__systrace__api_h="#include <stdint.h>\n")
    expect(tool("check-layers", root), 0)


def layers_fires():
    cases = (
        ("src__safe__a_c", '#include "base/vec.h"\n', "src/safe/a.c:1: includes base/vec.h: safe may include"),
        ("src__base__a_h", '\n#include "wire/ctl.h"\n', "src/base/a.h:2: includes wire/ctl.h: base may include safe"),
        ("src__convert__a_c", '#include "analyze/x.h"\n', "includes analyze/x.h"),
        ("src__agent__a_c", '#include "probe/x.h"\n', "includes probe/x.h"),
        ("src__cli__a_c", '#include "agent/agent.h"\n', "includes agent/agent.h"),
        ("src__wire__a_c", '#include "../base/vec.h"\n', "written from src/"),
        ("src__wire__a_c", '#include "vec.h"\n', "written from src/"),
        ("src__agent__a_c", "#include <sqlite3.h>\n", "agent uses C library headers only"),
        ("src__trace__a_c", "#include <Python.h>\n", "found at run time"),
        ("src__odd__a_c", "int x;\n", "odd is no storey"),
        ("include__systrace__a_h", '#include "base/vec.h"\n', "public headers include"),
    )
    for name, text, want in cases:
        expect(tool("check-layers", layers_tree(**{name: text})), 1, want)


def layers_usage():
    tool("check-layers", "--frob").ok(2)


def shared_library(directory, source, *flags):
    path = os.path.join(directory, "lib.so")
    write_file(path + ".c", source)
    run(["gcc", "-shared", "-fPIC", "-fvisibility=hidden", "-D_GNU_SOURCE", "-o", path, path + ".c", *flags]).ok()
    return path


EXPORT = "__attribute__((visibility(\"default\"))) "
FLOOR = "__asm__(\".symver dlsym,dlsym@GLIBC_2.2.5\");\n" if os.uname().machine == "x86_64" else ""


def glibc_fires():
    directory = tmpdir()
    exports = write_file(os.path.join(directory, "exports.map"), "T_1 {\nglobal: st_ok*; /* x */\nlocal: *;\n};\n")
    old = "#include <string.h>\n" + EXPORT + "unsigned long st_ok(const char *s)\n{\n\treturn strlen(s);\n}\n"
    expect(tool("check-glibc", shared_library(directory, old), exports), 0)
    # dlsym was renewed in 2.34 (x86_64: it lives in libc.so.6 only since then)
    new = "#include <dlfcn.h>\n" + EXPORT + "void *st_ok(void)\n{\n\treturn dlsym(0, \"x\");\n}\n"
    expect(tool("check-glibc", shared_library(directory, new), exports), 1, "dlsym@GLIBC_2.34 is newer than GLIBC_2.",
           "dlsym: not in libc.so.6 before glibc 2.34", "requires GLIBC_2.34")
    if FLOOR:
        pinned = FLOOR + new
        expect(tool("check-glibc", shared_library(directory, pinned), exports), 1, "dlsym: not in libc.so.6")
        weak = "#pragma weak dlsym\n" + pinned + old.replace("st_ok", "st_ok_too")
        expect(tool("check-glibc", shared_library(directory, weak), exports), 0)
    expect(tool("check-glibc", shared_library(directory, old, "-Wl,--no-as-needed", "-lm"), exports), 1, "needs libm.so.6")
    malloc = old + EXPORT + "void *malloc(unsigned long n)\n{\n\treturn (void *)n;\n}\n"
    expect(tool("check-glibc", shared_library(directory, malloc, "-fno-builtin"), exports), 1,
           "exports malloc: exports.map does not allow it")
    expect(tool("check-glibc", os.path.join(directory, "none.so"), exports), 77, "skip: ")
    tool("check-glibc", "--frob").ok(2)


def safe_fires():
    build = tmpdir()
    folder = os.path.join(build, "CMakeFiles", "st_safe.dir", "src", "safe")
    expect(tool("check-safe", build), 77, "skip: ")
    write_file(os.path.join(folder, "a.c"), "#include <string.h>\nint b(void);\nint a(const char *s)\n{\n"
               "\treturn strlen(s) + b();\n}\n")
    write_file(os.path.join(folder, "b.c"), "int b(void)\n{\n\treturn 1;\n}\n")
    for name in ("a.c", "b.c"):
        run(["gcc", "-c", "-fPIC", "-o", os.path.join(folder, name + ".o"), os.path.join(folder, name)]).ok()
    expect(tool("check-safe", build), 0)
    write_file(os.path.join(folder, "b.c"), "#include <stdlib.h>\nint b(void)\n{\n\tfree(malloc(3));\n\treturn 1;\n}\n")
    run(["gcc", "-c", "-O0", "-o", os.path.join(folder, "b.c.o"), os.path.join(folder, "b.c")]).ok()
    expect(tool("check-safe", build), 1, "b.c: malloc is not in safe-symbols.txt", "b.c: free is not")


def format_fires():
    require("clang-format")
    root = tmpdir()
    write_file(os.path.join(root, ".clang-format"), open(os.path.join(ROOT, ".clang-format")).read())
    write_file(os.path.join(root, "src", "ok.c"), "int f(int a)\n{\n\treturn a;\n}\n")
    result = tool("check-format", root)
    if result.status == 77:
        return
    expect(result, 0)
    write_file(os.path.join(root, "src", "bad.c"), "int f(int a) {\n  return a;\n}\n")
    expect(tool("check-format", root), 1, "src/bad.c")
    check("ok.c" not in tool("check-format", root).out, "a clean file is listed")


def shell_fires():
    require("shellcheck")
    root = tmpdir()
    write_file(os.path.join(root, "ok.sh"), "#!/bin/sh\necho \"$1\"\n")
    expect(tool("check-shell", root), 0)
    path = write_file(os.path.join(root, "bad"), "#!/usr/bin/env bash\nrm $1\n")
    os.chmod(path, 0o755)
    expect(tool("check-shell", root), 1, "SC2086")


def headers_fires():
    require("clang")
    root = tmpdir()
    write_file(os.path.join(root, "src", "base", "a.h"), "#include <stdint.h>\nint f(uint32_t x);\n")
    write_file(os.path.join(root, "include", "systrace", "a.h"), "#include <stdint.h>\nint f(uint32_t x);\n")
    expect(tool("check-headers", root), 0)
    write_file(os.path.join(root, "src", "base", "b.h"), "int f(uint32_t x);\n")
    expect(tool("check-headers", root), 1, "src/base/b.h: does not stand alone")
    os.unlink(os.path.join(root, "src", "base", "b.h"))
    write_file(os.path.join(root, "include", "systrace", "b.h"), "int f(int class);\n")
    expect(tool("check-headers", root), 1, "b.h: does not stand alone as c++11")


def docs_fires():
    root = tmpdir()
    build = os.path.join(root, "build")
    expect(tool("check-docs", root), 77, "skip: ")
    program = write_file(os.path.join(build, "systrace"), "#!/bin/sh\necho 'convert  converts'\necho 'record  records'\n")
    os.chmod(program, 0o755)
    program = write_file(os.path.join(build, "sysTrace_cli"), "#!/bin/sh\necho ' IO  files'\n")
    os.chmod(program, 0o755)
    write_file(os.path.join(root, "src", "wire", "plugin_spec.c"),
               '\t[PLUGIN_IO] = { "IO", "x" },\n\t[PLUGIN_CPU] = { .name = "CPU" },\n')
    write_file(os.path.join(root, "src", "agent", "env.c"), '\t{ "SYSTRACE_FORMAT" },\n')
    write_file(os.path.join(root, "docs", "commands", "convert.md"), "# systrace convert\n")
    expect(tool("check-docs", root), 1, "docs/commands/record.md is missing", "plugin IO: mentioned nowhere",
           "plugin CPU: sysTrace_cli -h does not know it", "variable SYSTRACE_FORMAT: mentioned nowhere")
    write_file(os.path.join(root, "docs", "commands", "record.md"), "# systrace record\n\nIO CPU SYSTRACE_FORMAT\n")
    write_file(os.path.join(build, "sysTrace_cli"), "#!/bin/sh\necho ' IO  files'\necho ' CPU  switches'\n")
    expect(tool("check-docs", root), 0)


if __name__ == "__main__":
    main(layers_quiet_on_downward_includes, layers_fires, layers_usage, glibc_fires, safe_fires, format_fires,
         shell_fires, headers_fires, docs_fires)
