#!/bin/sh
# The main job in a few minutes on two cores: gestures are simulated, a network learns them, and is put to use.
# What was done already is not done again: remove runs/quickstart and data/quickstart to begin anew.
set -eu
ripe() {
    printf '\n$ ripe %s\n' "$*"
    "${BIN:-.venv/bin}/ripe" "$@"
}
data=${QUICKSTART_DATA:-data/quickstart} run=${QUICKSTART_RUN:-runs/quickstart}

ripe sim make synthgesture --out "$data" --train "${QUICKSTART_TRAIN:-1320}" --val "${QUICKSTART_VAL:-11}" --test "${QUICKSTART_TEST:-220}"
# shellcheck disable=SC2086  # it holds words
ripe train quickstart --out "$run" --resume auto --set "data.root=$data" ${QUICKSTART_SET:-}
ripe eval "$run" --fused    # other people, speeds and seeds; the deployed form gives the reported number
ripe eval "$run" --shuffle  # the same clips with their time bins in random order: does it use time?
ripe fuse "$run" --out "$run/deployed"
ripe predict "$run/deployed" --held-out 3
printf '\nThe report of the run: %s\n' "$run/report.html"
