#!/usr/bin/env bash
# SPDX-License-Identifier: MulanPSL-2.0
# The one entry: build, demo, tests, benches, installation. Wraps CMake and installs missing packages through
# tools/install-deps; docs/build.md describes it. Exit status: 0 done, 1 failed, 2 wrong usage.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
jobs=${ST_JOBS:-$(nproc)}

usage() {
	cat <<'EOF'
usage: bash build.sh [COMMAND] [OPTIONS]

commands
  build     build libsysTrace.so, sysTrace_cli and systrace into build/ (the default)
  demo      set up, build, and run examples/demo.py; words after it go to the demo
  test      set up, build with gcc and clang, run every test and check
  bench     build and run the benches; words after it choose them by name
  install   build and install

options
  --mode=pb|json             default format of the agent's files (pb)
  --python-tracing=on|off    trace Python stages by default (on)
  --asan                     build with address and undefined behaviour sanitizers into build-asan/
  --tsan                     build with the thread sanitizer into build-tsan/
  --clean                    delete the build directories first; alone: only that
  --no-deps                  install no packages
  --quick                    bench: shorter runs, all of them in less than ten minutes
  --full                     test: also the long tests and the aarch64 build
  --only PATTERN             test: only tests whose name contains PATTERN
  --prefix DIR               install: where to (/usr/local); DESTDIR is honoured
  -h, --help                 this text
EOF
}

die() { echo "build.sh: $*" >&2; exit 1; }

wrong_usage() {
	echo "build.sh: $*" >&2
	usage >&2
	exit 2
}

command=
mode=pb
python_tracing=on
variant=
clean=no
deps=yes
prefix=/usr/local
full=no
quick=no
only=
words=()

# value OPTION [NEXT] - the value of --option=value or --option value; sets $value and $used (words eaten)
value() {
	if [[ $1 == *=* ]]; then
		value=${1#*=}
		used=1
	elif [ $# -gt 1 ]; then
		value=$2
		used=2
	else
		wrong_usage "$1 needs a value"
	fi
	[ -n "$value" ] || wrong_usage "${1%%=*} needs a value"
}

while [ $# -gt 0 ]; do
	used=1
	case $1 in
	build | test | install)
		[ -z "$command" ] || wrong_usage "'$command' and '$1' are two commands, give one"
		command=$1
		;;
	demo)
		[ -z "$command" ] || wrong_usage "'$command' and '$1' are two commands, give one"
		command=$1
		shift
		words=("$@")
		break
		;;
	bench)
		[ -z "$command" ] || wrong_usage "'$command' and '$1' are two commands, give one"
		command=$1
		;;
	--mode | --mode=*)
		value "$@"
		mode=$value
		[[ $mode == pb || $mode == json ]] || wrong_usage "--mode=$mode: it is pb or json"
		;;
	--python-tracing | --python-tracing=*)
		value "$@"
		python_tracing=$value
		[[ $python_tracing == on || $python_tracing == off ]] || wrong_usage "--python-tracing=$python_tracing: it is on or off"
		;;
	--asan | --tsan)
		[[ -z $variant || $variant == "${1#--}" ]] || wrong_usage "--asan and --tsan exclude each other"
		variant=${1#--}
		;;
	--clean) clean=yes ;;
	--no-deps) deps=no ;;
	--quick) quick=yes ;;
	--full) full=yes ;;
	--only | --only=*)
		value "$@"
		only=$value
		;;
	--prefix | --prefix=*)
		value "$@"
		prefix=$value
		;;
	-h | --help)
		usage
		exit 0
		;;
	-*) wrong_usage "unknown option '$1'" ;;
	*)
		[ "$command" = bench ] || wrong_usage "unknown command '$1'"
		words+=("$1")
		;;
	esac
	shift $used
done

[[ $quick == no || $command == bench ]] || wrong_usage "--quick belongs to bench"
[[ $full == no || $command == test ]] || wrong_usage "--full belongs to test"
[[ -z $only || $command == test ]] || wrong_usage "--only belongs to test"
[[ -z $variant || -z $command || $command == build ]] || wrong_usage "--$variant belongs to build"
case $prefix in /*) ;; *) prefix=$PWD/$prefix ;; esac

cd "$root"

if [ $clean = yes ]; then
	rm -rf build build-clang build-asan build-tsan build-fuzz build-minimal build-aarch64
	# "build.sh --clean" alone cleans; with anything else the work goes on from nothing
	if [[ -z $command && -z $variant && $mode == pb && $python_tracing == on ]]; then
		exit 0
	fi
fi
command=${command:-build}

setup() { [ $deps = no ] || tools/install-deps "$@"; }

# configure DIR [CMAKE ARGUMENTS] - only a compiler that was chosen on purpose overrides gcc
configure() {
	local dir=$1
	shift
	if [ -e "$dir/CMakeCache.txt" ] && ! grep -q '^CMAKE_GENERATOR:INTERNAL=Ninja$' "$dir/CMakeCache.txt"; then
		die "$dir was configured with another generator; run: bash build.sh --clean"
	fi
	cmake -S . -B "$dir" -G Ninja -DCMAKE_C_COMPILER="${CC:-gcc}" -DST_MODE="$mode" \
		-DST_PYTHON_TRACING="$python_tracing" "$@" >"$dir.log" 2>&1 || {
		cat "$dir.log" >&2
		rm -f "$dir.log"
		die "cmake failed"
	}
	grep 'off without it' "$dir.log" | sed 's/^-- /build.sh: /' || true
	mv "$dir.log" "$dir/configure.log"
}

build() {
	case $variant in
	asan) configure build-asan -DST_SANITIZE=address,undefined -DST_FAULTS=ON && ninja -C build-asan -j "$jobs" ;;
	tsan) configure build-tsan -DST_SANITIZE=thread -DST_FAULTS=ON && ninja -C build-tsan -j "$jobs" ;;
	*) configure build && ninja -C build -j "$jobs" ;;
	esac
}

# The demo's PyTorch belongs to the system's Python; $PYTHON chooses another.
demo() {
	local python=${PYTHON:-/usr/bin/python3}
	[ -e examples/demo.py ] || die "examples/demo.py is missing"
	[ -x "$python" ] || python=python3
	ST_BUILD=$root/build exec "$python" examples/demo.py "$@"
}

# bench_arguments FILE - what a bench is called with, one run a line; --quick keeps all of them together under ten minutes
bench_arguments() {
	case $1:$quick in
	bench_overhead.py:yes) echo "--blocks 120" ;;
	bench_hour.py:yes) printf '%s\n' "--seconds 25" "--seconds 25 --collectives 10 --markers" ;;
	bench_hour.py:no) printf '%s\n' "" "--collectives 10 --markers" ;;
	bench_record.py:yes) echo "--seconds 2 --rates 200000,1000000" ;;
	bench_ftrace.py:yes) echo "--build build --events 300000 --times 1" ;;
	bench_analyze_sched.py:yes) echo "--seconds 1" ;;
	*) echo ;;
	esac
}

# bench NAME... - all of them, or those whose name contains one of the words; one that fails does not stop the others
bench() {
	local file name word chosen line ran=0 failed=()
	ninja -C build -j "$jobs" benches
	for file in build/bench_* bench/bench_*.py; do
		name=$(basename "$file")
		# a program with a script of the same name is that script's helper
		[[ -f $file && ! -f bench/$name.py ]] || continue
		chosen=$([ $# = 0 ] && echo yes || echo no)
		for word in "$@"; do
			[[ $name != *"$word"* ]] || chosen=yes
		done
		[ "$chosen" = yes ] || continue
		while IFS= read -r line; do
			echo "== $name${line:+ $line}"
			local call=("$file")
			[[ $file != *.py ]] || call=(python3 "$file")
			# shellcheck disable=SC2206  # words of our own table
			call+=($line)
			ST_BUILD=$root/build "${call[@]}" </dev/null || {
				local status=$?
				[ $status = 77 ] || failed+=("$name (status $status)")
			}
		done < <(bench_arguments "$name")
		ran=$((ran + 1))
	done
	[ $ran -gt 0 ] || die "no bench matches"
	[ ${#failed[@]} = 0 ] || die "failed: ${failed[*]}"
}

# A running job may have the library mapped: a new file is written beside the old one and renamed over it, so the old
# contents stay as they are for whoever uses them.
install_files() {
	local stage target file part
	stage=$(mktemp -d "${TMPDIR:-/tmp}/systrace-install.XXXXXX")
	# shellcheck disable=SC2064  # the name is to be expanded now
	trap "rm -rf '$stage'" EXIT
	DESTDIR=$stage cmake --install build --prefix "$prefix" >/dev/null
	while IFS= read -r file; do
		target=${DESTDIR:-}/${file#"$stage"/}
		mkdir -p "$(dirname "$target")" || die "cannot create $(dirname "$target")"
		part=$(dirname "$target")/.$(basename "$target").$$
		if ! cp -dp "$file" "$part" || ! mv -fT "$part" "$target"; then
			rm -f "$part"
			die "cannot write $target"
		fi
		echo "installed $target"
	done < <(find "$stage" -type f -o -type l | sort)
}

case $command in
build)
	setup build
	build
	;;
demo)
	setup build demo
	build
	demo "${words[@]}"
	;;
test)
	groups=(build test demo)
	[ $full = no ] || groups+=(cross viewer)
	setup "${groups[@]}"
	arguments=()
	[ $full = no ] || arguments+=(--full)
	[ -z "$only" ] || arguments+=(--only "$only")
	exec python3 tools/run-tests "${arguments[@]}"
	;;
bench)
	setup build
	build
	bench "${words[@]}"
	;;
install)
	setup build
	build
	install_files
	;;
esac
