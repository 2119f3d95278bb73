#!/bin/sh
# MLflow 3.17.2: a metric that is infinite comes back from a SQL store as the largest finite double.
#
# log_metric accepts infinity, and NaN comes back as NaN. But infinity is stored as 1.7976931348623157e+308 and
# returned so, so that the mean of some seeds is 8.99e+307 and a run that diverged may rank first. A reader has to
# take values of this size for infinite again.
#
# Output seen:
#   mlflow 3.17.2
#   inf comes back as 1.7976931348623157e+308
#   nan comes back as nan
#
# Seen on 2026-11-29 with Python 3.11. Ends with another exit code than 0 if the behaviour has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check mlflow==3.17.2
cd "$folder"
"$folder/env/bin/python" - <<'PYTHON'
import math
import os
import sys

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
import mlflow

mlflow.set_tracking_uri("sqlite:///store.db")
mlflow.set_experiment("infinite")
with mlflow.start_run() as run:
    mlflow.log_metric("perplexity", math.inf)
    mlflow.log_metric("ratio", math.nan)
metrics = mlflow.get_run(run.info.run_id).data.metrics
print("mlflow", mlflow.__version__)
print("inf comes back as", metrics["perplexity"])
print("nan comes back as", metrics["ratio"])
assert metrics["perplexity"] == sys.float_info.max
assert math.isnan(metrics["ratio"])
PYTHON
