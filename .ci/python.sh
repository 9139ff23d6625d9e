#!/usr/bin/env bash
# Prints the interpreter that the virtual environment is made with.
#   python.sh [PYTHON]   the one that is named, or the fastest one of the first version below that there is; of those
#                        that can make one as they are, if any can
# Builds of one version differ: one without profile-guided optimisation, as tools that build from source make it by
# default, took 1.4 times as long as Debian's for everything, tests and benches included.
set -euo pipefail

VERSIONS=(python3.11 python3.12 python3.13 python3.14 python3)

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

# The processor time of some plain work, in microseconds: the least of several, so that others' work does not count.
took_us() {
    "$1" -c '
import time

class Pair:
    __slots__ = ("a", "b")

    def __init__(self, a, b):
        self.a, self.b = a, b

    def sum(self):
        return self.a + self.b

def work():
    began, kept = time.process_time_ns(), {}
    for number in range(20_000):
        pair = Pair(number, number + 1)
        kept[number & 255] = (pair, pair.sum())
    return time.process_time_ns() - began

print(min(work() for _ in range(20)) // 1000)'
}

can_make_environments() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null
}

# fastest CONDITION NAME: of all that are called so and meet it; nothing if there is none.
fastest() {
    local path us best="" best_us=0
    while read -r path; do
        is_new_enough "$path" && "$1" "$path" || continue
        us=$(took_us "$path") || continue
        # By a twentieth at least: the same one may be found by two paths.
        if [ -z "$best" ] || [ $((20 * us)) -lt $((19 * best_us)) ]; then
            best=$path best_us=$us
        fi
    done < <(type -aP "$2" || true)
    echo "$best"
}

if [ -n "${1:-}" ]; then
    if ! is_new_enough "$1"; then
        echo "Viewtide needs Python 3.11 or newer; $1 is not, or cannot be run. Name another one: make PYTHON=..." >&2
        exit 1
    fi
    echo "$1"
    exit
fi
for condition in can_make_environments true; do
    for name in "${VERSIONS[@]}"; do
        found=$(fastest "$condition" "$name")
        if [ -n "$found" ]; then
            echo "$found"
            exit
        fi
    done
done
echo "Viewtide needs Python 3.11 or newer, and none was found. Install it (Debian: apt-get install python3)," \
    "or name it: make PYTHON=/path/to/python3.11 ..." >&2
exit 1
