#!/usr/bin/env bash
# Makes .venv with the exact versions of constraints.txt, or does nothing if it is up to date.
#
#   PYTHON=/path/to/python3.11      the interpreter to build on; the first Python 3.11+ on the PATH if not set
#   GEMCUT_ACCELERATOR=cpu|cuda     the build of torchrec's kernels; decided by nvidia-smi if not set
#
# .venv holds `.gemcut-unfinished` while it is being made and `.gemcut-ready` once it is whole. A run that finds the first
# starts over; a run that finds the second, with the digest of what was asked for, is done.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv
ready=$venv/.gemcut-ready
unfinished=$venv/.gemcut-unfinished
extras=serving,export,track,plots,demo,benchmarks,dev

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }
pip() { "$venv/bin/python" -m pip --disable-pip-version-check --no-input "$@"; }
# --no-warn-conflicts: without CUDA torchrec misses fbgemm-gpu by intent.
install() { pip install -qq --no-warn-conflicts --constraint constraints.txt "$@"; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3 python}; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
    done
    fail "found no Python 3.11 or newer with the venv module (on Debian: apt-get install python3.11-venv); name one with PYTHON=/path/to/python"
}

accelerator() {
    case "${GEMCUT_ACCELERATOR:-}" in
        cpu | cuda) echo "$GEMCUT_ACCELERATOR" ;;
        "") if nvidia-smi -L >/dev/null 2>&1; then echo cuda; else echo cpu; fi ;;
        *) fail "GEMCUT_ACCELERATOR: expected cpu or cuda; got '$GEMCUT_ACCELERATOR'" ;;
    esac
}

digest() { # of everything that decides what is in .venv
    "$1" -c 'import hashlib, sys
print(hashlib.sha256(b"\0".join(open(path, "rb").read() for path in sys.argv[1:])).hexdigest())' \
        constraints.txt pyproject.toml scripts/setup.sh
}

torch_has_cuda() { "$venv/bin/python" -W ignore -c 'import sys, torch; sys.exit(torch.version.cuda is None)'; }

install_everything() {
    if [ "$1" = cuda ]; then
        install --no-build-isolation --editable ".[train,$extras]"
    else
        install --no-build-isolation --editable ".[train-cpu,$extras]"
        install --no-deps torchrec fbgemm-gpu-cpu # their dependencies: the extra train-cpu
    fi
}

python=$(find_python)
choice=$(accelerator)
want="$choice $(digest "$python")"

# One setup at a time: the lock is on this file and goes with the process.
if command -v flock >/dev/null; then exec 9<scripts/setup.sh && flock 9; fi

have=$(cat "$ready" 2>/dev/null || true)
if [ "$have" = "$want" ]; then exit 0; fi

if [ -e "$venv" ] && [ ! -e "$ready" ] && [ ! -e "$unfinished" ]; then
    fail "$venv was not made by this script; move it away or remove it, then run again"
fi
if [ -e "$unfinished" ] || { [ -n "$have" ] && [ "${have%% *}" != "$choice" ]; }; then
    say "$venv is unfinished or was made for another machine: starting over"
    rm -rf "$venv"
fi

mkdir -p "$venv"
touch "$unfinished"
rm -f "$ready"
if [ ! -x "$venv/bin/python" ]; then
    say "making $venv with $("$python" --version)"
    "$python" -m venv "$venv"
fi
say "installing torch"
install setuptools # the pinned one: it builds gemcut below
install torch      # first and alone: with a driver, the build that pip was given has a say too
kernels=$choice
why=${GEMCUT_ACCELERATOR:+GEMCUT_ACCELERATOR=$choice}
if [ "$choice" = cpu ]; then
    say "the CPU build of torchrec's kernels (fbgemm-gpu-cpu): ${why:-nvidia-smi lists no GPU}"
elif torch_has_cuda; then
    say "the CUDA build of torchrec's kernels (fbgemm-gpu): ${why:-nvidia-smi lists a GPU}"
elif [ -n "${GEMCUT_ACCELERATOR:-}" ]; then
    fail "CUDA was asked for, but the torch that pip was given has none; let pip find a CUDA build of it, or set GEMCUT_ACCELERATOR=cpu"
else
    say "the CPU build of torchrec's kernels (fbgemm-gpu-cpu): nvidia-smi lists a GPU, but the torch that pip was given has no CUDA"
    kernels=cpu
fi
say "installing the rest; a few minutes the first time"
install_everything "$kernels"
say "checking that the native parts load together"
"$venv/bin/python" -W ignore -c 'import torch, fbgemm_gpu, torchrec, onnxruntime, duckdb'

echo "$want" > "$ready"
rm -f "$unfinished"
say "done: $venv is ready"
