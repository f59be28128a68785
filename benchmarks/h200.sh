#!/usr/bin/env bash
# Everything that is measured on an H200, in parts that fit into calls of ten minutes: tests, train, infer, ops, stream.
# Usage: OUT=folder bash benchmarks/h200.sh [PART …]; all parts in this order unless some are named, for example
#        `tests`, then `train infer`, then `ops stream`.
# A part writes its own files to $OUT while it runs: tests.log, stream.log, and for each benchmark a page (train.md) with
# every number beside that of 2026-11-15 and its documents (train.json). So a part that is stopped keeps what it has.
# Each part has a time limit, and all of them end LIMIT seconds after the start.
# More parts are run when they are named. `studies` makes the open sets from the pictures in PICTURES (folders cifar10 and
# caltech101), and runs STUDIES, JOBS runs at a time on each set, while the next set is made. A study is
# NAME[:SEEDS][@SET,SET...]; its own seeds and sets by default, of which SETS leaves some out. `studies-plan` says what is
# left to run and how long it takes, and needs no GPU. Runs in benchmarks/results/studies and in the files that BEFORE
# names (results.json, or studies.tgz of an earlier call) are not run again. studies.tgz has all results so far, those of
# BEFORE among them, and is written every 20 s. No run is begun that would not end in time, so no call loses one.
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

# The lines "SET STUDY SEEDS RUNS" of what is left to run; how long it takes goes to standard error.
study_calls() {
    # shellcheck disable=SC2086
    "$PYTHON" -m benchmarks.study_calls $studies --out "$work" ${SETS:+--sets $SETS} ${BEFORE:+--earlier $BEFORE}
}

sets_of() { cut -d ' ' -f 1 <<<"$1" | sort -u; }

# All results so far in one file, since a call brings back few of them.
pack_results() {
    local file study set
    for set in $(sets_of "$todo"); do
        for file in "$work/$set"/*/results.json; do
            study=$(basename "$(dirname "$file")")
            [[ -f $file ]] && cp "$file" "$work/results/$study-$set-$stamp.json"
        done
        cp "$work/$set"/*-"$stamp".txt "$work/results" 2>/dev/null
    done
    tar czf "$out/studies.new" -C "$work/results" . && mv "$out/studies.new" "$out/studies.tgz"
}

# The studies of set $1, one after the other.
study_set() {
    local set study seeds runs left log
    while read -r set study seeds runs; do
        [[ $set == "$1" ]] || continue
        left=$((end - SECONDS - 40)) # for the last step of runs that take longer than expected, tables and figures
        ((left > 10)) || break
        log="$work/$set/$study-$set-$stamp.txt"
        # shellcheck disable=SC2086
        "$PYTHON" -m ripe_mambaspike study "$study" --on "$set" --seeds "$seeds" --root "$data" --out "$work/$set" \
            --jobs "${JOBS:-4}" --limit "$left" --whole-runs ${STUDY_OPTIONS:-} </dev/null >>"$log" 2>&1
        echo "$study on $set: $(grep -c 'top-1 [0-9]' "$log") of $runs runs; $(tail -n 1 "$log")"
    done <<<"$todo"
}

# By MPS; `peers-speed` has the GPU alone.
share_gpu() { if command -v nvidia-cuda-mps-control >/dev/null; then nvidia-cuda-mps-control -d; fi; }
unshare_gpu() { if command -v nvidia-cuda-mps-control >/dev/null; then echo quit | nvidia-cuda-mps-control; fi; }

# Several runs share the GPU. More of them at a time than fill it keep it busy while others are validated.
run_studies() {
    local data=${DATA:-/tmp/sets} work=${WORK:-/tmp/studies} stamp set running=() cores todo packer
    local studies=${STUDIES:-peers components sequence-modules attention neuron-mixes tokens time-bins rate-loss}
    stamp=$(date -u +%Y%m%d-%H%M%S)
    cores=$(nproc)
    mkdir -p "$work/results"
    todo=$(study_calls) || return
    [[ $1 == plan ]] && return
    share_gpu
    while sleep 20; do pack_results; done &
    packer=$!
    for set in $(sets_of "$todo"); do
        make_set "$set" $((${#running[@]} ? (cores + 1) / 2 : cores))
        study_set "$set" &
        running+=($!)
    done
    ((${#running[@]})) && wait "${running[@]}"
    kill $packer
    wait $packer 2>/dev/null
    pack_results
    unshare_gpu
}

# The runs on real recordings alone are many and small: they share the GPU with the others.
run_digits() {
    local work=${WORK:-/tmp/digits} words left
    words=(--real "${REAL:-real}" --images "${MNIST:-mnist}" --out "$work" --jobs "${JOBS:-5}")
    share_gpu
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
    unshare_gpu
}

for part in ${@:-tests train infer ops stream}; do
    case $part in
    tests) limited 540 bash benchmarks/gpu_tests.sh "$out/tests.log" ;;
    train) table train 360 train ;;
    infer) table infer 240 infer ;;
    ops) table ops 360 ops scan ;;
    stream) limited 90 "$PYTHON" -m benchmarks.stream --device cuda --minutes 0.2 2>&1 | tee "$out/stream.log" ;;
    studies) run_studies all ;;
    studies-plan) run_studies plan ;;
    digits) run_digits ;;
    peers-speed)
        limited 300 "$PYTHON" benchmarks/peers_speed.py --out "$out/speed.json" --devices cuda --repeats 20 \
            --sets sim-cifar10 gestures-hard # sim-caltech101 has the size of sim-cifar10
        ;;
    *) echo "$part: expected one of tests, train, infer, ops, stream, studies, studies-plan, digits, peers-speed" && exit 2 ;;
    esac
done
