#!/bin/sh
# Tests find their places by variables, so this task runs in any box.
if [ "$(cat answer.txt 2>/dev/null)" = "$(cat "$TESTS_DIR/expected.txt")" ]; then
    echo 1 > "$VERIFIER_DIR/reward.txt"
else
    echo 0 > "$VERIFIER_DIR/reward.txt"
fi
