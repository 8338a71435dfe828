#!/bin/sh
# The meeting point of coordinator and sites. It listens on loopback; sites come through the reverse proxy.
set -eu
umask 077
cd @directory
export PATH="@bin:$PATH"  # Flower starts its other programs by name
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_HOME=@directory/state/superlink
exec @bin/flower-superlink --host 127.0.0.1 --port @superlink_port @superlink_security \
    --database state/superlink.db --isolation process --superexec-auth-secret-file superexec.secret \
    --disable-runtime-dependency-installation
