#!/bin/sh
# Runs the server half of a run in a process of its own, so that the run outlives a SuperLink that dies and comes back.
set -eu
umask 077
cd @directory
export PATH="@bin:$PATH"  # Flower starts its other programs by name
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_HOME=@directory/state/superexec
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
exec @bin/flower-superexec --runtime-api-address 127.0.0.1:@superlink_port @client_security \
    --superexec-auth-secret-file superexec.secret
