#!/usr/bin/env bash
# Everything that is measured on an H200, in at most nine minutes: inference, training, operators, streams and the tests.
# Usage: OUT=folder bash benchmarks/h200.sh
# Writes to $OUT: h200.md (the page, with every number beside that of 2026-11-15), h200.json, stream.log, tests.log and
# summary.log. Stops each part at its time limit; the tests come last and take what is left of LIMIT seconds.
set -u
out=${OUT:?a folder for the results}
limit=${LIMIT:-540}
python=${PYTHON:-python3}
export PYTHONPATH="$PWD/src:$PWD:$PWD/_site${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
mkdir -p "$out"
begin=$SECONDS

# part NAME SECONDS COMMAND…: run it, keep its output in NAME.log, and note its exit code and duration.
part() {
    local name=$1 seconds=$2 start=$SECONDS
    shift 2
    timeout --kill-after=10 "$seconds" "$@" >"$out/$name.log" 2>&1
    echo "$name: exit code $?, $((SECONDS - start)) s" | tee -a "$out/summary.log"
}

table() {
    part "$1" "$2" "$python" benchmarks/results_table.py --device cuda --quick --out "$out/h200" "${@:3}" \
        --against benchmarks/results/2026-11-15-h200.json ${COMMIT:+--commit "$COMMIT"}
}

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | tee "$out/summary.log"
table table 300 --only infer train
part stream 40 "$python" -m benchmarks.stream --device cuda --minutes 0.2
part tests $((limit - (SECONDS - begin) - 60)) "$python" -m pytest -m gpu -n "${WORKERS:-4}" --dist worksteal -v -rf --tb=short
table operators $((limit - (SECONDS - begin))) --only ops --onto "$out/h200.json"

cat "$out/table.log" "$out/operators.log" "$out/stream.log"
grep -E "^(FAILED|ERROR)|passed|failed" "$out/tests.log" | tail -60
cat "$out/summary.log"
rm -f "$out/table.log" "$out/operators.log"
