#!/usr/bin/env bash
# Everything that is measured on an H200, in parts that fit into calls of ten minutes: tests, train, infer, ops, stream.
# Usage: OUT=folder bash benchmarks/h200.sh [PART …]; all parts in this order unless some are named, for example
#        `tests`, then `train infer`, then `ops stream`.
# A part writes its own files to $OUT while it runs: tests.log, stream.log, and for each benchmark a page (train.md) with
# every number beside that of 2026-11-15 and its documents (train.json). So a part that is stopped keeps what it has.
# Each part has a time limit, and all of them end LIMIT seconds after the start.
# Two more parts are run when they are named: `sets` makes the open sets in DATA from the pictures in PICTURES (folders
# cifar10 and caltech101), `studies` runs the STUDIES (all of them by default) on DATA, JOBS runs at a time, and packs
# what a later call needs to continue (runs without their networks) into studies.tgz; it is unpacked first if it is in
# BEFORE.
set -u
out=${OUT:?a folder for the results}
end=$((SECONDS + ${LIMIT:-570}))
export PYTHON=${PYTHON:-python3} PYTHONUNBUFFERED=1 ${COMMIT:+RIPE_COMMIT="$COMMIT"}
export PYTHONPATH="$PWD/src:$PWD:$PWD/_site${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$out"

# limited SECONDS COMMAND …: run it until its own limit or the end, and say how it went.
limited() {
    local start=$SECONDS left=$((end - SECONDS))
    local seconds=$(($1 < left ? $1 : left))
    shift
    if ((seconds < 10)); then
        echo "not run, no time is left: $*"
        return
    fi
    timeout --kill-after=10 "$seconds" "$@"
    echo "exit code $? after $((SECONDS - start)) s: $*"
}

# table NAME SECONDS COMMANDS …: benchmarks by the first words of their names, to NAME.md and NAME.json.
table() {
    limited "$2" "$PYTHON" benchmarks/results_table.py --device cuda --quick --out "$out/$1" --only "${@:3}" \
        --against benchmarks/results/2026-11-15-h200.json ${COMMIT:+--commit "$COMMIT"}
}

# One process a core: the simulation itself has one thread.
make_sets() {
    export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
    local data=${DATA:?a folder for the sets} pictures=${PICTURES:?the folder of cifar10 and caltech101}
    limited 120 "$PYTHON" -m ripe_mambaspike sim make sim-cifar10 --images "$pictures/cifar10" --out "$data/sim-cifar10"
    limited 120 "$PYTHON" -m ripe_mambaspike sim make sim-caltech101 --images "$pictures/caltech101" \
        --out "$data/sim-caltech101"
    limited 120 "$PYTHON" -m ripe_mambaspike sim make gestures-hard --out "$data/gestures-hard"
}

# Several runs share the GPU by MPS; a study that is stopped keeps the runs that have ended.
run_studies() {
    local data=${DATA:?the folder of the sets} work=${WORK:-/tmp/studies} study
    mkdir -p "$work"
    [[ -n ${BEFORE:-} ]] && tar xzf "$BEFORE" -C "$work"
    nvidia-cuda-mps-control -d
    (sleep 30 && echo "MPS servers: $(echo get_server_list | nvidia-cuda-mps-control)") & # none: runs take turns
    for study in ${STUDIES:-peers components sequence-modules attention neuron-mixes tokens time-bins rate-loss}; do
        limited 570 "$PYTHON" -m ripe_mambaspike study "$study" --root "$data" --out "$work" --jobs "${JOBS:-6}" \
            --limit $((end - SECONDS > 40 ? end - SECONDS - 40 : 1)) >"$out/$study.txt" 2>&1
        tail -n 5 "$out/$study.txt"
    done
    tar czf "$out/studies.tgz" -C "$work" --exclude=best --exclude=last --exclude=checkpoints --exclude='*.tfevents*' .
}

for part in ${@:-tests train infer ops stream}; do
    case $part in
    tests) limited 540 bash benchmarks/gpu_tests.sh "$out/tests.log" ;;
    train) table train 360 train ;;
    infer) table infer 240 infer ;;
    ops) table ops 360 ops scan ;;
    stream) limited 90 "$PYTHON" -m benchmarks.stream --device cuda --minutes 0.2 2>&1 | tee "$out/stream.log" ;;
    sets) make_sets ;;
    studies) run_studies ;;
    *) echo "$part: expected one of tests, train, infer, ops, stream, sets, studies" && exit 2 ;;
    esac
done
