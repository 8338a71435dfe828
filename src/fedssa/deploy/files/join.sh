#!/bin/sh
# Takes part in the federation as @name.     usage: ./join.sh SITE     (a Python file, or module:function)
# PORT is where this node's own processes meet, on loopback; choose another if it is taken.
set -eu
umask 077
test $# = 1 || { echo "usage: $0 SITE" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
exec fedssa site run "$1" --name @name --superlink @address --federation "$here/federation.toml" \
    --state-dir "$here/state" @node_security --port "${PORT:-@runtime_port}"
