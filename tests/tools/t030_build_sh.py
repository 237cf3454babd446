# SPDX-License-Identifier: MulanPSL-2.0
"""build.sh as users meet it: usage errors, and an installation that leaves mapped files alone."""
# runner: alone

import os
import shutil
import stat
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from harness import ROOT, check, check_equal, main, read_file, run, tmpdir, write_file


def build_sh(*args, root=ROOT, **kwargs):
    return run(["bash", os.path.join(root, "build.sh"), *args], **kwargs)


def project():
    """A copy of the build files with an agent of one function."""
    root = tmpdir()
    for name in ("CMakeLists.txt", "LICENSE", "build.sh"):
        shutil.copy(os.path.join(ROOT, name), root)
    for name in ("tools", "config", "packaging"):
        shutil.copytree(os.path.join(ROOT, name), os.path.join(root, name))
    write_file(os.path.join(root, "cmake", "products.cmake"),
               "add_library(sysTrace SHARED src/agent/a.c)\ntarget_link_libraries(sysTrace PRIVATE st_flags)\n"
               "install(TARGETS sysTrace LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})\n")
    write_file(os.path.join(root, "src", "agent", "a.c"),
               "__attribute__((visibility(\"default\"))) const char *format_of(void);\n"
               "const char *format_of(void)\n{\n\treturn \"format:\" ST_DEFAULT_FORMAT \" python:\" "
               "ST_DEFAULT_PYTHON_TRACING;\n}\n")
    write_file(os.path.join(root, "include", "systrace", "a.h"), "int a;\n")
    write_file(os.path.join(root, "src", "wire", "proto", "systrace.proto"), "syntax = \"proto3\";\n")
    return root


def usage_errors():
    for args, want in ((["--frob"], "unknown option '--frob'"), (["frob"], "unknown command 'frob'"),
                       (["--mode=xml"], "it is pb or json"), (["--mode"], "needs a value"),
                       (["--python-tracing=maybe"], "it is on or off"), (["--full"], "--full belongs to test"),
                       (["--quick"], "--quick belongs to bench"),
                       (["test", "--asan"], "--asan belongs to build"), (["--asan", "--tsan"], "exclude each other"),
                       (["build", "test"], "two commands")):
        result = build_sh(*args).ok(2)
        check(want in result.err and "usage: bash build.sh" in result.err, "%r" % result)
    check("--python-tracing=on|off" in build_sh("--help").ok().out, "help lists the options")


def modes_reach_the_library():
    root = project()
    library = os.path.join(root, "build", "libsysTrace.so")
    for args, want in (([], "format:pb python:on"), (["--mode=json"], "format:json python:on"),
                       (["--python-tracing=off", "--mode", "pb"], "format:pb python:off")):
        build_sh("--no-deps", *args, root=root, timeout=120).ok()
        check(want in read_file(library), "build.sh %s: %s is not in the library" % (" ".join(args), want))
    build_sh("--clean", root=root).ok()
    check(not os.path.exists(os.path.join(root, "build")), "--clean alone cleans")


def install_replaces_and_never_overwrites():
    root = project()
    prefix = os.path.join(tmpdir(), "with blank")
    build_sh("install", "--no-deps", "--prefix", prefix, root=root, timeout=120).ok()
    library = os.path.join(prefix, "lib", "libsysTrace.so")
    for name in ("lib/libsysTrace.so", "include/systrace/a.h", "share/systrace/systrace.proto"):
        check(os.path.exists(os.path.join(prefix, name)), "%s is installed" % name)
    mapped = open(library, "rb")
    before = os.fstat(mapped.fileno())
    build_sh("install", "--no-deps", "--mode=json", "--prefix", prefix, root=root, timeout=120).ok()
    after = os.stat(library)
    check(after.st_ino != before.st_ino, "the library is a new file")
    check(b"format:pb" in mapped.read(), "the old file kept its contents")
    check(stat.S_IMODE(after.st_mode) & 0o444 == 0o444, "everybody can read the library")
    mapped.close()
    left = [f for _, _, files in os.walk(prefix) for f in files if f.startswith(".")]
    check_equal(left, [], "files left over")
    check("format:json" in read_file(library), "the new file is the new build")


def install_deps_tells_what_it_would_do():
    run([os.path.join(ROOT, "tools", "install-deps"), "frob"]).ok(2)
    # a machine where nothing is: no package manager, no programs but those the script itself uses
    bare = tmpdir()
    for program in ("bash", "id", "cat", "uname", "env"):
        os.symlink(shutil.which(program), os.path.join(bare, program))
    result = run([os.path.join(ROOT, "tools", "install-deps"), "build"], env={"PATH": bare})
    result.ok(1)
    check("neither apt-get nor dnf nor yum is here" in result.out and "cmake (rpm: cmake), required" in result.out,
          "%r" % result)


if __name__ == "__main__":
    main(usage_errors, modes_reach_the_library, install_replaces_and_never_overwrites,
         install_deps_tells_what_it_would_do)
