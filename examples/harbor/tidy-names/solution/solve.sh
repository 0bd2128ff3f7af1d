#!/bin/sh
cd files || exit 1
for name in *; do
    small=$(echo "$name" | tr 'A-Z' 'a-z')
    [ "$small" = "$name" ] || mv "$name" "$small"
done
