#!/bin/sh
# Half of the reward is for the names, half for the contents.
names=0
contents=0
[ "$(ls files | tr '\n' ' ')" = "notes.txt plain readme " ] && names=1
[ "$(cat files/* 2>/dev/null | sort)" = "$(sort "$TESTS_DIR/contents.txt")" ] && contents=1
reward=$(awk "BEGIN { print ($names + $contents) / 2 }")
echo "{\"reward\": $reward, \"names\": $names, \"contents\": $contents}" > "$VERIFIER_DIR/reward.json"
