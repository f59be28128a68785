#!/bin/sh
# The main job in a few minutes on two cores: gestures are simulated, a network learns them, and is put to use.
# What was done already is not done again: remove runs/quickstart and data/quickstart to begin anew.
set -eu
ripe() {
    printf '\n$ ripe %s\n' "$*"
    "${BIN:-.venv/bin}/ripe" "$@"
}
data=${DATA:-data/quickstart} run=${RUN:-runs/quickstart}

ripe sim make synthgesture --out "$data" --train "${TRAIN:-1320}" --val "${VAL:-11}" --test "${TEST:-220}"
# shellcheck disable=SC2086  # SET holds words
ripe train quickstart --out "$run" --resume auto --set "data.root=$data" ${SET:-}
ripe eval "$run" --fused    # other people, speeds and seeds; the deployed form gives the reported number
ripe eval "$run" --shuffle  # the same clips with their time bins in random order: does it use time?
ripe fuse "$run" --out "$run/deployed"
ripe predict "$run/deployed" --held-out 3
printf '\nThe report of the run: %s\n' "$run/report.html"
