#!/usr/bin/env bash
# Run the tests that need a GPU and keep a log that starts with the date, the commit and the GPU, and names every test.
# Usage: bash benchmarks/gpu_tests.sh [LOG]; the log is benchmarks/results/DATE-gpu-tests.log unless given.
# PYTHON is the interpreter, WORKERS the number of processes, COMMIT the commit where the checkout does not know it.
set -uo pipefail
log=${1:-benchmarks/results/$(date -u +%F)-gpu-tests.log}
mkdir -p "$(dirname "$log")"
{
    echo "$(date -u '+%F %H:%M UTC'), commit ${COMMIT:-$(git rev-parse --short HEAD)}"
    nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
    "${PYTHON:-python3}" -m pytest -m gpu -n "${WORKERS:-8}" --dist worksteal -vv -rf --tb=short
} 2>&1 | tee "$log"
