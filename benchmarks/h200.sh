#!/usr/bin/env bash
# Everything that is measured on an H200, in parts that fit into calls of ten minutes: tests, train, infer, ops, stream.
# Usage: OUT=folder bash benchmarks/h200.sh [PART …]; all parts in this order unless some are named, for example
#        `tests`, then `train infer`, then `ops stream`.
# A part writes its own files to $OUT while it runs: tests.log, stream.log, and for each benchmark a page (train.md) with
# every number beside that of 2026-11-15 and its documents (train.json). So a part that is stopped keeps what it has.
# Each part has a time limit, and all of them end LIMIT seconds after the start.
# More parts are run when they are named. `studies` makes the open sets (SETS) from the pictures in PICTURES (folders
# cifar10 and caltech101), and runs the STUDIES on each set, JOBS runs at a time, while the next set is made. Runs in
# benchmarks/results/studies and in the results.json files that BEFORE names are not run again. Every set's results go
# to STUDY-SET.json every half minute, so nothing but the runs under way is lost; the next call adds these files.
# STUDY_OPTIONS are further words for `ripe study`. `peers-speed` times all networks, on a GPU that does nothing else.
# `digits` trains on simulated and on real digits (REAL, MNIST: folders), JOBS runs at a time and as many of real ones
# beside them; its table is digits.txt, and the networks trained on simulated digits are kept in digits.tar, to be
# unpacked in WORK on another machine.
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

# One process for each of WORKERS cores: the simulation itself has one thread.
make_set() {
    local images=${PICTURES:-pictures}
    case $1 in
    *cifar10*) images=(--images "$images/cifar10") ;;
    *caltech101*) images=(--images "$images/caltech101") ;;
    *) images=() ;;
    esac
    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 limited 200 "$PYTHON" -m ripe_mambaspike sim make "$1" "${images[@]}" \
        --out "$data/$1" --workers "$2"
}

# The stored results of study $1 that have runs on set $2, as words of `ripe study`.
stored() {
    local file
    for file in "benchmarks/results/studies/$1/results.json" ${BEFORE:-}; do
        [[ -f $file ]] && grep -q "\"study\": \"$1\"" "$file" && grep -q "\"set\": \"$2\"" "$file" && echo --add "$file"
    done
}

study_set() {
    local study left
    for study in $studies; do
        left=$((end - SECONDS - 30)) # for the last step of the runs under way, and their checkpoints
        ((left > 10)) || break
        # shellcheck disable=SC2046
        "$PYTHON" -m ripe_mambaspike study "$study" --on "$1" --root "$data" --out "$work/$1" --jobs "${JOBS:-6}" \
            --limit "$left" $(stored "$study" "$1") ${STUDY_OPTIONS:-} >>"$out/$study-$1.txt" 2>&1 &
        while kill -0 $! 2>/dev/null; do
            sleep 10
            [[ -f $work/$1/$study/results.json ]] && cp "$work/$1/$study/results.json" "$out/$study-$1.json"
        done
        echo "$study on $1: $(grep -c 'top-1' "$out/$study-$1.txt") runs; $(tail -n 1 "$out/$study-$1.txt")"
    done
}

# Several runs share the GPU by MPS. More of them at a time than fill it keep it busy while others are validated.
run_studies() {
    local data=${DATA:-/tmp/sets} work=${WORK:-/tmp/studies} set running=() cores
    local studies=${STUDIES:-peers components sequence-modules attention neuron-mixes tokens time-bins rate-loss}
    cores=$(nproc)
    command -v nvidia-cuda-mps-control >/dev/null && nvidia-cuda-mps-control -d
    for set in ${SETS:-gestures-hard sim-caltech101 sim-cifar10}; do
        make_set "$set" $((${#running[@]} ? (cores + 1) / 2 : cores))
        study_set "$set" &
        running+=($!)
    done
    wait "${running[@]}"
    command -v nvidia-cuda-mps-control >/dev/null && echo quit | nvidia-cuda-mps-control # `peers-speed` has the GPU alone
}

# The runs on real recordings alone are many and small: they share the GPU with the others.
run_digits() {
    local work=${WORK:-/tmp/digits} words left
    words=(--real "${REAL:-real}" --images "${MNIST:-mnist}" --out "$work" --jobs "${JOBS:-5}")
    command -v nvidia-cuda-mps-control >/dev/null && nvidia-cuda-mps-control -d
    limited 60 "$PYTHON" benchmarks/digits.py report "${words[@]}" # both datasets
    left=$((end - SECONDS - 70)) # for the table
    limited $left "$PYTHON" benchmarks/digits.py real "${words[@]}" >"$out/digits-real.txt" 2>&1 &
    limited $left "$PYTHON" benchmarks/digits.py simulated tuned "${words[@]}" >"$out/digits-simulated.txt" 2>&1 &
    while [[ -n $(jobs -rp) ]]; do
        sleep 20
        (cd "$work" && tar cf "$out/digits.tar" simulated/*/{best,recipe.yaml,result.json,log.csv} 2>/dev/null)
    done
    limited 60 "$PYTHON" benchmarks/digits.py report "${words[@]}" >"$out/digits.txt" 2>&1
    cp "$work/results.json" "$out/digits.json"
    command -v nvidia-cuda-mps-control >/dev/null && echo quit | nvidia-cuda-mps-control
}

for part in ${@:-tests train infer ops stream}; do
    case $part in
    tests) limited 540 bash benchmarks/gpu_tests.sh "$out/tests.log" ;;
    train) table train 360 train ;;
    infer) table infer 240 infer ;;
    ops) table ops 360 ops scan ;;
    stream) limited 90 "$PYTHON" -m benchmarks.stream --device cuda --minutes 0.2 2>&1 | tee "$out/stream.log" ;;
    studies) run_studies ;;
    digits) run_digits ;;
    peers-speed)
        limited 300 "$PYTHON" benchmarks/peers_speed.py --out "$out/speed.json" --devices cuda --repeats 20 \
            --sets sim-cifar10 gestures-hard # sim-caltech101 has the size of sim-cifar10
        ;;
    *) echo "$part: expected one of tests, train, infer, ops, stream, studies, digits, peers-speed" && exit 2 ;;
    esac
done
