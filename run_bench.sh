#!/usr/bin/env bash
# One command: environment, run, report.
#
#   ./run_bench.sh [suite options …]   environment, then the default suite on this node (all of bench/run.py's options)
#   ./run_bench.sh setup               environment only
#   ./run_bench.sh test                environment, linters, tests (under 15 minutes on 2 cores)
#   ./run_bench.sh test-slow           environment, the second, longer set of tests
#
# FTBENCH_VENV   folder of the environment (default .venv)
# FTBENCH_RANKS  ranks to start (default: one per GPU; on a CPU machine 2)
set -euo pipefail
cd "$(dirname "$0")"
venv=${FTBENCH_VENV:-$PWD/.venv}
python=$venv/bin/python
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

gpus() { { nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null || true; } | wc -l; }

# A machine with GPUs uses the torch that is installed; a CPU machine takes a CPU build where the index offers one.
make_environment() {
    local stamp; stamp=$(cat pyproject.toml constraints.txt | sha256sum | cut -d' ' -f1)
    [ "$(cat "$venv/.ready" 2>/dev/null || true)" = "$stamp" ] && return
    echo "run_bench: making the environment in $venv (minutes, once)"
    local base=${PYTHON:-python3}
    if [ "$(gpus)" -gt 0 ] && "$base" -c "import torch" 2>/dev/null; then
        "$base" -m venv --system-site-packages "$venv"
    else
        "$base" -m venv "$venv"
    fi
    if ! "$python" -c "import torch" 2>/dev/null; then
        if [ "$(gpus)" -eq 0 ]; then
            "$python" -m pip install -q "torch==2.13.0+cpu" 2>/dev/null || "$python" -m pip install -q "torch==2.13.0"
        else
            "$python" -m pip install -q "torch==2.13.0"
        fi
    fi
    timeout 1800 "$python" -m pip install -q -c constraints.txt -e ".[dev]"
    echo "$stamp" >"$venv/.ready"
}

# deepspeed's launcher wants ssh to localhost for any hostfile; on one node it can do without.
launch() {
    local ranks hostfile
    ranks=${FTBENCH_RANKS:-$(gpus)}
    [ "$ranks" -gt 0 ] || ranks=2
    case $ranks in
        8) hostfile=hostfiles/a100x8 ;;
        2) hostfile=hostfiles/cpu2 ;;
        *) hostfile=$(mktemp); trap 'rm -f "$hostfile"' EXIT; echo "localhost slots=$ranks" >"$hostfile" ;;
    esac
    "$venv/bin/deepspeed" --hostfile "$hostfile" --no_ssh_check --master_addr 127.0.0.1 \
        --master_port "${MASTER_PORT:-29500}" bench/run.py "$@"
}

tests() {
    "$venv/bin/ruff" check .
    "$venv/bin/ruff" format --check .
    "$venv/bin/lint-imports" --no-logo
    "$python" -m pytest "$@"
}

make_environment
export PATH="$venv/bin:$PATH"
case ${1:-} in
    setup) ;;
    test) shift; tests -m "not slow" "$@" ;;
    test-slow) shift; "$python" -m pytest -m slow "$@" ;;
    *) launch "$@" ;;
esac
