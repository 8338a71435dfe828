#!/bin/sh
# Takes part in the federation as @name.     usage: ./join.sh SITE     (a Python file, or module:function)
# PORT is where this node's own processes meet, on loopback; choose another if it is taken.
set -eu
umask 077
test $# = 1 || { echo "usage: $0 SITE" >&2; exit 2; }
case $1 in
    /*) site=$1 ;;
    *.py|*.py:*) site=$PWD/$1 ;;
    *) site=$1 ;;
esac
cd "$(dirname "$0")"
@key_check
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_HOME="$PWD/flwr"
exec flower-supernode --superlink @address @node_security --host 127.0.0.1 --port "${PORT:-@runtime_port}" \
    --node-config "client-id=@client federation=\"$PWD/federation.toml\" site=\"$site\" state-dir=\"$PWD/state\""
