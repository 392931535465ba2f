#!/bin/sh
# Usage: sh replicate.sh PROBLEM PLAN
# The plan of somebody without a planner: the whole model on every device, as
# many replicas as divide the batch, the smallest micro-batch. POSIX sh.
set -eu
text=$(tr -d ' \n' <"$1")
number() { printf '%s\n' "$text" | sed -n "s/.*\"$1\":\[*\([0-9]*\).*/\1/p"; }
case $text in *'"preset":'*)  # another one than standard
    answer='"status": "unsupported", "detail": "expected preset standard"'
    echo '{"schema": "nest-answer/1", '"$answer"'}' >"$2"
    exit 0 ;;
esac
batch=$(number global_batch)
micro=$(number micro_batches)  # the first one; left out it is 1
micro=${micro:-1}
replicas=$(number num_devices)
while [ $((batch % (replicas * micro))) -ne 0 ]; do
    replicas=$((replicas - 1))
done
# The ids of "layers":[{"id":…,"kind":…},…], separated by commas.
layers=$(printf '%s\n' "$text" | sed 's/.*"layers":\[\([^]]*\)\].*/\1/' |
    tr '{' '\n' | sed -n 's/.*"id":\([^,}]*\).*/\1/p' | paste -s -d , -)
cat >"$2" <<PLAN
{"schema": "nest-plan/1", "replicas": $replicas, "micro_batch": $micro,
 "stages": [{"layers": [$layers], "devices": 1, "strategy": {}}]}
PLAN
